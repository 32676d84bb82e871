"""Rules: which members of a cohort upload.

Sampling is Poisson, one independent draw per client, as the accountants assume; where clients take
turns (methods/cyclic.py), everybody uploads. A rule says how likely a member of the cohort is to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from locksfl.methods.releases import NORM, Domain

if TYPE_CHECKING:
    from locksfl.arm import Arm

__all__ = ["NORM", "Rule", "as_released"]


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
        numbers (`locksfl.arm.Dials`). Elementwise arithmetic of `xp`, no branches on values.
    largest_probability(arm): the most that it can give any client, whatever the data. The round
        clamps to it and the accountant charges it. None states nothing: then the rule cannot be
        accounted and is refused under every trust that adds noise.
    asks: the value that `probability` needs of a client, or None.
    released: whether that value is released first, with noise, and charged: each client's own if
        clients add the noise, the sum over the cohort if the server does.
    settle(released, dials, xp): the one public number derived from the released sum.
    estimated_uploads(released, public, arm): the expected uploads of a round from released values
        alone, so that it may be published. None: the uploads that the arm asks for.
    count_share: s > 0 releases the number of uploads with every sum, as one more coordinate: s
        times the bound S of a contribution for each upload, under the same noise. An upload is then
        sqrt(1 + s^2) S long, which is what a noise multiplier is in units of. With it an arm may
        fix its uploads: the cohort follows what was released (`locksfl.round.rates`).
    takes: which of the settings floor, norm_low and weights an arm of this rule has.
    everyone: the cohort is all clients, and all of them upload.
    jointly: `probability` needs all members' values at once, which is possible only without
        privacy.
    """

    name: str
    about: str
    probability: Callable[[Any, Any, Any, Any, Any], Any]
    largest_probability: Callable[[Arm], float] | None = None
    asks: Domain | None = None
    released: bool = False
    settle: Callable[[Any, Any, Any], Any] = as_released
    estimated_uploads: Callable[[float, float, Arm], float] | None = None
    count_share: float = 0.0
    takes: tuple[str, ...] = ()
    everyone: bool = False
    jointly: bool = False

    def __post_init__(self) -> None:
        if self.asks is not None and self.asks is not NORM:
            raise ValueError(
                f"rule {self.name!r}: asks for {self.asks!r}; expected NORM, the one value that is "
                "measured"
            )
        if self.released and self.asks is None:
            raise ValueError(f"rule {self.name!r}: releases a value that it does not ask for")
        if not 0 <= self.count_share <= 1:
            raise ValueError(
                f"rule {self.name!r}: count_share = {self.count_share!r}; expected a number from 0 "
                "(no count) to 1"
            )

    def accepts(self, setting: str) -> bool:
        """Whether an arm with this rule may have this setting: one that the rule takes, or the
        noise of what it releases."""
        return setting in self.takes or (self.released and setting == "norm_multiplier")
