"""A run as data: what anybody may know of it (`PublicRun`), inside what its server knows (`Run`).

Whatever is in no public type cannot leave the server: `publish` is given a `PublicRun`, and so are
the statement, the page and the figures. These types hold facts (what was set, measured in public,
released) and claims (epsilons). Whatever follows from them stands nowhere: the words of a
statement, an arm's rule and rounds, sums over rounds, bytes. A text in them is checked: a name, a
hash, or one of the program's words.

A record has one form in JSON, `plain`, and `public_run` reads nothing else: a field that is not
known or has its default is refused, and so is a number of another kind.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, structs

from locksfl._tables import or_null
from locksfl.arm import MOST_ROUNDS, Noise
from locksfl.experiment.config import Config, to_table
from locksfl.methods.events import AnyEvent, Rounds, whole
from locksfl.methods.releases import OBSERVERS, ChargedBy, Observer, Relation, as_float
from locksfl.privacy import Cost as CostFound
from locksfl.privacy.population import Total

FORMAT: Literal[3] = 3  # of a statement; those of 0.1 had no format and no terms
MULTIPLIERS = (1e-6, 1e9)  # beyond these an accountant's arithmetic fails
CALLED = ("name", "run", "observer", "relation")  # what tells the elements of a list apart

Name = Annotated[str, Meta(pattern=r"^[\w.-]{1,100}(?![\s\S])")]  # it may name a file
RunName = Annotated[
    str, Meta(pattern=r"^[\w.-]{1,100} [0-9a-f]{8}(?![\s\S])")
]  # in a journal of runs
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}(?![\s\S])")]
Ed25519 = Annotated[str, Meta(pattern=r"^[0-9a-f]{128}(?![\s\S])")]
Version = Annotated[str, Meta(pattern=r"^[0-9][0-9a-z.+]{0,40}(?![\s\S])")]
Statistic = Annotated[  # as `data.recipe` words a release
    str,
    Meta(
        pattern=r"^released with epsilon [0-9.e+-]{1,30}, charged to '[\w.-]{1,100}'"
        r"(; its noise hides a smaller std)?(?![\s\S])"
    ),
]
Epsilon = Annotated[float, Meta(ge=0)] | None  # None: infinite
Delta = Annotated[float, Meta(gt=0, lt=1)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0)]
Whole = Annotated[int, Meta(ge=0)]


if TYPE_CHECKING:
    Released = Rounds
else:
    Released = tuple[AnyEvent, int]  # of the kinds that are written; it is made into `Rounds`


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The base of all records of a run. Its numbers are Python's own floats: an int in their place
    would be written in another way than it is read."""

    def __post_init__(self) -> None:
        for name in _floats(type(self)):
            if (value := getattr(self, name)) is not None:
                structs.force_setattr(self, name, as_float(name, value))


@functools.cache
def _floats(kind: type[Written]) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name, hint in hints.items() if float in (hint, *get_args(hint)))


class Cost(Written, frozen=True, kw_only=True):
    """An epsilon as it is stated: against whom, for which comparison, and by which accountant."""

    observer: Observer
    relation: Relation
    epsilon: Epsilon
    delta: Delta
    accountant: ChargedBy

    @classmethod
    def of(cls, costs: Iterable[CostFound]) -> tuple[Self, ...]:
        """Those that an accountant has found."""
        return tuple(cls(**vars(one) | {"epsilon": or_null(one.epsilon)}) for one in costs)


# of all relations, and of the observers that the trust has terms for
Costs = Annotated[tuple[Cost, ...], Meta(min_length=4, max_length=2 * len(OBSERVERS))]


class Counts(Written, frozen=True, kw_only=True):
    """How many clients took part in a round."""

    cohort: Whole
    uploads: Whole
    exhausted: Whole | None = None  # clients that could not pay any more, with a filter


class Scores(Written, frozen=True, kw_only=True):
    """How good a model is on held-out records; None: not a number."""

    score: float | None  # accuracy or, for numbers, R^2
    loss: float | None


class Metrics(Written, frozen=True, kw_only=True, tag_field="task"):
    """What is measured of the last model on held-out records, beside the best constant answer
    (`experiment.metrics`). None: cannot be said."""

    baseline: float | None  # the score of that answer
    gain: float | None  # the score minus the baseline, and a 95% interval of it
    gain_low: float | None
    gain_high: float | None


class ClassMetrics(Metrics, frozen=True, kw_only=True, tag="classes"):
    """Of a model that finds classes."""

    accuracy: float | None
    loss: float | None
    balanced_accuracy: float | None
    auc: float | None
    f1: float | None
    calibration_error: float | None


class NumberMetrics(Metrics, frozen=True, kw_only=True, tag="numbers"):
    """Of a model that finds numbers."""

    r2: float | None
    mae: float | None
    rmse: float | None
    baseline_mae: float | None
    baseline_rmse: float | None


class TagMetrics(Metrics, frozen=True, kw_only=True, tag="tags"):
    """Of a model that finds any number of tags."""

    accuracy: float | None
    loss: float | None
    exact_match: float | None
    baseline_exact_match: float | None
    f1_micro: float | None
    f1_macro: float | None
    auc: float | None
    calibration_error: float | None


AnyMetrics = ClassMetrics | NumberMetrics | TagMetrics
METRICS: dict[str, type[AnyMetrics]] = {
    "classes": ClassMetrics,
    "numbers": NumberMetrics,
    "tags": TagMetrics,
}


def metrics_of(task: str, measured: Mapping[str, Any]) -> AnyMetrics:
    """The metrics of a task, of all that was measured (`experiment.metrics`)."""
    kind = METRICS[task]
    return kind(**{name: measured.get(name) for name in kind.__struct_fields__})


class PublicRound(Written, frozen=True, kw_only=True):
    """What may be known of one round of an arm; its number is its place."""

    epsilon: Epsilon  # of the rounds so far, against whom the trust protects from
    expected_cohort: Positive  # the clients that it asks for on average
    upload_estimate: float  # from releases; with their noise, so that it may be below 0
    clip_norm: Positive | None = None  # that of the round, if it adapts to releases
    scores: Scores | None = None  # if the held-out records are public, and it was evaluated
    counts: Counts | None = None  # exact ones, if every client's messages carry their own noise


class PublicArm(Written, frozen=True, kw_only=True):
    """One arm: its noise, what it released, what that costs, and its rounds."""

    name: Name
    planned: Annotated[int, Meta(ge=1, le=MOST_ROUNDS)]  # rounds: asked for, or paid for
    noise: Noise
    terms: dict[Observer, tuple[Released, ...]]  # mechanisms, each with its rounds
    privacy: Costs  # of all planned rounds
    model: Sha256  # of its file
    rounds: Annotated[tuple[PublicRound, ...], Meta(min_length=1)]  # those played
    metrics: AnyMetrics | None = None  # of the last model, if the held-out records are public
    claimed_epsilon: Share | None = None  # as printed in the paper: no guarantee
    spent_so_far: Costs | None = None  # where releases may end an arm early: no guarantee either

    def __post_init__(self) -> None:
        super().__post_init__()
        terms = {who: tuple(Rounds(*one) for one in seen) for who, seen in self.terms.items()}
        structs.force_setattr(self, "terms", terms)
        if not whole(terms):
            raise ValueError("terms: expected what SERVER and what PUBLIC sees")
        for rounds in (one.rounds for seen in terms.values() for one in seen):
            if not 1 <= rounds <= MOST_ROUNDS:
                raise ValueError(f"terms: {rounds} rounds; expected 1 to {MOST_ROUNDS}")

    @property
    def played(self) -> int:
        """The rounds that it played: all that were planned, unless releases ended it."""
        return len(self.rounds)

    @property
    def file(self) -> str:
        """The name of its model's file."""
        return f"model-{self.name}.npz"


def _check_numbers(event: msgspec.Struct) -> None:
    for name, value in structs.asdict(event).items():
        if name == "choices":
            for one in value:
                _check_numbers(one)
        elif name.endswith("multiplier") and value is not None:
            _check_multiplier(name, value)
        elif isinstance(value, int | float) and value > MULTIPLIERS[1]:
            raise ValueError(f"{name} = {value!r}: expected at most {MULTIPLIERS[1]:g}")


def _check_multiplier(name: str, value: float) -> None:
    low, high = MULTIPLIERS
    if not low <= value <= high:
        raise ValueError(f"{name} = {value!r}: expected {low:g} to {high:g}")


def _check_texts(setting: Any) -> None:
    """Refuse a setting that is neither a number nor a word, a name, or package.module:name."""
    if isinstance(setting, str):
        if not re.fullmatch(r"[\w.:-]{1,200}", setting):
            raise ValueError(f"settings: {setting!r}: expected a name")
    elif isinstance(setting, dict):
        for name, value in setting.items():
            _check_texts(name)
            _check_texts(value)
    elif isinstance(setting, list):
        for one in setting:
            _check_texts(one)


class HeldOut(Written, frozen=True, kw_only=True):
    """Whose the records are on which a model is measured."""

    public: bool
    clients: Whole | None = None  # people; None: not known


class JournalRun(Written, frozen=True, kw_only=True):
    """A run in a population's journal."""

    run: RunName
    epsilon: Epsilon  # by itself
    share: Share  # of the total


class Covers(Written, frozen=True, kw_only=True):
    """What a population's journal says of all runs over the same people."""

    run: RunName  # this one
    population: Name
    total: Total
    spent_so_far: Share  # an epsilon
    share: Share  # of the total
    runs: tuple[JournalRun, ...]
    composed: Costs  # if all runs were chosen in advance


class PublicRun(Written, frozen=True, kw_only=True):
    """All that may be known of a run, by anybody."""

    format: Literal[3]
    version: Version  # of the program
    simulated: bool  # a seed was given: it protects nobody
    settings: Config  # in their public form
    parameters: Annotated[int, Meta(ge=1)]  # of the model: each is a float32 in a message
    held_out: HeldOut
    classes_public: bool  # or their number was counted in the data
    arms: Annotated[tuple[PublicArm, ...], Meta(min_length=1)]
    all_arms: Costs  # together
    released_statistics: tuple[Statistic, ...] = ()  # of the data, charged to a journal
    covers: Covers | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.settings.public() != self.settings or self.settings.data.clients is None:
            raise ValueError("settings: expected public ones, without seed and paths")
        _check_texts(to_table(self.settings))
        names = [arm.name for arm in self.arms]
        if (listed := [arm.name for arm in self.settings.arm]) != names:
            raise ValueError(f"settings: arms {listed}, and the run has {names}")

    @property
    def evaluated(self) -> bool:
        """Whether scores are public: those on people's records are not."""
        return self.held_out.public


class Signature(Written, frozen=True, kw_only=True):
    """What only the owner of a key can make of a digest."""

    algorithm: Literal["Ed25519"]
    public_key: Sha256  # 32 bytes too
    signature: Ed25519


class Statement(PublicRun, frozen=True, kw_only=True):
    """What is published: a public run with its digest and, perhaps, a signature."""

    digest: Sha256
    signature: Signature | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for arm in self.arms:
            for event, _ in (one for seen in arm.terms.values() for one in seen):
                _check_numbers(event)
            for value in (*vars(arm.noise).values(), *arm.noise.ladder):
                if isinstance(value, float):
                    _check_multiplier(f"arm {arm.name}: noise", value)


# What stays with the server


class Releases(Written, frozen=True, kw_only=True):
    """What a round released, with the noise that was charged, and what follows from releases."""

    norm_sum: float | None = None
    used_norm_sum: float | None = None  # clamped, as the round used it
    uploads: float | None = None  # a count
    clip_norm: float | None = None  # that of the round, if it adapts
    expected_cohort: float | None = None  # under rate control
    counts: Counts | None = None  # where every client's messages carry their own noise


class Tally(Written, frozen=True, kw_only=True):
    """What became of a federation's questions in one stage of a round."""

    asked: Whole
    answered: Whole
    rejected: Whole  # NaN, a wrong shape, too large, an error
    missing: Whole
    refused: dict[str, int]  # by the name of the code
    flagged: tuple[int, ...] = ()  # clients, from this round on


class SecretRound(Written, frozen=True, kw_only=True):
    """What the server alone knows of a round."""

    released: Releases
    counts: Counts | None = None  # true ones; None: not even the server's log may have them
    scores: Scores | None = None  # on people's records
    stages: dict[str, Tally] = {}  # of a federation


class Line(Written, frozen=True, kw_only=True):
    """A line of rounds.jsonl."""

    arm: Name
    round: Annotated[int, Meta(ge=1)]
    public: PublicRound
    secret: SecretRound

    @property
    def scores(self) -> Scores | None:
        """How good the model is, whoever was held out; None: not evaluated."""
        return self.public.scores or self.secret.scores

    @property
    def score(self) -> float | None:
        """Accuracy or, for numbers, R^2."""
        return None if self.scores is None else self.scores.score


class Finished(Written, frozen=True, kw_only=True):
    """What its last round leaves of an arm: all else follows from settings, ledger and lines."""

    name: Name
    model: Sha256  # of the public form of its file
    seconds: float
    compile_seconds: float
    metrics: AnyMetrics  # whoever was held out


class SecretArm(Finished, frozen=True, kw_only=True):
    """What the server alone knows of an arm."""

    spent: tuple[Cost, ...]  # so far: never the guarantee
    rounds: tuple[SecretRound, ...]


class Debit(Written, frozen=True, kw_only=True):
    """A run in its population's journal."""

    id: Name
    run: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}(?![\s\S])")]
    head: str  # of the journal, with this run in it


class SecretRun(Written, frozen=True, kw_only=True):
    """What the server alone knows of a run."""

    experiment: str | None  # a hash of its settings
    data: str  # the name of a folder
    arms: tuple[SecretArm, ...]
    all_arms_spent: tuple[Cost, ...]
    population: Debit | None = None


class Run(Written, frozen=True, kw_only=True):
    """A run as its server has it: summary.json."""

    public: PublicRun
    secret: SecretRun


Some = TypeVar("Some", bound=Written)


def plain(record: Written) -> dict[str, Any]:
    """The one form of a record in JSON. Settings that are not set are left out, as in TOML."""
    table: dict[str, Any] = json.loads(msgspec.json.encode(record))
    if isinstance(record, Run):
        table["public"] = plain(record.public)
    if isinstance(record, PublicRun):
        table["settings"] = to_table(record.settings)
    return table


def read(kind: type[Some], table: Any) -> Some:
    """The record of a JSON object; whatever `plain` would not have written is refused with a
    ValueError that says where."""
    try:
        record = msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error).replace("`$.", "`").replace("`$`", "the document")) from None
    for where, *_ in differences(plain(record), table):
        raise ValueError(f"{where}: not as this program writes it")
    return record


def differences(one: Any, other: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ, and what stands there in each; None is also what does not
    stand there at all. 1, 1.0 and true are three values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in {**one, **other}:
            inner = f"{where}.{name}".lstrip(".")
            if name in one and name in other:
                yield from differences(one[name], other[name], inner)
            else:
                yield inner, one.get(name), other.get(name)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{where}[{_called(pair[0], number)}]")
    elif type(one) is not type(other) or one != other:
        yield where, one, other


def _called(element: Any, number: int) -> str:
    """What an element of a list is known by: the name of an arm or of a run, the observer and the
    relation of a cost; else its number, from 0."""
    names = [element[key] for key in CALLED if key in element] if isinstance(element, dict) else ()
    return ", ".join(map(str, names)) or str(number)


def schema() -> dict[str, Any]:
    """The JSON schema of a statement, which docs/ has a copy of."""
    made = json.loads(msgspec.json.encode(msgspec.json.schema(Statement)))
    for one in made["$defs"].values():
        if "properties" in one:
            one["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
