"""The document of a bundle's statement.json, or of a public page: a `record.Statement` in JSON.

Whatever cannot be read as one, and a statement of another format, is refused with one line.
"""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from locksfl._tables import Record
from locksfl.arm import Arm
from locksfl.experiment.arm_config import ArmConfig
from locksfl.experiment.config import to_table
from locksfl.experiment.own_code import described
from locksfl.experiment.record import (
    FORMAT,
    NumberMetrics,
    PublicArm,
    PublicRound,
    PublicRun,
    Statement,
    plain,
    read,
)
from locksfl.experiment.records import traffic
from locksfl.experiment.statement import unit_text
from locksfl.methods import TRUSTS
from locksfl.methods.events import Correlated, terms_to_json

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


def as_document(run: PublicRun) -> Document:
    """A public run as tables: {"statement", "config", "rounds"}."""
    config = described(run)
    privacy, metrics = config.privacy, [arm.metrics for arm in run.arms if arm.metrics]
    name = "r2" if any(isinstance(one, NumberMetrics) for one in metrics) else "accuracy"
    statement: Document = {
        "name": config.name,
        "simulated": run.simulated,
        "tuned_without_privacy": privacy.tuned_without_privacy,
        "accounting": privacy.accounting,
        "no_guarantee": privacy.accounting != "sound",
        "filter": privacy.filter,
        "all_arms_composed": list(map(plain, run.all_arms)),
        "unit": unit_text(config),
        "held_out": {"public": run.held_out.public, "clients": run.held_out.clients},
        "classes_public": run.classes_public,
        "released_statistics": list(run.released_statistics),
        "covers": None if run.covers is None else plain(run.covers),
        "arms": [],
        "models": {arm.file: arm.model for arm in run.arms},
    }
    rounds: list[Document] = []
    for arm, table, plan in zip(run.arms, run.settings.arm, config.arms, strict=True):
        lines = [_line(run, arm, number, plan, name) for number in range(1, arm.played + 1)]
        statement["arms"].append(_arm(run, arm, table, plan, name) | _sums(lines))
        rounds += lines
    if run.covers:
        total = run.covers.total
        statement["covers"]["total"] |= {"observer": total.observer, "filter": total.filter}
    return {"statement": statement, "config": to_table(run.settings), "rounds": rounds}


def _arm(run: PublicRun, arm: PublicArm, table: ArmConfig, plan: Arm, name: str) -> Record:
    told: Record = {
        "name": arm.name,
        "trust": plan.trust,
        "clip_norm": plan.clip_norm,
        "step": plan.step,
    }
    told |= {part: getattr(table, part) or getattr(plan, part) for part in ("rule", "estimator")}
    told |= {"rounds": arm.planned, "asked_rounds": run.settings.train.rounds}
    told |= {k: getattr(arm.noise, k) for k in ("noise_multiplier", "norm_multiplier")}
    told["claimed_epsilon"] = arm.claimed_epsilon
    last = arm.rounds[-1]
    if run.evaluated:
        told |= _scores(last, name)
        told["metrics"] = {} if arm.metrics is None else plain(arm.metrics)
        told["metrics"].pop("task", None)
    if (bits := arm.noise.clip_multiplier) is not None or last.clip_norm is not None:
        told |= {"clip_multiplier": bits, "last_clip_norm": last.clip_norm}
    if arm.spent_so_far is not None:
        told |= {"played_rounds": arm.played, "spent_so_far": list(map(plain, arm.spent_so_far))}
    if arm.noise.ladder:
        told["ladder"] = list(arm.noise.ladder)
    for event, _ in arm.terms["PUBLIC"]:
        if isinstance(event, Correlated):
            told |= {k: getattr(event, k) for k in ("separation", "bands")}
            told["strategy"] = list(event.strategy)
    told["privacy"] = list(map(plain, arm.privacy))
    told["terms"] = terms_to_json(arm.terms)
    return told


def _sums(lines: list[Record]) -> Record:
    return {
        "expected_cohort": sum(line["expected_cohort"] for line in lines) / len(lines),
        "upload_estimate": max(0, sum(line["upload_estimate"] for line in lines)),
    }


def _scores(one: PublicRound, name: str) -> Record:
    return {name: one.scores and one.scores.score, "loss": one.scores and one.scores.loss}


def _line(run: PublicRun, arm: PublicArm, number: int, plan: Arm, name: str) -> Record:
    one = arm.rounds[number - 1]
    told: Record = {"arm": arm.name, "round": number, "epsilon": one.epsilon}
    told |= _scores(one, name) if run.evaluated else {}
    told |= {"expected_cohort": one.expected_cohort, "upload_estimate": one.upload_estimate}
    if one.clip_norm is not None:
        told["clip_norm"] = one.clip_norm
    norms = arm.noise.norm_multiplier is not None
    if one.counts is not None:
        counts = one.counts
        told |= {"cohort": counts.cohort, "uploads": counts.uploads, "exhausted": counts.exhausted}
        told |= traffic(counts.cohort, counts.uploads, norms, run.parameters)._asdict()
    elif TRUSTS[plan.trust].private:
        sent = traffic(one.expected_cohort, one.upload_estimate, norms, run.parameters)
        told["bytes_up_estimate"] = sent.bytes_up
    return told
