"""What a server asks of a device in one round, and the fixed codes with which a device refuses.

Every `RoundTerms` is well formed: its numbers are finite and sane, its words known. Whether they
are allowed is up to the policy. A refusal is a number and nothing else: the device sends no text to
the server.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from locksfl.methods import TRUSTS
from locksfl.methods.estimators import CONTRIBUTION_LENGTHS
from locksfl.methods.events import Event, Exact, Message
from locksfl.methods.releases import RELATIONS
from locksfl.methods.trusts import Trust

Stage = Literal["norm", "update"]
LARGEST_ROUND = 2**31
LENGTHS = (1e-12, 1e12)  # of a clip norm or a bound: anything beyond is suspicious
MULTIPLIERS = (1e-6, 1e6)


class Refusal(enum.IntEnum):
    """Why nothing is released. Numbers travel: never reuse one.

    All are functions of the server's request, the policy and the ledger, never of the data: that a
    device refused, and why, reveals nothing about its data.
    """

    MALFORMED = 1  # not a request: a missing or unknown part, an invalid or absurd number
    TRUST = 2  # a different trust from the policy's
    RELATION = 3  # another relation between neighbours
    NOISE = 4  # less noise than the policy requires, or a norm if it allows none
    CLIP = 5  # a larger clip norm
    BUDGET = 6  # the budget does not pay for the whole round, or no rounds are left
    REPEATED = 7  # already answered, or over: no second draw
    ORDER = 8  # a round before the last one of its run, or an update without its norm
    TERMS = 9  # an update under other terms than its norm
    LEDGER = 10  # the ledger cannot be read or written
    LOST = 11  # the update of stage 1 is lost (a restart): only the transport uses this one
    MODEL = 12  # not the model of this device, or larger than the policy allows


# the first are about one round; the others a later round of the same run does not change
PASSING = {Refusal.REPEATED, Refusal.ORDER, Refusal.TERMS, Refusal.LEDGER, Refusal.LOST}
LASTING = frozenset(Refusal) - PASSING


class Refused(Exception):
    """Nothing is released. Carries a code and no text."""

    def __init__(self, code: Refusal) -> None:
        super().__init__(int(code))
        self.code = code


@dataclass(frozen=True)
class RoundTerms:
    """One round as the server requests it, the same in both stages. A malformed one is `Refused`.

    `run` should come from the transport (Flower's run id), not from the message itself; a run that
    pretends to be another one is only refused more often.
    """

    run: str
    round: int  # 1, 2, ...
    asks_norms: bool  # rule "norm": a norm first, then perhaps an upload
    clip_norm: float  # C
    noise_multiplier: float  # z, std over the bound S of the contribution
    norm_multiplier: float | None = None  # z_s, std over C; present only if norms are asked for
    trust: str = "local"
    relation: str = "zero-out"
    lengths: str = "clipped"  # of contributions; "equal": all of them C, which costs no more

    def __post_init__(self) -> None:
        sane = (
            isinstance(self.run, str)
            and 0 < len(self.run) <= 64
            and self.run.isascii()
            and self.run.isprintable()
            and type(self.round) is int
            and 1 <= self.round <= LARGEST_ROUND
            and type(self.asks_norms) is bool
            and within(LENGTHS, self.clip_norm)
            and within(MULTIPLIERS, self.noise_multiplier)
            and (
                within(MULTIPLIERS, self.norm_multiplier)
                if self.asks_norms
                else self.norm_multiplier is None
            )
            and self.trust in TRUSTS
            and TRUSTS[self.trust].private
            and self.relation in RELATIONS
            and self.lengths in CONTRIBUTION_LENGTHS
        )
        if not sane:
            raise Refused(Refusal.MALFORMED)
        for name in ("clip_norm", "noise_multiplier", "norm_multiplier"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else float(value))

    @classmethod
    def parse(cls, run: str, asked: Mapping[str, Any]) -> RoundTerms:
        """Terms from a message's table (`as_dict` without the run); anything odd is `Refused`."""
        if "run" in asked:
            raise Refused(Refusal.MALFORMED)
        try:
            return cls(run=run, **asked)
        except (TypeError, ValueError):  # a part is missing or unknown, or no plain word
            raise Refused(Refusal.MALFORMED) from None

    def as_dict(self) -> dict[str, Any]:
        """Everything except the run and fields that are None, for a message. A device of an earlier
        version knows clipped lengths only, so they go without saying."""
        parts = dataclasses.asdict(self)
        if self.lengths == "clipped":
            del parts["lengths"]
        return {k: v for k, v in parts.items() if k != "run" and v is not None}

    def releases(self) -> tuple[Event, ...]:
        """What the round releases to the server, in central trust without noise."""
        if not self.known_trust.guards_server:
            return (Exact(),)
        update = Message("update", self.noise_multiplier)
        if self.norm_multiplier is None:
            return (update,)
        return Message("norm", self.norm_multiplier), update

    @property
    def known_trust(self) -> Trust:
        """Who adds the noise, and what each observer sees."""
        return TRUSTS[self.trust]


def within(limits: tuple[float, float], value: Any) -> bool:
    """Whether a value is a plain finite number between the limits."""
    low, high = limits
    return type(value) in (int, float) and math.isfinite(value) and low <= value <= high
