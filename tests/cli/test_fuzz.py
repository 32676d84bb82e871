"""Whatever a user types or feeds in: it works, or it is one line and exit code 2.

Hypothesis draws configurations, flags of every command and tables to import; at least four in ten
are sound and finish. `make test-long` draws more of the same.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import typer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from locksfl.cli.main import app, main
from locksfl.experiment import run as experiment
from locksfl.experiment.arm_config import SETTINGS
from locksfl.experiment.config import Config
from small_runs import QUICK, quick, shared

HANG = 10.0  # seconds of processor time in one case: it does not depend on the machine's load
STUCK = 600.0  # seconds in one case without any
FINISHED = 0.4  # of the cases, at least
NASTY = [
    "0", "-1", "0.5", "1e-300", "1e300", "inf", "-inf", "nan", "2147483648", "1000000000",
    "1" + "0" * 22, "1" + "0" * 40, "1" + "0" * 400, "1e400", "", "x", "é", "a b", '"', "true",
    "[]", "{}", "[1, 2]", "../x", "0x10", "1_000", "None",
]  # fmt: skip


class Hang(BaseException):
    """A case took too long."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def hang(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, HANG)
    faulthandler.dump_traceback_later(STUCK, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        faulthandler.cancel_dump_traceback_later()


def locks(*arguments: str) -> bool:
    """Call the program in a folder of its own. Returns whether it finished; everything else that
    it does must be a refusal in one line, which leaves nothing that looks finished."""
    out, err, home = io.StringIO(), io.StringIO(), Path.cwd()
    before = sys.argv
    sys.argv = ["locks", *arguments]
    try:
        with (
            limited(),
            shared(),
            warnings.catch_warnings(record=True) as warned,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            warnings.simplefilter("ignore", DeprecationWarning)
            main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv = before
    assert not warned, [str(one.message) for one in warned]  # Python would print them
    told = err.getvalue()
    assert code in (0, 2), (code, told)
    assert all(line.startswith("locks: ") for line in told.splitlines()), told
    if code == 2:
        assert told.count("\n") == 1, told
        assert not [*home.rglob("summary.json"), *home.rglob("STATEMENT.md")]
    return code == 0


def fuzz(cases: int, strategy: st.SearchStrategy[Any], attempt: Callable[[Any], bool]) -> None:
    """Try so many cases, each in an empty folder, and count those that finish."""
    finished = []
    checks = settings(
        max_examples=cases,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
        database=None,
    )

    @checks
    @given(strategy)
    def try_one(case: Any) -> None:
        home, back = tempfile.mkdtemp(), Path.cwd()
        os.chdir(home)
        try:
            finished.append(attempt(case))
        finally:
            os.chdir(back)
            shutil.rmtree(home)

    try_one()
    assert len(finished) >= cases
    assert np.mean(finished) >= FINISHED, np.mean(finished)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    monkeypatch.delenv("LOCKS_DATA", raising=False)
    monkeypatch.setenv("LOCKS_POPULATIONS", str(tmp_path / "populations"))


# -- configurations


def paths(kind: Any = Config, where: str = "") -> Iterator[str]:
    """Every setting of an experiment, as --set spells it."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        inner = next((h for h in (hints[item.name], *_inside(hints[item.name])) if _table(h)), None)
        yield f"{where}{item.name}"
        if inner is not None:
            yield from paths(inner, f"{where}{item.name}.")
    if not where:
        yield from (f"arm.locks.{name}" for name in SETTINGS)


def _inside(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__args__", ())


def _table(hint: Any) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


ALL_PATHS = list(paths())
# few programs, so that most cases need no compilation
NORM = 'rule = "norm"\ncohort = 6\nuploads = 3\nnorm_multiplier = 1.0'
FILES = [
    QUICK,
    QUICK.replace(NORM, 'rule = "coin"\ncohort = 6'),
    QUICK.replace('"central"', '"local"'),
    QUICK.replace("[local]", '[local]\nupdate = "epochs"\nepochs = 2\nbatch = 7'),
]
GOOD = {  # settings that any of them takes
    "seed": st.integers(0, 2**130),
    "name": st.text("abcXYZ-_é", min_size=1, max_size=20),
    "privacy.delta": st.floats(1e-12, 0.3),
    "privacy.relation": st.sampled_from(["zero-out", "replace"]),
    "privacy.tuned_without_privacy": st.sampled_from(["true", "false"]),
    "train.clip_norm": st.floats(1e-6, 1e6),
    "train.optimizer.step": st.floats(1e-6, 1e6),
    "arm.locks.noise_multiplier": st.floats(0.1, 50),
}


@st.composite
def experiments(draw: Any) -> tuple[str, list[str]]:
    """A file and --set flags: about half of them sound, the others with one thing wrong."""
    text = draw(st.sampled_from(FILES))
    good = draw(st.lists(st.sampled_from(sorted(GOOD)), max_size=3, unique=True))
    flags = [f"{name}={draw(GOOD[name])}" for name in good]
    wrong = draw(st.sampled_from(["nothing"] * 4 + ["setting"] * 3 + ["text"]))
    if wrong == "setting":
        flags.append(f"{draw(st.sampled_from(ALL_PATHS))}={draw(st.sampled_from(NASTY))}")
    elif wrong == "text":
        start, more = draw(st.integers(0, len(text))), draw(st.integers(0, 30))
        text = text[:start] + draw(st.text(max_size=5)) + text[start + more :]
    return text, flags


def run(case: tuple[str, list[str]]) -> bool:
    text, flags = case
    Path("file.toml").write_text(text, "utf-8")
    done = locks("run", "file.toml", "--out", "out", *(w for f in flags for w in ("--set", f)))
    assert Path("out/summary.json").is_file() == done
    return done


def test_configurations(monkeypatch):
    monkeypatch.setattr(experiment, "draw_figure", lambda *_: None)  # half of the time
    fuzz(90, experiments(), run)


@pytest.mark.long
def test_many_configurations():
    fuzz(800, experiments(), run)


# -- flags

VALUES = st.one_of(
    st.sampled_from(NASTY), st.integers(1, 1000).map(str), st.floats(1e-6, 1e3).map(str)
)
RUN, MISSING = "{run}", "missing"
NUMBERS = {"--rounds": "10", "--clients": "100", "--cohort": "20", "--accountant": "rdp"}
SOUND: dict[str, dict[str, str]] = {  # what a command needs, in which it then finishes soon
    "plan": {"--clients": "1000", "--parameters": "100", "--epsilon": "8", "--rounds": "20"},
    "init": {},
    "evaluate": {"run": RUN},
    "publish": {"run": RUN, "folder": "bundle"},
    "data list": {},
    "data describe": {"name": "mnist-embedded"},
    "data fetch": {"name": "mnist-embedded"},
    "privacy calibrate": {"--epsilon": "8", **NUMBERS},
    "privacy account": {"--noise-multiplier": "1.5", **NUMBERS},
    "privacy population": {"population": "people", "--total": "8"},
    "privacy paper": {},
    "theory bound": {
        "--rounds": "100", "--step": "0.01", "--smoothness": "1", "--gap": "1", "--uploads": "10",
        "--sigma-g": "1", "--sigma-l": "1",
    },
    "theory rounds": {"--parameters": "100"},
    "theory optimal": {"--norms": "1,2,3", "--uploads": "1"},
    "theory composition": {},
}  # fmt: skip
REFUSED: dict[str, dict[str, str]] = {  # what would take long, or wait for others, but for this
    "run": {"file": MISSING},
    "compare": {"paths": MISSING},
    "tune": {"file": MISSING},
    "verify": {"file": MISSING},
    "report": {"runs": MISSING},
    "export": {"model": MISSING, "file": "model.npz"},
    "reproduce": {"--tuned": MISSING},
    "privacy spent": {"population": MISSING},
    "privacy audit": {"file": MISSING},
    "theory lemmas": {"--repetitions": "0"},
    "theory check": {"--seeds": "0"},
    "theory estimate": {"source": MISSING},
    "data import": {"file": MISSING, "--client": "a"},
    "federation demo": {"--nodes": "0"},
    "federation certs": {"folder": "certs", "--days": "0"},
    "federation server": {"file": MISSING},
    "federation client": dict.fromkeys(
        ("--server", "--ca", "--key", "--policy", "--ledger"), MISSING
    ),
    "federation check": {"server": "localhost", **dict.fromkeys(("--ca", "--key"), MISSING)},
    "federation leave": dict.fromkeys(("--server", "--ca", "--key"), MISSING),
    "federation ledger": {"ledger": MISSING, "--policy": MISSING},
    "federation policy": {"file": MISSING},
    "federation status": {"run": MISSING},
}


def commands(group: Any = None, name: str = "") -> dict[str, Any]:
    """Every command of the program."""
    group = group or typer.main.get_command(app)
    if not hasattr(group, "commands"):
        return {name: group}
    return {
        full: command
        for word, inner in group.commands.items()
        for full, command in commands(inner, f"{name} {word}".strip()).items()
    }


COMMANDS = commands()


@st.composite
def command_lines(draw: Any) -> list[str]:
    """A command with what it needs or, half of the time, with flags that it may not take."""
    name = draw(st.sampled_from(sorted(SOUND) * 3 + sorted(COMMANDS)))
    command = COMMANDS[name]
    words = {**SOUND.get(name, REFUSED.get(name, {"--no-such-option": ""}))}
    flags = [p.opts[0] for p in command.params if p.param_type_name == "option"]
    if draw(st.booleans()) and flags:
        chosen = draw(st.lists(st.sampled_from(flags), min_size=1, max_size=2, unique=True))
        kept = REFUSED.get(name, {})
        words |= {flag: draw(VALUES) for flag in chosen if flag not in kept}
    if "--json" not in words and "--json" in flags and draw(st.booleans()):
        words["--json"] = ""
    switches = {p.opts[0] for p in command.params if getattr(p, "is_flag", False)}
    line = name.split()
    for word, value in words.items():
        if word in switches:
            line.append(word)
        else:
            line += [word, value] if word.startswith("-") else [value]
    return line


def call(line: list[str]) -> bool:
    name = next(full for full in COMMANDS if line[: len(full.split())] == full.split())
    shutil.rmtree(os.environ["LOCKS_POPULATIONS"], ignore_errors=True)
    done = locks(*(word.replace(RUN, str(quick())) for word in line))
    assert not (done and name in REFUSED), line
    return done


def test_flags():
    assert sorted(SOUND | REFUSED) == sorted(COMMANDS)
    fuzz(210, command_lines(), call)


@pytest.mark.long
def test_many_flags():
    fuzz(1200, command_lines(), call)


# -- data


@dataclass(frozen=True)
class Table:
    """A file to import: its name, its bytes and the flags."""

    name: str
    content: bytes
    flags: tuple[str, ...]


CELLS = ["", "nan", "inf", "1e400", "-1", "x", "1000000000", '"', "é", "1,5", "0x1", " 3 ", "\t"]


@st.composite
def csv_files(draw: Any) -> Table:
    """Twenty rows of some people; half of the time something in it is wrong."""
    people, rng = draw(st.integers(2, 6)), np.random.default_rng(draw(st.integers(0, 99)))
    rows = [["who", "a", "b", "y"]]
    for number in range(20):
        values = [f"{value:.3g}" for value in rng.normal(size=2)]
        rows.append([f"p{number % people}", *values, str(number % 3)])
    comma, end, code = ",", "\n", "utf-8"
    flags = ["--client", "who", "--label", "y"]
    wrong = draw(
        st.sampled_from(["nothing"] * 8 + ["cell", "cell", "row", "head", "bytes", "form", "flag"])
    )
    if wrong == "cell":
        place = draw(st.integers(1, 20)), draw(st.integers(0, 3))
        rows[place[0]][place[1]] = draw(st.sampled_from(CELLS))
    elif wrong == "row":
        rows[draw(st.integers(0, 20))] = draw(st.sampled_from([[], ["p1"], ["p1"] + ["1"] * 9]))
    elif wrong == "head":
        rows[0] = draw(st.sampled_from([["who", "a", "a", "y"], ["who", "", "b", "y"], ["y"], []]))
    elif wrong == "form":
        comma = draw(st.sampled_from([",", ";", "\t", "|"]))
        end, code = draw(
            st.sampled_from([("\r\n", "utf-8"), ("\n", "utf-16"), ("\n", "utf-8-sig")])
        )
    elif wrong == "flag":
        flag = draw(
            st.sampled_from(["--client", "--label", "--features", "--classes", "--test-share"])
        )
        flags += [flag, draw(st.sampled_from(NASTY))]
    content = end.join(comma.join(row) for row in rows).encode(code)
    if wrong == "bytes":
        start = draw(st.integers(0, len(content)))
        content = content[:start] + draw(st.binary(max_size=6))
    return Table("table.csv", content, tuple(flags))


ARRAYS = [
    np.zeros(0), np.zeros((20, 2)), np.full(20, np.nan), np.full(20, 1e300), np.arange(20) * 1j,
    np.array(["x"] * 20), np.array([None] * 20, object), np.arange(7), np.full(20, 10**9),
    np.full(20, -1), np.zeros((20, 2, 2, 2, 2)), np.float32(3), np.full(20, 0.5),
]  # fmt: skip


@st.composite
def npz_files(draw: Any) -> Table:
    """The same as arrays; half of the time one of them is odd."""
    people = draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    arrays: dict[str, Any] = {
        "who": np.arange(20) % people, "x": rng.normal(size=(20, 3)), "y": np.arange(20) % 3,
    }  # fmt: skip
    wrong = draw(st.sampled_from(["nothing"] * 5 + ["array", "array", "bytes"]))
    if wrong == "array":
        name = draw(st.sampled_from(sorted(arrays)))
        arrays[name] = ARRAYS[draw(st.integers(0, len(ARRAYS) - 1))]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    if wrong == "bytes":
        content = content[: draw(st.integers(0, len(content)))] + draw(st.binary(max_size=6))
    flags = ("--client", "who", "--label", "y", "--features", "x")
    return Table("table.npz", content, flags)


def import_table(table: Table) -> bool:
    Path(table.name).write_bytes(table.content)
    done = locks("data", "import", table.name, *table.flags, "--out", "made")
    assert sorted(os.listdir()) == sorted([table.name, *["made"] * done])
    if done:
        assert locks("data", "describe", "made")
    return done


def test_tables():
    fuzz(100, st.one_of(csv_files(), npz_files()), import_table)


@pytest.mark.long
def test_many_tables():
    fuzz(500, st.one_of(csv_files(), npz_files()), import_table)
