"""Rules: which members of a cohort upload.

Sampling is Poisson, one independent draw per client, as the accountants assume; where clients take
turns (methods/cyclic.py), everybody uploads. A rule says how likely each member of the cohort is to
upload.

A rule may ask a client for one number: the norm of its clipped update, or a score of its own, made
of facts that are measured at the client. Either lies between 0 and the clip norm C and is released,
noised and charged in the same way, because it can change by C at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from locksfl.methods.releases import NORM, Domain

if TYPE_CHECKING:
    from locksfl.arm import Arm

__all__ = ["FACTS", "NORM", "Facts", "Rule", "as_released"]


class Facts(TypedDict, total=False):
    """What can be measured at client i, from its own records and from what was released."""

    norm: Annotated[Any, "|u_i|, before clipping"]
    loss: Annotated[Any, "the mean loss at the current model of the records that it uses"]
    rms_loss: Annotated[Any, "the root mean square of those losses"]
    size: Annotated[Any, "K_i / K_ref with local.weight = 'size', else 1"]
    spread: Annotated[
        Any,
        "the standard deviation of its records' gradients: sqrt(mean |g_s|^2 - |mean g_s|^2)",
    ]
    sum: Annotated[Any, "the sum of the coordinates of u_i"]
    along: Annotated[Any, "<u_i, v>, v the last released update (zero in the first round)"]
    last_norm: Annotated[Any, "|v|, a public number"]
    last_sum: Annotated[Any, "the sum of the coordinates of v, a public number"]
    parameters: Annotated[Any, "d, the number of parameters, a public number"]


FACTS = tuple(Facts.__annotations__)  # the names that a rule may ask for
OF_THE_LAST = {"along", "last_norm", "last_sum"}  # the server has to remember v


def as_released(released: Any, dials: Any, xp: Any) -> Any:
    """The released sum, used as it is."""
    del dials, xp
    return released


@dataclass(frozen=True)
class Rule:
    """A way to choose the uploaders of a cohort: what it asks for and releases, and its bounds.

    probability(own, public, weight, dials, xp): the probability that ONE client uploads. `own` is
        what it asks of the client (the released value if clients add the noise, the true one if
        the server is trusted; 0 if it asks for nothing), `public` the number that `settle` derived
        from the released sum, `weight` the client's public weight, with mean 1, `dials` the arm's
        numbers (`methods.dials.Dials`). Elementwise arithmetic of `xp`, no branches on values.
    largest_probability(arm): the most that it can give any client, whatever the data. The round
        clamps to it and the accountant charges it. None states nothing: then the rule cannot be
        accounted and is refused under every trust that adds noise.
    asks: the value that `probability` needs of a client, or None. NORM or, with a `score`, a domain
        of the rule's own: an interval up to C.
    score(facts, dials, xp): that value, for ONE client: `facts` are its own, by name. The round
        clamps it to [0, C], and NaN becomes 0. None: the norm of the clipped update.
    facts: the names in FACTS of what has to be measured for it.
    released: whether that value is released first, with noise, and charged: each client's own if
        clients add the noise, the sum over the cohort if the server does.
    settle(released, dials, xp): the one public number derived from the released sum.
    estimated_uploads(released, public, arm): the expected uploads of a round from released values
        alone, so that it may be published. None: the uploads that the arm asks for.
    count_share: s > 0 releases the number of uploads with every sum, as one more coordinate: s
        times the bound S of a contribution for each upload, under the same noise. An upload is then
        sqrt(1 + s^2) S long, which is what a noise multiplier is in units of. With it an arm may
        fix its uploads: the cohort follows what was released (`locksfl.round.rates`).
    takes: which of the settings floor, norm_low, weights, loss_bound and gate an arm of this rule
        has.
    cap_can_bind: |g_i| / p_i may exceed C / p_C even with true values, so that the capped estimator
        shrinks some contributions: it is biased.
    for_divided_noise: it is the optimum where the noise of an upload is divided by p too. Where
        clients add the noise, the default estimator is then one that does so (`own_bound`).
    planned: `locks plan` can predict its error.
    paper: where it comes from, for the documentation.
    all_clients: the cohort is all clients. A rule that asks for nothing then lets all of them
        upload; else a second sample chooses the uploaders.
    noise_follows: where the server adds the noise, the update's multiplier follows the public
        number of the round, so that every round costs the same (`Arm.rungs`). The largest
        probability is then that of each rung. Only with `all_clients`: the public number must not
        come from the secret sample that amplifies what is released after it.
    jointly: `probability` takes all members' values at once, as the trust shows them, and gives one
        number for each; a member that is absent has value 0 and weight 0. Sound where every
        client's own value is released, or without privacy.
    settle_from_all(values, dials, xp): as `settle`, but the public number comes from all members'
        values at once in place of their sum (0 for an absent one). Sound where `jointly` is.
    refine(public, below, certain, dials, xp): the public number, improved by two more sums over the
        cohort: `below` is the sum of the probabilities that are less than 1, and `certain` counts
        those that are 1. A member counts in one of the two only, so that its presence moves the
        pair by 1 at most. `dials.sum_noise` is the std of the noise on each sum.
    refinements: how often it is improved where the server adds noise, which shares the charge of
        one norm sum between all sums (`Arm.sum_multiplier`).
    free_refinements: how often it is improved where sums cost nothing: without noise, or of values
        that every client has released.
    biased: some members have probability 0, so that no weight makes what it selects the mean of the
        clipped updates.
    """

    name: str
    about: str
    probability: Callable[[Any, Any, Any, Any, Any], Any]
    largest_probability: Callable[[Arm], float] | None = None
    asks: Domain | None = None
    score: Callable[[Facts, Any, Any], Any] | None = None
    facts: tuple[str, ...] = ()
    released: bool = False
    settle: Callable[[Any, Any, Any], Any] = as_released
    estimated_uploads: Callable[[float, float, Arm], float] | None = None
    count_share: float = 0.0
    takes: tuple[str, ...] = ()
    cap_can_bind: bool = False
    for_divided_noise: bool = False
    planned: bool = False
    paper: str = ""
    all_clients: bool = False
    noise_follows: bool = False
    jointly: bool = False
    settle_from_all: Callable[[Any, Any, Any], Any] | None = None
    refine: Callable[[Any, Any, Any, Any, Any], Any] | None = None
    refinements: int = 0
    free_refinements: int = 0
    biased: bool = False

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ValueError(f"rule {self.name!r}: {problem}")

    def _problems(self) -> Iterator[str]:
        """Statements that contradict one another."""
        if self.score is None and self.asks is not None and self.asks is not NORM:
            yield f"asks for {self.asks!r}; expected NORM, or a score"
        if (self.score is None) != (not self.facts):
            yield "expected a score and its facts, or neither"
        if self.score is not None:
            yield from self._problems_of_score()
        if self.released and self.asks is None:
            yield "releases a value that it does not ask for"
        for name in ("refinements", "free_refinements"):
            if ((value := getattr(self, name)) > 0) != (self.refine is not None):
                yield f"{name} = {value!r}; expected a number > 0 with `refine`, and 0 without"
        ways = [self.jointly, self.settle_from_all is not None, self.refine is not None]
        if sum(ways) > 1:
            yield "expected one of jointly, settle_from_all and refine"
        if any(ways) and not self.released:
            yield "jointly, settle_from_all and refine need a value that is released"
        if self.noise_follows and not (self.all_clients and self.released):
            yield (
                "noise that follows the public number needs a value that is released, and "
                "all_clients"
            )
        if not 0 <= self.count_share <= 1:
            yield f"count_share = {self.count_share!r}; expected a number from 0 (no count) to 1"

    def _problems_of_score(self) -> Iterator[str]:
        asks = self.asks
        if asks is None or asks is NORM or (asks.bound, asks.ball) != (NORM.bound, NORM.ball):
            yield (
                f"asks for {asks!r}; expected a domain of its own for its score, an interval up "
                "to C"
            )
        for name in self.facts:
            if name not in FACTS:
                yield f"fact {name!r}; expected one of {', '.join(FACTS)}"
        if not self.released:
            yield "expected a score that is released"

    @property
    def remembers(self) -> bool:
        """Whether it asks about the last released update."""
        return bool(OF_THE_LAST.intersection(self.facts))

    @property
    def compares(self) -> bool:
        """Whether a client's probability depends on others' own values, and not on sums alone."""
        return self.jointly or self.settle_from_all is not None

    @property
    def everyone(self) -> bool:
        """Whether all clients upload in every round."""
        return self.all_clients and self.asks is None

    @property
    def sends(self) -> str:
        """What a client sends, for the documentation."""
        if self.everyone:
            return "its update"
        if self.asks is None or not self.released:
            return "its update, if it uploads"
        return f"its {self.asks.name}, then its update if it uploads"

    def refined(self, server_adds_noise: bool) -> int:
        """How often its public number is refined."""
        return self.refinements if server_adds_noise else self.free_refinements

    @property
    def from_one_sum(self) -> bool:
        """Whether the public number follows from one sum: then a forecast can be made of it."""
        return not self.compares and not self.refinements

    def accepts(self, setting: str) -> bool:
        """Whether an arm with this rule may have this setting: one that the rule takes, or the
        noise of what it releases."""
        return setting in self.takes or (self.released and setting == "norm_multiplier")
