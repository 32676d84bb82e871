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

import numpy as np

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
from locksfl.methods.releases import Relation, joint_multiplier
from locksfl.privacy.terms import LedgerArm, PlannedArm

FORMAT_2 = {"version": 2, **dict.fromkeys(("experiment", "delta", "relation", "accountant"))}
FORMAT_2 |= {"accounting": "sound", "arms": []}
RUNG = 1.1  # two rungs of a ladder differed by this factor, or less
Table = Mapping[str, Any]


class Priced(Event, frozen=True):
    """What a client released, by its price: mu^2 under each relation, of all rounds together."""

    mu_squared: tuple[tuple[Relation, float], ...]


def planned(arm: Table) -> PlannedArm | None:
    """An arm in an old entry of a population's journal; None of one that has its terms."""
    if "terms" in arm:
        return None
    if (prices := arm["mu_squared"]) is not None:
        each = {who: Priced(tuple(by_relation.items())) for who, by_relation in prices.items()}
        terms = {who: (Rounds(price, 1),) for who, price in each.items()}
    else:
        event, rounds = arm["round"], arm["rounds"]
        if "rungs" in event:
            known: Sum = Chosen(tuple(_coins(**rung) for rung in event["rungs"]))
        else:
            known = Turns(**event) if "separation" in event else _coins(**event)
        terms = {"SERVER": (EXACT,), "PUBLIC": (Rounds(known, rounds),)}
    return PlannedArm(arm["name"], arm["clients"], arm["rounds"], terms)


def _coins(
    sampling_rate: float,
    noise_multiplier: float,
    norm_multiplier: float | None = None,
    upload_probability: float = 1.0,
) -> Coins:
    if norm_multiplier is None:
        return Sampled(sampling_rate * upload_probability, noise_multiplier)
    return SampledTwice(sampling_rate, norm_multiplier, upload_probability, noise_multiplier)


# --- Headers of format 2 --------------------------------------------------------------------------


def header(written: Table) -> dict[str, Any]:
    """The fields of a header, but for its version, as `journal.Header` has them."""
    arms = [_arm(**arm) for arm in written["arms"]]
    trust = {"trust": written["arms"][0]["terms"]["trust"]} if arms else {}
    return {**written, **trust, "arms": tuple(arms)}


def _arm(name: str, terms: Table, budget: Table | None, claimed_epsilon: float | None) -> LedgerArm:
    positive(**{name: terms[name] for name in MULTIPLIERS if terms.get(name)})
    stated = terms.get("stated") or _stated(terms)
    clients, rounds = terms["clients"], terms["rounds"]
    if terms["trust"] == "local":
        seen = _local(terms, stated, budget)
    else:
        public = Rounds(_sum(terms, stated), rounds) if terms["trust"] == "central" else EXACT
        seen = {"SERVER": (EXACT,), "PUBLIC": (public,)}
    counted = (stated["releases_norms"], stated["credited"], claimed_epsilon)
    return LedgerArm(name, clients, rounds, seen, *counted)


def _stated(arm: Table) -> Table:
    """What the four rules of version 0.1 state, whose headers did not say it."""
    heaviest = arm.get("heaviest") or max(arm.get("weights") or (1.0,))
    largest = {
        "full": 1.0,
        "uniform": arm["uploads"] / arm["cohort"],
        "norm": _by_norm(arm, arm["norm_low"]),
        "weights": arm["uploads"] * heaviest / (arm["cohort"] / arm["clients"]),
    }
    return {
        "largest_probability": min(1.0, largest[arm["rule"]]),
        "releases_norms": arm["rule"] == "norm",
        "credited": arm["trust"] == "local" and arm["estimator"] == "capped",
    }


def _by_norm(arm: Table, norm_low: float) -> float:
    """The most that a rule in proportion to the norm gives a client."""
    share: float = arm["uploads"] / arm["cohort"]
    return min(1.0, (1 - arm["floor"]) * share / norm_low + arm["floor"] * share)


def _local(arm: Table, stated: Table, budget: Table | None) -> Terms:
    update, rounds = arm["noise_multiplier"], arm["rounds"]
    norm = arm["norm_multiplier"] if stated["releases_norms"] else None
    if budget is not None:
        kept = {f"budget_{name}": value for name, value in budget.items()}
        event = Filtered(update, norm_multiplier=norm, **kept)
        return {"SERVER": (Rounds(event, rounds),), "PUBLIC": (Rounds(event, rounds),)}
    # of rules that ask for nothing, only these two can have everybody upload
    sure = stated["credited"] and arm["rule"] in ("uniform", "full") and not arm.get("dropouts")
    everyone = sure and arm["uploads"] == arm["cohort"] == arm["clients"]
    alone, norms = Message("update", update), []
    together = Message("update", update, arm["clients"]) if everyone else alone
    if norm is not None:
        norms = [Rounds(Message("norm", norm), rounds)]
    return {"SERVER": (Rounds(alone, rounds), *norms), "PUBLIC": (Rounds(together, rounds), *norms)}


def _sum(arm: Table, stated: Table) -> Sum:
    if arm.get("separation"):
        return Turns(arm["separation"], arm["noise_multiplier"], max(1, arm["bands"]))
    if arm.get("ladder"):
        return Chosen(tuple(_rungs(arm, stated)))
    rate, p = arm["cohort"] / arm["clients"], stated["largest_probability"]
    return _round(arm, stated, rate, p, arm["noise_multiplier"])


def _rungs(arm: Table, stated: Table) -> Iterator[Coins]:
    """Of cohorts, by a released count; or of the least norm sum, by which only dpis chose."""
    by_count = stated.get("count_share", 0) > 0
    if not by_count and arm["rule"] != "dpis":
        raise ValueError(f"rule {arm['rule']!r}: its header does not say what its rungs stated")
    least, most = (arm["uploads"], arm["cohort"]) if by_count else (arm["norm_low"], 1.0)
    steps = math.ceil(math.log(most / least) / math.log(RUNG))
    rungs = np.geomspace(least, most, steps + 1).tolist()
    for rung, noise in zip(rungs, arm["ladder"], strict=True):
        cohort = min(rung, float(arm["clients"])) if by_count else arm["cohort"]
        p = 1.0 if by_count else _by_norm(arm, rung)
        yield _round(arm, stated, cohort / arm["clients"], p, noise)


def _round(arm: Table, stated: Table, rate: float, p: float, noise: float) -> Coins:
    """What the cohort releases before the uploads, norms and bits, is one Gaussian."""
    before = [arm["norm_multiplier"]] if stated["releases_norms"] else []
    if arm.get("clip_quantile") is not None:
        before.append(arm["clip_multiplier"])
    if before and p == 1 and not stated["releases_norms"]:
        return Sampled(rate, joint_multiplier(noise, *before))
    first = joint_multiplier(*before) if len(before) > 1 else None
    return _coins(rate, noise, first or next(iter(before), None), p)


# --- Version 0.1 ----------------------------------------------------------------------------------


def checkpoint(meta: Mapping[str, Any]) -> dict[str, Any]:
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
) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The header of format 2, and the values of all entries, of a SQLite file.

    `damaged`: how an error message begins. A file that was altered, or is of no known kind, is
    refused.
    """
    before = _link(meta["settings"])
    for expected, (number, *values, found) in enumerate(rows, 1):
        before = _link(before, number, *values)
        if number != expected or found != before:
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
