"""What a case or a file says, in plain JSON: the only part of the corpus that a redesign edits.

Names of keys may change here; values may not. A refusal is kept as the setting and the value that
its line begins with, so that the words may improve.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from corpus.cases import Case, finite
from locksfl.arm import Arm
from locksfl.cli.main import main
from locksfl.experiment.config import config_of
from locksfl.federation.device import DeviceLedger
from locksfl.methods.events import to_json
from locksfl.privacy import Budget, guarantee
from locksfl.privacy.journal import Books
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.ledger import read_run
from locksfl.privacy.population import VARIABLE, PopulationJournal
from locksfl.privacy.terms import terms_of, with_strategy

Answer = dict[str, Any]
NOISE = ("noise_multiplier", "norm_multiplier", "clip_multiplier")
DELTA = 1e-5
VIEWS = ("report.html", "STATEMENT.md")  # what people read is not compared


def answered(case: Case, epsilons: bool) -> Answer:
    """The terms of an arm, its numbers and what they cost; or the refusal."""
    try:
        arm = arm_of(case)
    except ValueError as error:
        return {"refused": refusal(str(error))}
    terms = with_strategy(terms_of(arm), arm)
    written = {who: [to_json(one) for one in seen] for who, seen in terms.items()}
    answer = {"terms": written, "numbers": numbers_of(arm)}
    if epsilons:
        answer["epsilons"] = [
            [cost.observer, cost.relation, finite(cost.epsilon), cost.accountant]
            for cost in guarantee([arm], DELTA, case["accountant"])
        ]
    return json.loads(json.dumps(answer))


def arm_of(case: Case) -> Arm:
    """The arm of a case with its noise."""
    config = config_of(case["tables"])
    (arm,) = config.arms
    noise = case["noise"]
    if not noise:
        return arm
    rungs = tuple(itertools.islice(itertools.cycle(noise["rungs"]), len(arm.rungs)))
    known = {name: noise[name] for name in NOISE}
    if rungs:
        known["noise_multiplier"] = rungs[-1]
    arm = arm.changed(**known, ladder=rungs)
    if config.privacy.filter:
        budget = Budget(config.privacy.epsilon or 0.0, DELTA, config.privacy.relation)
        budget.check(*arm.messages())
        arm = replace(arm, budget=budget)
    return arm


def numbers_of(arm: Arm) -> Answer:
    """Every number of an arm that a round or a planner reads."""
    names = ("rule", "estimator", "cohort", "uploads", "floor", "norm_low", "clip_norm", "bands")
    more = ("sampling_rate", "largest_probability", "everyone_uploads", "unbiased", "credited")
    found = {name: getattr(arm, name) for name in (*names, *more)}
    dials = [float(value) for value in arm.dials(float)[:-1]]
    return {**found, "dials": [finite(value) for value in dials], "rungs": list(arm.rungs)}


def refusal(line: str) -> list[str]:
    """The setting that a refusal names, and its value."""
    found = re.match(r"(?P<setting>[\w.\[\]-]+)(?: = (?P<value>[^:]+))?", line)
    return [] if found is None else [part for part in found.groups() if part is not None]


# Folders: what the program says of a run, a bundle, a ledger and a journal, without names of keys


def run_folder(path: Path) -> Answer:
    """A run folder's ledger, and what it cost."""
    return {"ledger": run_ledger(path), **ask("privacy", "account", path, read=_account)}


def run_ledger(path: Path) -> Answer:
    """Head and charges of a run's own ledger, of its clients by arm."""
    return of_books(read_run(path))


def server_ledger(path: Path) -> Answer:
    """The same of a server's file alone."""
    return of_books(Journal.read(path / "ledger.sqlite"))


def device_ledger(path: Path) -> Answer:
    """Head and charges of a device's ledger, by run and terms."""
    with DeviceLedger.open(path / "ledger.sqlite", whole=True) as ledger:
        charges = [[t.terms.run, t.rounds, t.uploads, t.sent, t.latest] for t in ledger.tallies()]
        return {"head": ledger.head, "charges": charges}


def device(path: Path) -> Answer:
    """A device's ledger, and what its owner is told of it."""
    files = (path / "ledger.sqlite", "--policy", path / "policy.toml", "--key", path / "me.key")
    return {"ledger": device_ledger(path), **ask("federation", "ledger", *files, read=_device)}


def bundle(path: Path) -> Answer:
    """What `locks verify` recomputes, and what it finds wrong."""
    answer = ask("verify", path, read=_verified)
    return {key: value for key, value in answer.items() if key != "code"}  # 1: no page is kept


def population_ledger(path: Path) -> Answer:
    """Head and charges of a population's journal, by run."""
    with populations(path), PopulationJournal.find(path.stem) as journal:
        charges = [[run.id, run.played, run.charge] for run in journal.runs]
        return plain({"head": journal.head, "charges": charges})


def population(path: Path) -> Answer:
    """A population's journal, and what all its runs cost."""
    with populations(path):
        spent = ask("privacy", "spent", path.stem, read=_spent)
    return {"ledger": population_ledger(path), **spent}


def populations(path: Path) -> Any:
    """The journals are in this folder."""
    return mock.patch.dict(os.environ, {VARIABLE: str(path.parent)})


def ask(*words: object, read: Callable[[Any], Answer]) -> Answer:
    """What `locks ... --json` says, and its exit code; or the refusal."""
    out, err = io.StringIO(), io.StringIO()
    here = next((f"{word.parent}/" for word in words if isinstance(word, Path)), "")
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", ["locks", *map(str, words), "--json"]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    if not out.getvalue():
        line = err.getvalue().strip().removeprefix("locks: ")
        return {"code": code, "refused": refusal(line.replace(here, "") if here else line)}
    return plain({"code": code, **read(json.loads(out.getvalue()))})


def plain(answer: Answer) -> Answer:
    """As JSON has it."""
    return json.loads(json.dumps(answer))


def of_books(books: Books) -> Answer:
    """Head and charges, of clients by arm."""
    columns = ("norms", "uploads", "open", "shares")
    charges = [
        [name, tally.rounds, *(getattr(tally, column).tolist() for column in columns)]
        for name, tally in books.tallies.items()
    ]
    return plain({"head": books.head, "charges": charges})


def _account(told: Any) -> Answer:
    rows = [*told["arms"], told["all_arms_composed"]]
    names = ("name", "rounds", "rounds_played", "claimed_epsilon")
    return {
        "values": [told["experiment"], told["trust"], told["accounting"]],
        "arms": [[*(row.get(n) for n in names), _values(row.get("budget"))] for row in rows],
        "epsilons": [[_costs(row["guarantee"]), _costs(row["spent_so_far"])] for row in rows],
    }


def _costs(told: Any) -> list[Any]:
    return [
        [observer, relation, epsilon, cost["delta"], cost["accountant"]]
        for observer, cost in told.items()
        for relation, epsilon in cost["relations"].items()
    ]


def _spent(told: Any) -> Answer:
    names = ("run", "time", "clients", "arms", "played", "share")
    cost = ("observer", "relation", "epsilon", "delta", "accountant")
    return {
        "values": [told["population"], *_values(told["total"]), told["share"]],
        "runs": [[run[name] for name in names] for run in told["runs"]],
        "epsilons": [
            told["spent_so_far"],
            [run["epsilon"] for run in told["runs"]],
            [[row[name] for name in cost] for row in told["composed"]],
        ],
    }


def _device(told: Any) -> Answer:
    return {
        "values": [v for k, v in told.items() if k not in ("ledger", "runs", "message", "budget")],
        "budget": _values(told["budget"]),
        "runs": [_values(run) for run in told["runs"]],
    }


def _verified(told: Any) -> Answer:
    """Pages and texts are not kept, so that they are missing: no fault here."""
    faults = [refusal(fault) for fault in told["faults"]]
    names = ("arm", "observer", "relation", "printed", "recomputed")
    return {
        "faults": [fault for fault in faults if fault[0] not in VIEWS],
        "unchecked": len(told["unchecked"]),
        "by": [row["by"].split(" (")[0] for row in told["epsilons"]],
        "epsilons": [[row[name] for name in names] for row in told["epsilons"]],
    }


def _values(told: Any) -> list[Any]:
    return [] if told is None else list(told.values())
