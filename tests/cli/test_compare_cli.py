"""`locks compare`: one line for what is wrong, and nothing that is finished is lost."""

from __future__ import annotations

import json

import pytest

from cli_results import refused
from locksfl.grids import bench
from made_comparisons import SILENT, made_up


@pytest.fixture
def file(tmp_path, monkeypatch):
    made_up(monkeypatch)
    path = tmp_path / "made.toml"
    path.write_text(SILENT)
    return path


def test_it_is_stopped_and_goes_on_with_the_same_command(locks, file, tmp_path, monkeypatch):
    out, real = tmp_path / "out", bench.play_sweep
    played = []

    def tired(*arguments, **options):
        if len(played) == 5:
            raise KeyboardInterrupt
        played.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(bench, "play_sweep", tired)
    stopped = locks("compare", file, "--out", out)
    assert stopped.code == 130
    told = " ".join(stopped.out.split())
    assert f"go on with: locks compare {file} --out {out}" in told
    assert len((out / "cells.jsonl").read_text().splitlines()) > 1
    monkeypatch.setattr(bench, "play_sweep", real)
    done = locks("compare", file, "--out", out, "--json")
    assert done.code == 0
    table = json.loads(done.out)
    assert (table["cells"], table["missing"], len(table["rows"])) == (6, 0, 6)
    assert table["differences"][0]["margin"] == -0.1
    file.write_text(SILENT.replace("seeds = 3", "seeds = 2"))
    assert "begun with another comparison" in refused(locks("compare", file, "--out", out))
    assert json.loads((out / "table.json").read_text()) == table


def test_parts_are_merged(locks, file, tmp_path):
    paths = [tmp_path / name for name in ("a", "b")]
    for number, path in enumerate(paths, 1):
        assert locks("compare", file, "--part", f"{number}/2", "--out", path).code == 0
    for some, missing in ((paths[:1], 3), (paths, 0)):
        merged = locks("compare", "--merge", *some, "--out", tmp_path / "whole")
        assert merged.code == 0
        assert "report: " in merged.out
        assert json.loads((tmp_path / "whole" / "table.json").read_text())["missing"] == missing
    assert "expected --out DIR" in refused(locks("compare", "--merge", *paths))
    wrong = refused(locks("compare", file, "--part", "3/2", "--out", tmp_path / "c"))
    assert "--part 3/2: expected i/k with 1 <= i <= k" in wrong
    assert not (tmp_path / "c").exists()


def test_failed_cells_are_said_and_have_a_code_of_their_own(locks, file, tmp_path, monkeypatch):
    def breaks(*_, **__):
        raise RuntimeError("no memory")

    monkeypatch.setattr(bench, "play_sweep", breaks)
    failed = locks("compare", file, "--out", tmp_path / "out")
    assert failed.code == 1
    assert "6 cells failed" in failed.out
    assert "no memory" in (tmp_path / "out" / "report.md").read_text()


def test_a_file_that_is_no_comparison_is_refused(locks, file, tmp_path):
    assert "No such file" in refused(locks("compare", tmp_path / "none.toml"))
    file.write_text('name = "x"')
    assert "compare is missing" in refused(locks("compare", file))
    file.write_text("[[compare.method]\n")
    assert "not valid TOML" in refused(locks("compare", file))
    assert not list(tmp_path.glob("runs*"))
