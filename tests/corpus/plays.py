"""Small runs of every kind, with entropy and clock injected: `python -m corpus.plays OUT`.

Each commit plays them with its own copy of this file, on one machine, and `corpus.compare` compares
what they came to, to the bit. Some are kept in folders.tar.xz as the first commit wrote them, and
are read by every later one (`corpus.record`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from corpus import reading
from corpus.federated import FEDERATIONS, play_federation
from locksfl.experiment.config import Config, parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.run import run_experiment
from locksfl.federation.server import rounds
from locksfl.round.noise import SystemNoise
from run_tables import line_tables, run_table
from small_runs import QUICK, stopped_after

CLOCK = 1_750_000_000  # what it is, always
UNTIMED = ("seconds", "compile_seconds")  # of a record: all that is not a function of the draws
COSTS = ("privacy", "spent_so_far", "noise_multiplier", "norm_multiplier", "clip_multiplier")


def arms(*tables: str) -> str:
    """A change that replaces all arms."""
    return f"arm=[{', '.join(f'{{{table}}}' for table in tables)}]"


UNIFORM = 'name="u", cohort=4'
NORMS = 'name="n", rule="norm", cohort=6, uploads=3'
COIN = 'name="c", rule="coin", cohort=8'
RATED = 'name="r", rule="coin", cohort=8, uploads=3'  # rungs by a released count
DPIS = 'name="d", rule="dpis", uploads=3'  # by a released norm
OPTIMAL = 'name="o", rule="ocs", cohort=6, uploads=3'
REFINED = 'name="a", rule="aocs", cohort=6, uploads=3'
TURNS = 'name="t", sampling="cyclic", separation=3'
THREE = arms(UNIFORM, NORMS, COIN)
CENTRAL = ("privacy.epsilon=8.0",)
LOCAL = ("privacy.trust=local", "privacy.epsilon=400.0")
FILTER = (*LOCAL, "privacy.filter=true", "privacy.releases=2", arms(NORMS))
ADAPTIVE = (*CENTRAL, "train.clip_quantile=0.5")
STOPPED = (*CENTRAL, "train.rounds=12", "train.evaluate_every=1", "train.stop_after=1")
EPOCHS = 'local={update="epochs", epochs=2, batch=5, step=0.1, max_samples=20}'
SCAFFOLD = EPOCHS.replace("}", ', min_samples=20, control="scaffold"}')
ANCHOR = 'local={max_samples=20, control="anchor", anchor_every=2, anchor_ratio=0.5}'
PLAYS: dict[str, tuple[int | None, tuple[str, ...]]] = {  # name: (seed, changes of QUICK)
    "central": (3, (*CENTRAL, THREE)),
    "central-secret": (None, (*CENTRAL, arms(UNIFORM, NORMS, RATED))),
    "local": (3, (*LOCAL, arms(UNIFORM, NORMS))),
    "local-secret": (None, (*LOCAL, arms(UNIFORM, NORMS))),
    "filter": (3, FILTER),
    "filter-secret": (None, FILTER),
    "divided": (3, (*LOCAL, arms(f'{NORMS}, estimator="horvitz-thompson"'))),
    "none": (3, ("privacy.trust=none", arms(UNIFORM, OPTIMAL))),
    "rates": (3, (*CENTRAL, arms(RATED, DPIS))),
    "rates-secret": (None, (*CENTRAL, arms(RATED, DPIS))),
    "turns": (3, (*CENTRAL, arms(TURNS))),
    "turns-secret": (None, (*CENTRAL, arms(f"{TURNS}, bands=1"))),  # its noise is not correlated
    "adaptive": (3, (*ADAPTIVE, THREE)),
    "adaptive-secret": (None, (*ADAPTIVE, arms(COIN, NORMS))),
    "refined": (3, (*CENTRAL, arms(REFINED))),
    "refined-secret": (None, (*CENTRAL, arms(REFINED))),
    "replace": (3, (*CENTRAL, "privacy.relation=replace", arms(UNIFORM, NORMS))),
    "stopped": (3, (*STOPPED, arms(UNIFORM))),
    "epochs": (3, (*CENTRAL, EPOCHS, arms(COIN))),
    "scaffold": (3, (*CENTRAL, SCAFFOLD, arms(UNIFORM))),
    "anchor": (3, (*CENTRAL, ANCHOR, arms(UNIFORM))),
    "adam": (3, (*CENTRAL, 'train.optimizer={name="adam"}', arms(NORMS))),
}
RESUMED = ("central", "rates-secret", "adaptive-secret", "filter", "turns")  # after two rounds


def stream(*label: object) -> Callable[[int | None], bytes]:
    """Entropy that is known, other bytes at every call."""
    numbers = itertools.count()

    def known(size: int | None = 32) -> bytes:
        text = json.dumps([*label, next(numbers)]).encode()
        return hashlib.shake_256(text).digest(size or 32)

    return known


@contextmanager
def injected() -> Iterator[None]:
    """All entropy and every clock that gets into a file."""
    known = stream("system")
    with (
        mock.patch.object(secrets, "token_bytes", known),
        mock.patch.object(secrets, "token_hex", lambda size=32: known(size).hex()),
        mock.patch.object(secrets, "randbits", lambda n: int.from_bytes(known(n // 8), "big")),
        mock.patch.object(rounds, "SYSTEM", SystemNoise(stream("server"))),
        mock.patch.object(time, "time", return_value=float(CLOCK)),
        mock.patch.object(time, "time_ns", return_value=CLOCK * 10**9),
        mock.patch.object(time, "perf_counter", side_effect=map(float, itertools.count())),
        mock.patch.dict(os.environ, {"LOCKS_CACHE": "off"}),
    ):
        yield


def play(name: str, folder: Path) -> Path:
    """Play one of PLAYS into a folder, from its beginning to its end."""
    config, run = made(name, folder)
    with injected():
        run_experiment(config, run)
    return folder


def begin(name: str, folder: Path) -> Path:
    """The same, stopped after two rounds."""
    config, run = made(name, folder)
    try:
        with injected(), stopped_after(folder, 2):
            run_experiment(config, run)
    except KeyboardInterrupt:
        jax.clear_caches()
    return folder


def go_on(begun: Path, folder: Path) -> Path:
    """Resume a copy of a run that was stopped, perhaps by another commit."""
    shutil.copytree(begun, folder)
    run = RunFolder.open(folder)
    with injected():
        run_experiment(run.config, run, resume=True)
    return folder


def made(name: str, folder: Path) -> tuple[Config, RunFolder]:
    """One of PLAYS and its new folder."""
    seed, changes = PLAYS[name]
    config = parse_config(QUICK, changes, seed)
    return config, RunFolder.create(folder, config)


def facts(folder: Path) -> dict[str, Any]:
    """What a run came to: models, rounds, noise, charges and epsilons."""
    run = RunFolder.open(folder)
    summary = run_table(run.run(), run.config)
    return {
        "models": {path.stem: digest(path) for path in sorted(folder.glob("model-*.npz"))},
        "rounds": list(map(untimed, line_tables(folder))),
        "arms": [{name: arm.get(name) for name in (*COSTS, "ladder")} for arm in summary["arms"]],
        "all": [summary["all_arms_composed"], summary["all_arms_spent_so_far"]],
        "charges": reading.run_ledger(folder)["charges"],
        "devices": [reading.device_ledger(at)["charges"] for at in sorted(folder.glob("d-*"))],
    }


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    """A round without what a clock gave."""
    return {name: value for name, value in line.items() if name not in UNTIMED}


def digest(path: Path) -> str:
    """Of the numbers in a model's file, not of how they are stored."""
    with np.load(path) as arrays:
        numbers = [arrays[name] for name in sorted(arrays.files)]
        parts = [array.tobytes() for array in numbers if array.dtype.kind == "f"]
        return hashlib.sha256(b"".join(parts)).hexdigest()


def main(out: Path, begun: Path | None, only: str) -> None:
    """Play all of them, or those whose names begin with `only`; their facts as JSON. `begun`: where
    another commit has begun those that are resumed."""
    found: dict[str, Any] = {}
    (out / "begun").mkdir(parents=True)
    for name in (name for name in PLAYS if name.startswith(only)):
        found[name] = facts(play(name, out / name))
    for name in (name for name in RESUMED if name.startswith(only)):
        mine = begin(name, out / "begun" / name)
        found[f"{name} resumed"] = facts(go_on(mine, out / f"{name}-resumed"))
        if begun:
            found[f"{name} of before"] = facts(go_on(begun / name, out / f"{name}-of-before"))
    for name in (name for name in FEDERATIONS if name.startswith(only)):
        with injected():
            found[name] = facts(play_federation(name, out / name, stream))
    (out / "facts.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    out, begun, only = [*sys.argv[1:], "", ""][:3]
    main(Path(out), Path(begun) if begun else None, only)
