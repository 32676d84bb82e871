"""docs/theory.md names tests, functions and commands that exist, and figures that come out."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from locksfl.cli.theory import theory_app
from locksfl.paper.theory.bound import printed
from locksfl.paper.theory.check import Case, all_alike, cases
from locksfl.paper.theory.round_count import printed_rounds

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "theory.md").read_text("utf-8")


def test_every_test_that_the_page_names_exists():
    tests = "".join(p.read_text("utf-8") for p in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) >= 12
    for name in named:
        assert f"def {name}(" in tests, name


def test_every_function_that_the_page_names_exists():
    named = set(re.findall(r"`((?:paper|privacy|round)\.[\w.]+)`", PAGE))
    assert len(named) >= 10
    for name in named:
        assert callable(pkgutil.resolve_name(f"locksfl.{name}")), name


def test_every_command_is_on_the_page():
    commands = {c.name or c.callback.__name__ for c in theory_app.registered_commands}
    named = set(re.findall(r"locks theory (\w+)", PAGE))
    assert named == commands == {
        "bound", "rounds", "optimal", "composition", "lemmas", "check", "estimate",
    }  # fmt: skip


def test_the_page_can_be_read_in_one_sitting():
    """1,800 words at most, formulas and tables too; and one symbol for one thing: p_i is a coin,
    rho_i a rate, and nothing is called Pi."""
    assert len(PAGE.split()) <= 1800
    assert not re.search(r"\b(Pi|pi_i)\b", PAGE)


def test_figures_of_the_page():
    """Those that need no run: the rest are printed by the commands named beside them."""
    (alike,) = [case for case in cases() if case.problem.name == all_alike().name]
    assert isinstance(alike, Case)
    bound = printed(alike.printed_constants)
    assert f"{bound.total:.4f}".lstrip("0") in PAGE
    assert f"alpha_kappa = {bound.alpha_kappa:.1f}" in PAGE
    assert printed_rounds(7850)[1] == pytest.approx(3.6e10, rel=0.02)
    assert printed_rounds(100)[1] == pytest.approx(2.1e6, rel=0.02)
