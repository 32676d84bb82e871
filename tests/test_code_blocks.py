"""Every code block of README, CONTRIBUTING and docs/ does what its page says (code_blocks.py)."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import locksfl
from code_blocks import (
    ELSEWHERE,
    LANGUAGES,
    PAGES,
    PLACEHOLDERS,
    ROOT,
    Block,
    alike,
    blocks_of,
    commands,
    mentioned,
    parse,
    read_page,
    tolerance,
    words_of,
)  # fmt: skip
from locksfl.cli.main import example_config
from locksfl.data.recipe import Recipe
from locksfl.experiment.config import parse_config
from locksfl.federation.device.policy import Policy
from locksfl.privacy.population import PopulationJournal, Total
from small_runs import call_locks, copied, finished

Names = dict[str, Any]
MOST = 17  # blocks and commands that are not run


class Tracker:
    """In place of mlflow and wandb."""

    seen: list[Any] = []  # noqa: RUF012

    @classmethod
    def log(cls, values: Any, step: int) -> None:
        cls.seen.append((values, step))

    log_metrics = log


def records(rows: int = 360, people: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels 0 to 2, and whose they are."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, rows)
    return np.eye(3, 4)[y] + rng.normal(0, 0.3, (rows, 4)), y, np.arange(rows) % people


def write_table(path: Path, owner: str, label: str, people: int = 120) -> None:
    x, y, user = records(people=people)
    rows = [f"{owner},a,b,c,d,{label}"]
    rows += [f"u{u},{','.join(map(str, one))},{k}" for one, k, u in zip(x, y, user, strict=True)]
    path.write_text("\n".join(rows))


def for_program(_: Names) -> None:
    write_table(Path("people.csv"), "user_id", "y", people=60)


def for_data(names: Names) -> None:
    x, y, user = records()
    columns = {"user_id": user, "y": y, **{f"f{i}": x[:, i] for i in range(4)}}
    pq.write_table(pa.table(columns), "table.parquet")
    Path("census.csv").write_text("income\n10\n30\n")
    height = 170 + 10 * x[:, 0]
    names |= {"x": x, "y": height, "user": user, "x_test": x[:9], "y_test": height[:9]}


def for_library(names: Names) -> None:
    x, y, user = records(people=150)
    ages = ["patient,age,city,ill"]
    ages += [f"p{i % 150},{20 + i % 60},{'Rome' if i % 2 else 'Oslo'},{i % 2}" for i in range(450)]
    for name in ("visits.csv", "new_visits.csv"):
        Path(name).write_text("\n".join(ages))
    columns = {"age": {"low": 0, "high": 100}, "city": {"categories": ["Oslo", "Rome"]}}
    Path("recipe.toml").write_text(
        "".join(f"[columns.{n}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in told.items())
                for n, told in columns.items())
    )  # fmt: skip
    sick = np.array(["healthy", "sick"])[(y > 0).astype(int)]
    names |= {"X": x, "y": sick, "patient": user, "X_new": x[:3]}
    names |= {"mlflow": Tracker, "wandb": Tracker, "locksfl": locksfl}
    names |= {"loader": range(3), "steps": 3, "sampling_rate": 0.1}


def for_models(names: Names) -> None:
    Path("runs").mkdir()
    copied(finished()).rename("runs/digits")
    names |= {"locksfl": locksfl, "images": np.zeros((2, 28, 28), np.float32)}


def for_federation(names: Names) -> None:
    del names
    rows = "age,income,city,ill\n" + "40,30,Oslo,0\n60,50,Rome,1\n" * 5
    for file in ("public.csv", "mine.csv"):
        Path(file).write_text(rows)


BEFORE: dict[str, Callable[[Names], None]] = {
    "docs/data.md": for_data,
    "docs/federation.md": for_federation,
    "docs/library.md": for_library,
    "docs/models.md": for_models,
    "docs/program.md": for_program,
}


def after_library(names: Names) -> None:
    """The first example learns; trackers take numbers only, with the round as the step."""
    result = names["result"]
    assert result.accuracy > 0.6  # chance is a third
    assert len(result.history) == 30
    assert not result.simulated
    costs = {(c.observer, c.relation): c.epsilon for c in result.privacy}
    assert costs["SERVER", "zero-out"] == math.inf
    assert 7.9 < costs["PUBLIC", "zero-out"] <= 8.0
    assert len(names["results"]) == 9
    assert len(Path("rounds.csv").read_text().splitlines()) == 51
    Tracker.seen.clear()
    record = {"arm": "locks", "round": 1, "accuracy": None, "epsilon": 0.5, "public": {"cohort": 9}}
    for name in ("to_mlflow", "to_wandb"):
        names[name](record)
    assert len(Tracker.seen) == 2
    for values, step in Tracker.seen:
        assert (values["epsilon"], step) == (0.5, 1)
        assert "accuracy" not in values
    assert names["model"].predict(names["X_new"]).shape == (3,)
    assert 0 < names["meter"].epsilon() <= 3.0


def after_data(names: Names) -> None:
    """The table of people is learnt, and the recipe of the page does all that it shows."""
    assert names["result"].accuracy > 0.6
    PopulationJournal.make("clinic", Total(2.0, 1e-6, order=20.0)).close()
    columns = {
        "user": [1, 2, 3, 4],
        "age": [30.0, None, 50.0, 60.0],
        "income": [20.0, None, 10.0, 30.0],
        "weight": [70.0, 80.0, 90.0, 60.0],
        "city": ["Oslo", "Bern", None, "Rome"],
        "joined": ["31.12.2020", "01.02.2010", "03.04.2015", "05.06.2000"],
        "dose": [0.0, 0.5, 1.0, 2.0],
        "y": [0, 1, 0, 1],
    }
    made = locksfl.from_table(
        pa.table(columns), client="user", label="y", classes=2, recipe="recipe.toml",
        features=tuple(columns)[1:-1], test_share=0.25,
    )  # fmt: skip
    assert made.features.shape == (3, 2 + 1 + 1 + 4 + 2 + 1)
    assert np.isfinite(made.features).all()
    with PopulationJournal.find("clinic") as book:
        assert book.runs[0].epsilon == pytest.approx(0.2, rel=1e-2)


AFTER: dict[str, Callable[[Names], None]] = {
    "docs/data.md": after_data,
    "docs/library.md": after_library,
}


class Player:
    """Plays the blocks of one page, in one folder and one namespace."""

    def __init__(self, page: str, capsys: Any) -> None:
        self.capsys, self.names, self.printed = capsys, {"__name__": "page"}, ""
        BEFORE.get(page, lambda names: None)(self.names)

    def play(self, block: Block) -> None:
        """Run it, or fail."""
        assert block.kind in LANGUAGES or block.skipped, f"{block.place}: {block.kind}?"
        for file in block.marked("file"):
            Path(file).write_text(block.text, "utf-8")
        for words in mentioned(block):
            parse(words)
        if not block.skipped:
            getattr(self, f"play_{block.kind}")(block)

    def play_python(self, block: Block) -> None:
        exec(compile(block.text, block.place, "exec"), self.names)

    def play_json(self, block: Block) -> None:
        json.loads(block.text)

    def play_toml(self, block: Block) -> None:
        given = tomllib.loads(block.text)
        (file,) = block.marked("file") or [""]
        if "columns" in given:
            Recipe.read(Path(file))
        elif file == "policy.toml":
            Policy.read(Path(file))
        elif "arm" in given:
            parse_config(block.text)
        else:  # a part of an experiment
            changes = [f"{t}.{k}={value(v)}" for t, told in given.items() for k, v in told.items()]
            parse_config(example_config(), changes)

    def play_sh(self, block: Block) -> None:
        for command, shown in commands(block):
            if command.split()[0] in ("mkdir", "openssl", "sed"):
                subprocess.run(shlex.split(command), check=True, capture_output=True)
                continue
            words = words_of(command)
            assert words is not None, f"{block.place}: {command}: not run, and not marked as such"
            if not block.skips(words):
                (code,) = block.marked("exit code") or [0]
                self.printed = self.locks([*words, *block.added(words)], int(code))
                wrong = alike(shown, self.printed, tolerance(words, bool(block.added(words))))
                assert not wrong, f"{block.place}: {wrong}\n{self.printed}"

    play_console = play_sh

    def play_text(self, block: Block) -> None:
        words: list[str] = []
        for command in block.marked("output of"):
            words = words_of(command) or []
            self.printed = self.locks(words)
        wrong = alike(block.text, self.printed, tolerance(words, "--set" in words))
        assert not wrong, f"{block.place}: {wrong}\n{self.printed}"

    def locks(self, words: list[str], code: int = 0) -> str:
        words = [PLACEHOLDERS.get(word, word) for word in words]
        if "people" in words and not Path("people").exists():
            call_locks(self.capsys, "data", "import", "people.csv", "--client=user_id", "--label=y")
        if "patients" in words and "spent" in words:
            call_locks(self.capsys, "privacy", "population", "patients", "--total", 10)
        if any("runs/..." in word for word in words):
            ended = Path("runs").glob("*/summary.json")
            newest = max(ended, key=lambda summary: summary.stat().st_mtime_ns).parent
            words = [word.replace("runs/...", str(newest)) for word in words]
        return call_locks(self.capsys, *words, code=code)


def value(told: Any) -> str:
    """A setting as `--set` takes it."""
    if isinstance(told, dict):
        return "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in told.items()) + "}"
    return json.dumps(told)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a user of the repository has it."""
    monkeypatch.setenv("LOCKS_POPULATIONS", str(tmp_path / "populations"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("experiments", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


WITH_BLOCKS = [page for page in PAGES if read_page(page)]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(page: Path, capsys: Any) -> None:
    name = page.relative_to(ROOT).as_posix()
    player = Player(name, capsys)
    for block in read_page(page):
        player.play(block)
    AFTER.get(name, lambda names: None)(player.names)


BROKEN = {
    "python": "```python\n1 / 0\n```",
    "an option that is not there": "```sh\nlocks init --sett a=1 x.toml\n```",
    "not run, but wrong": "<!-- not run: slow -->\n```sh\nlocks run --sett a=1\n```",
    "no such command": "<!-- not run: slow -->\n```sh\nlocks runn\n```",
    "another program": "```sh\npip install x\n```",
    "a setting that is not there": '```toml\n[model]\nnames = "softmax"\n```',
    "a policy": "<!-- file: policy.toml -->\n```toml\nepsilon = 8.0\n```",
    "a recipe": "<!-- file: r.toml -->\n```toml\n[columns.a]\nscale = 'data'\n```",
    "an experiment": "```toml\n[[arm]]\nname = 'a'\nchorus = 3\n```",
    "json": "```json\n{1}\n```",
    "a language that nobody knows": "```rust\nfn\n```",
    "a figure": "```console\n$ locks theory optimal --norms 1,2,3,4,10 --uploads 2\n"
    "corrected    rho_i = 0.1, 0.2, 0.4, 0.4, 1\n```",
    "a last digit": "<!-- output of: locks theory composition -->\n```text\n0.5104\n```",
    "a word": "```console\n$ locks theory optimal --norms 1,2,3,4,10 --uploads 2\n"
    "mistaken rho_i = ...\n```",
    "output of nothing": "```text\nhello\n```",
}


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_block_fails(text: str, capsys: Any) -> None:
    (block,) = blocks_of(text, "planted")
    with pytest.raises((AssertionError, ValueError, ZeroDivisionError)):
        Player("planted", capsys).play(block)


def test_blocks_that_are_not_run_are_few_and_say_why() -> None:
    blocks = [block for page in WITH_BLOCKS for block in read_page(page)]
    marks = [m for block in blocks for m in block.marks if m[0].startswith("not run")]
    assert 0 < len(marks) <= MOST, marks
    assert all(len(reason) >= 10 for _, reason in marks)
    assert len(blocks) >= 3 * len(marks)
    assert all((ROOT / where).is_dir() for where in ELSEWHERE.values())


def test_no_command_hides_in_an_indented_block() -> None:
    for page in PAGES:
        lines = page.read_text("utf-8").splitlines()
        assert not [line for line in lines if line.startswith(("    locks ", "    $ locks"))], page
