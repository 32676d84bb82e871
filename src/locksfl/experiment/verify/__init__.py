"""`locks verify`: whether a public bundle or page says what its own terms lead to.

    schema        it is a `record.Statement`, as this program would write it
    seals         the digest is its own; the signature, if there is one, is that of its key
    settings      planned anew, they have the terms of the statement
    epsilons      each one, also of all arms together and after every round, follows from the terms
    rounds        as many as were planned or played, with counts that the settings allow
    files         what people read is made of what was checked; models have their checksums

None of this shows that the training was done as the settings say: docs/verify.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from locksfl.experiment.documents import (
    CONFIG,
    PAGE,
    STATEMENT,
    TEXT,
    Document,
    folder_of,
    is_page,
    read_document,
)
from locksfl.experiment.own_code import own_names
from locksfl.experiment.page.sheet import drawn_by, generator, public_page
from locksfl.experiment.publish import settings_text
from locksfl.experiment.record import PublicRun, Statement, read
from locksfl.experiment.sealing import (
    digest,
    fingerprint,
    read_public_key,
    signature_problem,
)
from locksfl.experiment.statement import statement_text
from locksfl.experiment.verify import consistency
from locksfl.experiment.verify.consistency import as_document
from locksfl.experiment.verify.epsilons import Row, by_ledger, cost_rows, curve_faults, shape_faults

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
__all__ = ["Report", "Row", "read_document", "run_faults", "statement_of", "verify"]


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
    statement, faults = statement_of(read_document(path))
    if statement is None:
        return Report(faults=faults)
    if digest(statement) != statement.digest:
        faults.append("digest: something was changed after it was published")
    if problem := signature_problem(statement, wanted):
        faults.append(f"signature: {problem}")
    rows, found = run_faults(statement)
    faults += found
    if not faults:  # else what is shown is wrong anyway
        if is_page(path) and (other := _drawn_elsewhere(path)):
            raise ValueError(
                f"{path}: {other}: what it shows cannot be compared; expected the same versions, "
                f"or the bundle's {STATEMENT}"
            )
        faults = list(_file_faults(path, statement))
    notes = list(_notes(path, statement, wanted is not None))
    return Report(rows, faults, notes, list(_unchecked(path, statement)))


def statement_of(document: Document) -> tuple[Statement | None, list[str]]:
    """The statement in a document, or why there is none."""
    try:
        return read(Statement, document), []
    except (ValueError, OverflowError, RecursionError) as error:
        said = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return None, [f"schema: {' '.join(said.split())[:300]}"]


def run_faults(run: PublicRun) -> tuple[list[Row], list[str]]:
    """Everything that a run shows by itself, without seals."""
    try:
        if early := list(consistency.claim_faults(run)):
            return [], early
        document = as_document(run)
        if early := list(early_faults(document)):
            return [], early
        rows = list(cost_rows(document))
        faults = (*(fault for row in rows for fault in row.faults), *part_faults(run, document))
        return rows, list(faults)
    except BROKEN as error:
        told = " ".join(str(error).split())[:200]
        return [], [f"cannot be checked ({type(error).__name__}: {told})"]


def early_faults(document: Document) -> Iterator[str]:
    """What has to be right for the rest, which goes through arms and terms side by side."""
    yield from shape_faults(document)
    yield from consistency.term_faults(document)


def part_faults(run: PublicRun, document: Document) -> Iterator[str]:
    """What does not fit together, quick checks first."""
    yield from consistency.setting_faults(run, document)
    yield from consistency.round_faults(run, document)
    yield from curve_faults(document)


def _file_faults(path: Path, statement: Statement) -> Iterator[str]:
    """What people read, made anew; and the models."""
    if is_page(path):
        yield from _page_faults(path, statement)
        return
    folder = folder_of(path)
    models = {arm.file: arm.model for arm in statement.arms}
    known = {STATEMENT, CONFIG, TEXT, PAGE, *models}
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
        yield from _page_faults(folder / PAGE, statement)
    else:
        yield f"{PAGE}: missing"
    for name, text in ((CONFIG, settings_text(statement)), (TEXT, statement_text(statement))):
        if not (folder / name).is_file() or (folder / name).read_text("utf-8") != text:
            yield f"{name}: not the text of {STATEMENT}"


def _page_faults(path: Path, statement: Statement) -> Iterator[str]:
    """A page is a function of its statement, to the byte, for one version of what draws it."""
    if not _drawn_elsewhere(path) and path.read_text("utf-8") != public_page(statement):
        yield f"{path.name}: shows something else than its data"


def _drawn_elsewhere(page: Path) -> str | None:
    """By what, if it was not what draws pages here; else None."""
    other = drawn_by(page.read_text("utf-8"))
    if other == generator():
        return None
    return f"drawn by {other or 'an unknown program'}, and here is {generator()}"


def _notes(path: Path, statement: Statement, demanded: bool) -> Iterator[str]:
    """What a reader should know beside the verdict."""
    signature = statement.signature
    if signature is None:
        yield "not signed: the digest finds accidents, and a forger computes it anew"
    else:
        anybody = (
            "" if demanded else "; anybody can make a key: ask the operator for theirs (--key)"
        )
        yield f"signed with the key {fingerprint(signature.public_key)}{anybody}"
    yield TAKEN
    if is_page(path):
        yield "a page comes without its models: not checked"
    if statement.simulated:
        yield "simulated: a seed was given, so this run protects nobody"


def _unchecked(path: Path, statement: Statement) -> Iterator[str]:
    """What was not compared with anything, though it might have been."""
    for name in own_names(statement.settings):
        yield f"{name} is code of the operator's own: not imported, its terms taken as stated"
    if covers := statement.covers:
        yield (
            f"the journal of population {covers.population} is not public: its total and what "
            "other runs cost are taken as stated; only this run's own cost was compared with them"
        )
    for told in statement.released_statistics:
        yield f"statistics of the data, {told}: not recomputed"
    for arm in statement.arms:
        if arm.spent_so_far is not None and by_ledger(arm.terms):
            yield (
                f"what arm {arm.name} had spent when it ended is its ledger's: not recomputed, "
                "only at most the guarantee"
            )
    page = folder_of(path) / PAGE
    if not is_page(path) and page.is_file() and (other := _drawn_elsewhere(page)):
        yield f"{PAGE}: {other}: what it shows was NOT COMPARED with its data"
