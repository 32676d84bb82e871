"""A run's folder on disk. It belongs to the server: `locks publish` makes what others may see.

    config.toml        the experiment, resolved          rounds.jsonl       one line per round
    summary.json       written last: a folder without                       and arm
                       it is not finished                diagnostics.jsonl  what only a simulation
                                                                            can see
    model-ARM.npz      the model                         figure.svg
    environment.json   versions and devices              checkpoint.npz     state, ledger, secrets
    report.html        all of it, as a page for the server's own eyes

Whole files are replaced atomically. Lines are appended, and the checkpoint says up to where they
count, so that a stopped run continues as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from locksfl._arrays import pack_arrays, unpack_arrays
from locksfl._files import append, write_atomically
from locksfl._tables import Record
from locksfl.experiment.config import Config, read_config, to_table
from locksfl.experiment.record import Run, read

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
        self._hashes = {name: hashlib.sha256() for name in LINES}  # of what was appended

    @staticmethod
    def check_new(path: Path) -> None:
        """Refuse a path that something is at, besides what a kill leaves of `create`."""
        if path.exists() and (not path.is_dir() or not set(path.iterdir()) <= _traces(path)):
            raise ValueError(
                f"--out {path}: already exists; expected a new folder, or --resume to continue it"
            )

    @classmethod
    def make(cls, path: Path) -> RunFolder:
        """The folder of any command that writes secrets: a new or an empty one, for its owner alone
        from now on. One that holds something is refused, and stays as it is."""
        cls.check_new(path)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)  # it may have been there, empty and open to everybody
        return cls(path)

    @classmethod
    def create(cls, path: Path, config: Config) -> RunFolder:
        """A run's new folder."""
        folder = cls.make(path)
        try:
            folder.clear()
            folder.config = config
            table = tomli_w.dumps(to_table(config))
            folder.write_text("config.toml", table)  # last: now it is one
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

    def held(self) -> AbstractContextManager[None]:
        """Nobody else may run in this folder meanwhile; the system lets go when a process ends."""
        return held(self.path / "config.toml")

    @cached_property
    def config(self) -> Config:
        """The experiment, as it was resolved: who made the folder has it already."""
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
        for left in _half_written(self.path):
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

    def run(self) -> Run:
        """What the run came to."""
        path = self.path / "summary.json"
        try:
            table = json.loads(path.read_text("utf-8"))
            if "secret" in table:
                return read(Run, table)
        except FileNotFoundError:
            raise ValueError(
                f"{self.path}: the run is not finished; continue it with --resume"
            ) from None
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: damaged ({error})") from None
        from locksfl.experiment.old_runs import old_run  # it plans arms and charges them

        return old_run(self.path, self.config, table, self.lines("rounds.jsonl"))

    def lines(self, name: str) -> list[Record]:
        """The lines of rounds.jsonl or diagnostics.jsonl."""
        path = self.path / name
        return _records(path.read_bytes(), path)

    def append(self, name: str, lines: Iterable[Record]) -> None:
        """Add lines; they count once a checkpoint says so."""
        content = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()
        append(self.path / name, content)
        self._hashes[name].update(content)

    def write_text(self, name: str, text: str) -> None:
        """Replace a whole file, atomically."""
        write_atomically(self.path / name, text.encode())

    @cached_property
    def environment(self) -> Record | None:
        """What the run began on and with; None if the file was deleted."""
        path = self.path / "environment.json"
        return json.loads(path.read_text("utf-8")) if path.is_file() else None

    def write_environment(self, devices: list[str]) -> None:
        """Note what it begins on and with."""
        self.environment = environment(devices)
        self.write_json("environment.json", self.environment)

    def write_json(self, name: str, value: Any) -> None:
        """Replace a whole JSON file, atomically."""
        self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def save_checkpoint(self, meta: Record, arrays: dict[str, np.ndarray]) -> None:
        """State, ledger and random source in one file that only its owner can read."""
        sizes = {n: (self.path / n).stat().st_size for n in LINES}
        hashes = {name: written.hexdigest() for name, written in self._hashes.items()}
        meta = {**meta, "bytes": sizes, "hashes": hashes}
        write_atomically(self.path / "checkpoint.npz", pack_arrays(meta, arrays), secret=True)

    def load_checkpoint(self) -> tuple[Record, dict[str, np.ndarray], dict[str, list[Record]]]:
        """The last checkpoint, and the lines of each file before it; those after it are dropped.
        They are what the run goes on from (what rate control reads, when to stop): edited, they are
        refused."""
        path = self.path / "checkpoint.npz"
        if not path.is_file():
            raise ValueError(f"{self.path}: nothing to resume (it has no checkpoint.npz)")
        meta, arrays = unpack_arrays(path)
        if not {"bytes", *CHECKPOINT} <= meta.keys():
            raise ValueError(f"{path}: damaged or not written by this program")
        content = {}
        for name, size in meta["bytes"].items():
            lines = self.path / name
            if not lines.is_file() or lines.stat().st_size < size:
                raise ValueError(f"{lines}: shorter than its checkpoint says; damaged")
            written = lines.read_bytes()[:size]
            self._hashes[name] = hashlib.sha256(written)
            here = self._hashes[name].hexdigest()
            if here != meta.get("hashes", {}).get(name, here):
                raise ValueError(
                    f"{lines}: edited since the run wrote it; expected its own lines, or a new run"
                )
            content[name] = _records(written, lines)
            os.truncate(lines, size)
        for left in self.path.glob(HALF_WRITTEN):  # of a run that was killed: it may have secrets
            left.unlink()
        return meta, arrays, content


def _half_written(path: Path) -> set[Path]:
    """What a kill leaves of `write_atomically` before the first checkpoint. By name, because the
    folder may be somebody's own: `.notes.original` is no such file."""
    names = (*MADE_FIRST, "checkpoint.npz")
    return {left for name in names for left in path.glob(f".{name}.????????")}


def _traces(path: Path) -> set[Path]:
    """What is left in a folder of a run that was killed before it was made: lines that nobody has
    written to, and half-written files."""
    empty = (path / name for name in LINES if (path / name).is_file())
    return {*_half_written(path), *(file for file in empty if not file.stat().st_size)}


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


def _records(content: bytes, path: Path) -> list[Record]:
    """The records of JSON lines; the path is for a refusal."""
    try:
        return [json.loads(line) for line in content.decode().splitlines()]
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error})") from None


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


def environment(devices: list[str]) -> Record:
    """What this ran on and with."""
    names = ("locks-fl", "jax", "jaxlib", "equinox", "optax", "dp-accounting", "numpy", "scipy")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": devices,
        "packages": {name: metadata.version(name) for name in names},
    }
