"""Fill in the tables of docs/methods.md from what the methods state about themselves.

python -m scripts.make_methods --audit     # attacks every private rule first (methods-audit.json)
python -m scripts.make_methods             # with the bounds of the last time

A block of docs/methods.md between `<!-- NAME -->` and `<!-- end -->` is replaced; the rest is text.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from locksfl._text import markdown_table
from locksfl.arm import Arm
from locksfl.audit.attacks import Finding, audit_arm
from locksfl.experiment.config import Config, PrivacyConfig, config_of
from locksfl.experiment.plan import calibrated
from locksfl.methods import RULES
from locksfl.privacy import Cost, guarantee
from locksfl.round.randomness import Randomness

DOCS = Path(__file__).resolve().parent.parent / "docs"
AUDIT = DOCS / "methods-audit.json"
CLIENTS, ROUNDS, DELTA = 1000, 100, 1e-5
ASKED: dict[str, Any] = {"cohort": 100.0, "uploads": 40.0}
NOISE: dict[str, dict[str, float]] = {  # the standard setting
    "central": {"noise_multiplier": 1.0, "norm_multiplier": 10.0},
    "local": {"noise_multiplier": 20.0, "norm_multiplier": 20.0},
    "none": {},
}
TRAINING = {  # what a run of each method has beside its rule: [local] and [[arm]]
    "DP-SGD of clients (Abadi et al. 2016)": ({}, {}),
    "FedAvg, DP-FedAvg (McMahan et al. 2017, 2018)": (
        {"update": "epochs", "epochs": 1, "weight": "size", "max_samples": 32},
        {},
    ),
    "FedProx (Li et al. 2020)": ({"update": "epochs", "epochs": 1, "proximal": 0.1}, {}),
    "anchors (SVRG; Johnson and Zhang 2013)": (
        {"control": "anchor", "anchor_every": 10, "anchor_ratio": 0.5},
        {},
    ),
    "SCAFFOLD (Karimireddy et al. 2020)": (
        {"update": "epochs", "epochs": 1, "control": "scaffold", "max_samples": 32},
        {},
    ),
    "turns with correlated noise (Choquette-Choo et al. 2023)": (
        {},
        {"sampling": "cyclic", "separation": 25},
    ),
}
AUDITED = {"epsilon": 3.0, "delta": 1e-2}
AUDITED_ROUNDS, REPETITIONS, SIGNIFICANCE = 2, 40_000, 1e-6
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

    def mark(self, error: ValueError) -> str:
        """A refusal in a table: its number."""
        # the message is "arm.NAME.SETTING = VALUE: why"; the table has the names
        why = re.sub(r"^(arm\.)?[\w.]* = [^:]*: ", "", str(error))
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
    if stated.everyone_scored:
        settings["cohort"] = float(CLIENTS)
    if stated.count_share:  # nothing holds its uploads
        settings["uploads"] = settings["cohort"]
    if "weights" in stated.takes:
        settings["weights"] = [1 / CLIENTS] * CLIENTS
    return Arm("standard", CLIENTS, ROUNDS, rule, trust=trust, **settings)


def rules_table() -> str:
    """Every rule by trust."""
    reasons, lines, proved = Reasons(), [], bounds()
    for name in sorted(RULES, key=lambda name: (RULES[name].asks is not None, name)):
        rule, cells, means = RULES[name], [], []
        for trust in ("none", "central", "local"):
            try:
                arm = standard_arm(name, trust)
            except ValueError as error:
                cells.append(reasons.mark(error))
                continue
            means.append(f"{trust}: {'yes' if arm.unbiased else 'no'}")
            cells.append(against(guarantee([arm], DELTA, "pld")) if arm.private else "yes")
        answers = {mean.split(": ")[1] for mean in means}
        unbiased = answers.pop() if len(answers) == 1 else "; ".join(means)
        lower = [
            f"{one['lower']:.2f} ({trust})"
            for trust in OBSERVER
            if (one := proved.get(f"{trust}-{name}"))
        ]
        told = (unbiased, ", ".join(lower) or "-", rule.paper or "-")
        lines.append([f"`{name}`", rule.about, rule.sends, *cells, *told])
    heads = (
        "rule", "uploads", "a client sends", "none", "central", "local", "unbiased",
        "audit proves, of 3", "paper",
    )  # fmt: skip
    return markdown_table(heads, lines) + "\n\n" + reasons.lines()


def training_config(local: dict[str, Any], arm: dict[str, Any], trust: str) -> Config:
    """A run of the standard setting with this training."""
    turns = "sampling" in arm
    table = {"name": "a", "rule": "uniform", **arm}
    if not turns:
        table["cohort"] = ASKED["uploads"]
    noise = NOISE[trust].get("noise_multiplier")
    if noise:
        table["noise_multiplier"] = noise
    return config_of(
        {
            "name": "standard",
            "data": {"name": "mnist-embedded", "clients": CLIENTS, "split": {"kind": "iid"}},
            "local": local,
            "train": {"rounds": ROUNDS},
            "privacy": {"trust": trust, "delta": DELTA},
            "arm": [table],
        }
    )


def training_table() -> str:
    """Every way of training by trust, with rule uniform."""
    reasons, lines = Reasons(), []
    for name, (local, table) in TRAINING.items():
        cells = []
        for trust in ("none", "central", "local"):
            try:
                (arm,) = training_config(local, table, trust).arms()
                cells.append(against(guarantee([arm], DELTA, "pld")) if arm.private else "yes")
            except ValueError as error:
                cells.append(reasons.mark(error))
        shown_settings = [f"local.{k} = {v!r}" for k, v in local.items()]
        shown_settings += [f"arm.{k} = {v!r}" for k, v in table.items()]
        settings = ", ".join(f"`{one}`" for one in shown_settings).replace("'", '"')
        lines.append([name, settings or "the defaults", *cells])
    heads = ("training", "settings", "none", "central", "local")
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
    if "norm_low" in stated.takes:
        settings["norm_low"] = 0.9 if trust == "central" else 1.0
    if stated.everyone:
        settings = {}
    elif not stated.everyone_scored:
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
    arm = Arm(f"{trust}-{rule}", 100, AUDITED_ROUNDS, rule, trust=trust, **settings)
    return calibrated(arm, privacy), privacy


def strongest(arm: Arm, privacy: PrivacyConfig, repetitions: int = REPETITIONS) -> Finding:
    """The attack with all the information."""
    found = audit_arm(
        arm,
        privacy,
        rounds=AUDITED_ROUNDS,
        repetitions=repetitions,
        canaries=0,
        significance=SIGNIFICANCE,
        randomness=Randomness.seeded(4),
    )
    wanted = (OBSERVER[arm.trust], "zero-out")
    (one,) = (f for f in found if (f.observer, f.relation) == wanted)
    return one


def attacked() -> Iterator[tuple[str, dict[str, Any]]]:
    """The audit of every private rule under every trust that allows it."""
    for trust in OBSERVER:
        for rule in RULES:
            try:
                arm, privacy = claim(rule, trust)
            except ValueError:
                continue  # refused, as the table says
            found = strongest(arm, privacy)
            print(f"{arm.name}: {found.lower:.3f} of {found.claimed:.3f}", flush=True)
            yield arm.name, found.as_dict()


def bounds() -> dict[str, Any]:
    """What the last audit proved of each arm."""
    found: dict[str, Any] = json.loads(AUDIT.read_text("utf-8")) if AUDIT.exists() else {}
    return found


BLOCKS = {"rules": rules_table, "training": training_table}


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
    parser.add_argument("--audit", action="store_true", help="attack every private rule first")
    if parser.parse_args().audit:
        AUDIT.write_text(json.dumps(dict(attacked()), indent=1) + "\n", "utf-8")
    page = DOCS / "methods.md"
    page.write_text(filled(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
