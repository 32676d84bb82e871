"""`locks verify`: whether a public bundle or page says what its own terms lead to.

    schema        it is a `record.Statement`, as this program would write it
    seals         the digest is its own; the signature, if there is one, is that of its key
    run           settings, noise and events build again what follows from them (`rebuilt`), the
                  second opinion its epsilons (`epsilons`), and the run what its journal can have
                  said of it (`journal`); all of it is compared
    views         what people read is made again (`views`); models have their checksums

None of this shows that the training was done as the settings say: docs/verify.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from locksfl.experiment.documents import (
    PAGE,
    STATEMENT,
    Document,
    folder_of,
    is_page,
    read_document,
)
from locksfl.experiment.own_code import own_names
from locksfl.experiment.record import PublicRun, Statement, differences, plain, read
from locksfl.experiment.sealing import digest, fingerprint, read_public_key, signature_problem
from locksfl.experiment.verify.epsilons import Row, by_ledger, priced
from locksfl.experiment.verify.journal import rebuilt_covers
from locksfl.experiment.verify.rebuilt import rebuilt
from locksfl.experiment.verify.views import drawn_elsewhere, view_faults

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
        if is_page(path) and (other := drawn_elsewhere(path)):
            raise ValueError(
                f"{path}: {other}: what it shows cannot be compared; expected the same versions, "
                f"or the bundle's {STATEMENT}"
            )
        faults = list(view_faults(path, statement))
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
    """Everything that a run shows by itself, without seals: where it differs from the run that its
    own settings, noise and events lead to."""
    rows: list[Row] = []
    try:
        expected, rows = priced(rebuilt(run))
        expected = structs.replace(expected, covers=rebuilt_covers(expected))
        return rows, [_worded(*each) for each in differences(plain(run), plain(expected))]
    except BROKEN as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return rows, [f"no run could be so: {kind}{' '.join(str(error).split())[:300]}"]


def _worded(where: str, stated: object, expected: object) -> str:
    """A difference in a line. An epsilon that is null is infinite; other nulls are not there."""
    nothing = "infinite" if where.endswith("epsilon") else "nothing"
    one, other = (nothing if value is None else repr(value)[:200] for value in (stated, expected))
    size = ""
    if isinstance(stated, float) and isinstance(expected, float):
        size = f"too {'small' if stated < expected else 'large'}: "
        if not math.isclose(stated, expected, rel_tol=1e-5):
            one, other = f"{stated:.6g}", f"{expected:.6g}"
    return f"{where} = {one}: {size}the rest leads to {other}"


def _notes(path: Path, statement: Statement, demanded: bool) -> Iterator[str]:
    """What a reader should know beside the verdict."""
    signature = statement.signature
    if signature is None:
        yield "not signed: the digest finds accidents, and a forger computes it anew"
    else:
        anybody = "; anybody can make a key: ask the operator for theirs (--key)" * (not demanded)
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
    if not is_page(path) and page.is_file() and (other := drawn_elsewhere(page)):
        yield f"{PAGE}: {other}: what it shows was NOT COMPARED with its data"
