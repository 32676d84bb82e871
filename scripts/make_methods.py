"""The tables of docs/methods.md, from what the methods state about themselves.

python -m scripts.make_methods --audit             # attacks all first (methods-audit.json)
python -m scripts.make_methods --audit training    # only the ways to train; or only the rules
python -m scripts.make_methods                     # with the bounds of the last time
python -m scripts.make_methods --show              # prints what the site shows below the page

A block of docs/methods.md between `<!-- NAME -->` and `<!-- end -->` is replaced; the rest is text.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from locksfl._text import markdown_table
from locksfl.arm import Arm
from locksfl.audit.attacks import Finding, audit_arm
from locksfl.experiment.config import LocalConfig, PrivacyConfig, config_of
from locksfl.experiment.plan import calibrated
from locksfl.methods import ESTIMATORS, RULES, TRUSTS
from locksfl.methods.sound import unsound
from locksfl.privacy import Cost, guarantee
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from scripts import audit_training

DOCS = Path(__file__).resolve().parent.parent / "docs"
AUDIT = DOCS / "methods-audit.json"
CLIENTS, ROUNDS, DELTA = 1000, 100, 1e-5
ASKED: dict[str, Any] = {"cohort": 100.0, "uploads": 40.0}
NOISE: dict[str, dict[str, float]] = {  # the standard setting
    "central": {"noise_multiplier": 1.0, "norm_multiplier": 10.0},
    "local": {"noise_multiplier": 20.0, "norm_multiplier": 20.0},
    "none": {},
}


class Way(NamedTuple):
    """A way to train."""

    name: str
    local: dict[str, Any]  # what a run of it has beside its rule: [local]
    arm: dict[str, Any]  # and [[arm]]
    sends: str
    remark: str = ""  # on whether it is unbiased


TRAINING = {
    "dp-sgd": Way("DP-SGD of clients (Abadi et al. 2016)", {}, {}, "its mean gradient"),
    "fedavg": Way(
        "FedAvg, DP-FedAvg (McMahan et al. 2017, 2018)",
        {"update": "epochs", "epochs": 1, "weight": "size", "max_samples": 32},
        {},
        "its change after local epochs, times its samples over `max_samples`",
    ),
    "fedprox": Way(
        "FedProx (Li et al. 2020)",
        {"update": "epochs", "epochs": 1, "proximal": 0.1},
        {},
        "its change after local epochs",
    ),
    "anchors": Way(
        "anchors (SVRG; Johnson and Zhang 2013)",
        {"control": "anchor", "anchor_every": 10, "anchor_ratio": 0.5},
        {},
        "its mean gradient, or the difference from that at the anchor",
        "; a step is the average plus the last anchor's",
    ),
    "scaffold": Way(
        "SCAFFOLD (after Karimireddy et al. 2020)",
        {"update": "epochs", "epochs": 1, "control": "scaffold", "max_samples": 32},
        {},
        "the sum of its local gradients, times the local step, and nothing more, also under trust "
        "none; the paper's clients send two vectors",
    ),
    "turns": Way(
        "turns with correlated noise (Choquette-Choo et al. 2023)",
        {},
        {"sampling": "cyclic", "separation": 25},
        "its mean gradient",
        ", of the group whose turn it is; of all clients over a cycle",
    ),
}
AUDITED = {"epsilon": 3.0, "delta": 1e-2}
AUDITED_ROUNDS, TRAINED_ROUNDS, REPETITIONS, SIGNIFICANCE = 2, 4, 40_000, 1e-6
TRUST_ORDER = ("none", "central", "local")
OBSERVER = {"central": "PUBLIC", "local": "SERVER"}  # from whom each trust protects


def shown(epsilon: float) -> str:
    """An epsilon in a table."""
    return "∞" if math.isinf(epsilon) else f"{epsilon:.3g}"


def against(costs: list[Cost]) -> str:
    """Epsilon under zero-out against each observer."""
    found = {cost.observer: cost.epsilon for cost in costs if cost.relation == "zero-out"}
    return f"{shown(found['SERVER'])}, {shown(found['PUBLIC'])}"


class Reasons:
    """Why something is refused, numbered as they come up."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def mark(self, why: str) -> str:
        """A refusal in a table: its number."""
        if why not in self.found:
            self.found.append(why)
        return f"no ({self.found.index(why) + 1})"

    def lines(self) -> str:
        """The list below the table."""
        return "\n".join(f"({n}) {why}." for n, why in enumerate(self.found, 1))


def standard_arm(rule: str, trust: str) -> Arm:
    """The rule in the standard setting."""
    stated = RULES[rule]
    settings = dict(NOISE[trust])
    if not stated.released:
        settings.pop("norm_multiplier", None)
    if not stated.everyone:
        settings |= ASKED
    if stated.all_clients and not stated.everyone:
        settings["cohort"] = float(CLIENTS)
    if stated.count_share:  # nothing holds its uploads
        settings["uploads"] = settings["cohort"]
    if "weights" in stated.takes:
        settings["weights"] = [1 / CLIENTS] * CLIENTS
    return Arm.of("standard", CLIENTS, ROUNDS, rule, trust=trust, **settings)


def refusal(rule: str, trust: str) -> str | None:
    """Why no estimator makes a rule sound under a trust; None if one does."""
    found = [unsound(RULES[rule], one, TRUSTS[trust]) for one in ESTIMATORS.values()]
    return found[0][0][1] if all(found) else None


def unbiased(arm: Arm) -> str | None:
    """The trust of the arm if it is unbiased, with a star if another estimator makes it so."""
    if arm.unbiased:
        return arm.trust
    rule, _, trust = arm.parts
    sound = [name for name, one in ESTIMATORS.items() if not unsound(rule, one, trust)]
    others = [name for name in sound if replace(arm, estimator=name).unbiased]
    assert others in ([], ["horvitz-thompson"])  # the page says what the star is
    return f"{arm.trust}*" if others else None


def proved_of(name: str, proved: dict[str, Any]) -> str:
    """What the audit proves of a method, under central trust and under local trust."""
    found = [(trust, proved.get(f"{trust}-{name}")) for trust in OBSERVER]
    return ", ".join(f"{one['lower']:.2f}" if one else "-" for _, one in found)


def together(answers: dict[str, str | None]) -> str:
    """Under which trusts a method is unbiased."""
    if all(answer == trust for trust, answer in answers.items()):
        return "yes"
    return ", ".join(answer for answer in answers.values() if answer) or "no"


def rules_list() -> str:
    """Every rule, and what it asks of a client first."""
    lines = []
    for name in in_order():
        rule = RULES[name]
        first = rule.asks.name if rule.asks and rule.released else "-"
        lines.append([f"`{name}`", rule.about, first])
    return markdown_table(("rule", "uploads", "asked first"), lines)


def in_order() -> list[str]:
    """The names of the rules; those that ask for nothing come first."""
    return sorted(RULES, key=lambda name: (RULES[name].asks is not None, name))


def rules_table() -> str:
    """What every rule costs by trust, and what an attack on it has proved."""
    reasons, lines, proved = Reasons(), [], bounds()
    for name in in_order():
        cells, means = [], {}
        for trust in TRUST_ORDER:
            if why := refusal(name, trust):
                cells.append(reasons.mark(why))
                continue
            arm = standard_arm(name, trust)
            means[trust] = unbiased(arm)
            if arm.private:
                cells.append(against(guarantee([arm], DELTA, "pld")))
        told = (together(means), proved_of(name, proved), RULES[name].paper or "-")
        lines.append([f"`{name}`", *cells, *told])
    heads = ("rule", *OBSERVER, "unbiased", "proved", "paper")
    return markdown_table(heads, lines) + "\n\n" + reasons.lines()


def training_arm(way: Way, trust: str) -> Arm | str:
    """The arm of a run of the standard setting with this training, or why there is none."""
    table = {"name": "a", "rule": "uniform", **way.arm}
    if "sampling" not in way.arm:
        table["cohort"] = ASKED["uploads"]
    if noise := NOISE[trust].get("noise_multiplier"):
        table["noise_multiplier"] = noise
    data = {"name": "mnist-embedded", "clients": CLIENTS, "split": {"kind": "iid"}}
    try:
        config = config_of(
            {
                "name": "standard",
                "data": data,
                "local": way.local,
                "train": {"rounds": ROUNDS},
                "privacy": {"trust": trust, "delta": DELTA},
                "arm": [table],
            }
        )
        return config.arms[0]
    except ValueError as error:  # "arm.NAME.SETTING = VALUE: why"; the table has the names
        return re.sub(r"^(arm\.)?[\w.]* = [^:]*: ", "", str(error))


def training_table() -> str:
    """Every way of training by trust, with rule uniform."""
    reasons, lines, proved = Reasons(), [], bounds()
    for name, way in TRAINING.items():
        cells, means = [], {}
        for trust in TRUST_ORDER:
            arm = training_arm(way, trust)
            if isinstance(arm, str):
                cells.append(reasons.mark(arm))
                continue
            means[trust] = unbiased(arm)
            if arm.private:
                cells.append(against(guarantee([arm], DELTA, "pld")))
        shown_settings = [f"local.{k} = {v!r}" for k, v in way.local.items()]
        shown_settings += [f"arm.{k} = {v!r}" for k, v in way.arm.items()]
        settings = ", ".join(f"`{one}`" for one in shown_settings).replace("'", '"')
        told = (together(means) + way.remark, proved_of(name, proved))
        lines.append([way.name, settings or "the defaults", way.sends, *cells, *told])
    heads = ("training", "settings", "a client sends", *OBSERVER, "unbiased", "proved")
    return markdown_table(heads, lines) + "\n\n" + reasons.lines()


def claim(rule: str, trust: str) -> tuple[Arm, PrivacyConfig]:
    """An arm of 100 clients that claims 3. Under local trust nearly every member uploads, as a
    claim against the server is for uploads in all rounds."""
    stated = RULES[rule]
    settings: dict[str, Any] = {"uploads": 40.0}
    if trust == "local":
        settings["uploads"] = 60.0
        if "floor" in stated.takes:
            settings["floor"] = 0.9
    if "norm_low" in stated.takes and not stated.noise_follows:  # else all K' cost the same
        settings["norm_low"] = 0.9 if trust == "central" else 1.0
    if stated.everyone:
        settings = {}
    elif not stated.all_clients:
        settings["cohort"] = 60.0
    elif trust == "local":
        settings["uploads"] = 100.0
    if stated.count_share:
        settings["cohort"] = settings["uploads"]
    if "gate" in stated.takes:  # norms of the others are 0: some rounds by norm, some uniform
        settings["gate"] = 0.95 if trust == "central" else 1.0
    if "weights" in stated.takes:
        settings["weights"] = [0.01] * 100
    privacy = PrivacyConfig(trust=trust, **AUDITED)
    arm = Arm.of(f"{trust}-{rule}", 100, AUDITED_ROUNDS, rule, trust=trust, **settings)
    return calibrated(arm, privacy), privacy


def strongest(arm: Arm, privacy: PrivacyConfig, repetitions: int = REPETITIONS) -> Finding:
    """The attack with all the information."""
    found = audit_arm(
        arm,
        privacy,
        rounds=arm.rounds,
        repetitions=repetitions,
        canaries=0,
        significance=SIGNIFICANCE,
        randomness=Randomness.seeded(4),
    )
    wanted = (OBSERVER[arm.trust], "zero-out")
    (one,) = (f for f in found if (f.observer, f.relation) == wanted)
    return one


def training_claim(name: str, trust: str) -> tuple[Arm, LocalWork, PrivacyConfig] | None:
    """An arm of 100 clients that claims 3 for four rounds of a way to train, and its local work:
    several steps where there are any, and two anchors. None if the trust refuses it."""
    way = TRAINING[name]
    if isinstance(training_arm(way, trust), str):
        return None
    privacy = PrivacyConfig(trust=trust, **AUDITED)
    asked: dict[str, Any] = {"separation": 2} if way.arm else {"cohort": 50.0}
    arm = Arm.of(f"{trust}-{name}", 100, TRAINED_ROUNDS, trust=trust, **asked)
    work = replace(LocalConfig(**way.local).work(), epochs=2, anchor_every=2)
    return calibrated(arm, privacy), work, privacy


def strongest_on_training(
    arm: Arm, work: LocalWork, privacy: PrivacyConfig, repetitions: int = REPETITIONS
) -> Finding:
    """The attack with all the information. Turns differ in the noise alone."""
    if arm.separation:
        return strongest(arm, privacy, repetitions)
    return audit_training.attack(arm, work, privacy, repetitions, SIGNIFICANCE)


def attacked(what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The audit of every private rule, or way to train, under every trust that allows it."""
    for trust in OBSERVER:
        for name in RULES if what == "rules" else TRAINING:
            if what == "rules":
                if refusal(name, trust):
                    continue  # as the table says
                found = strongest(*claim(name, trust))
            else:
                if (given := training_claim(name, trust)) is None:
                    continue
                found = strongest_on_training(*given)
            print(f"{found.arm}: {found.lower:.3f} of {found.claimed:.3f}", flush=True)
            yield found.arm, {**asdict(found), "refuted": found.refuted}


def bounds() -> dict[str, Any]:
    """What the last audit proved of each arm."""
    found: dict[str, Any] = json.loads(AUDIT.read_text("utf-8")) if AUDIT.exists() else {}
    return found


BLOCKS = {"rules": rules_list}
STANDARD = """## Every method: costs and proofs

A cell gives epsilon against SERVER, then PUBLIC (zero-out): 1,000 clients, 100 asked and 40 to
upload in each of 100 rounds, delta 1e-5; under central trust noise of multiplier 1 on updates
and 10 on what is released first, under local trust 20 on both. (With `full` everybody uploads;
`dpis` scores everybody, and its cell is for one fixed multiplier, charged at the least norm
sum.) *Unbiased*: the trusts under which the expectation of the average is the mean of the
clipped updates (*: with the estimator `horvitz-thompson`). *Proved*: the largest epsilon that an
attack on the implementation has proved of a claim of 3 (100 clients, delta .01, 40,000
repetitions, significance 1e-6) against the observer from whom the trust protects, central then
local; of 2 rounds, and of 4 for a way to train, whose clients have a loss so steep that they are
clipped in every round."""


def costs_and_proofs() -> str:
    """What the site shows below docs/methods.md."""
    return f"{STANDARD}\n\n{rules_table()}\n\n{training_table()}\n"


def filled(text: str) -> str:
    """docs/methods.md with its tables made anew."""
    for name, block in BLOCKS.items():
        begin = f"<!-- {name} -->\n"
        before, rest = text.split(begin)
        _, after = rest.split("<!-- end -->", 1)
        text = f"{before}{begin}{block()}\n<!-- end -->{after}"
    return text


def main() -> None:
    """Audit if asked to, then fill in the tables."""
    parser = argparse.ArgumentParser(description="the tables of docs/methods.md")
    kinds = ("rules", "training")
    parser.add_argument("--audit", nargs="?", const="all", choices=("all", *kinds), help="first")
    parser.add_argument("--show", action="store_true", help="print costs and proofs")
    given = parser.parse_args()
    if given.show:
        print(costs_and_proofs(), end="")
        return
    asked = given.audit
    proved = bounds() if asked in kinds else {}
    for kind in kinds if asked == "all" else [asked] if asked else []:
        names = RULES if kind == "rules" else TRAINING
        proved = {key: one for key, one in proved.items() if key.split("-", 1)[1] not in names}
        proved |= attacked(kind)
    if asked:
        AUDIT.write_text(json.dumps(proved, indent=1) + "\n", "utf-8")
    page = DOCS / "methods.md"
    page.write_text(filled(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
