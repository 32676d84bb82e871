"""The words of accounting: relations and observers, and where a released value lies.

A noise multiplier is always noise std over the zero-out sensitivity (the clip norm for a norm, the
bound S for a contribution). Only the accounting depends on the relation between neighbours:

* "zero-out": one client's contribution is present or absent, the number of clients is public;
* "replace": one client's data is exchanged for any other.

What rounds release is in `events`.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, Literal, get_args

from locksfl import _validate

Relation = Literal["zero-out", "replace"]
Accountant = Literal["rdp", "pld"]
Observer = Literal["SERVER", "PUBLIC"]

RELATIONS: tuple[Relation, ...] = get_args(Relation)
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)  # that a setting may name
ChargedBy = Literal[Accountant, "gdp", "none"]  # whose bound an epsilon is
SERVER: Observer = "SERVER"
PUBLIC: Observer = "PUBLIC"
# Whom epsilons are against, in words. A third observer is a name in `Observer`, a line here, and
# what each trust lets it see; accountants, ledgers, tables and pages go through this list.
OBSERVERS: dict[Observer, str] = {
    "SERVER": "whoever runs the training",
    "PUBLIC": "everybody else: sees the models and the public bundle",
}


@dataclass(frozen=True)
class Domain:
    """Where one client's value lies, in units of a bound r: the interval [0, r], or the ball of
    radius r. Sensitivities follow from it, so nobody enters one."""

    name: str
    bound: str  # "C", the clip norm, or "S", the largest contribution
    ball: bool

    def sensitivity(self, relation: Relation) -> float:
        """The largest distance between two neighbours' values, divided by the bound: the distance
        to zero under zero-out, the diameter under replace."""
        _validate.one_of(RELATIONS, relation=relation)
        return 2.0 if self.ball and relation == "replace" else 1.0


NORM = Domain("norm", "C", ball=False)
UPDATE = Domain("update", "S", ball=True)
BIT = Domain("bit", "1/2", ball=True)  # b_i - 1/2: whether an update is within the clip norm


def joint_multiplier(*multipliers: float) -> float:
    """The multiplier of one Gaussian that is worth releases of these from one and the same sample:
    1/z^2 adds up."""
    return sum(float(z) ** -2 for z in multipliers) ** -0.5


def as_float(name: str, value: Any) -> float:
    """Any real number, including numpy's, as a Python float; anything else is refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} = {value!r}: expected a number")
    return float(value)


def as_count(name: str, value: Any) -> int:
    """A whole number >= 0 as a Python int; anything else is refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise ValueError(f"{name} = {value!r}: expected a whole number >= 0")
    return int(value)
