"""The privacy statement of a run in words: one page for somebody who is no cryptographer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from locksfl._text import epsilon_text
from locksfl.data.datasets import has_users
from locksfl.experiment.config import Config
from locksfl.experiment.coverage import covered_text
from locksfl.experiment.own_code import described
from locksfl.experiment.record import Cost, HeldOut, PublicArm, PublicRun
from locksfl.methods import TRUSTS
from locksfl.methods.releases import Observer
from locksfl.privacy import delta_warning

MEANING = (
    "**Epsilon** limits what anybody can learn about one unit, even whether its data were used. "
    "Nothing that they see is more than e^epsilon times as likely with this unit's data as without "
    "them. That factor is 2.7 at epsilon 1, 20 at 3 and 3,000 at 8: small is safe, and above about "
    '10 the number promises little. "infinite" means no protection. **Delta** is roughly the '
    "probability with which this promise may fail."
)
OBSERVERS = (
    "**SERVER** is whoever runs the training and sees every message. **PUBLIC** is everybody else: "
    "they see the models and the public bundle. An epsilon holds whatever else an observer knows, "
    "as long as nobody can predict a computer's cryptographic random numbers"
)
CONDITIONS = " and, against PUBLIC, the conditions of the aggregation credit are met"
RELATIONS = (
    "Each epsilon is given for two comparisons (relations). **zero-out**: the contribution of one "
    "client is present or absent. **replace**: the data of one client are exchanged for any other "
    "data. The number of clients is public in both. What clients tell about the size of their "
    "updates is included. The accountant is the method by which epsilon was computed."
)
ARMS = (
    "An **arm** is one way of training, with a model of its own. The public bundle has the models "
    'of all arms, so what counts is "all arms together".'
)
SUMS = "sees the models, which are made of sums with noise, and"
EVERYBODY = "{} was asked", "that every client is asked"  # how, and what PUBLIC sees of it
CREDITED = (
    "sees the models. Where its epsilon is below that of the server, it is counted as seeing only "
    "sums, in which the noise of all clients adds up; elsewhere, as if it saw all that the server "
    "sees"
)
RESERVATIONS = {
    "filter": "filter: in each arm every client has a fixed budget, the epsilon of that arm. A "
    "client that could exceed it is not asked any more.",
    "max_epsilon": "max_epsilon: an arm ended early, before a round would have exceeded this "
    "limit. The settings alone decided that, not the data, so only the rounds played are charged.",
    "stop_after": "stop_after: an arm ended when its accuracy on public records no longer "
    "improved. That follows from what was released, so it costs nothing more; but because releases "
    "decided on the end, the epsilons on this page are those of all planned rounds.",
    "rate_control": "rate control: how many clients an arm asked in a round depended on the "
    "numbers of uploads that were released, with noise, before. Whatever was chosen, a round costs "
    "the same at the one order that was fixed beforehand, so the epsilons hold.",
    "noise_follows": "noise that follows the norms: how much noise a round of an arm had depended "
    "on the sum of all clients' norms, released with noise just before. Whatever it was, a round "
    "costs the same at the one order that was fixed beforehand, so the epsilons hold.",
    "adaptive_clipping": "adaptive clipping: the limit on the size of an update (clip norm) was "
    "adapted in every round to a number that was released, with noise, before: how many updates "
    "were within the limit. The epsilons include these numbers; statement.json has the limits.",
    "credit": "aggregation credit: where the epsilon against PUBLIC is below that against SERVER, "
    "the noise of the other clients is counted too. That holds only if they add their noise, and "
    "if neither they nor the server show PUBLIC what they sent. Against whoever has seen that, "
    "only the epsilon against SERVER holds.",
}
WARNINGS = (
    "simulated: a seed was given, so THIS RUN PROTECTS NOBODY. Its epsilons are what "
    "a run with secret random numbers would have.",
    "tuned_without_privacy: settings (clip norm, step or rule) were "
    "chosen by looking at runs on these data. No epsilon on this page covers that choice.",
)
OTHER_RUNS = (
    "**Other runs.** Every other model, statistic or run about the same people costs them more: "
    "epsilons add up. "
)
NOT_COVERED = (
    "**What is true of many.** A model may show that a habit goes with an illness. That also "
    "applies to people who took no part. Protected is what a unit's own data add.",
    "**Manipulation.** Nobody checks whether clients are honest. One that is not can spoil the "
    "model (poisoning): within the limit on the size of its update or, where clients add their own "
    "noise, beyond it.",
    "**Other ways to look.** No epsilon covers timing, network traffic, access to the machines, or "
    "the server's own files, which are not in the public bundle and must stay secret.",
)


def unit_text(config: Config) -> str:
    """What one unit of privacy is in this experiment, in a phrase."""
    data = config.data
    if config.engine is not None:
        return "one client: a device with all the records that it trains on"
    if data.cuts_people:
        return (
            f"NOT A PERSON but one made-up client: some records that split {data.split.kind!r} put "
            "together. A person's records may be in several clients, and their epsilons add up"
        )
    if has_users(data.name):
        return "one client with all its data; a client is one user named in the data"
    return (
        "one client with all its data; a client is a group of records made by split "
        f"{data.split.kind!r}, because the data do not say whose records they are"
    )


@dataclass(frozen=True)
class Words:
    """All that is said of a run's privacy, in sentences: the one source of STATEMENT.md and of
    report.html. `**` marks what is bold."""

    warnings: Sequence[str]  # what a reader must not miss
    trust: str  # who is trusted with what
    short: str  # the numbers to look for
    sees: Mapping[Observer, str]  # what each observer sees
    reservations: Sequence[str]  # what the epsilons rest on
    scope: str  # the unit, rounds, and who was asked
    delta: str  # how it was chosen
    factor: str  # epsilon as a factor
    meaning: Sequence[str]  # of the words
    not_protected: Sequence[str]


def statement_words(run: PublicRun, config: Config) -> Words:
    """The words of a run; `config`: its settings, with nothing to import in them."""
    rounds = " or ".join(str(t) for t in sorted({arm.played for arm in run.arms}))
    early = "; ".join(filter(None, map(ended_early, run.arms)))
    trust = TRUSTS[config.privacy.trust]
    return Words(
        warnings=_warnings(run, config),
        trust=trust.statement,
        short=_in_short(run),
        sees={**trust.sees, "PUBLIC": _public_sees(run, config)},
        reservations=_reservations(run, config),
        scope=f"Unit of privacy: {unit_text(config)}. There are {config.clients} clients. "
        f"Training took {rounds} rounds{f' ({early})' if early else ''}; {_who_was_asked(config)}",
        delta=_delta(config),
        factor=_factor(run, config),
        meaning=[
            MEANING,
            f"{OBSERVERS}{CONDITIONS if _credited(run) else ''}.",
            RELATIONS,
            *([ARMS] if len(run.arms) > 1 else []),
        ],
        not_protected=[
            f"{OTHER_RUNS}{covered_text(run.covers)}",
            *_about_the_data(run, config),
            *NOT_COVERED,
        ],
    )


def statement_text(run: PublicRun) -> str:
    """The text of STATEMENT.md."""
    words = statement_words(run, described(run))
    first = (*words.warnings, words.trust, words.short, *words.reservations)
    guaranteed = (words.scope, words.delta, *words.meaning, words.factor)
    lines = [
        f"# Privacy statement: {_escaped(run.settings.name)}",
        *_apart(first),
        "",
        "## What is protected, and from whom",
        *_apart(guaranteed),
        "",
        *_table(run),
        "",
        "## What is not protected",
        "",
        *(f"* {_escaped(text)}" for text in words.not_protected),
    ]
    return "\n".join(lines) + "\n"


def _apart(paragraphs: Iterable[str]) -> list[str]:
    return [line for text in paragraphs if text for line in ("", _escaped(text))]


def _escaped(text: str) -> str:
    """A text that Markdown shows as it is, but for `**`: no HTML, no link, no `_emphasis_`."""
    marks = r"[<>&`|\[\]]|(?<!\w)_+|_+(?!\w)"
    return re.sub(marks, lambda run: "".join(f"\\{mark}" for mark in run[0]), text)


def _warnings(run: PublicRun, config: Config) -> list[str]:
    said = []
    if config.privacy.accounting != "sound":
        claimed = max(arm.claimed_epsilon or 0.0 for arm in run.arms)
        said.append(
            f"**NO GUARANTEE for the claimed epsilon of {claimed:.4g}**: it was computed as "
            "printed in the paper, which is wrong (each client adds the noise of a trusted server, "
            "and norms are not charged). The table below has the true cost."
        )
    holds = (run.simulated, config.privacy.tuned_without_privacy)
    said += [text for text, true in zip(WARNINGS, holds, strict=True) if true]
    if TRUSTS[config.privacy.trust].private:
        said.append(delta_warning(config.privacy.delta, config.clients) or "")
    return [text for text in said if text]


def _public_sees(run: PublicRun, config: Config) -> str:
    trust, asked = TRUSTS[config.privacy.trust], _by_asking(config)
    known_facts = [known + _of(names, asked) for (_, known), names in asked.items() if known]
    if trust.amplified and known_facts:
        others = "; not who took part in other arms, nor how many" * (len(known_facts) < len(asked))
        return f"{SUMS} {' and '.join(known_facts)}{others}"
    return CREDITED if _credited(run) else trust.sees["PUBLIC"]


def _credited(run: PublicRun) -> bool:
    """Whether an epsilon that is shown counts on the noise of other clients: against the public it
    is then below that against the server, and nothing else makes it so."""
    lists = [arm.privacy for arm in run.arms]
    lists += [arm.spent_so_far for arm in run.arms if arm.spent_so_far and ended_early(arm)]
    finite = (
        {(c.observer, c.relation): c.epsilon for c in costs if c.epsilon is not None}
        for costs in lists
    )
    return any(
        who == "PUBLIC" and epsilon < known.get(("SERVER", relation), 0.0)
        for known in finite
        for (who, relation), epsilon in known.items()
    )


def _factor(run: PublicRun, config: Config) -> str:
    """What epsilon means as a factor: that of the experiment's own relation, against the observer
    from whom its trust protects."""
    who = "SERVER" if TRUSTS[config.privacy.trust].guards_server else "PUBLIC"
    mine = (who, config.privacy.relation)
    cost = next((c for c in run.all_arms if (c.observer, c.relation) == mine), None)
    if cost is None or cost.epsilon is None:  # none at all: of a forged document
        return ""
    factor = math.exp(min(cost.epsilon, 700.0))
    text = f"{float(f'{factor:.2g}'):,.4g}" if factor < 1e4 else f"{float(f'{factor:.2g}'):,.0f}"
    if factor > 1e12:
        text = "a million millions or more"
    promises = ", which promises little" if cost.epsilon > 10 else ""
    return (
        f"Here epsilon is {_epsilon(cost)} ({who}, {config.privacy.relation}): a factor of "
        f"about {text}{promises}."
    )


def _delta(config: Config) -> str:
    """How delta was chosen, and what it would allow."""
    delta = config.privacy.delta
    if not TRUSTS[config.privacy.trust].private:
        return ""
    return (
        f"Delta is {delta:g}: whoever runs the training sets it beforehand (privacy.delta). With "
        "that probability nothing is promised, so it should be far below 1 / clients, which is "
        f"{1 / config.clients:g} here."
    )


def ended_early(arm: PublicArm) -> str | None:
    """What an arm played of its plan and has spent with that, if releases ended it early."""
    if arm.played == arm.planned:
        return None
    costs = arm.spent_so_far or ()
    known = [cost for cost in costs if cost.observer == "PUBLIC" and cost.epsilon]
    spent = f", which have spent {_protection(known)} against PUBLIC, no guarantee" if known else ""
    return f"{arm.name}: {arm.played} of {arm.planned} planned rounds{spent}"


def _by_asking(config: Config) -> dict[tuple[str, str], list[str]]:
    """The names of the arms by how they choose whom to ask, and what PUBLIC sees of it."""
    ways: dict[tuple[str, str], list[str]] = {}
    for arm in config.arms:
        everybody = arm.cohort == arm.clients and not arm.controlled
        how = EVERYBODY if everybody else (arm.scheme.asked, arm.scheme.known)
        ways.setdefault(how, []).append(arm.name)
    return ways


def _of(names: list[str], asked: dict[tuple[str, str], list[str]]) -> str:
    return f" (arm {', '.join(names)})" if len(asked) > 1 else ""


def _who_was_asked(config: Config) -> str:
    asked = _by_asking(config)
    client = "every client" + " whose budget allowed it" * config.privacy.filter
    ways = (how.format(client) + _of(names, asked) for (how, _), names in asked.items())
    return f"in each, {'; '.join(ways)}."


def _in_short(run: PublicRun) -> str:
    """The numbers of the table that a reader should look for, for each observer."""
    parts = "; ".join(
        f"against {who}, {_protection([cost for cost in run.all_arms if cost.observer == who])}"
        for who in dict.fromkeys(cost.observer for cost in run.all_arms)
    )
    whole = ", for all arms together" if len(run.arms) > 1 else ""
    return f"**In short{whole}:** {parts}. Delta is {run.all_arms[0].delta:g}."


def _protection(costs: Sequence[Cost]) -> str:
    if all(cost.epsilon is None for cost in costs):
        return "no protection"
    return "epsilon " + " or ".join(f"{_epsilon(cost)} ({cost.relation})" for cost in costs)


def _epsilon(cost: Cost) -> str:
    return epsilon_text(cost.epsilon, 3, "infinite")


def _reservations(run: PublicRun, config: Config) -> list[str]:
    private = [arm for arm in config.arms if arm.private]
    holds = {
        "filter": config.privacy.filter,
        "max_epsilon": any(arm.planned < config.train.rounds for arm in run.arms),
        "stop_after": any(map(ended_early, run.arms)),
        "rate_control": any(arm.controlled for arm in private),
        "noise_follows": any(a.noise_follows and not a.noise_multiplier for a in config.arms),
        "adaptive_clipping": any(arm.clip_quantile is not None for arm in private),
        "credit": _credited(run),
    }
    schemes = dict.fromkeys(arm.scheme.reservation for arm in private)
    texts = *(text for key, text in RESERVATIONS.items() if holds[key]), *schemes
    return [text for text in texts if text]


def _table(run: PublicRun) -> list[str]:
    rows = [
        "| arm | observer | relation | epsilon | delta | accountant |",
        "|---|---|---|---|---|---|",
    ]
    lists = [(arm.name, arm.privacy) for arm in run.arms]
    if len(lists) > 1:
        lists.append(("all arms together", run.all_arms))
    for name, costs in lists:
        for cost in costs:
            cells = (_escaped(name), cost.observer, cost.relation, _epsilon(cost))
            rows.append(f"| {' | '.join(cells)} | {cost.delta:g} | {cost.accountant} |")
    return rows


def _about_the_data(run: PublicRun, config: Config) -> list[str]:
    """What these data and their use leave open."""
    said = [_held_out(run.held_out)]
    if config.engine is None and config.data.leaves_out_people:
        said.append(
            f"**The number of clients** is that of people with at least {config.data.min_samples} "
            "records; the others were left out. So it was counted in the data, and no epsilon "
            "covers what it reveals about the size of a person's data."
        )
    if config.engine is None and config.data.dealt_by_label:
        said.append(
            f"**How clients were made.** Split {config.data.split.kind!r} assigned records to "
            "clients by their labels. The epsilons do not cover what this reveals about a label."
        )
    if not run.classes_public:
        said.append(
            "**The number of classes** was counted in the data, including the held-out ones, and "
            "can be read from the model. No epsilon covers that."
        )
    for how in run.released_statistics:
        said.append(
            "**Statistics of the data.** The features were scaled with means and standard "
            f"deviations of these data, {how}. What the model reveals of them is not in the table "
            "above; the journal of that population has both."
        )
    if not config.privacy.tuned_without_privacy:
        charged = ", except for what runs in the journal released" if run.covers else ""
        said.append(
            "**Tuning.** Nobody declared that settings were chosen by looking at these data. If "
            "they were, that choice reveals something too, and no epsilon on this page covers it"
            f"{charged}."
        )
    return said


def _held_out(held_out: HeldOut) -> str:
    if held_out.public:
        return (
            "**Held-out records.** Accuracy and loss were measured on records that are declared "
            "public. No epsilon covers these records."
        )
    count = held_out.clients
    who = "some people were" if count is None else "1 client was"
    if count is not None and count != 1:
        who = f"{count} clients were"
    return (
        f"**Held-out people.** To measure accuracy, {who} held out. Their data were not used for "
        "training, and no epsilon covers them. Accuracy and loss on their data are therefore "
        "withheld from the public bundle. If anything was chosen by looking at these figures "
        "(when to stop, which model to publish), that choice reveals something about these people, "
        "and no epsilon covers it."
    )
