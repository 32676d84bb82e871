"""The building blocks of a round: rules, estimators, trusts and samplings, one file each.

In: one client's own value, released numbers and public dials, as arrays of numpy or jax.numpy.
Out: probabilities, weights and noise; statements of what is asked, released and bounded.
May not import: any other room; nor JAX, since devices and accountants read these files.

A method is one object that states, besides its functions, what it asks of a client, what it
releases to whom, and the bounds that it keeps. Accountants, ledgers, the device's guard, the
planner, the simulator and the docs read these statements and nothing else: no file compares names.
To add a method, add a file to its folder (or name your own: "package.module:name") and a test.

Statements are enforced where they matter for privacy. Scores, estimators and most rules are called
for one client at a time, with only that client's own value and released numbers. Rules that compare
members (`jointly`, `settle_from_all`) see all of them, and only what the trust shows: under a
private trust, released values. The round itself clamps the probability to the stated maximum and
the contribution to the stated bound. A false statement then costs accuracy, never epsilon.

Functions take the array namespace as their last argument, `xp`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple, TypeVar

from locksfl._loading import load
from locksfl._tables import Value
from locksfl._validate import one_of
from locksfl.methods import estimators, rules, samplings, trusts
from locksfl.methods.estimators import Estimator
from locksfl.methods.rules import Rule
from locksfl.methods.samplings import Sampling
from locksfl.methods.trusts import Trust

Kind = TypeVar("Kind", Rule, Estimator, Trust, Sampling)


def _files(folder: ModuleType, kind: type[Kind]) -> dict[str, Kind]:
    """The method in each file of a folder, by its name; what they share is in files without one."""
    methods: dict[str, Kind] = {}
    for file in pkgutil.iter_modules(folder.__path__):
        module = importlib.import_module(f"{folder.__name__}.{file.name}")
        methods |= {each.name: each for each in vars(module).values() if isinstance(each, kind)}
    return methods


RULES = _files(rules, Rule)
ESTIMATORS = _files(estimators, Estimator)
TRUSTS = _files(trusts, Trust)
SAMPLINGS = _files(samplings, Sampling)
PRIVATE = tuple(name for name, trust in TRUSTS.items() if trust.private)
COINS = "poisson"  # the sampling of an arm that implies no other


class Parts(NamedTuple):
    """The three objects of a method."""

    rule: Rule  # who uploads
    estimator: Estimator  # what is averaged
    trust: Trust  # who adds the noise


@dataclass(frozen=True)
class Method:
    """The three choices that make a round, by name: what a program is compiled for."""

    rule: str  # who uploads
    estimator: str  # what is averaged
    trust: str  # who adds the noise

    @property
    def parts(self) -> Parts:
        """The objects behind the three names."""
        return Parts(find_rule(self.rule), find_estimator(self.estimator), TRUSTS[self.trust])


def find_rule(name: str, setting: str = "rule") -> Rule:
    """The rule of this name, or the user's own at "package.module:name"."""
    return _find(RULES, Rule, name, setting)


def find_estimator(name: str, setting: str = "estimator") -> Estimator:
    """The estimator of this name, or the user's own at "package.module:name"."""
    return _find(ESTIMATORS, Estimator, name, setting)


def _find(known: dict[str, Kind], kind: type[Kind], name: str, setting: str) -> Kind:
    if name in known:
        return known[name]
    if ":" not in name:
        one_of(known, **{setting: name})
    own: Kind = load(setting, name, kind.__name__, lambda value: isinstance(value, kind))
    return own


def sampling_of(settings: Mapping[str, Value]) -> Sampling:
    """The sampling of the settings of an arm, or of its summary: the one that is named, or to which
    one of them belongs."""
    implied = (s.name for s in SAMPLINGS.values() for n in [*s.takes][:1] if settings.get(n))
    return SAMPLINGS[str(settings.get("sampling") or next(implied, COINS))]


def typed_sampling(
    given: Mapping[str, object], where: str, cohort: float | None, clients: int
) -> Mapping[str, int]:
    """The settings of an [[arm]] table that follow from its sampling and from its cohort; those of
    another sampling are refused.

    Args:
        given: what was typed.
        where: names the arm in a refusal.
        cohort: as it was typed, if it was.
        clients: n; 0 where it is not known.
    """
    word = str(given.get("sampling", COINS))
    if word not in SAMPLINGS:
        expected = ", or ".join(each.about for each in SAMPLINGS.values())
        raise ValueError(
            f"{where}.sampling = {word!r}: expected {expected}; the accountants charge for these, "
            "and a sample of fixed size costs more than they would report"
        )
    chosen = SAMPLINGS[word]
    first = next(iter(chosen.takes), None)
    derived = {} if first is None or first in given else chosen.derived(where, cohort, clients)
    for each in SAMPLINGS.values():
        for name, why in each.takes.items():
            if name in given and name not in chosen.takes:
                raise ValueError(f"{where}.{name} = {given[name]!r}: {why.format(word=word)}")
    return derived
