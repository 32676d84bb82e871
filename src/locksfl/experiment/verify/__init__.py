"""`locks verify`: whether a public bundle or page says what its own terms lead to.

    schema        it has the fields that docs/statement.schema.json lists, and no others
    seals         the digest is its own; the signature, if there is one, is that of its key
    arms          the same ones in the statement, the settings, the rounds and the models
    settings      planned anew, they have the terms of the statement
    epsilons      each one, also of all arms together and after every round, follows from the terms
    rounds        all there, and their figures are those of the arms
    files         what people read is made of what was checked; models have their checksums

None of this shows that the training was done as the settings say: docs/verify.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, validators

from locksfl.experiment.documents import (
    CONFIG,
    PAGE,
    ROUNDS,
    STATEMENT,
    TEXT,
    Document,
    folder_of,
    is_page,
    read_document,
)
from locksfl.experiment.page.sheet import drawn_by, generator, public_page
from locksfl.experiment.sealing import (
    digest,
    fingerprint,
    read_public_key,
    signature_problem,
)
from locksfl.experiment.statement import statement_text
from locksfl.experiment.verify import consistency
from locksfl.experiment.verify.epsilons import Row, by_ledger, cost_rows, curve_faults, shape_faults
from locksfl.experiment.verify.own_code import own_code
from locksfl.methods.events import from_json

SCHEMA = "statement.schema.json"
MOST_SCHEMA_FAULTS = 5
TAKEN = (
    "taken as stated, since nothing in a bundle can contradict it: that the training was done as "
    "the settings say; whether a seed was given, and whether settings were chosen by looking at "
    "the data; names, the version, and settings that no epsilon depends on, also how turns "
    "correlate their noise; figures from data (accuracy, loss, metrics, clip norms, counts); whose "
    "records were held out, and what of the data is public; what is in a model's file, of which "
    "the statement has the checksum"
)
# what a document that the schema allows may yet lead to, in fields that have no check of their own
BROKEN = (LookupError, TypeError, AttributeError, ArithmeticError, ValueError, RecursionError)
VALIDATOR = validators.extend(  # 40.0 is a whole number to JSON Schema, and none to what follows
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)

__all__ = ["Report", "Row", "document_faults", "read_document", "verify"]


@dataclass(frozen=True)
class Report:
    """What was found: rows of epsilons, and lines: faults, notes, what was not compared."""

    rows: list[Row] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def verify(path: Path, key: Path | None = None) -> Report:
    """Check a bundle's folder, its statement or a public page.

    Args:
        path: of it. What cannot be read as one is refused with a ValueError.
        key: the file of an Ed25519 public key by which it has to be signed.
    """
    wanted = None if key is None else read_public_key(key)
    document = read_document(path)
    if faults := list(schema_faults(document)):
        return Report(faults=faults)
    faults = []
    if digest(document) != document["statement"]["digest"]:
        faults.append("digest: something was changed after it was published")
    if problem := signature_problem(document, wanted):
        faults.append(f"signature: {problem}")
    rows, found = document_faults(document)
    faults += found
    if not faults:  # else what is shown is wrong anyway
        if is_page(path) and (other := _drawn_elsewhere(path)):
            raise ValueError(
                f"{path}: {other}: what it shows cannot be compared; expected the same versions, "
                f"or the bundle's {STATEMENT}"
            )
        faults = list(_file_faults(path, document))
    notes = list(_notes(path, document, wanted is not None))
    return Report(rows, faults, notes, list(_unchecked(path, document)))


def document_faults(document: Document) -> tuple[list[Row], list[str]]:
    """Everything that a document shows by itself, its seals left out: of a valid one."""
    try:
        if early := list(early_faults(document)):
            return [], early
        rows = list(cost_rows(document))
        return rows, [*(fault for row in rows for fault in row.faults), *part_faults(document)]
    except BROKEN as error:
        told = " ".join(str(error).split())[:200]
        return [], [f"cannot be checked ({type(error).__name__}: {told})"]


def early_faults(document: Document) -> Iterator[str]:
    """What has to be right for the rest, which goes through arms and terms side by side."""
    yield from consistency.name_faults(document)
    yield from shape_faults(document)
    yield from consistency.term_faults(document)


def part_faults(document: Document) -> Iterator[str]:
    """What does not fit together, quick checks first."""
    yield from consistency.setting_faults(document)
    yield from consistency.round_faults(document)
    yield from curve_faults(document)


def schema_faults(document: Document) -> Iterator[str]:
    """Where a document is not what the schema describes."""
    validator = VALIDATOR({**schema(), "$ref": "#/$defs/document"})
    try:
        errors = sorted(validator.iter_errors(document), key=lambda error: error.json_path)
    except RecursionError:
        yield "schema: nested too deeply"
        return
    for error in errors[:MOST_SCHEMA_FAULTS]:
        told = " ".join(error.message.split())
        yield f"schema: {error.json_path.removeprefix('$.')}: {told[:200]}"
    if not errors:
        yield from _kind_faults(document["statement"])


def _kind_faults(statement: dict[str, Any]) -> Iterator[str]:
    """Terms of kinds that are not known, or with other fields than their kind has."""
    for number, arm in enumerate(statement["arms"]):
        for who, seen in arm["terms"].items():
            for at, term in enumerate(seen):
                try:
                    from_json(term)
                except ValueError as error:
                    told = " ".join(str(error).split())
                    yield f"schema: statement.arms[{number}].terms.{who}[{at}]: {told[:200]}"


def schema() -> dict[str, Any]:
    """The JSON schema of a statement; docs/ has a copy."""
    text = resources.files("locksfl.experiment").joinpath(SCHEMA).read_text("utf-8")
    return json.loads(text)


def _file_faults(path: Path, document: Document) -> Iterator[str]:
    """What people read, made anew; and the models."""
    if is_page(path):
        yield from _page_faults(path, document)
        return
    folder = folder_of(path)
    models = document["statement"]["models"]
    known = {STATEMENT, CONFIG, ROUNDS, TEXT, PAGE, *models}
    for file in sorted(folder.iterdir()):
        if file.name not in known:
            yield f"{file.name}: no file of a bundle; nothing was checked of it"
    for name, expected in models.items():
        file = folder / name
        if not file.is_file():
            yield f"{name}: missing"
        elif hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            yield f"{name}: another file than the one that was published"
    if (folder / PAGE).is_file():
        yield from _page_faults(folder / PAGE, document)
    else:
        yield f"{PAGE}: missing"
    if "#" in (folder / CONFIG).read_text("utf-8"):  # no setting may have one in it
        yield f"{CONFIG}: has comments; this program writes none"
    text = statement_text(document["statement"], consistency.settings_of(document))
    if not (folder / TEXT).is_file() or (folder / TEXT).read_text("utf-8") != text:
        yield f"{TEXT}: not the text of {STATEMENT}"


def _page_faults(path: Path, document: Document) -> Iterator[str]:
    """A page is a function of its document, to the byte, for one version of what draws it."""
    if not _drawn_elsewhere(path) and path.read_text("utf-8") != public_page(document):
        yield f"{path.name}: shows something else than its data"


def _drawn_elsewhere(page: Path) -> str | None:
    """By what, if it was not what draws pages here; else None."""
    other = drawn_by(page.read_text("utf-8"))
    if other == generator():
        return None
    return f"drawn by {other or 'an unknown program'}, and here is {generator()}"


def _notes(path: Path, document: Document, demanded: bool) -> Iterator[str]:
    """What a reader should know beside the verdict."""
    signature = document["statement"].get("signature")
    if signature is None:
        yield "not signed: the digest finds accidents, and a forger computes it anew"
    else:
        anybody = (
            "" if demanded else "; anybody can make a key: ask the operator for theirs (--key)"
        )
        yield f"signed with the key {fingerprint(signature['public_key'])}{anybody}"
    yield TAKEN
    if is_page(path):
        yield "a page comes without its models: not checked"
    if document["statement"]["simulated"]:
        yield "simulated: a seed was given, so this run protects nobody"


def _unchecked(path: Path, document: Document) -> Iterator[str]:
    """What was not compared with anything, though it might have been."""
    for name in own_code(document):
        yield f"{name} is code of the operator's own: not imported, its terms taken as stated"
    if covers := document["statement"]["covers"]:
        yield (
            f"the journal of population {covers['population']} is not public: its total and what "
            "other runs cost are taken as stated; only this run's own cost was compared with them"
        )
    for told in document["statement"]["released_statistics"]:
        yield f"statistics of the data, {told}: not recomputed"
    for arm in document["statement"]["arms"]:
        if "spent_so_far" in arm and by_ledger(arm):
            yield (
                f"what arm {arm['name']} had spent when it ended is its ledger's: not recomputed, "
                "only at most the guarantee"
            )
    page = folder_of(path) / PAGE
    if not is_page(path) and page.is_file() and (other := _drawn_elsewhere(page)):
        yield f"{PAGE}: {other}: what it shows was NOT COMPARED with its data"
