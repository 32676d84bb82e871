"""What earlier versions of this program wrote, read as what it writes today.

Headers of format 2 had the settings of an arm's method in place of its terms, with what the method
`stated`, so that no method is needed to read them. Their ledgers keep them: the header is the first
link of the chain. Entries of a population's journal had one round, or the price of an arm.

Version 0.1 had three ledgers: counts in a checkpoint, and two kinds of SQLite files, one for a
federation (one entry per client) and one for a device. Each was chained by its own rule, by which
it is verified here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from locksfl._tables import Json, Value
from locksfl._validate import positive
from locksfl.arm import MULTIPLIERS
from locksfl.methods.events import (
    EXACT,
    Chosen,
    Coins,
    Event,
    Filtered,
    Message,
    Rounds,
    Sampled,
    SampledTwice,
    Sum,
    Terms,
    Turns,
)
from locksfl.methods.releases import PUBLIC, SERVER, Observer, Relation, joint_multiplier
from locksfl.privacy.terms import LedgerArm, PlannedArm

FORMAT_2 = {"version": 2, **dict.fromkeys(("experiment", "delta", "relation", "accountant"))}
FORMAT_2 |= {"accounting": "sound", "arms": []}
RUNG = 1.1  # two rungs of a ladder differed by this factor, or less


class Priced(Event, frozen=True):
    """What a client released, by its price: mu^2 under each relation, of all rounds together."""

    mu_squared: tuple[tuple[Relation, float], ...]


class Round(msgspec.Struct):
    """One round in an old entry of a population's journal: of coins, of turns, or of rungs."""

    sampling_rate: float = 0.0
    noise_multiplier: float = 0.0
    norm_multiplier: float | None = None
    upload_probability: float = 1.0
    separation: int = 0
    bands: int = 1
    rungs: tuple[Round, ...] = ()

    @property
    def coins(self) -> Coins:
        """The round of coins that it is."""
        q, p = self.sampling_rate, self.upload_probability
        if self.norm_multiplier is None:
            return Sampled(q * p, self.noise_multiplier)
        return SampledTwice(q, self.norm_multiplier, p, self.noise_multiplier)

    @property
    def event(self) -> Sum:
        """The event that it is."""
        if self.rungs:
            return Chosen(tuple(rung.coins for rung in self.rungs))
        if self.separation:
            return Turns(self.separation, self.noise_multiplier, self.bands)
        return self.coins


class Debited(msgspec.Struct):
    """An arm in an old entry of a population's journal."""

    name: str
    clients: int
    rounds: int
    mu_squared: dict[Observer, dict[Relation, float]] | None = None


def planned(arm: Json) -> PlannedArm | None:
    """An arm in an old entry of a population's journal; None of one that has its terms."""
    if "terms" in arm:
        return None
    one = msgspec.convert(arm, Debited)
    if one.mu_squared is not None:
        prices = {who: Priced(tuple(each.items())) for who, each in one.mu_squared.items()}
        terms = {who: (Rounds(price, 1),) for who, price in prices.items()}
    else:
        event = msgspec.convert(arm["round"], Round).event
        terms = {SERVER: (EXACT,), PUBLIC: (Rounds(event, one.rounds),)}
    return PlannedArm(one.name, one.clients, one.rounds, terms)


# --- Headers of format 2 --------------------------------------------------------------------------


class Stated(msgspec.Struct):
    """What an arm's method stated."""

    largest_probability: float
    releases_norms: bool
    credited: bool
    count_share: float = 0.0


class Settings(msgspec.Struct):
    """The settings of an arm's method."""

    clients: int
    rounds: int
    rule: str
    estimator: str
    trust: str
    cohort: float
    uploads: float
    noise_multiplier: float
    floor: float = 0.0
    norm_low: float = 1.0
    norm_multiplier: float = 0.0
    clip_multiplier: float = 0.0
    clip_quantile: float | None = None
    ladder: tuple[float, ...] = ()
    weights: tuple[float, ...] | None = None
    heaviest: float | None = None
    separation: int = 0
    bands: int = 0
    dropouts: bool = False
    stated: Stated | None = None

    def by_norm(self, norm_low: float) -> float:
        """The most that a rule in proportion to the norm gives a client."""
        share = self.uploads / self.cohort
        return min(1.0, (1 - self.floor) * share / norm_low + self.floor * share)

    def statement(self) -> Stated:
        """What was stated; of the four rules of version 0.1, what they state, because headers did
        not say it."""
        if self.stated is not None:
            return self.stated
        heaviest = self.heaviest or max(self.weights or (1.0,))
        largest = {
            "full": 1.0,
            "uniform": self.uploads / self.cohort,
            "norm": self.by_norm(self.norm_low),
            "weights": self.uploads * heaviest / (self.cohort / self.clients),
        }
        credited = self.trust == "local" and self.estimator == "capped"
        return Stated(min(1.0, largest[self.rule]), self.rule == "norm", credited)


class Kept(msgspec.Struct):
    """The budget of each client."""

    epsilon: float
    delta: float
    relation: Relation


class WrittenArm(msgspec.Struct):
    """An arm of a header."""

    name: str
    terms: Settings
    budget: Kept | None
    claimed_epsilon: float | None

    @property
    def arm(self) -> LedgerArm:
        """The arm as a header of today has it."""
        old = self.terms
        known = {name: z for name in MULTIPLIERS if (z := getattr(old, name))}
        positive(**known)
        stated = old.statement()
        if old.trust == "local":
            seen = _local(old, stated, self.budget)
        else:
            summed = old.trust == "central"
            public = Rounds(_sum(old, stated), old.rounds) if summed else EXACT
            seen = {SERVER: (EXACT,), PUBLIC: (public,)}
        counted = (stated.releases_norms, stated.credited, self.claimed_epsilon)
        return LedgerArm(self.name, old.clients, old.rounds, seen, *counted)


def arms_of(written: Value) -> tuple[tuple[LedgerArm, ...], str | None]:
    """The arms of a header, and their trust."""
    arms = msgspec.convert(written, tuple[WrittenArm, ...])
    return tuple(each.arm for each in arms), arms[0].terms.trust if arms else None


def _local(arm: Settings, stated: Stated, budget: Kept | None) -> Terms:
    update, rounds = arm.noise_multiplier, arm.rounds
    norm = arm.norm_multiplier if stated.releases_norms else None
    if budget is not None:
        event = Filtered(update, budget.epsilon, budget.delta, budget.relation, norm)
        return {SERVER: (Rounds(event, rounds),), PUBLIC: (Rounds(event, rounds),)}
    # of rules that ask for nothing, only these two can have everybody upload
    sure = stated.credited and arm.rule in ("uniform", "full") and not arm.dropouts
    everyone = sure and arm.uploads == arm.cohort == arm.clients
    alone = Message("update", update)
    together = Message("update", update, arm.clients) if everyone else alone
    norms = [] if norm is None else [Rounds(Message("norm", norm), rounds)]
    return {SERVER: (Rounds(alone, rounds), *norms), PUBLIC: (Rounds(together, rounds), *norms)}


def _sum(arm: Settings, stated: Stated) -> Sum:
    if arm.separation:
        return Turns(arm.separation, arm.noise_multiplier, max(1, arm.bands))
    if arm.ladder:
        return Chosen(tuple(_rungs(arm, stated)))
    rate, p = arm.cohort / arm.clients, stated.largest_probability
    return _round(arm, stated, rate, p, arm.noise_multiplier)


def _rungs(arm: Settings, stated: Stated) -> Iterator[Coins]:
    """Of cohorts, by a released count; or of the least norm sum, by which only dpis chose."""
    by_count = stated.count_share > 0
    if not by_count and arm.rule != "dpis":
        raise ValueError(f"rule {arm.rule!r}: its header does not say what its rungs stated")
    least, most = (arm.uploads, arm.cohort) if by_count else (arm.norm_low, 1.0)
    steps = math.ceil(math.log(most / least) / math.log(RUNG))
    rungs = np.geomspace(least, most, steps + 1).tolist()
    for rung, noise in zip(rungs, arm.ladder, strict=True):
        cohort = min(rung, float(arm.clients)) if by_count else arm.cohort
        p = 1.0 if by_count else arm.by_norm(rung)
        yield _round(arm, stated, cohort / arm.clients, p, noise)


def _round(arm: Settings, stated: Stated, rate: float, p: float, noise: float) -> Coins:
    """What the cohort releases before the uploads, norms and bits, is one Gaussian."""
    before = [arm.norm_multiplier] if stated.releases_norms else []
    if arm.clip_quantile is not None:
        before.append(arm.clip_multiplier)
    if before and p == 1 and not stated.releases_norms:
        return Sampled(rate, joint_multiplier(noise, *before))
    first = joint_multiplier(*before) if len(before) > 1 else None
    return Round(rate, noise, first or next(iter(before), None), p).coins


# --- Version 0.1 ----------------------------------------------------------------------------------


def checkpoint(meta: Any) -> Json:
    """The packed form of a checkpoint's ledger. Its arrays already have their present names."""
    arms = [{k: v for k, v in arm.items() if k != "rounds_played"} for arm in meta["arms"]]
    totals = {
        arm["name"]: {"rounds": t, "last": [arm["name"], t], "latest": 0}
        for arm in meta["arms"]
        for t in [arm["rounds_played"]]
    }
    rest = {k: v for k, v in meta.items() if k != "checksum"}
    header = {**rest, "version": 2, "arms": arms}
    return {"header": header, "head": f"0 {meta['checksum']}", "totals": totals}


def journal(
    meta: Mapping[str, str], rows: list[tuple[Any, ...]], damaged: str
) -> tuple[Json, list[tuple[Any, ...]]]:
    """The header of format 2, and the values of all entries, of a SQLite file.

    `damaged`: how an error message begins. A file that was altered, or is of no known kind, is
    refused.
    """
    before = _link(meta["settings"])
    for expected, (number, *values, link) in enumerate(rows, 1):
        before = _link(before, number, *values)
        if number != expected or link != before:
            raise ValueError(f"{damaged} (entry {expected} is not chained to the entry before it)")
    if meta.get("head") != f"{len(rows)} {before}":
        raise ValueError(f"{damaged} (entries are missing at the end)")
    settings = json.loads(meta["settings"])
    form = settings.pop("format", None)
    if form == "device 1":
        one = np.zeros(1, np.int32)
        of_device = [(run, t, kind, one, 1, terms, at) for _, run, t, kind, terms, at, _ in rows]
        return {**FORMAT_2, "upgraded": meta["head"]}, of_device
    if form != 1:
        raise ValueError(f"{damaged} (format {form!r}: expected a ledger of version 1, 2 or 3)")
    names = ("name", "terms", "budget", "claimed_epsilon")
    arms = [dict(zip(names, (*arm, None), strict=True)) for arm in settings["arms"]]
    entries = [
        (arm, t, kind, np.array([client], np.int32), uploaders)
        for _, arm, t, client, kind, uploaders, _ in rows
    ]
    return {**FORMAT_2, **settings, "arms": arms, "upgraded": meta["head"]}, entries


def _link(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
