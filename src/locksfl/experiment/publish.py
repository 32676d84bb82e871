"""The public bundle: what may leave the server after a run, and nothing else.

In central trust the cohort, the number of uploads, exact bytes, the ledger and everything that a
simulation alone can see stay behind: publishing the cohort's size would void the amplification, and
the number of uploads depends on true norms. What is written here is the models, the configuration
without its seed, the statement, accuracy on records of no client, and post-processing of releases.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import tomli_w

from locksfl.arm import Arm
from locksfl.experiment.config import Config, to_table
from locksfl.experiment.coverage import covered, covered_lines
from locksfl.experiment.folder import RunFolder, append_lines
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.records import COUNTED, upload_estimate
from locksfl.methods import TRUSTS

# of an arm's summary: functions of the configuration, of releases and of held-out data alone
PUBLIC_ARM = (
    "name", "rule", "estimator", "trust", "rounds", "accuracy", "loss", "clip_norm", "step",
    "asked_rounds", "noise_multiplier", "norm_multiplier", "claimed_epsilon", "privacy",
)  # fmt: skip
PUBLIC_SUMMARY = (
    "name", "simulated", "tuned_without_privacy", "accounting", "no_guarantee",
    "filter", "all_arms_composed",
)  # fmt: skip
RESERVATIONS = {
    "filter": "filter: every client stops before it would exceed this budget, whatever is drawn.",
    "max_epsilon": "max_epsilon: an arm ended before a round would have exceeded it. The "
    "accountant alone decided that, from the settings and no data, so only the rounds played are "
    "charged.",
    "simulated": "simulated: a seed was given, so this is the epsilon that a run with secret "
    "randomness would have; this run itself protects nobody.",
    "tuned_without_privacy": "tuned_without_privacy: clip norm, step or rule were chosen by "
    "looking at runs on these data; that choice is not charged.",
}
PUBLIC_ROUND = ("arm", "round", "accuracy", "loss", "epsilon")


def publish(run: Path, target: Path) -> list[Path]:
    """Write the public bundle of a finished run to a new folder; its files."""
    folder = RunFolder.open(run)
    summary = folder.summary()
    if target.exists():
        raise ValueError(f"{target}: already exists; expected a new folder")
    config = folder.config
    names = ("noise_multiplier", "norm_multiplier")
    multipliers = [[arm[name] or 0.0 for name in names] for arm in summary["arms"]]
    arms = {arm.name: arm for arm in plan_arms(config, multipliers)}
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        _fill(work, folder, config, summary, arms)
        os.chmod(work, 0o755)
        os.replace(work, target)  # all of it or nothing
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return sorted(target.iterdir())


def _fill(
    work: Path, folder: RunFolder, config: Config, summary: dict[str, Any], arms: dict[str, Arm]
) -> None:
    # no path on the server's disk: neither of the data nor of an encoder
    anywhere = dataclasses.replace(config.data, dir=None, name=Path(config.data.name).name)
    encoder = config.features.file
    features = dataclasses.replace(config.features, file=encoder and Path(encoder).name)
    public_config = dataclasses.replace(config, seed=None, data=anywhere, features=features)
    (work / "config.toml").write_text(tomli_w.dumps(to_table(public_config)), "utf-8")
    for name in arms:
        shutil.copyfile(folder.path / f"model-{name}.npz", work / f"model-{name}.npz")
    rounds = [_public_round(line, arms[line["arm"]]) for line in folder.lines("rounds.jsonl")]
    append_lines(work / "rounds.jsonl", rounds)
    public = {
        **{name: summary[name] for name in PUBLIC_SUMMARY},
        "covers": covered(summary),
        "arms": [_public_arm(told, arms[told["name"]], rounds) for told in summary["arms"]],
    }
    (work / "statement.json").write_text(json.dumps(public, indent=2) + "\n", "utf-8")
    (work / "STATEMENT.md").write_text(statement_text(public, config), "utf-8")


def _public_round(line: dict[str, Any], arm: Arm) -> dict[str, Any]:
    public = {name: line[name] for name in PUBLIC_ROUND}
    public["expected_cohort"] = arm.cohort
    public["upload_estimate"] = upload_estimate(arm, line)
    if arm.parts[2].guards_server:  # functions of what every client released
        public |= {name: line[name] for name in (*COUNTED, "exhausted")}
    return public


def _public_arm(told: dict[str, Any], arm: Arm, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    mine = (line["upload_estimate"] for line in rounds if line["arm"] == arm.name)
    more = {"expected_cohort": arm.cohort, "upload_estimate": sum(mine)}
    return {name: told[name] for name in PUBLIC_ARM} | more


def statement_text(public: dict[str, Any], config: Config) -> str:
    """The privacy statement in words, of what `publish` writes to statement.json."""
    who = TRUSTS[config.privacy.trust].statement
    rounds = " or ".join(str(t) for t in sorted({arm["rounds"] for arm in public["arms"]}))
    lines = [
        f"# Privacy statement: {public['name']}",
        "",
        f"Unit of privacy: one client with all its data; {config.data.clients} clients, "
        f"{rounds} rounds per arm, Poisson sampling.",
        who,
        "",
        "The relation says what an epsilon compares. zero-out: one client's contribution present "
        "or absent. replace: one client's data replaced by any other. Norm releases are charged in "
        "the same epsilon.",
        "",
        "| arm | observer | relation | epsilon | delta | accountant |",
        "|---|---|---|---|---|---|",
    ]
    composed = [{"name": "all arms together", "privacy": public["all_arms_composed"]}]
    for arm in [*public["arms"], *composed]:
        for cost in arm["privacy"]:
            epsilon = "infinite" if cost["epsilon"] is None else f"{cost['epsilon']:.3f}"
            cells = (arm["name"], cost["observer"], cost["relation"], epsilon)
            lines.append(f"| {' | '.join(cells)} | {cost['delta']:g} | {cost['accountant']} |")
    if public["no_guarantee"]:
        claimed = max(arm["claimed_epsilon"] for arm in public["arms"])
        lines[2:2] = [
            f"**NO GUARANTEE for the claimed epsilon of {claimed:.4g}** (accounting as printed in "
            "the paper: a trusted server's multiplier, added by each client, norms uncharged). "
            "The table below says what the releases cost.",
            "",
        ]
    ended = any(arm["rounds"] < arm["asked_rounds"] for arm in public["arms"])
    said = [
        text
        for key, text in RESERVATIONS.items()
        if (ended if key == "max_epsilon" else public[key])
    ] + covered_lines(public["covers"], public)
    return "\n".join([*lines, *([""] if said else []), *said]) + "\n"
