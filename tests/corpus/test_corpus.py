"""What the code of before said, the code says now: the test of a redesign.

Recorded by `corpus.record` on the last commit before the first move: terms, numbers, epsilons and
refusals of 2,000 arms, and what was read in folders, bundles, ledgers and journals that this commit
wrote. What differs on purpose is in differs.json, each with the reason, and nothing else may
differ. Only this sees a price, a default or a refusal that a move changed for a combination of
settings that no other test names, and an old file whose charges an upgrade loses.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import lzma
import math
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from corpus import compare, folders, plays, reading
from corpus.differs import differences, unexplained
from locksfl.methods.events import terms_to_json
from locksfl.privacy.journal import Books, Header
from locksfl.privacy.journal_file import Journal

HERE = Path(__file__).parent
IN_CI = 200


@functools.cache
def recorded() -> list[tuple[Any, Any]]:
    with lzma.open(HERE / "arms.jsonl.xz", "rt") as file:
        return [tuple(json.loads(line)) for line in file]


@pytest.mark.parametrize(
    "numbers",
    [range(IN_CI), pytest.param(range(IN_CI, 2000), marks=pytest.mark.long)],
    ids=["ci", "all"],
)
def test_arms_say_and_cost_what_they_did(numbers):
    found = []
    for number in numbers:
        case, before = recorded()[number]
        now = reading.answered(copy.deepcopy(case), epsilons="epsilons" in before)
        found += differences(before, now, f"arms/{number}")
    assert unexplained(found) == []


def test_headers_of_format_2_say_what_their_arms_released():
    """Of every sound arm, as the base wrote it, read without its method. An own rule's header says
    enough as well, if it does not choose between rungs."""
    with lzma.open(HERE / "headers.jsonl.xz", "rt") as file:
        headers = [json.loads(line) for line in file]
    assert len(headers) == 1500
    own = 0
    for number, written in headers:
        terms = recorded()[number][1]["terms"]
        for one in itertools.chain(*terms.values()):
            one |= {"strategy": []} if "strategy" in one else {}
            one |= {"bands": 1} if one.get("bands") == 0 else {}  # differs.json
        assert of_format_2(written) == terms, number
        chooses = written["terms"].get("ladder") and "count_share" not in written["terms"]["stated"]
        named = (
            written["terms"]["rule"] in ("uniform", "full") and terms["SERVER"] != terms["PUBLIC"]
        )
        written["terms"]["rule"] = "nobody.has:this"
        if chooses:
            with pytest.raises(ValueError, match="does not say what its rungs stated"):
                of_format_2(written)
        elif written["terms"]["trust"] != "local" or not named:
            own += 1
            assert of_format_2(written) == terms, number
    assert own > 1300


def of_format_2(written: Any) -> Any:
    """The terms of one arm of a header."""
    privacy = {"delta": 1e-5, "relation": "zero-out", "accountant": "pld", "arms": [written]}
    (arm,) = Header.read({"version": 2, "experiment": "x", **privacy}).arms
    return json.loads(json.dumps(terms_to_json(arm.terms)))


@pytest.fixture
def kept(tmp_path):
    return folders.unpack(tmp_path)


@functools.cache
def answers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "folders.json").read_text("utf-8"))
    return found


def test_what_was_written_is_read_as_it_was(kept):
    for again in ("for the first time", "after what reading may have rewritten"):
        found = list(differences(answers(), folders.read(kept), "folders"))
        assert unexplained(found) == [], again


LEDGERS = {
    "federation": (reading.server_ledger, "ledger.sqlite"),
    "federation/d-00": (reading.device_ledger, "ledger.sqlite"),
    "federation/d-08": (reading.device_ledger, "ledger.sqlite"),
    "order.sqlite": (reading.population_ledger, ""),
    "mu.sqlite": (reading.population_ledger, ""),
}
CHARGE_NOTHING = {("mu.sqlite", 3), ("federation", 8)}  # settled later; nobody was reserved


@pytest.mark.parametrize("name", LEDGERS)
def test_an_upgrade_that_loses_one_entry_is_seen(kept, tmp_path, name):
    """Whichever it is, and though what is left is a ledger that is whole by its own hashes: it is
    refused, or it charges something else."""
    read, file = LEDGERS[name]
    whole, place = read(kept / name), kept / name / file
    saved = shutil.copy(place, tmp_path / "saved")
    for number in range(1, 1 + int(whole["head"].split()[0])):
        shutil.copy(saved, place)
        place.with_name(f"{place.name}.head").unlink(missing_ok=True)
        lose(place, number)
        try:
            left = read(kept / name)
        except ValueError:
            continue
        assert left["head"] != whole["head"]
        same = left["charges"] == whole["charges"]
        assert same == ((name, number) in CHARGE_NOTHING), number


def lose(place: Path, lost: int) -> None:
    """Write a ledger of format 2 anew without one of its entries, every link as it should be."""
    with closing(sqlite3.connect(place)) as file:
        ((header,),) = file.execute("SELECT value FROM meta WHERE key = 'header'").fetchall()
        plain = json.dumps(json.loads(header), sort_keys=True, separators=(",", ":"))
        before, number = hashlib.sha256(plain.encode()).hexdigest(), 0
        rows = file.execute("SELECT * FROM entries ORDER BY number").fetchall()
        file.execute("DELETE FROM entries")
        for old, account, turn, kind, clients, uploaders, terms, when, _ in rows:
            if old == lost:
                continue
            number += 1
            parts = (before, number, account, turn, kind, uploaders, terms, when)
            before = hashlib.sha256(json.dumps(parts).encode() + clients).hexdigest()
            row = (number, account, turn, kind, clients, uploaders, terms, when, before)
            file.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        file.execute("UPDATE meta SET value = ? WHERE key = 'head'", (f"{number} {before}",))
        file.commit()


@pytest.mark.parametrize("fault", [None, "forgets what is open", "drops a client"])
def test_totals_saved_in_format_2_charge_what_the_entries_do(kept, monkeypatch, fault):
    """They lie beside a ledger and are trusted as long as nobody touches it: a reader that takes
    less from them would let clients spend it again."""
    whole, real = reading.server_ledger(kept / "federation"), Books.unpack
    path = kept / "federation" / "ledger.sqlite"

    def unpacked(*given):
        books = real(*given)
        (tally,) = books.tallies.values()
        if fault == "forgets what is open":
            tally.uploads[tally.open > 0] = tally.open[:] = 0
        elif fault == "drops a client":
            for column in tally.columns.values():
                column[8] = 0
        return books

    monkeypatch.setattr(Books, "unpack", unpacked)
    with Journal.open(path) as ledger:
        assert (reading.of_books(ledger.books) == whole) == (fault is None)
    if fault is not None:
        with pytest.raises(ValueError, match="its saved totals do not match"):
            Journal.open(path, whole=True)


@pytest.mark.parametrize("name", LEDGERS)
def test_an_old_ledger_that_was_altered_is_refused(kept, name):
    read, file = LEDGERS[name]
    with closing(sqlite3.connect(kept / name / file)) as ledger:
        ledger.execute("UPDATE entries SET uploaders = uploaders + 1 WHERE number = 2")
        ledger.commit()
    with pytest.raises(ValueError, match="damaged or was altered"):
        read(kept / name)


def test_the_comparison_sees_small_changes(kept):
    """A multiplier that became a whole number, a last digit, an epsilon, a charge, a refusal."""
    sound = next(a for _, a in recorded() if "epsilons" in a and a["epsilons"][2][2])
    refused = next(a for _, a in recorded() if "refused" in a)
    facts = plays.facts(kept / "central")
    for before, exact in ((sound, False), (refused, False), (answers(), False), (facts, True)):
        assert not list(differences(before, copy.deepcopy(before), "x", exact))
        for path, value in changes(before, exact=exact):
            changed = copy.deepcopy(before)
            *way, last = path
            place = functools.reduce(lambda here, part: here[part], way, changed)
            place[last] = value
            at = "/".join(map(str, ("x", *path)))
            assert list(differences(before, changed, "x", exact)) == [at]
            assert unexplained([at]) == [at]


def changes(answer: Any, path: tuple[Any, ...] = (), *, exact: bool) -> list[tuple[Any, Any]]:
    """Every leaf with another value."""
    if isinstance(answer, dict | list):
        keys = answer if isinstance(answer, dict) else range(len(answer))
        found = (changes(answer[key], (*path, key), exact=exact) for key in keys)
        return [change for some in found for change in some]
    if isinstance(answer, bool):
        return [(path, not answer)]
    if isinstance(answer, int):
        return [(path, answer + 1), (path, float(answer))]
    if isinstance(answer, float):
        step = 1e-3 if "epsilons" in path else 1e-8
        near = math.nextafter(answer, math.inf) if exact else answer * (1 + step) or 1e-300
        return [(path, near), (path, int(answer))]
    return [(path, f"{answer}x")]


def test_a_listed_difference_is_the_only_one_that_passes(monkeypatch, tmp_path):
    listed = tmp_path / "differs.json"
    listed.write_text('{"arms/17/epsilons/*": "a better bound"}')
    monkeypatch.setattr("corpus.differs.LISTED", listed)
    paths = ["arms/17/epsilons/2/2", "arms/18/epsilons/2/2", "arms/17/terms"]
    assert unexplained(paths) == paths[1:]


@pytest.mark.long
def test_runs_are_those_of_the_base():
    """Weights, rounds, charges and epsilons to the bit, with entropy and clock injected."""
    if not compare.known(compare.base()):
        pytest.skip(f"this clone has no commit {compare.base()}")
    count, found = compare.compared(compare.base())
    assert count == len(plays.PLAYS) + 2 * len(plays.RESUMED) + len(plays.FEDERATIONS)
    assert unexplained(found) == []
