"""Arms whose rule or estimator is code of the operator's own: "package.module:name".

It is never imported here, since whoever wrote the document chose its name. So what the code states
(a largest probability, whether norms are asked for) is taken from the terms, and a reader is told.
All that the trust, the settings and the stated noise fix by themselves must hold all the same. For
the texts a rule of the program's stands in, one that they say the same of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from locksfl.arm import Arm
from locksfl.experiment.config import Config
from locksfl.experiment.documents import Document
from locksfl.experiment.statement import RESERVATIONS
from locksfl.methods import TRUSTS
from locksfl.methods.releases import joint_multiplier
from locksfl.methods.trusts import View
from locksfl.privacy.terms import Term

Record = dict[str, Any]

METHODS = ("rule", "estimator")
OF_RULES = (*METHODS, "floor", "norm_low", "norm_multiplier", "loss_bound", "gate", "weights")
LADDERS = {"rate_control": "coin", "noise_follows": "dpis"}  # rules with one, by what is said of it


def own_code(document: Document) -> list[str]:
    """The rules and estimators that are code of the operator's own."""
    words = (arm.get(part) for arm in document["config"]["arm"] for part in METHODS)
    return sorted({word for word in words if isinstance(word, str) and ":" in word})


def is_own(table: Record) -> bool:
    """Whether an arm has a rule or an estimator of the operator's own."""
    return any(isinstance(table.get(part), str) and ":" in table[part] for part in METHODS)


def stand_ins(document: Document) -> list[Record]:
    """The tables of all arms, own rules and estimators replaced."""
    said = document["statement"]["words"]["reservations"]
    rules = [rule for key, rule in LADDERS.items() if RESERVATIONS[key] in said] or ["coin"]
    clients, found = document["config"]["data"].get("clients"), []
    ladders = 0
    for table, told in zip(document["config"]["arm"], document["statement"]["arms"], strict=True):
        if is_own(table):
            table = {name: value for name, value in table.items() if name not in OF_RULES}
            if "ladder" in told:
                table["rule"] = rules[ladders % len(rules)]
                ladders += 1
            if table.get("rule") == "dpis":  # it asks everybody
                table.pop("cohort", None)
            elif "separation" not in table:
                table.setdefault("cohort", clients)
        found.append(table)
    return found


def own_term_faults(told: Record, arm: Arm, config: Config) -> Iterator[str]:
    """Terms of such an arm that its trust or the stated noise forbids; `arm` stands in."""
    trust = TRUSTS[config.privacy.trust]
    for who, view in (("SERVER", trust.server), ("PUBLIC", trust.public)):
        terms = told["terms"][who]
        kinds = [term["mechanism"] for term in terms]
        if kinds not in (allowed := _kinds(view, told, arm, config)):
            either = " or ".join(", ".join(each) for each in allowed)
            yield f"terms {who}: {', '.join(kinds)}; trust {trust.name!r} leads to {either}"
            continue
        releases = [term["release"] for term in terms if "release" in term]
        if len(set(releases)) < len(releases):
            yield f"terms {who}: a release stands there twice"
        for term in terms:
            for name, value in _stated(term, told, arm, config, who).items():
                if term.get(name) != value:
                    yield f"terms {who}: {name} {term.get(name)!r}; the arm's is {value!r}"


def _kinds(view: View, told: Record, arm: Arm, config: Config) -> list[list[str]]:
    """The lists of mechanisms that an observer with this view may have before them."""
    norms = told["norm_multiplier"] is not None
    if view is View.RAW:
        return [["exact"]]
    if view is View.NOISED:
        filtered = config.privacy.filter
        return [["filtered-gaussian"] if filtered else ["gaussian"] * (1 + norms)]
    if arm.separation:
        return [["turns"]]
    if "ladder" in told:
        return [["chosen"]]
    joint, plain = ["joint-poisson-gaussian"], ["poisson-gaussian"]
    if norms:
        return [joint]
    return [plain] if arm.clip_quantile is None else [plain, joint]


def _stated(term: Term, told: Record, arm: Arm, config: Config, who: str) -> Record:
    """What a term must have, given what the arm states of its noise (`Arm.sampled_round`)."""
    noise, norm = told["noise_multiplier"], told["norm_multiplier"]
    bits = told.get("clip_multiplier")
    kind, privacy = term["mechanism"], config.privacy
    if kind == "gaussian":
        alone = who == "SERVER" or arm.dropouts or "uploaders" not in term
        share = {"uploaders": None if alone else arm.clients}
        return {"noise_multiplier": noise if term["release"] == "update" else norm, **share}
    if kind == "filtered-gaussian":
        budget = {f"budget_{n}": getattr(privacy, n) for n in ("epsilon", "delta", "relation")}
        return {"update_multiplier": noise, "norm_multiplier": norm, **budget}
    if kind == "turns":
        return {"noise_multiplier": noise, "separation": arm.separation}
    if kind == "poisson-gaussian":
        return {"noise_multiplier": joint_multiplier(noise, bits) if bits else noise}
    if kind == "joint-poisson-gaussian":
        before = [z for z in (norm, bits) if z]
        first = joint_multiplier(*before) if len(before) > 1 else before[0]
        return {"noise_multiplier": noise, "first_multiplier": first}
    return {}
