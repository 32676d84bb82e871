"""Comparisons: equal epsilon, uploads and tuning; stopped, split and merged without a trace."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from locksfl.grids import bench as benches
from locksfl.grids.comparison.cases import parse_comparison, read_comparison
from locksfl.grids.comparison.document import write_report
from locksfl.grids.comparison.folder import WHOLE, Folder, Part, merge
from locksfl.grids.executors import Together
from made_comparisons import SHARE, SILENT, TEXT, made_up, small


def played(path, text=TEXT, part=WHOLE):
    folder = Folder(path, parse_comparison(text))
    folder.play(part=part)
    write_report(folder)
    return folder


def contents(folder):
    """Every file of a folder."""
    return {file.name: file.read_bytes() for file in sorted(folder.path.iterdir())}


def test_every_method_is_at_the_same_epsilon_uploads_and_tuning(tmp_path, monkeypatch):
    """Norms are charged, the coin's cohort is found, and what tunes is in no report."""
    asked = made_up(monkeypatch)
    folder = played(tmp_path / "run")
    assert folder.failures == {}
    table = json.loads((folder.path / "table.json").read_text())
    assert [row["method"] for row in table["rows"]] == ["uniform", "norm", "coin"] * 4
    for row in table["rows"]:
        (cost,) = (
            one["epsilon"]
            for one in row["privacy"]
            if (one["observer"], one["relation"]) == ("PUBLIC", "zero-out")
        )
        assert (cost is None) == (row["epsilon"] is None)
        if cost is not None:
            assert 0.999 * row["epsilon"] <= cost <= row["epsilon"]
        assert row["uploads_measured"] == pytest.approx(row["uploads"], rel=0.05)
        assert (row["clip_norm"], row["step"]) == (1.0, 1.0)
    coins = [row for row in table["rows"] if row["method"] == "coin"]
    assert [row["cohort"] * SHARE for row in coins] == pytest.approx([4, 8] * 2, rel=0.05)
    tuned = {id(simulator): seeds for simulator, _, seed in asked if (seeds := seed) >= 1000}
    reported = {id(simulator) for simulator, _, seed in asked if seed < 1000}
    assert not tuned.keys() & reported
    assert {seed for _, _, seed in asked} == {0, 1, 2, 1000, 1001}
    mine, theirs = ({id(s): s for s, _, _ in asked}[number] for number in (*tuned, *reported))
    rows = [{row.tobytes() for row in one.population.test_features} for one in (mine, theirs)]
    assert len(rows[0]) == len(rows[1]) == 5  # of 11
    assert not rows[0] & rows[1]
    assert mine.records is theirs.records


def test_the_report_names_the_methods_whose_uploads_are_not_those_of_the_others(
    tmp_path, monkeypatch
):
    """Found alone here: "the same expected uploads" of methods that had a third more."""
    made_up(monkeypatch)
    same = "(norms charged) and the same expected uploads; 3 seeds"
    assert same in (played(tmp_path / "same", SILENT).path / "report.md").read_text()
    text = f'{SILENT}[[compare.method]]\nname = "all"\nrule = "full"\n'

    def more(case, outcomes):
        del outcomes
        return {"norm": 2.0, "coin": 1.2}.get(case.method, 1.0) * case.uploads

    monkeypatch.setattr("locksfl.grids.comparison.document.uploads_a_round", more)
    report = (played(tmp_path / "more", text).path / "report.md").read_text()
    (differ,) = re.findall("the same expected uploads; apart from (.*); 3 seeds", report)
    # in 12 rounds, 1.6 uploads more of 8 may be chance
    assert differ == "norm 8.0 (4 wanted), all 24.0 (all clients), norm 16.0 (8 wanted)"


def test_methods_draw_alike_only_if_they_are_told_to():
    """Draws are keyed by the name of an arm: common ones make paired differences vary less."""
    together = TEXT.replace("[compare]", "[compare]\ncommon_draws = true", 1)
    for text, names in ((TEXT, 3), (together, 1)):
        found = parse_comparison(text)
        arms = [found.config(case, found.untuned(case)).arms[0] for case in found.cases]
        assert len({arm.name for arm in arms}) == names


@pytest.mark.parametrize(
    ("widen", "clips", "chosen", "edge"),
    [
        (0, {0.5, 1.0, 2.0}, 2.0, ["clip_norm", "reach"]),
        (1, {0.5, 1.0, 2.0, 4.0}, 4.0, ["clip_norm"]),
        (3, {0.5, 1.0, 2.0, 4.0, 8.0, 16.0}, 8.0, []),
        (9, {0.5, 1.0, 2.0, 4.0, 8.0, 16.0}, 8.0, []),
    ],
)
def test_a_grid_is_widened_where_its_edge_is_best(
    tmp_path, monkeypatch, widen, clips, chosen, edge
):
    """By the ratio of its last two values, along that axis, until the best lies inside or as often
    as the file allows; what is still at an edge is said to be."""
    made_up(monkeypatch, best=(8.0, 1.0))
    folder = played(tmp_path / "run", SILENT.replace("widen = 2", f"widen = {widen}"))
    for case in folder.finished().values():
        assert {clip for clip, _ in case.tuning.tried} == clips
        reaches = {reach for _, reach in case.tuning.tried}
        assert reaches == {0.3, 1.0} | ({1.0 / 0.3} if widen else set())
        assert len(case.tuning.tried) == len(clips) * len(reaches)
        assert case.arm.clip_norm == chosen
        assert case.tuning.edge == edge
        assert case.tuning.widened == min(widen, 3)
    assert ("(edge: clip_norm" in (folder.path / "report.md").read_text()) == bool(edge)


def test_stopped_and_in_parts_it_ends_with_the_same_bytes(tmp_path, monkeypatch):
    """Every file; a partial report says that it is one. What parts have, finished or not, is merged
    into a new folder or into one of theirs, and the same command plays the rest."""
    made_up(monkeypatch)
    whole, real, left = played(tmp_path / "whole", SILENT), benches.play_sweep, {"plays": 30}

    def tired(*arguments, **options):
        if not left["plays"]:
            raise KeyboardInterrupt
        left["plays"] -= 1
        return real(*arguments, **options)

    monkeypatch.setattr(benches, "play_sweep", tired)
    part = tmp_path / "part"
    with pytest.raises(KeyboardInterrupt):
        played(part, SILENT, Part(1, 2))
    table = write_report(Folder(part, parse_comparison(SILENT)))
    assert (table.cells, table.missing) == (6, 5)
    assert "Partial: 1 of 6 cells" in (part / "report.md").read_text()
    left["plays"] = 1000
    other = played(tmp_path / "other", SILENT, Part(2, 2))
    assert "Partial: 3 of 6 cells" in (other.path / "report.md").read_text()
    assert "PARTIAL: 3 of 6 cells" in (other.path / "figure.svg").read_text()
    merged = merge([part, other.path], tmp_path / "merged")
    assert len(merged.finished()) == 4
    assert contents(played(merged.path, SILENT)) == contents(whole)
    played(part, SILENT, Part(1, 2))
    merge([part], other.path)
    assert left["plays"] > 800  # what was finished is not played again
    lines = (merged.path / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (merged.path / "cells.jsonl").write_bytes(b"".join(lines[::-1]))  # stopped before it was sorted
    assert contents(played(merged.path, SILENT)) == contents(whole)
    write_report(Folder(other.path, parse_comparison(SILENT)))
    assert contents(other) == contents(whole)


def test_what_is_no_part_of_a_comparison_is_not_merged(tmp_path, monkeypatch):
    made_up(monkeypatch)
    one = played(tmp_path / "one", SILENT, Part(1, 6))
    other = played(tmp_path / "other", SILENT.replace("seeds = 3", "seeds = 4"), Part(2, 6))
    for wrong, message in (
        ([one.path, other.path], "begun with another comparison"),
        ([one.path, tmp_path], "not a folder that this command began"),
        ([tmp_path, one.path], "not the folder of a comparison"),
    ):
        with pytest.raises(ValueError, match=message):
            merge(wrong, tmp_path / "new")
        assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="begun with another comparison"):
        merge([other.path], one.path)


def test_a_case_that_fails_is_listed_and_tried_again(tmp_path, monkeypatch):
    made_up(monkeypatch)
    real = benches.play_sweep

    def breaks(simulator, runs, *rest, **options):
        if runs[0][0].releases_norms:
            raise RuntimeError("out of memory\nand a long story")
        return real(simulator, runs, *rest, **options)

    monkeypatch.setattr(benches, "play_sweep", breaks)
    folder = played(tmp_path / "run", SILENT)
    assert [case.method for case in folder.failures] == ["norm", "norm"]
    failed = json.loads((folder.path / "table.json").read_text())["failures"]
    assert [one["error"] for one in failed] == ["RuntimeError: out of memory"] * 2
    assert "out of memory" in (folder.path / "report.md").read_text()
    monkeypatch.setattr(benches, "play_sweep", real)
    again = played(tmp_path / "run", SILENT)
    assert again.failures == {}
    assert contents(again) == contents(played(tmp_path / "whole", SILENT))


def test_it_trains_and_a_gpu_finds_the_same(tmp_path, monkeypatch):
    """Real runs of small clients: the coin's uploads come out as wanted, and played together, in
    threads, every run is the same up to rounding."""
    small(monkeypatch)
    axes = "epsilons = [inf]\nuploads = [6]\nseeds = 3\n[compare.tuning]\nseeds = 2\nwiden = 0\n"
    grid = "clip_norm = [0.05, 0.5]\nreach = [1.0]\n"
    methods = (
        '[[compare.method]]\nname = "uniform"\n[[compare.method]]\nname = "coin"\nrule = "coin"'
    )
    text = TEXT[: TEXT.index("epsilons")].replace("rounds = 4", "rounds = 12")
    text += axes + grid + methods
    alone = played(tmp_path / "alone", text)
    monkeypatch.setattr(benches.Simulator, "is_small", lambda self, work: True)
    made = benches.Simulator.__init__

    def elsewhere(self, *arguments):
        made(self, *arguments)
        self.on_cpu = False

    monkeypatch.setattr(benches.Simulator, "__init__", elsewhere)
    monkeypatch.setattr(benches, "Serial", Together)
    together = played(tmp_path / "together", text)
    assert alone.failures == together.failures == {}
    others = together.finished()
    for case, mine in alone.finished().items():
        mine, other = mine.scored, others[case].scored
        assert mine.accuracy == pytest.approx(other.accuracy, abs=1e-6)
        np.testing.assert_array_equal(mine.right, other.right)
        assert mine.right.sum() / mine.answers == pytest.approx(sum(mine.accuracy), abs=1e-5)
        uploads = [one.uploads for one in others[case].outcomes]
        assert uploads == [one.uploads for one in alone.finished()[case].outcomes]
        # 36 rounds of 6 of 24: 5 standard errors, false alarms below 1e-6; a step of the cohort
        near = 5 * math.sqrt(24 * 0.25 * 0.75 / 36) + 6 * 0.05
        assert np.mean(uploads) / 12 == pytest.approx(6, abs=near)


def test_noise_is_found_once_for_a_whole_grid():
    """For clip norms and steps alike; a refusal says the arm and its setting."""
    comparison = parse_comparison(TEXT)
    case = comparison.cases[1]  # it releases norms
    config = comparison.config(case, comparison.untuned(case))
    arms = [replace(config.arms[0], clip_norm=clip, step=3.0) for clip in (0.1, 10.0)]
    before = benches.noise_of.cache_info().misses
    noised = [benches.Bench().with_noise(arm, config.privacy) for arm in arms]
    assert benches.noise_of.cache_info().misses <= before + 1
    assert [(one.clip_norm, one.step) for one in noised] == [(0.1, 3.0), (10.0, 3.0)]
    assert noised[0].noise == noised[1].noise
    assert noised[0].norm_multiplier > 0
    with pytest.raises(ValueError, match="norm releases alone cost"):
        benches.Bench().with_noise(arms[0].changed(norm_multiplier=0.01), config.privacy)


def test_quick_is_smaller_and_says_how(tmp_path, monkeypatch):
    made_up(monkeypatch)
    quick = parse_comparison(TEXT).quickened()
    assert {case.epsilon for case in quick.cases} == {8.0}
    assert quick.axes.seeds == 2
    assert quick.methods["norm"].tuning.pairs == 4
    assert len(quick.axes.difference) == 1
    folder = Folder(tmp_path / "run", quick)
    folder.play()
    write_report(folder)
    assert "the largest finite epsilon" in (folder.path / "report.md").read_text()
    assert merge([folder.path], tmp_path / "whole").finished() == folder.finished()


def test_quick_may_have_data_of_its_own():
    own = '[compare.quick]\nlabel = "few"\nset = ["data.clients=12"]\nuploads = [3]\n'
    comparison = parse_comparison(TEXT + own)
    assert {case.data for case in comparison.cases} == {""}
    quick = comparison.quickened()
    assert {(case.data, case.uploads) for case in quick.cases} == {("few", 3.0)}
    assert quick.configs["few"].data.clients == 12
    with pytest.raises(ValueError, match="= 13: expected at most the 12 clients"):
        parse_comparison(TEXT + own.replace("[3]", "[13]"))
    with pytest.raises(ValueError, match="uploads is missing"):
        parse_comparison(
            TEXT.replace("uploads = [4, 8]\n", "", 1).split("[[compare.difference]]")[0]
            + own.replace("uploads = [3]\n", "")
            + '[[compare.data]]\nlabel = "all"\nuploads = [4]\n'
        )


def test_the_files_behind_the_results_can_be_read():
    """With their quick versions, which need no download."""
    files = sorted((Path(__file__).parents[2] / "experiments" / "results").glob("*.toml"))
    assert len(files) == 15
    for file in files:
        (config,) = read_comparison(file).quickened().configs.values()
        assert config.data.name == "mnist-embedded"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[compare]", "[compare]\nseedz = 3"), "compare.seedz = 3: unknown setting"),
        (("epsilons = [8.0, inf]", "epsilons = [0.0]"), "expected a number > 0, or inf"),
        (("uploads = [4, 8]", "uploads = [40]"), "expected at most the 24 clients"),
        (("uploads = [4, 8]\n", ""), "compare.uploads is missing"),
        (('name = "uniform"', 'name = "uniform"\nnoise_multiplier = 1.0'), "equal epsilon"),
        (('name = "uniform"', 'name = "uniform"\nuploads = 5'), "the same for all methods"),
        (('name = "uniform"', 'name = "uniform"\nclip_norm = 5'), "compare.tuning chooses it"),
        (('name = "uniform"', 'name = "uniform"\nflor = 0.1'), "unknown setting"),
        (
            ('name = "uniform"', 'name = "uniform"\ntuning = {clip_norm=[1.0,2.0], reach=[1.0]}'),
            "expected as much tuning for every method",
        ),
        (('name = "uniform"', 'name = "coin"'), "expected a name of its own"),
        (
            ('trust = "central"', 'trust = "central"\nepsilon = 1.0'),
            "privacy.epsilon = 1.0: not in",
        ),
        (('trust = "central"', 'trust = "none"'), "adds no noise"),
        (("than_uploads = 8", "than_uploads = 9"), "0 cells are that"),
        (('than = "uniform"', 'than = "uniforn"'), "did you mean 'uniform'"),
        (("reach = [0.3, 1.0]", "reach = [1.0, 0.3]"), "expected numbers that rise"),
        (('name = "made"', 'name = "made"\nseed = 3'), "seed: not in the file of a comparison"),
        (("seeds = 3", "seeds = 3\nuploads_in_all = [50]"), "not with uploads"),
        (("epsilons = [8.0, inf]", "epsilons = []"), "epsilons = []: expected at least one"),
        (("seeds = 3", "seeds = 3\nrounds = []"), "rounds = []: expected at least one"),
        (
            ("[compare.tuning]", '[[compare.data]]\nlabel = "a"\nuploads = []\n[compare.tuning]'),
            "uploads = []: expected at least one number",
        ),
        (
            (
                "[compare.tuning]",
                '[[compare.data]]\nlabel = "a"\nset = ["engine=flower"]\n[compare.tuning]',
            ),
            "compare.data.set = 'engine=flower' of 'a': a comparison is simulated",
        ),
        (
            (
                "[compare.tuning]",
                '[[compare.data]]\nlabel="A b"\n[[compare.data]]\nlabel="a-b!"\n[compare.tuning]',
            ),
            "label = 'A b': expected a label of its own; two would have the figure figure-a-b.svg",
        ),
        (("margin = -0.1", "margin = nan"), "difference.margin = nan: expected a finite number"),
        (("margin = -0.1", "margin = -inf"), "difference.margin = -inf: expected a finite number"),
        (('name = "uniform"', 'name = "uniform"\ntuning = 3'), "tuning = 3: expected a table"),
        (('name = "uniform"', 'name = "uniform"\nrule = 3'), "rule = 3: expected"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(change, said):
    assert TEXT.count(change[0]) >= 1
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        parse_comparison(TEXT.replace(*change, 1))
    assert "\n" not in str(caught.value)


def test_data_have_axes_of_their_own_and_everyone_one_case():
    text = (
        TEXT.replace("than_uploads = 8", 'than_uploads = 8\ndata = "few"')
        + """
[[compare.method]]
name = "all"
rule = "full"
[[compare.data]]
label = "few"
[[compare.data]]
label = "many"
set = ["data.clients=48"]
uploads_in_all = [64]
rounds = [2, 8]
epsilons = [1.0]
"""
    )
    cases = parse_comparison(text).cases
    few = [(c.uploads, c.rounds) for c in cases if (c.data, c.method) == ("few", "uniform")]
    assert few == [(4.0, 4), (8.0, 4)] * 2
    many = [(c.uploads, c.rounds) for c in cases if (c.data, c.method) == ("many", "uniform")]
    assert many == [(32.0, 2), (8.0, 8)]
    everyone = [(c.data, c.uploads, c.rounds) for c in cases if c.method == "all"]
    assert everyone == [("few", 24, 4)] * 2 + [("many", 48, 2), ("many", 48, 8)]


def test_data_may_have_a_cohort_of_their_own():
    """It replaces that of methods that ask more clients than upload; the coin's follows data."""
    text = TEXT + '[[compare.data]]\nlabel = "few"\ncohort_per_upload = 1.5\n'
    found = parse_comparison(text)
    cohorts = {case.method: found.first_cohort(case) / case.uploads for case in found.cases}
    assert cohorts == {"uniform": 1.0, "norm": 1.5, "coin": 2.0}
    with pytest.raises(ValueError, match=r"cohort_per_upload = 0.5: expected a number >= 1"):
        parse_comparison(text.replace("= 1.5", "= 0.5"))
