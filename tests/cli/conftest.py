"""The program, called in this process."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from locksfl.cli.main import main
from small_runs import shared


@pytest.fixture
def locks(monkeypatch, capsys):
    """`locks ...`: its exit code and what it printed. Runs on the same data share them."""

    def call(*arguments):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["locks", *map(str, arguments)])
        with shared(), pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=caught.value.code or 0, out=out, err=err)

    return call
