"""`locks reproduce`: the paper's numbers, conclusions that follow the data, equal files twice."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from scripts.reproduction_report import report

from locksfl.arm import Noise
from locksfl.cli.main import main
from locksfl.experiment.plan import claimed_epsilon, plan_arms
from locksfl.grids.bench import Bench
from locksfl.grids.drive import Outcome, Reported
from locksfl.grids.executors import Serial
from locksfl.paper.as_printed import MULTIPLIERS as PAPER
from locksfl.paper.reproduce import settings, tune
from locksfl.paper.reproduce.document import write_report
from locksfl.paper.reproduce.results import (
    conclusion,
    difference,
    rows_of,
    table_of,
)
from locksfl.paper.reproduce.runs import (
    MethodRuns,
    Runs,
    Stage,
    begin,
    play_panels,
    watch_likeness,
)
from locksfl.paper.reproduce.settings import (
    EPSILONS,
    FULL,
    HONEST,
    METHODS,
    PRINTED,
    QUICK,
    Panel,
    Tuned,
    config_for,
    panels,
)

TINY = dataclasses.replace(QUICK, name="tiny", rounds=3, seeds=(0, 1))
SAME = dict.fromkeys(METHODS, Tuned(1.0, 1.0))


def made_up(uniform: list[list[float]], locks: list[list[float]]) -> Runs:
    """Runs with these curves, one a seed."""
    rest = (0.5, 0.1, 7.0, 70.0, 70.0, Reported((), None, b"", 0))
    runs = [[Outcome(Noise(1.0), tuple(curve), *rest) for curve in m] for m in (uniform, locks)]
    return {m: MethodRuns(Tuned(1.0, 1.0), mine) for m, mine in zip(METHODS, runs, strict=True)}


# --- the paper's numbers --------------------------------------------------------------------------


def test_as_printed_has_the_papers_multipliers_and_its_claims() -> None:
    """z = 1.32 and 0.5 at each client; the claims by RDP are 10.07 and 62.6."""
    claims = {}
    for epsilon in (10.0, 50.0):
        config = config_for(QUICK, Panel(PRINTED, "softmax", epsilon), SAME)
        uniform, locks = plan_arms(config)
        assert uniform.noise_multiplier == locks.noise_multiplier == PAPER[epsilon]
        assert locks.norm_multiplier == PAPER[epsilon]
        assert {uniform.method.trust, locks.method.trust} == {"local"}
        assert locks.method.estimator == "literal"
        assert uniform.cohort == uniform.uploads  # p = 1: "capped" is "literal"
        claims[epsilon] = claimed_epsilon(uniform, config.privacy)
    assert claims[10.0] == pytest.approx(10.07, abs=0.005)
    assert claims[50.0] == pytest.approx(62.6, abs=0.05)


def test_the_reconstructed_settings_lead_to_the_papers_multipliers() -> None:
    """z(10) = 1.326 and z(50) = .556 by RDP, from 20 of 100, T = 100, delta = 1e-5."""
    for epsilon, z in ((10.0, 1.326), (50.0, 0.556)):
        config = config_for(FULL, Panel(HONEST, "softmax", epsilon), SAME)
        privacy = dataclasses.replace(config.privacy, accountant="rdp")
        uniform, _ = plan_arms(dataclasses.replace(config, privacy=privacy))
        assert uniform.noise_multiplier == pytest.approx(z, abs=0.0006)


def test_honest_methods_have_one_epsilon_and_pay_for_norms() -> None:
    uniform, locks = plan_arms(config_for(FULL, Panel(HONEST, "mlp", 10.0), SAME))
    assert {uniform.method.trust, locks.method.trust} == {"central"}
    assert locks.norm_multiplier > 0
    assert locks.method.estimator == "capped"
    assert (uniform.clients, uniform.cohort, locks.cohort, locks.uploads) == (100, 20, 30, 20)


def test_every_panel_is_there_once() -> None:
    assert len(list(panels(FULL))) == len(set(panels(FULL))) == 2 * 2 * len(EPSILONS)


def test_the_stored_settings_have_every_method_of_both_scales() -> None:
    for scale in (QUICK, FULL):
        table = tune.stored(scale, tune.text_of(None), "tuned.toml")
        assert set(table) == set(panels(scale))
        for methods in table.values():
            assert set(methods) == set(METHODS)
            for clip, step in methods.values():
                assert clip in tune.CLIPS
                assert np.isclose(clip * step, tune.REACHES, rtol=1e-4).any()


# --- conclusions follow the numbers ---------------------------------------------------------------


def panel_of(ahead: float, version: str = HONEST) -> tuple[Panel, Runs]:
    """Three seeds with a spread of .01, LOCKS `ahead`."""
    noise = [-0.01, 0.0, 0.01]
    uniform = [[0.2, 0.5, 0.5 + e] for e in noise]
    locks = [[0.2, 0.5, 0.5 + ahead + e] for e in reversed(noise)]
    return Panel(version, "softmax", 10.0), made_up(uniform, locks)


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (0.2, "LOCKS is ahead by 0.200"),
        (-0.2, "uniform is ahead by 0.200"),
        (0.005, "no difference is shown (+0.005"),
    ],
)
def test_who_is_ahead_is_read_off_the_interval(ahead: float, said: str) -> None:
    found = difference(*panel_of(ahead))
    assert said in found.sentence()
    assert found.low is not None
    assert found.high is not None
    assert found.low <= ahead <= found.high


def test_one_seed_shows_nothing() -> None:
    found = difference(Panel(HONEST, "mlp", 50.0), made_up([[0.5]], [[0.9]]))
    assert found.ahead is None
    assert "one seed shows nothing" in found.sentence()


def test_seeds_that_are_all_alike_show_nothing() -> None:
    found = difference(Panel(HONEST, "mlp", 50.0), made_up([[0.1]] * 3, [[0.2]] * 3))
    assert found.ahead is None
    assert "without a spread show nothing" in found.sentence()


def test_the_interval_covers_as_often_as_it_says() -> None:
    """2,000 panels of equal methods: 95% intervals miss zero in 5%, give or take 5 s.e. (2.4%,
    false alarm 1e-6); taking the smaller of two methods' errors would not."""
    rng = np.random.default_rng(0)
    panel = Panel(HONEST, "mlp", 50.0)
    missed = 0
    for _ in range(2000):
        curves = rng.normal(0.5, 0.01, (2, 5, 1)).tolist()
        missed += difference(panel, made_up(*curves)).ahead is not None
    assert abs(missed / 2000 - 0.05) < 0.025


def test_rounds_to_the_bar_are_those_of_one_bar_for_both() -> None:
    uniform, locks = [[0.1, 0.3, 0.5, 0.5]], [[0.1, 0.45, 0.45, 1.0]]
    rows = rows_of(Panel(HONEST, "mlp", 50.0), made_up(uniform, locks))
    assert [row.rounds_to for row in rows] == [None, 4]  # the bar is .8 of 1.0
    assert [row.accuracy for row in rows] == [0.5, 1.0]


def test_the_summary_counts_both_versions_apart() -> None:
    by_panel = {}
    for version, lead in ((PRINTED, 0.2), (HONEST, -0.2)):
        for epsilon in EPSILONS:
            by_panel[Panel(version, "softmax", epsilon)] = panel_of(lead)[1]
    rows, differences = table_of(by_panel)
    said = "\n".join(conclusion(differences, rows))
    assert "own terms: of 3, LOCKS is ahead in 3, uniform in 0, neither in 0" in said
    assert "equal epsilon: of 3, LOCKS is ahead in 0, uniform in 3, neither in 0" in said
    assert "Of 6 intervals at 95%, about 0.3 miss by chance" in said
    assert "Of 12 tuned pairs of clip and step, 0 lie at an end of the grid" in said


def test_an_end_of_the_grid_is_seen() -> None:
    assert tune.edges(1.0, 1.0) == []
    assert tune.edges(1.0, 30.0) == ["reach"]
    assert tune.edges(0.1, 300.0) == ["clip_norm", "reach"]


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(TINY, Bench())


def reproduce(path: Path, stage: Stage) -> Path:
    begin(path, TINY)
    table = dict.fromkeys(panels(TINY), SAME)
    by_panel = play_panels(path, stage, table, Serial(stage.bench))
    panel = Panel(HONEST, "softmax", math.inf)
    write_report(path, TINY, by_panel, {"softmax": watch_likeness(stage, panel, SAME)})
    return path


def test_twice_with_one_seed_gives_the_same_files(tmp_path, stage, monkeypatch) -> None:
    monkeypatch.setattr("locksfl.paper.reproduce.runs.LIKENESS_EVERY", 2)
    first, second = (reproduce(tmp_path / name, stage) for name in ("first", "second"))
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    assert {"report.md", "table.json", "figure-softmax.svg", "likeness-softmax.svg"} <= set(names)
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    text = (first / "report.md").read_text()
    assert "no guarantee" in text
    assert "reconstructed" in text
    assert "NO GUARANTEE" in (first / "figure-softmax.svg").read_text()


def test_tuning_keeps_the_best_of_one_grid_for_all(tmp_path, stage) -> None:
    """With made-up scores: the largest wins, and an edge of the grid is said to be one."""
    tried = []

    def score(plays: Any) -> list[Outcome]:
        outcomes = []
        for arm, seed in ((play.arm, play.seed) for play in plays):
            tried.append((arm.name, arm.clip_norm, round(arm.step, 6)))
            assert (seed in tune.SEEDS, plays[0].half) == (True, "tuning")
            best = (1.0, 1.0) if arm.name == "uniform" else (10.0, 3.0)
            accuracy = 0.9 if np.allclose((arm.clip_norm, arm.step), best) else 0.1
            outcomes.append(Outcome(Noise(), (accuracy,), accuracy, 1.0, 0.0, 0.0, 0.0))
        return outcomes

    folder = tmp_path / "tuned"
    begin(folder, TINY)
    table = tune.tune(folder, stage, Serial(score))
    for panel in panels(TINY):
        assert table[panel]["uniform"] == pytest.approx((1.0, 1.0))
        assert table[panel]["locks"] == pytest.approx((10.0, 3.0))
    by_method = {m: sorted({t[1:] for t in tried if t[0] == m}) for m in METHODS}
    assert by_method["uniform"] == by_method["locks"]
    assert len(by_method["locks"]) == len(tune.CLIPS) * len(tune.REACHES)
    text = (folder / "tuned.toml").read_text()
    assert text.count('at_edge_of_grid = [\n    "clip_norm",\n    "reach",\n]') == len(EPSILONS) * 2
    again = tune.stored(TINY, text, "tuned.toml")
    assert again[Panel(HONEST, "softmax", 10.0)]["uniform"] == (1.0, 1.0)


def test_nothing_is_reported_on_data_that_tuned(stage) -> None:
    config = stage.config(Panel(HONEST, "softmax", math.inf), SAME)
    halves = [stage.bench.simulator(config, half).population for half in ("report", "tuning")]
    whole = stage.bench.simulator(config).population
    assert sum(len(half.test_labels) for half in halves) == len(whole.test_labels)
    rows = [{row.tobytes() for row in half.test_features} for half in halves]
    assert not rows[0] & rows[1]


def test_settings_name_what_is_reconstructed() -> None:
    assert {"rounds", "model", "split", "clip norm and server step"} <= set(settings.RECONSTRUCTED)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--seeds", "0"), "--seeds 0: expected at least 1"),
        (("--seed", "999"), "--seed 999: expected 0 to 999"),
        (("--resume",), "--resume: expected --out DIR"),
        (("--tune", "--tuned", "x.toml"), "--tuned x.toml: not with --tune"),
        (("--resume", "--out", "x", "--seeds", "3"), "--seeds: not with --resume"),
        (("--resume", "--out", "x", "--seed", "0"), "--seed: not with --resume"),
        (("--resume", "--out", "x", "--tuned", "y"), "--tuned: not with --resume"),
        (("--resume", "--out", "x", "--quick"), "--quick: not with --resume"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], said: str, capsys) -> None:
    assert refused(arguments, capsys).startswith(f"locks: {said}")


def test_missing_data_say_how_to_fetch_them(tmp_path, capsys) -> None:
    line = refused(("--data-dir", str(tmp_path), "--out", str(tmp_path / "out")), capsys)
    assert "locks data fetch mnist" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, "No such file"),
        (("[[tuned]]", "[[x]]"), "not a file that --tune wrote (no 'tuned')"),
        (
            ('method = "locks"', 'way = "locks"'),
            "wrote (Object missing required field `method`",
        ),
        (("step = 10.0", "step = -1.0"), "step = -1.0: expected a number > 0"),
        (("step = 10.0", 'step = "x"'), "Expected `float`, got `str` - at `$[0].step`"),
        (('scale = "quick"', 'scale = "slow"'), "nothing for quick as-printed-softmax-inf uniform"),
    ],
)
def test_a_bad_file_of_clips_and_steps_is_refused_before_a_folder_is_made(
    tmp_path, capsys, change: tuple[str, str] | None, said: str
) -> None:
    file, out = tmp_path / "tuned.toml", tmp_path / "out"
    if change is not None:
        file.write_text(tune.text_of(None).replace(*change))
    line = refused(("--quick", "--out", str(out), "--tuned", str(file)), capsys)
    assert said in line
    assert str(file) in line
    assert not out.exists()


def test_clips_and_steps_stay_with_the_runs_that_use_them(tmp_path) -> None:
    """So that --resume cannot go on with others."""
    begin(tmp_path / "out", TINY, "mine")
    assert (tmp_path / "out" / "tuned.toml").read_text() == "mine"
    begin(tmp_path / "tuning", TINY)
    assert not (tmp_path / "tuning" / "tuned.toml").exists()


def test_a_folder_that_holds_something_is_not_written_over(tmp_path, capsys) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "already exists" in refused(("--quick", "--out", str(tmp_path)), capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert "not the folder of a reproduction" in refused(
        ("--resume", "--out", str(tmp_path)), capsys
    )


def refused(arguments: tuple[str, ...], capsys: Any) -> str:
    """The one line that `locks reproduce` prints when it refuses."""
    with (
        mock.patch("sys.argv", ["locks", "reproduce", *arguments]),
        pytest.raises(SystemExit) as end,
    ):
        main()
    assert end.value.code == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    return str(err.strip())


def test_json_is_the_table() -> None:
    rows, differences = table_of({Panel(HONEST, "softmax", math.inf): panel_of(0.2)[1]})
    json.dumps([row.as_dict() for row in rows], allow_nan=False)
    assert differences[0].ahead == "LOCKS"


def test_the_report_in_the_docs_is_what_its_numbers_give() -> None:
    """The site shows what `report` makes of docs/reproduction/table.json; the page's own words have
    no other figures."""
    page = (Path(__file__).parents[2] / "docs" / "reproduction" / "report.md").read_text("utf-8")
    said = report()
    assert said.count("\n|") > 40
    figures = set(re.findall(r"\d+\.\d+", page))
    assert figures
    assert figures <= set(re.findall(r"\d+\.\d+", said))
