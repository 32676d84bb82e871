"""What people read of a bundle, made again from its statement; and the files of its models."""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from numpy.lib import format as npy

from locksfl.experiment.documents import CONFIG, PAGE, STATEMENT, TEXT, folder_of, is_page
from locksfl.experiment.page.sheet import drawn_by, generator, public_page
from locksfl.experiment.publish import settings_text
from locksfl.experiment.record import PublicArm, Statement
from locksfl.experiment.statement import statement_text


def view_faults(path: Path, statement: Statement) -> Iterator[str]:
    """Where a page or the files of a bundle show something else than the statement."""
    folder = folder_of(path)
    page = path if is_page(path) else folder / PAGE
    # a page is a function of its statement, to the byte, for one version of what draws it
    if page.is_file() and not drawn_elsewhere(page) and _differs(page, public_page(statement)):
        yield f"{page.name}: shows something else than its data"
    if is_page(path):
        return
    texts = {CONFIG: settings_text(statement), TEXT: statement_text(statement)}
    arms = {arm.file: arm for arm in statement.arms}
    known = {STATEMENT, PAGE, *texts, *arms}
    for name in sorted(known | {file.name for file in folder.iterdir()}):
        if name not in known:
            yield f"{name}: no file of a bundle; nothing was checked of it"
        elif not (folder / name).is_file():
            yield f"{name}: missing"
        elif name in texts and _differs(folder / name, texts[name]):
            yield f"{name}: not the text of {STATEMENT}"
        elif name in arms:
            yield from _model_faults(folder / name, arms[name], statement.parameters)


def drawn_elsewhere(page: Path) -> str | None:
    """By what, if it was not what draws pages here; else None."""
    other = drawn_by(page.read_text("utf-8", errors="replace"))
    if other == generator():
        return None
    return f"drawn by {other or 'an unknown program'}, and here is {generator()}"


def _differs(file: Path, text: str) -> bool:
    return file.read_bytes() != text.encode()


def _model_faults(file: Path, arm: PublicArm, parameters: int) -> Iterator[str]:
    """Its checksum, and how many numbers the headers of its arrays tell: nothing is unpacked."""
    if hashlib.sha256(file.read_bytes()).hexdigest() != arm.model:
        yield f"{file.name}: another file than the one that was published"
        return
    size = 0
    try:
        with zipfile.ZipFile(file) as arrays:
            for name in set(arrays.namelist()) - {"meta.npy"}:
                with arrays.open(name) as array:
                    npy.read_magic(array)
                    size += math.prod(npy.read_array_header_1_0(array)[0])
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error):
        yield f"{file.name}: not a model of this program"
        return
    if size != parameters:
        yield f"{file.name}: {size} parameters; {STATEMENT} says {parameters}"
