"""kill -9 at any moment of a run: the same command again, or --resume, ends as if nothing had
happened, and nobody is charged twice."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from locksfl._arrays import unpack_arrays
from locksfl.privacy import population
from small_runs import QUICK, lines, summary

ROUNDS = 6
SAME = ("rounds.jsonl", "diagnostics.jsonl", "model-locks.npz", "figure.svg", "config.toml")
# a process that has imported everything, and has not yet started JAX: its children start at once
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["locksfl.cli.main", "locksfl.experiment.run", "conftest"])


def program(home: Path, arguments: list[str], writes: int | None) -> None:
    """`locks ...` in a process of its own, which kills itself in its so-many-th write."""
    os.environ["LOCKS_CACHE"] = str(home / "cache")
    os.environ[population.VARIABLE] = str(home / "populations")
    from locksfl.cli.main import main
    from locksfl.simulate import simulator

    simulator.BLOCK_SECONDS = 0.0  # a checkpoint after every round
    real, done = os.fsync, [0]

    def fsync(handle: int) -> None:
        done[0] += 1
        if done[0] == writes:
            os.kill(os.getpid(), signal.SIGKILL)
        real(handle)
        (home / "writes").write_text(str(done[0]))

    os.fsync = fsync
    with (home / "said").open("w") as said:
        sys.stdout = sys.stderr = said
        sys.argv = ["locks", *arguments]
        main()


class Runs:
    """Runs of one experiment, with a seed or debited to a population."""

    def __init__(self, home: Path) -> None:
        self.home, self.file = home, home / "quick.toml"
        self.file.write_text(QUICK)
        self.whole = {seeded: self.begin(f"whole-{seeded}", seeded) for seeded in (True, False)}
        began = time.monotonic()  # now that everything is compiled
        self.begin("timed", True)
        self.seconds = time.monotonic() - began
        self.writes = int((home / "writes").read_text())

    def begin(self, name: str, seeded: bool, **strike: float | None) -> Path:
        """Run it in a folder of this name, perhaps until it is struck."""
        if not seeded:
            assert self.play("privacy", "population", name, "--total", "1000") == 0
        out = self.home / name
        assert self.play("run", *self.arguments(name, seeded), **strike) in (0, -signal.SIGKILL)
        return out

    def arguments(self, name: str, seeded: bool) -> list[str]:
        changes = ["--set", f"train.rounds={ROUNDS}", "--out", str(self.home / name)]
        kind = ["--seed", "3"] if seeded else ["--set", f"privacy.population={name}"]
        return [str(self.file), *changes, *kind]

    def go_on(self, name: str, seeded: bool) -> None:
        """What a user would do."""
        out = self.home / name
        if (out / "summary.json").is_file():
            return
        begun = (out / "config.toml").is_file()
        resume = ["--resume", "--out", str(out)]
        code = self.play("run", *(resume if begun else self.arguments(name, seeded)))
        assert code == 0, (self.home / "said").read_text()

    def play(self, *arguments: str, after: float | None = None, writes: int | None = None) -> int:
        process = processes.Process(target=program, args=(self.home, list(arguments), writes))
        process.start()
        process.join(after)
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        return process.exitcode


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("killed"))


def check_same(run: Path, whole: Path) -> None:
    for name in SAME:
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    (_, mine), (_, theirs) = (unpack_arrays(one / "checkpoint.npz") for one in (run, whole))
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():  # the ledger too
        np.testing.assert_array_equal(array, theirs[name])


def check_charged_once(run: Path, whole: Path) -> None:
    assert [line["round"] for line in lines(run)] == list(range(1, ROUNDS + 1))
    for cost in ("all_arms_composed", "all_arms_spent_so_far"):
        assert summary(run)[cost] == summary(whole)[cost]
    with population.PopulationJournal.find(run.name) as journal:
        assert len(journal.runs) == 1
        assert journal.check_noted(summary(run)["population"]["head"]) is None


def check_points(runs: Runs, monkeypatch: pytest.MonkeyPatch, points: int) -> None:
    """Half of them at times from the start to the end, half at writes from the first to the last;
    half with a seed, half without."""
    monkeypatch.setenv(population.VARIABLE, str(runs.home / "populations"))
    for point in range(points):
        share, seeded = (point // 2) / max(1, (points - 1) // 2), point // 2 % 2 == 0
        strike = {"after": share * runs.seconds}
        if point % 2:
            strike = {"writes": 1 + round(share * (runs.writes - 1))}
        name = f"point-{point}"
        run = runs.begin(name, seeded, **strike)
        runs.go_on(name, seeded)
        (check_same if seeded else check_charged_once)(run, runs.whole[seeded])
        assert not list(run.glob(".*"))
        shutil.rmtree(run)


@pytest.mark.slow
def test_ten_kills(runs, monkeypatch):
    check_points(runs, monkeypatch, 10)


@pytest.mark.long
def test_a_hundred_kills(runs, monkeypatch):
    check_points(runs, monkeypatch, 100)
