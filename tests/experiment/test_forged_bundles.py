"""Bundles that were changed and then written anew by the program's own functions, so that digest,
words and page match: `locks verify` alone finds the change, or says what it takes as stated."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tomli_w
from msgspec import structs
from test_verify import (
    REMOVED,
    at,
    changed,
    leaves,
    own,
    public_page,
    sealed,
    setting_faults,
    statement_of,
    written,
)

from locksfl.experiment import verify as verifying
from locksfl.experiment.documents import Document, read_document
from locksfl.experiment.record import Statement, plain, read, schema
from locksfl.experiment.statement import _escaped, statement_text
from locksfl.experiment.verify import Report, verify
from locksfl.privacy.population import Run, Total, best_order
from made_documents import KINDS, METRICS, made_bundle, page
from small_runs import call_locks, new_path

UNWRITABLE = (ValueError, LookupError, TypeError, AttributeError)  # by this program
HTML = "<img src=x onerror=alert(1)>"
CLAIM = "the-guarantee-is-epsilon-0.05"  # it has the pattern of a name
CODE = "the_guarantee:is_0.05"
WORDS = (("SERVER", "PUBLIC"), ("zero-out", "replace"), ("pld", "rdp", "gdp", "none"))
SCORES = ("accuracy", "loss")

# The leaves that nothing in a bundle contradicts, by the words in which `verify` says so. A leaf
# that stands in several places was changed in all of them.
STATED = {
    "whether a seed was given": {"simulated"},
    "whether settings were chosen": {"settings.privacy.tuned_without_privacy"},
    "names": {
        *("settings.name", "settings.model.name", "settings.privacy.population"),
        *("covers.population", "covers.run", "covers.runs.*.run"),
    },
    "the version": {"version"},
    "settings that no epsilon depends on": {
        *("settings.data.split_seed", "settings.data.clients", "settings.local.min_samples"),
        *(f"settings.train.{name}" for name in ("clip_norm", "average_last", "evaluate_every")),
        *("settings.train.stop_after", "settings.train.optimizer.step"),
        *("settings.privacy.accountant", "settings.arm.*.clip_quantile"),
        *("settings.diagnostics.every", "settings.diagnostics.clients"),
    },
    "how turns correlate their noise": {"arms.*.terms.PUBLIC.*.*.strategy.*"},
    "code of the operator's own": {"settings.arm.*.rule"},
    "figures from data": {
        *("arms.*.rounds.*.scores.score", "arms.*.rounds.*.scores.loss"),
        *(f"arms.*.rounds.*.{name}" for name in ("clip_norm", "upload_estimate")),
        *(f"arms.*.rounds.*.counts.{name}" for name in ("cohort", "uploads", "exhausted")),
        *(f"arms.*.metrics.{name}" for name in ("task", *METRICS)),
    },
    "what is in a model's file": {"parameters"},
    "whose records were held out": {"held_out.clients", "classes_public"},
    "what other runs cost are taken as stated": {
        *("covers.runs.*.epsilon", "covers.composed.*.epsilon", "covers.composed.*.accountant"),
    },
    "holds": {  # a larger delta promises less, and an epsilon may be larger than necessary
        *("all_arms.*.delta", "arms.*.privacy.*.delta", "arms.*.spent_so_far.*.delta"),
        "settings.privacy.delta",
    },
}


def others(value: Any) -> list[Any]:
    """What somebody may write in its place."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value - 1, value + 1]
    if isinstance(value, float):
        return [0.9 * value, 1.1 * value]
    if value is None:
        return [1, 0.5]
    more = [word for group in WORDS if value in group for word in group if word != value]
    return [HTML, CLAIM, CODE, f"{value}1", *more]


def place(path: tuple) -> str:
    """A leaf's name; those of all rounds, arms and runs have one."""
    return ".".join("*" if isinstance(key, int) else key for key in path)


def replaced(value: Any, old: Any, new: Any) -> Any:
    """With another value wherever one stands, also in the name of a run or of a file."""
    if isinstance(value, dict):
        return {
            replaced(k, old, new) if k.startswith("model-") else k: replaced(v, old, new)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [replaced(one, old, new) for one in value]
    if isinstance(value, str) and isinstance(old, str):
        return re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w-])", lambda _: new, value)
    return new if type(value) is type(old) and value == old else value


def forged(document: Document) -> Iterator[tuple[str, Document]]:
    """(where, the document) with each leaf changed or removed, by itself and wherever its value
    stands; of the leaves of one name, the first and the last."""
    ends: dict[str, list[tuple]] = {}
    for path in leaves(document):
        if path != ("digest",):
            ends.setdefault(place(path), []).append(path)
    for name, paths in ends.items():
        for path in dict.fromkeys((paths[0], paths[-1])):
            old = at(document, path)
            for new in others(old):
                yield name, changed(document, path, new)
                if isinstance(old, str | float):
                    yield name, replaced(document, old, new)
            yield name, changed(document, path, REMOVED)


@functools.cache
def drawn(text: str) -> str:
    """A page takes long, and `verify` draws it again."""
    return public_page(json.loads(text))


def rewritten(document: Document, folder: Path) -> Report:
    """What `locks verify` says of it as a whole bundle, written as `publish` writes one."""
    folder.joinpath("config.toml").write_text(tomli_w.dumps(document["settings"]), "utf-8")
    try:
        document = sealed(document)
        text = statement_text(read(Statement, document))
        (folder / "STATEMENT.md").write_text(text, "utf-8")
    except UNWRITABLE:
        pass  # somebody may write it all the same
    (folder / "statement.json").write_text(json.dumps(document), "utf-8")
    with mock.patch.object(verifying, "public_page", lambda one: drawn(json.dumps(plain(one)))):
        report = verify(folder)
        if report.faults == ["report.html: shows something else than its data"]:
            (folder / "report.html").write_text(drawn(json.dumps(document)), "utf-8")
            report = verify(folder)
    return report


def copied_bundle(*kind: Any) -> tuple[Document, Path]:
    folder = new_path()
    shutil.copytree(made_bundle(*kind), folder)
    return read_document(folder), folder


LONG = [
    pytest.param((kind,), marks=pytest.mark.long) for kind in ("turns", "adaptive clipping, norm")
]


@pytest.mark.parametrize("kind", [("uniform", 1), ("local", 0), ("stopped early",), *LONG], ids=str)
def test_each_leaf_is_contradicted_or_named_as_taken(kind):
    """Finds a field that is shown and that nothing checks, as `total.filter` was."""
    document, folder = copied_bundle(*kind)
    assert rewritten(document, folder).faults == []
    taken: dict[str, str] = {}  # a leaf, and what `verify` says of it
    for name, other in forged(document):
        if name in taken:
            continue
        try:
            report = rewritten(other, folder)
        except ValueError:  # refused: not a statement
            continue
        if not report.faults:
            taken[name] = " ".join(["holds", *report.notes, *report.unchecked])
            assert HTML not in json.dumps(other), name
    named = {
        name
        for name, said in taken.items()
        if any(name in places and words in said for words, places in STATED.items())
    }
    assert taken.keys() - named == set()
    assert len(taken) > 15


# The journal of a population


def promised(document: Document, total: Total, share: float = 1.0) -> Document:
    """A journal of another total, all other numbers of it computed anew; `share`: of the charge of
    this run that is told."""
    told = copy.deepcopy(document)
    covers = told["covers"]
    before = Total(**covers["total"])
    covers["total"] |= {"epsilon": total.epsilon, "order": total.order}
    covers["runs"][-1]["share"] *= share
    for run in covers["runs"]:
        run["share"] *= before.limit / total.limit
    covers["share"] = math.fsum(run["share"] for run in covers["runs"])
    covers["spent_so_far"] = total.epsilon_of(covers["share"] * total.limit)
    return told


def allowed(document: Document, epsilon: float) -> Total:
    """A total with the order of the journal's, or where nothing is left of it with the best one."""
    told = document["covers"]["total"]
    if told["order"] is None:
        return Total(epsilon, told["delta"], told["relation"])
    try:
        return Total(epsilon, told["delta"], told["relation"], told["order"])
    except ValueError:
        order = best_order(epsilon, told["delta"], told["relation"])
        return Total(epsilon, told["delta"], told["relation"], order)


@pytest.mark.parametrize(("kind", "costs"), [("uniform", "2.609"), ("local", "1.016")])
def test_a_total_that_this_run_alone_exceeds(kind, costs):
    """Finds a total that is far too small in a bundle whose other numbers all agree with it."""
    document, folder = copied_bundle(kind, 1)
    faults = rewritten(promised(document, allowed(document, 0.1)), folder).faults
    assert any(f"covers: total.epsilon = 0.1: this run alone costs {costs}" in f for f in faults)
    fair = promised(document, allowed(document, 50.0))
    assert rewritten(fair, folder).faults == []  # which other runs there were is not known
    half = promised(document, allowed(document, 100.0), share=0.5)
    assert any("covers: the run's share" in f for f in rewritten(half, folder).faults)


def test_what_a_journal_cannot_say_of_its_own_run(capsys):
    document, folder = copied_bundle("uniform", 1)
    lone, _ = copied_bundle("uniform", 0)
    covers = ("covers",)
    for one, path, value, told in (
        (document, ("runs", 1, "epsilon"), 2.0, "the run's epsilon 2: too small"),
        (document, ("runs", 1, "run"), "made 0123abcd", "expected this run, and once"),
        (document, ("run",), "earlier 00000000", "expected this run, and once"),
        (document, ("population",), "others", "population = 'others': expected 'patients'"),
        (document, ("total", "delta"), 1e-9, "spent_so_far"),
        (document, ("share",), 0.001, "share = 0.001: its runs have"),
        (document, ("composed", 2, "epsilon"), 2.5, "composed, PUBLIC, zero-out: epsilon 2.5"),
        (document, ("composed", 2, "delta"), 1e-6, "composed, PUBLIC, zero-out: delta 1e-06"),
        (document, ("composed", 0, "epsilon"), 9.0, "composed, SERVER, zero-out: epsilon 9"),
        (document, ("runs", 0, "epsilon"), 9.0, "one run alone has 9"),
        (lone, ("composed", 2, "epsilon"), 3.0, "of this run alone, the terms lead to 2.6"),
    ):
        forgery = changed(one, (*covers, *path), value)
        found = [fault.removeprefix("covers: ") for fault in setting_faults(forgery)]
        assert any(told in fault for fault in found), (path, found)
    said = changed(document, ("settings", "privacy", "total"), 30.0)
    assert "covers: total.epsilon = 100.0: expected 30.0" in list(setting_faults(said))
    told = call_locks(capsys, "verify", made_bundle("uniform", 1))
    assert "the journal of population patients is not public: its total and what other" in told
    assert "holds as far as it was checked: 8 epsilons" in told
    assert rewritten(document, folder).faults == []


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"none", "turns"}))  # which no journal takes
def test_an_honest_journal_holds(kind):
    """Finds charges or epsilons that are computed in another way here than in the journal."""
    assert verify(made_bundle(kind, 0)).faults == []
    document = read_document(made_bundle(kind, 1))
    assert not [fault for fault in setting_faults(document) if fault.startswith("covers")]


def test_a_journal_beside_code_of_the_operators_own():
    """Whose charge is not known: what its terms lead to is."""
    document = own("uniform", before=1)
    assert list(setting_faults(document)) == []
    faults = list(setting_faults(promised(document, allowed(document, 0.1))))
    assert any("this run alone costs 2.609" in fault for fault in faults)


# Strings


def texts(node: Any, name: str = "") -> Iterator[str]:
    """The names of strings without a pattern in a schema."""
    if isinstance(node, dict):
        if node.get("type") == "string" and not {"pattern", "$ref", "const", "enum"} & node.keys():
            yield name
        for key, inner in node.items():
            yield from texts(inner, name if key in ("items", "properties", "anyOf") else key)
    elif isinstance(node, list):
        for inner in node:
            yield from texts(inner, name)


def test_every_string_has_a_pattern_or_is_a_setting():
    """Finds a new field in which anything can be written."""
    defined = schema()["$defs"]
    loose = {kind: set(texts(one)) for kind, one in defined.items() if set(texts(one))}
    assert all(kind.endswith("Config") for kind in loose), loose
    document = read_document(made_bundle("uniform"))
    for path in leaves(document):
        if isinstance(at(document, path), str) and path[-1] != "digest":
            assert setting_faults(changed(document, path, HTML)), path
    for name in ("version", "digest"):
        assert statement_of(changed(document, (name,), "1.0\n"))[1], name
    told = "released with epsilon 1, charged to 'clinic'"
    for text, holds in ((told, True), (f"{told}: epsilon 0.05", False), (f"{told}\n", False)):
        forgery = changed(document, ("released_statistics",), [text])
        assert (not statement_of(forgery)[1]) == holds
    deep = json.loads("[" * 900 + "]" * 900)
    forgery = changed(document, ("settings", "train", "rounds"), deep)
    (fault,) = statement_of(forgery)[1]
    assert fault.startswith("schema: ")
    assert verify(written(page(forgery))).faults == [fault]


def test_released_statistics_are_named_as_not_recomputed():
    document, folder = copied_bundle("uniform")
    told = "released with epsilon 1, charged to 'clinic'"
    report = rewritten(changed(document, ("released_statistics",), [told]), folder)
    assert report.faults == []
    assert f"statistics of the data, {told}: not recomputed" in report.unchecked


def test_another_model_with_its_checksum_is_named_as_taken():
    """Finds the one file whose contents nothing in a bundle can contradict, and no line names."""
    document, folder = copied_bundle("uniform")
    name = "model-arm.npz"
    (folder / name).write_bytes(b"another model")
    assert rewritten(document, folder).faults[0].endswith("than the one that was published")
    document["arms"][0]["model"] = hashlib.sha256(b"another model").hexdigest()
    report = rewritten(document, folder)
    assert report.faults == []
    assert "what is in a model's file" in " ".join(report.notes)


def test_settings_with_comments():
    """Finds sentences that only who opens config.toml reads."""
    _, folder = copied_bundle("uniform")
    with (folder / "config.toml").open("a") as file:
        file.write("# The guarantee of this model is epsilon 0.05.\n")
    assert verify(folder).faults == ["config.toml: not the text of statement.json"]


def test_what_has_drawn_a_page_is_printed_only_as_a_version():
    _, folder = copied_bundle("uniform")
    text = (folder / "report.html").read_text("utf-8")
    text = re.sub(r'(name="generator" content=")', "\\1\x1b[2Jholds", text)
    (folder / "report.html").write_text(text, "utf-8")
    told = [line for line in verify(folder).unchecked if line.startswith("report.html")]
    assert told
    assert "drawn by an unknown program" in told[0]


def test_a_fault_writes_nothing_over_the_verdict(capsys):
    """Finds a key, or a file, whose name clears the screen and says "holds"."""
    verdict = "\x1b[2J\x1b[Hholds: 4 epsilons follow\u202e"
    document, folder = copied_bundle("uniform")
    (folder / verdict).write_text("")
    told = call_locks(capsys, "verify", folder, code=1)
    assert "\\x1b[2J\\x1b[Hholds: 4 epsilons follow\\u202e: no file of a bundle" in told
    document["settings"][verdict] = "x"
    (folder / "statement.json").write_text(json.dumps(document))
    told += call_locks(capsys, "verify", folder, code=1)
    assert told.replace("\n", "").isprintable()


def test_names_are_shown_as_they_are():
    """In Markdown, where a name in a journal may be anything that a library's user called data."""
    assert Run("ab" * 16, HTML, ()).label == "-img-src-x-onerror-alert-1-- abababab"
    assert Run("ab" * 16, "Zürich_2.b-c", ()).label == "Zürich_2.b-c abababab"
    run = read(Statement, read_document(made_bundle("uniform")))
    text = statement_text(run)
    tuned = replace(run.settings.privacy, tuned_without_privacy=True)
    other = structs.replace(run, settings=replace(run.settings, privacy=tuned))
    assert "tuned_without_privacy" in statement_text(other)
    assert "\\" not in text
    for name, shown in (("__a_b__", r"\_\_a_b\_\_"), ("a_b", "a_b")):
        other = structs.replace(run, settings=replace(run.settings, name=name))
        assert statement_text(other) == text.replace(
            "# Privacy statement: made", f"# Privacy statement: {shown}"
        )
    assert _escaped(HTML) == "\\<img src=x onerror=alert(1)\\>"
