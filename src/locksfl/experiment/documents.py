"""The document of a bundle's statement.json, or of a public page: a `record.Statement` in JSON.

Whatever cannot be read as one, and a statement of another format, is refused with one line.
"""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from locksfl.experiment.record import FORMAT, Statement, read

Document = dict[str, Any]

STATEMENT, CONFIG, TEXT = "statement.json", "config.toml", "STATEMENT.md"
PAGE = "report.html"
ELEMENT = "locks-public"  # the id of a page's <script type="application/json">


def read_document(path: Path) -> Document:
    """The document of a bundle's folder, of the statement in it, or of a public page."""
    if path.is_dir():
        path = path / STATEMENT
    text = _text(path)
    document = _of_page(path, text) if is_page(path) else _json(text, path)
    old = document.get("statement") if isinstance(document, dict) else None  # of a page
    told = old if isinstance(old, dict) else document
    if not isinstance(told, dict) or "arms" not in told:
        raise ValueError(f"{path}: not a statement of this program; expected a bundle or a page")
    found = told.get("format")
    if found is None:
        raise ValueError(
            f"{path}: a statement of version 0.1, which has no terms to recompute an epsilon from; "
            f"expected format {FORMAT} (publish the run again)"
        )
    if found != FORMAT or told is old:
        raise ValueError(
            f"{path}: format {found!r}; this version reads format {FORMAT} (publish the run again)"
        )
    return told


def read_statement(path: Path) -> Statement:
    """The statement of a bundle or a public page."""
    try:
        return read(Statement, read_document(path))
    except ValueError as error:
        raise ValueError(
            f"{path}: not what a public bundle of this program tells ({error})"
        ) from None


def folder_of(path: Path) -> Path:
    """A bundle's folder, from itself or from the statement in it."""
    return path if path.is_dir() else path.parent


def is_bundle(path: Path) -> bool:
    """Whether a folder is what `locks publish` made."""
    return (path / STATEMENT).is_file()


def is_page(path: Path) -> bool:
    """Whether a file is a page."""
    return path.suffix.lower() in (".html", ".htm")


def _of_page(path: Path, text: str) -> Any:
    finder = _Finder()
    try:
        finder.feed(text)
        finder.close()
    except AssertionError as error:  # of html.parser, at marks that it does not know
        raise ValueError(f"{path}: not valid HTML ({error})") from None
    if len(finder.found) != 1:
        raise ValueError(
            f"{path}: {len(finder.found)} elements <script id={ELEMENT!r}>; expected a public page "
            "of this program, which has one"
        )
    return _json(finder.found[0], path)


class _Finder(HTMLParser):
    """Collects the texts of the elements with the document."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and dict(attrs).get("id") == ELEMENT
        if self._inside:
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        del tag
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found[-1] += data


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file; expected a bundle or a page") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None


def _json(text: str, path: Path) -> Any:
    """Strict JSON: a name twice, or a number that is none, could be read in two ways."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name stands twice in one object")
        return dict(pairs)

    def number(word: str) -> float:
        if not math.isfinite(found := float(word)):
            raise ValueError(f"{word} is no number")
        return found

    try:
        return json.loads(text, object_pairs_hook=table, parse_float=number, parse_constant=number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
