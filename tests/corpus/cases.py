"""Random arms and mistakes, drawn once by `corpus.record` and kept in arms.jsonl.xz.

A case is an experiment's tables, as TOML would have them, with the noise that calibration would
have found. Most are sound; in one of six something is wrong with one setting.
"""

from __future__ import annotations

import math
import random
from typing import Any

from locksfl.methods import ESTIMATORS, RULES, TRUSTS

Case = dict[str, Any]
WRONG = {  # values that a setting may not have
    "cohort": (0, -1, 10**6, "many"),
    "uploads": (0, -2.5, 10**6, True),
    "floor": (1, -0.1, "low"),
    "norm_low": (0, 1.5, 1e-9),
    "clip_norm": (0, -1, "one"),
    "step": (0, -0.5),
    "noise_multiplier": (-1, "much"),
    "norm_multiplier": (-1, 0),
    "clip_quantile": (0, 1, 2),
    "clip_rate": (0, -1),
    "clip_multiplier": (-3,),
    "loss_bound": (0, -1),
    "gate": (0, 2),
    "lengths": ("long",),
    "sampling": ("fixed",),
    "separation": (0, 1.5, 10**7),
    "bands": (0, -1),
    "weights": ([0.5], [2.0, -1.0], "equal"),
    "rule": ("norms", "unifrom", 3),
    "estimator": ("caped",),
    "nois_multiplier": (1.0,),
}


def draw(source: random.Random) -> Case:
    """One experiment of one arm."""
    name, trust = source.choice(list(RULES)), source.choice(list(TRUSTS))
    rule, private = RULES[name], TRUSTS[trust].private
    clients = source.choice([20, 100, 1000, 5000])
    rounds = source.choice([1, 3, 10, 60, 200])
    arm: dict[str, Any] = {"name": "a", "rule": name}
    if source.random() < 0.4:
        arm["estimator"] = source.choice(list(ESTIMATORS))
    if not rule.all_clients:
        arm["cohort"] = source.choice([clients, max(1, clients // 2), max(1, clients // 10)])
    if source.random() < 0.5 and not rule.everyone:
        arm["uploads"] = source.choice([0.3, 0.7, 1.0]) * arm.get("cohort", clients)
    if "weights" in rule.takes:
        arm["weights"] = [1 / clients] * clients if clients < 1000 else [1.0]
    if "uploads" in arm and arm["uploads"] < arm.get("cohort", clients):
        share = arm["uploads"] / arm.get("cohort", clients)
        for setting, least in (("floor", 0.0), ("norm_low", share), ("gate", share)):
            if setting in rule.takes and source.random() < 0.5:
                arm[setting] = source.uniform(least, 0.99)
    if source.random() < 0.5 and not (trust == "local" and source.random() < 0.9):
        arm["clip_quantile"] = 0.5
    if source.random() < 0.15:
        arm = {"name": "a", "rule": "uniform", "sampling": "cyclic"}
        arm |= {"separation": source.choice([2, 5]), "bands": source.choice([1, 2])}
    if source.random() < 0.1:
        arm["lengths"] = "equal"
    privacy: dict[str, Any] = {"trust": trust}
    noise: dict[str, Any] = {}
    if private:
        noise = {"noise_multiplier": source.uniform(0.5, 5.0)}
        noise["norm_multiplier"] = source.uniform(1.0, 30.0) if rule.released else 0.0
        noise["clip_multiplier"] = source.uniform(3.0, 30.0) if "clip_quantile" in arm else 0.0
        privacy["epsilon"] = source.choice([8.0, 50.0, 400.0])
        noise["rungs"] = [source.uniform(0.8, 4.0) for _ in range(8)]
    if trust == "local" and source.random() < 0.4:
        privacy["filter"] = True
        privacy["relation"] = source.choice(["zero-out", "replace"])
    tables: dict[str, Any] = {
        "data": {"clients": clients, "split": {"kind": "iid"}},
        "train": {"rounds": rounds, "clip_norm": source.choice([0.3, 1.0])},
        "privacy": privacy,
        "arm": [arm],
    }
    if source.random() < 0.2:
        tables["engine"] = "flower"
    if source.random() < 1 / 6:
        setting = source.choice(list(WRONG))
        arm[setting] = source.choice(WRONG[setting])
    return {"tables": tables, "noise": noise, "accountant": source.choice(["pld", "rdp"])}


def finite(value: float) -> float | None:
    """For JSON, which has no infinity."""
    return value if math.isfinite(value) else None
