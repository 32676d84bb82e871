"""A run's folder on disk. It belongs to the server: `locks publish` makes what others may see.

    config.toml        the experiment, resolved          rounds.jsonl       one line per round
    summary.json       written last: a folder without                       and arm
                       it is not finished                diagnostics.jsonl  what only a simulation
                                                                            can see
    model-ARM.npz      the model                         figure.png, .svg
    environment.json   versions and devices              checkpoint.npz     state, ledger, secrets
    report.html        all of it, as a page for the server's own eyes

Whole files are replaced atomically. Lines are appended, and the checkpoint says up to where they
count, so that a stopped run continues as if it had never stopped.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from locksfl._arrays import pack_arrays, unpack_arrays
from locksfl._files import naming, write_atomically
from locksfl.experiment.config import Config, read_config, to_table

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

LINES = ("rounds.jsonl", "diagnostics.jsonl")
MADE_FIRST = ("config.toml", *LINES, "environment.json")  # before the first checkpoint
HALF_WRITTEN = ".?*.????????"  # the temporary files of `write_atomically`
CHECKPOINT = ("entropy", "multipliers", "arms", "rounds_done", "totals", "ledger")  # and the arrays


class RunFolder:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def check_new(path: Path) -> None:
        """Refuse a path that something is at, besides what a kill leaves of `create`."""
        if path.exists() and (not path.is_dir() or not set(path.iterdir()) <= _traces(path)):
            raise ValueError(
                f"--out {path}: already exists; expected a new folder, or --resume to continue it"
            )

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """A new folder. One that already holds something is never written over."""
        cls.check_new(path)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds secrets
        folder = cls(path)
        try:
            folder.clear()
            folder.write_text("config.toml", tomli_w.dumps(to_table(config)))  # last: now it is one
        except BaseException:
            folder.discard_unless_begun()
            raise
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that a run has made."""
        if not (path / "config.toml").is_file():
            raise ValueError(f"{path}: not a run folder (it has no config.toml)")
        return cls(path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else may run in this folder meanwhile; the system lets go when a process ends."""
        with held(self.path / "config.toml"):
            yield

    @property
    def config(self) -> Config:
        """The experiment, as it was resolved."""
        return read_config(self.path / "config.toml")

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "summary.json").is_file()

    @property
    def begun(self) -> bool:
        """Whether there is anything to resume."""
        return (self.path / "checkpoint.npz").is_file()

    @property
    def last_change(self) -> float:
        """When it last went on, in seconds."""
        files = (self.path / name for name in ("checkpoint.npz", "rounds.jsonl"))
        return max(file.stat().st_mtime for file in files if file.is_file())

    @property
    def fresh(self) -> bool:
        """Whether it was made for a run that ended before its first checkpoint: nothing has been
        drawn, so that the run can simply start."""
        made, there = {self.path / name for name in MADE_FIRST}, set(self.path.iterdir())
        empty = self.path / LINES[0] in _traces(self.path)
        return empty and there <= made | _traces(self.path)

    def clear(self) -> None:
        """Begin with empty files of lines, and without what a kill has left."""
        if self.begun:
            raise ValueError(f"{self.path}: another process has begun it; expected --resume")
        for left in self.path.glob(HALF_WRITTEN):
            left.unlink()
        for name in LINES:  # replaced, so that both are there at any moment
            self.write_text(name, "")

    def discard_unless_begun(self) -> None:
        """Leave no folder behind for a run that was refused, or stopped, before its first round:
        it could neither be resumed nor written over."""
        if self.begun or self.finished:
            return
        for name in MADE_FIRST:
            (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):  # not ours to remove if something else is in it
            self.path.rmdir()

    def summary(self) -> dict[str, Any]:
        """What the run came to."""
        if not self.finished:
            raise ValueError(f"{self.path}: the run is not finished; continue it with --resume")
        text = (self.path / "summary.json").read_text("utf-8")
        try:
            summary: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{self.path / 'summary.json'}: damaged ({error})") from None
        return summary

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl or diagnostics.jsonl."""
        return read_lines(self.path / name)

    def append(self, name: str, lines: Iterable[dict[str, Any]]) -> None:
        """Add lines; they count once a checkpoint says so."""
        append_lines(self.path / name, lines)

    def write_text(self, name: str, text: str) -> None:
        """Replace a whole file, atomically."""
        write_atomically(self.path / name, text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Replace a whole JSON file, atomically."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def save_checkpoint(self, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """State, ledger and random source in one file that only its owner can read."""
        meta = {**meta, "bytes": {n: (self.path / n).stat().st_size for n in LINES}}
        write_atomically(self.path / "checkpoint.npz", pack_arrays(meta, arrays), secret=True)

    def load_checkpoint(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The last checkpoint; lines written after it are dropped."""
        path = self.path / "checkpoint.npz"
        if not path.is_file():
            raise ValueError(f"{self.path}: nothing to resume (it has no checkpoint.npz)")
        meta, arrays = unpack_arrays(path)
        if not {"bytes", *CHECKPOINT} <= meta.keys():
            raise ValueError(f"{path}: damaged or not written by this program")
        for name, size in meta["bytes"].items():
            lines = self.path / name
            if not lines.is_file() or lines.stat().st_size < size:
                raise ValueError(f"{lines}: shorter than its checkpoint says; damaged")
            os.truncate(lines, size)
        for left in self.path.glob(HALF_WRITTEN):  # of a run that was killed: it may have secrets
            left.unlink()
        return meta, arrays


def _traces(path: Path) -> set[Path]:
    """What is left in a folder of a run that was killed before it was made: lines that nobody has
    written to, and half-written files."""
    empty = (path / name for name in LINES if (path / name).is_file())
    return {*path.glob(HALF_WRITTEN), *(file for file in empty if not file.stat().st_size)}


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a folder by one of its files; it is refused while another process does."""
    with path.open("rb") as file:
        try:
            if fcntl is not None:  # not on Windows
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{path.parent}: another process is running it") from None
        yield


def read_lines(path: Path, *, resumed: bool = False) -> list[dict[str, Any]]:
    """Returns the records of a file of JSON lines.

    resumed: the file is about to be continued. It may be missing, and a last line that was not
        written whole is cut off.
    """
    if resumed:
        if not path.is_file():
            return []
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error})") from None


def append_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """Append one JSON line per record; they are on the disk when this returns."""
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def default_path(name: str, root: Path = Path("runs")) -> Path:
    """A new folder named after the experiment and the time."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    path, number = root / f"{name}-{stamp}", 1
    while path.exists():
        number += 1
        path = root / f"{name}-{stamp}-{number}"
    return path


def newest_unfinished(root: Path = Path("runs")) -> Path:
    """The run that --resume means when none is named."""
    folders = [RunFolder(path.parent) for path in root.glob("*/rounds.jsonl")]
    open_runs = [one for one in folders if (one.begun or one.fresh) and not one.finished]
    if not open_runs:
        raise ValueError(f"--resume: no unfinished run in {root}/; name one with --out DIR")
    return max(open_runs, key=lambda one: one.last_change).path


def environment(devices: list[str]) -> dict[str, Any]:
    """What this ran on and with."""
    names = ("locks-fl", "jax", "jaxlib", "equinox", "optax", "dp-accounting", "numpy", "scipy")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": devices,
        "packages": {name: metadata.version(name) for name in names},
    }
