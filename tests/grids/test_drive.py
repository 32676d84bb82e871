"""A grid's file is its whole state: any order, any stop, any executor, any parts, equal bytes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from locksfl.grids.drive import Watch, drive, join, results_of
from locksfl.grids.executors import Processes, Serial, Together
from made_grids import CASES, Killed, Untidy, dies, formula
from small_runs import new_path


@pytest.fixture(scope="module", autouse=True)
def quick():
    """No row has to survive a power cut here."""
    with mock.patch("os.fsync"):
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The grid as one process plays it: results, and bytes."""
    file = tmp_path_factory.mktemp("grid") / "rows"
    driven = drive(CASES, Serial(formula), file)
    assert driven.failures == {}
    assert driven.whole() == list(results_of(CASES, file).values())
    for search, reported in driven.whole():
        assert (search.widened, search.edge, len(reported)) == (2, [], 3)
    return driven.results, file.read_bytes()


def new_file():
    path = new_path()
    path.mkdir()
    return path / "rows"


def test_stopped_after_any_row_it_goes_on_to_the_same_bytes(whole):
    """With a torn last line and without, and in another order each time. A case that was sent its
    rows as they come, or an unfinished wave, would tune to other pairs."""
    results, content = whole
    for rows in range(len(content.splitlines())):
        file = new_file()
        with pytest.raises(Killed):
            drive(CASES, Untidy(rows, rows), file)
        if rows % 2:
            with file.open("ab") as torn:
                torn.write(content.splitlines()[rows][: rows + 5])
        again = Untidy(rows + 1)
        assert drive(CASES, again, file).results == results
        assert file.read_bytes() == content
        assert len(again.asked) == len(content.splitlines()) - rows  # nothing is played twice


@given(
    seed=st.integers(0, 99),
    stops=st.lists(st.integers(0, 30), max_size=3),
    failing=st.sets(st.tuples(st.sampled_from([0, 2]), st.integers(0, 20)), max_size=3),
)
@settings(max_examples=25)
def test_a_cell_that_fails_holds_up_its_own_case_only(whole, seed, stops, failing):
    """And is tried again by the next command; stopped in between as often as you like."""
    results, content = whole
    file = new_file()
    for rows in stops:
        try:
            drive(CASES, Untidy(seed, rows, failing), file)
        except Killed:
            continue
    driven = drive(CASES, Untidy(seed, fails=failing), file)
    # a row that was there before its cell began to fail stays: that cell is not asked for again
    assert driven.failures.keys() <= {case for case, _ in failing}
    assert driven.results == {i: results[i] for i in CASES if i not in driven.failures}
    for case, error in driven.failures.items():
        assert str(error).startswith(f"({case}, ")
    if driven.failures:
        with pytest.raises(RuntimeError, match="out of memory"):
            driven.whole()
    again = Untidy(seed)
    assert drive(CASES, again, file).results == results
    assert {case for case, _ in again.asked} == driven.failures.keys()
    assert file.read_bytes() == content


@given(parts=st.integers(1, 3), seed=st.integers(0, 9), finished=st.booleans())
@settings(max_examples=10)
def test_parts_are_joined_to_the_whole(whole, parts, seed, finished):
    """In any order, one of them twice; what a part lacks is played when the whole is driven."""
    results, content = whole
    files = [new_file() for _ in range(parts)]
    for number, file in enumerate(files):
        mine = {i: case for i, case in CASES.items() if i % parts == number}
        stopped = number == 0 and not finished
        try:
            drive(mine, Untidy(seed, 5 if stopped else 1000), file)
        except Killed:
            assert stopped
    file = new_file()
    join([*files[::-1], files[-1]], file)
    assert (results_of(CASES, file) == results) == finished
    last = Untidy(seed)
    assert drive(CASES, last, file).results == results
    assert bool(last.asked) != finished
    assert file.read_bytes() == content


def test_every_executor_gives_the_same_bytes(whole):
    """Two processes, and a device that plays the plays of a case at once."""
    for executor in (Processes(formula, 2), Together(formula)):
        file = new_file()
        assert drive(CASES, executor, file).results == whole[0]
        assert file.read_bytes() == whole[1]
        if isinstance(executor, Processes):
            executor.close()


def test_a_process_that_dies_takes_no_other_cell_with_it(whole):
    """Of the three cases, one has a cell that its process dies of."""
    executor, file = Processes(dies, 2), new_file()
    driven = drive(CASES, executor, file)
    executor.close()
    assert driven.results == {i: whole[0][i] for i in (0, 2)}
    assert "its process died" in str(driven.failures[1])
    assert drive(CASES, Serial(formula), file).results == whole[0]
    assert file.read_bytes() == whole[1]


KILLED = """
import os, types
from locksfl.grids.drive import Cell
from locksfl.grids.executors import Processes
several = Processes(list, 2)
list(several.run([Cell(0, 0, types.SimpleNamespace(name="x"))]))
print(*several._pool._processes, flush=True)
os._exit(1)
"""


def test_processes_end_with_whoever_drives_them():
    """However that ended: a killed driver would leave them waiting, with all their data."""
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    left = [Path("/proc", pid, "stat") for pid in done.stdout.split()]
    assert left, done.stderr
    for _ in range(600):
        left = [stat for stat in left if stat.is_file() and ") Z " not in stat.read_text()]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(left)


def test_a_row_of_another_play_is_not_taken_for_this_one(whole):
    """A file of other plays, in the same places: found alone here."""
    file = new_file()
    file.write_bytes(whole[1].replace(b"case 1, seed 1000", b"case 1, seed 1002"))
    failures = drive(CASES, Serial(formula), file).failures
    assert failures.keys() == {1}
    assert "is of case 1, seed 1002" in str(failures[1])


@pytest.mark.parametrize("line", [b"{not json}\n", b'{"case": 1}\n', b'{"stage": "tuning"}\n'])
def test_a_damaged_line_is_named(line):
    """And one as earlier versions wrote it."""
    file = new_file()
    file.write_bytes(line)
    with pytest.raises(ValueError, match=r"rows: damaged, or of another version"):
        drive(CASES, Serial(formula), file)


def test_who_watches_hears_of_every_play(whole):
    """Also of those that the file has: the bar is full either way."""
    file, heard = new_file(), []
    for _ in range(2):
        counts = []
        watch = Watch(lambda more, done, counts=counts: counts.append((more, done)), heard.append)
        drive(CASES, Serial(formula), file, watch)
        rows = len(whole[1].splitlines())
        assert [sum(each) for each in zip(*counts, strict=True)] == [rows, rows]
    assert {said[:6] for said in heard} == {case.label for case in CASES.values()}
