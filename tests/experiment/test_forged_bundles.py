"""Statements of which a forger has changed something and sealed them anew, so that the digest fits:
`locks verify` finds the change by building the run again, or says what it takes as stated."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from msgspec import structs
from test_verify import forged_faults, own, public_page, sealed, statement_of, written

from changed_records import ABSENT, HTML, STATISTIC, changed, changes, everywhere, place
from locksfl._arrays import pack_arrays
from locksfl.experiment.documents import Document, read_document
from locksfl.experiment.record import Statement, read, schema
from locksfl.experiment.statement import _escaped, statement_text
from locksfl.experiment.verify import TAKEN, Report, verify
from locksfl.privacy.population import Run, Total, best_order
from made_documents import KINDS, METRICS, MODEL, made_bundle, page
from small_runs import call_locks, new_path

# The leaves that nothing in a statement contradicts, by the words in which `verify` says so. A leaf
# that stands in several places was changed in one of them, or in all.
SETTINGS = {  # of which no epsilon depends on any
    "data": ("split.kind", "split_seed", "unit", "min_samples", "max_samples", "clients"),
    "features": ("name",),
    "local": ("update", "min_samples", "max_samples", "precision", "weight", "control"),
    "train": ("clip_norm", "clip_quantile", "average_last", "evaluate_every", "stop_after"),
    "train.optimizer": ("step",),
    "privacy": ("accountant", "max_epsilon", "releases"),  # which would allow more rounds
    "diagnostics": ("every", "clients"),
    "arm.*": ("clip_norm", "step", "clip_quantile", "clip_rate", "uploads"),
}
STATED = {
    "whether a seed was given": {"simulated"},
    "whether settings were chosen": {"settings.privacy.tuned_without_privacy"},
    "names": {
        *("settings.name", "settings.model.name", "settings.privacy.population"),
        *("settings.arm.*.name", "arms.*.name", "covers.population"),
        *("covers.run", "covers.runs.*.run"),
    },
    "the version": {"version"},
    "settings that no epsilon depends on": {
        f"settings.{table}.{name}" for table, names in SETTINGS.items() for name in names
    },
    "how turns correlate their noise": {
        *("arms.*.terms.PUBLIC.*.*.strategy", "arms.*.terms.PUBLIC.*.*.strategy.*"),
    },
    "code of the operator's own": {"settings.arm.*.rule"},
    "figures from data": {
        *(f"arms.*.rounds.*.{name}" for name in ("scores", "scores.score", "scores.loss")),
        *(f"arms.*.rounds.*.{name}" for name in ("clip_norm", "upload_estimate")),
        *(f"arms.*.rounds.*.counts.{name}" for name in ("cohort", "uploads", "exhausted")),
        *(f"arms.*.metrics.{name}" for name in METRICS),
    },
    "is its ledger's: not recomputed": {"arms.*.spent_so_far.*.epsilon", "arms.*.rounds"},
    "what is in a model's file": {"parameters"},  # of a page; beside a bundle's models it is found
    "whose records were held out": {"held_out.clients", "classes_public"},
    "statistics of the data": {"released_statistics"},
    "what other runs cost are taken as stated": {
        *("covers.runs.*.epsilon", "covers.composed.*.epsilon", "covers.composed.*.accountant"),
    },
    # within the tolerances of epsilons: a larger delta promises less, a total that was asked for
    # may not be needed, and of rungs only the dearest decides
    "holds": {
        *("all_arms.*.delta", "arms.*.privacy.*.delta", "arms.*.spent_so_far.*.delta"),
        *("settings.privacy.delta", "settings.privacy.epsilon"),
        *("arms.*.noise.noise_multiplier", "arms.*.noise.norm_multiplier"),
        *("arms.*.noise.ladder.*", "arms.*.terms.PUBLIC.*.*.choices.*.first_multiplier"),
        "arms.*.terms.PUBLIC.*.*.choices.*.noise_multiplier",
    },
}
SEALS = ("digest", "signature")  # which a forger makes anew
SPENT = "arms.*.spent_so_far.*.epsilon"
PRIVACY = (
    *(f"arms.*.{name}" for name in ("noise", "terms", "planned", "privacy", "claimed", "spent")),
    *(
        "arms.*.rounds.*.epsilon",
        "arms.*.rounds.*.expected",
        "all_arms",
        "settings.privacy.epsilon",
    ),
)
LONG = [
    pytest.param((kind,), marks=pytest.mark.long) for kind in ("dpis", "adaptive clipping, norm")
]


def forged(document: Document) -> Iterator[tuple[str, Document]]:
    """(where, the document) with each leaf changed by itself, and wherever its value stands."""
    for path, old, new in changes(Statement, document):
        if path[0] not in SEALS:
            yield place(path), changed(document, path, new)
            if isinstance(old, str | float) and new not in (None, ABSENT):
                yield place(path), everywhere(document, old, new)


def rewritten(document: Document, folder: Path) -> Report:
    """What `locks verify` says of it as a whole bundle, written as `publish` writes one."""
    document = sealed(document)
    (folder / "statement.json").write_text(json.dumps(document), "utf-8")
    (folder / "config.toml").write_text(tomli_w.dumps(document["settings"]), "utf-8")
    (folder / "STATEMENT.md").write_text(statement_text(read(Statement, document)), "utf-8")
    (folder / "report.html").write_text(public_page(document), "utf-8")
    return verify(folder)


def copied_bundle(*kind: Any) -> tuple[Document, Path]:
    folder = new_path()
    shutil.copytree(made_bundle(*kind), folder)
    return read_document(folder), folder


@pytest.mark.parametrize("kind", [("uniform", 1), ("local", 0), ("stopped early",), *LONG], ids=str)
def test_each_leaf_is_contradicted_or_named_as_taken(kind):
    """Finds a field that is shown and that nothing checks, as `total.filter` was, and one that the
    table above calls taken and is not."""
    document, folder = copied_bundle(*kind)
    assert rewritten(document, folder).faults == []
    found = {name: other for name, other in forged(document) if not forged_faults(other)}
    assert HTML not in json.dumps(found)
    assert found.keys() <= set().union(*STATED.values())
    assert len(found) > 15
    for words, places in STATED.items():
        if words not in f"{TAKEN} holds" and (shown := sorted(places & found.keys())):
            report = rewritten(found[shown[0]], folder)
            assert report.faults == []
            assert words in " ".join([*report.notes, *report.unchecked])


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"uniform", "local", "stopped early"}))
def test_no_number_of_privacy_changes_by_itself(kind):
    """Of every kind of arm: noise, terms, rounds, epsilons, and what was asked for, 5% below what
    they are or 10% above."""
    document = read_document(made_bundle(kind))
    found = {
        place(path)
        for path, old, new in changes(Statement, document)
        if isinstance(old, int | float) and isinstance(new, int | float)
        if place(path).startswith(PRIVACY) and not forged_faults(changed(document, path, new))
    }
    strategies = STATED["how turns correlate their noise"]
    assert found <= {"settings.privacy.epsilon", *strategies, SPENT}
    assert (SPENT in found) == ("filter, stopped" in kind)


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
    (fault,) = (fault for fault in faults if fault.startswith("covers.total.epsilon"))
    assert f"= 0.1: too small: the rest leads to {costs}" in fault
    fair = promised(document, allowed(document, 50.0))
    assert rewritten(fair, folder).faults == []  # which other runs there were is not known
    half = promised(document, allowed(document, 100.0), share=0.5)
    assert any(re.match(r"covers.runs\[.*\].share = .*: too small", f) for f in forged_faults(half))


def test_what_a_journal_cannot_say_of_its_own_run(capsys):
    document, folder = copied_bundle("uniform", 1)
    lone, _ = copied_bundle("uniform", 0)
    for one, path, value, told in (
        (document, ("runs", 1, "epsilon"), 2.0, "epsilon = 2: too small: the rest leads to 2.6"),
        (document, ("runs", 1, "run"), "made 0123abcd", "expected this run, and once"),
        (document, ("run",), "earlier 00000000", "expected this run, and once"),
        (document, ("population",), "others", "= 'others': the rest leads to 'patients'"),
        (document, ("total", "delta"), 1e-9, "covers.spent_so_far"),
        (document, ("share",), 0.001, "covers.share = 0.001: too small"),
        (document, ("composed", 2, "epsilon"), 2.5, "composed[PUBLIC, zero-out].epsilon = 2.5"),
        (document, ("composed", 2, "delta"), 1e-6, "composed[PUBLIC, zero-out].delta = 1e-06"),
        (document, ("composed", 0, "epsilon"), 9.0, "epsilon = 9.0: the rest leads to infinite"),
        (document, ("runs", 0, "epsilon"), 9.0, "composed[PUBLIC, zero-out].epsilon = "),
        (lone, ("composed", 2, "epsilon"), 3.0, "epsilon = 3: too large: the rest leads to 2.6"),
    ):
        faults = forged_faults(changed(one, ("covers", *path), value))
        assert any(told in fault for fault in faults), (path, faults)
    said = changed(document, ("settings", "privacy", "total"), 30.0)
    assert "covers.total.epsilon = 100: too large: the rest leads to 30" in forged_faults(said)
    told = call_locks(capsys, "verify", made_bundle("uniform", 1))
    assert "the journal of population patients is not public: its total and what other" in told
    assert "holds as far as it was checked: 8 epsilons" in told
    assert rewritten(document, folder).faults == []


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"none", "turns"}))  # which no journal takes
def test_an_honest_journal_holds(kind):
    """Finds charges or epsilons that are computed in another way here than in the journal."""
    for before in (0, 1):
        assert forged_faults(read_document(made_bundle(kind, before))) == []


def test_a_journal_beside_code_of_the_operators_own():
    """Its charge is that of its terms, which are stated."""
    document = own("uniform", before=1)
    assert forged_faults(document) == []
    faults = forged_faults(promised(document, allowed(document, 0.1)))
    assert "covers.total.epsilon = 0.1: too small: the rest leads to 2.60915" in faults


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
    for name in ("version", "digest"):
        assert statement_of(changed(document, (name,), "1.0\n"))[1], name
    told = STATISTIC
    for text, holds in ((told, True), (f"{told}: epsilon 0.05", False), (f"{told}\n", False)):
        forgery = changed(document, ("released_statistics",), [text])
        assert (not statement_of(forgery)[1]) == holds
    deep = json.loads("[" * 900 + "]" * 900)
    forgery = changed(document, ("settings", "train", "rounds"), deep)
    (fault,) = statement_of(forgery)[1]
    assert fault.startswith("schema: ")
    assert verify(written(page(forgery))).faults == [fault]


def test_another_model_with_its_checksum_is_named_as_taken():
    """Finds the one file whose contents nothing in a bundle can contradict, and no line names; of
    one that is no model, or has another size, it is contradicted."""
    document, folder = copied_bundle("uniform")
    faults = []
    for weights in (None, np.ones(5), np.ones(4)):
        told = b"a model" if weights is None else pack_arrays(MODEL, {"weights": weights})
        (folder / "model-arm.npz").write_bytes(told)
        assert rewritten(document, folder).faults[0].endswith("than the one that was published")
        document["arms"][0]["model"] = hashlib.sha256(told).hexdigest()
        report = rewritten(document, folder)
        faults.append(report.faults)
    (one,), (other,), none = faults
    assert one == "model-arm.npz: not a model of this program"
    assert other == "model-arm.npz: 5 parameters; statement.json says 4"
    assert none == []
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
