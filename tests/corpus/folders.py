"""What one commit has written, kept in folders.tar.xz: run folders, bundles, ledgers, journals.

folders.json has what the program of that commit said of each. Pages, texts and pictures are left
out, for they are not compared.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import tomli_w

from corpus import plays, reading
from corpus.federated import play_federation, policy_of
from locksfl.arm import Arm
from locksfl.experiment.publish import publish_folder
from locksfl.privacy import Budget, calibrate
from locksfl.privacy.population import VARIABLE, PlannedArm, PopulationJournal, Run, Total

KEPT = Path(__file__).parent / "folders.tar.xz"
RUNS = {"central": "central-secret", "filter": "filter-secret", "federation": "federation-resumed"}
DEVICES = ("d-00", "d-08")
LEFT_OUT = ("*.png", "*.svg", "*.html", "*.md", "*.key", "environment.json", "diagnostics.jsonl")
READ: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys(RUNS, reading.run_folder),
    **{f"{name}-bundle": reading.bundle for name in RUNS},
    "federation": lambda path: [reading.run_folder(path), reading.server_ledger(path)],
    **{f"federation/{name}": reading.device for name in DEVICES},
    "order.sqlite": reading.population,
    "mu.sqlite": reading.population,
}
ROUND = {"noise_multiplier": 1.2, "cohort": 30}
SAMPLED = Arm.of("u", 300, 20, **ROUND)
NORMS = Arm.of("n", 300, 20, rule="norm", uploads=10, norm_multiplier=4.0, **ROUND)
TURNS = Arm.of("t", 300, 10, separation=5, noise_multiplier=2.0)
LOCAL = Arm.of("l", 300, 10, trust="local", cohort=20, noise_multiplier=15.0)
FILTERED = replace(LOCAL, name="f", budget=Budget(2.0, 1e-5))


def read(where: Path) -> dict[str, Any]:
    """What is said of everything that was kept, unpacked in a folder of the caller's own."""
    return {name: ask(where / name) for name, ask in READ.items()}


def unpack(where: Path) -> Path:
    """Unpack what was kept; the folder."""
    with tarfile.open(KEPT) as archive:
        archive.extractall(where, filter="data")
    return where


def write(where: Path) -> None:
    """Play the runs, publish them, and make the journals."""
    for name, title in RUNS.items():
        if title in plays.PLAYS:
            plays.play(title, where / name)
        with plays.injected():
            if title not in plays.PLAYS:
                play_federation(title, where / name, plays.stream)
            publish_folder(where / name, where / f"{name}-bundle")
    for name in DEVICES:
        policy = {k: v for k, v in vars(policy_of("local")).items() if v is not None}
        (where / "federation" / name / "policy.toml").write_text(tomli_w.dumps(policy))
    with plays.injected(), mock.patch.dict("os.environ", {VARIABLE: str(where)}):
        rated = calibrate(Arm("r", 300, 10, rule="coin", cohort=30, uploads=10), 8.0, 1e-5)
        with PopulationJournal.make("order", Total(200.0, 1e-5, order=2.0)) as journal:
            fill(journal, [[SAMPLED, NORMS], [rated], [TURNS], [LOCAL, FILTERED]], ends=0)
        with PopulationJournal.make("mu", Total(20.0, 1e-5, "replace")) as journal:
            fill(journal, [[LOCAL], [FILTERED], [replace(LOCAL, name="m")]], ends=2)


def fill(journal: PopulationJournal, runs: list[list[Arm]], ends: int) -> None:
    """Debit runs; one of them ends after half of its rounds."""
    for number, arms in enumerate(runs):
        journal.debit(Run(f"{number:032x}", f"run-{number}", tuple(map(PlannedArm.of, arms))))
    half = (PlannedArm.of(replace(arm, rounds=arm.rounds // 2)) for arm in runs[ends])
    journal.settle(Run(f"{ends:032x}", f"run-{ends}", tuple(half)))


def pack(where: Path) -> None:
    """The same bytes for the same files: names in order, no owner, one time, which is the one that
    ledgers have noted of their own files."""
    ours = [f"federation/{name}" for name in DEVICES]
    with tarfile.open(KEPT, "w:xz", preset=9, format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(where.rglob("*")):
            name = path.relative_to(where).as_posix()
            device = "/d-" in name and not any(name.startswith(f"{one}/") for one in ours)
            if not path.is_file() or device or any(map(path.match, LEFT_OUT)):
                continue
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = path.stat().st_size, plays.CLOCK - 2, 0o600
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
