"""A folder is that of the command that began it, even if that was killed while it made it."""

from __future__ import annotations

import json
import os

import pytest

from locksfl.experiment.folder import held
from locksfl.grids.begun import Begun, begin


class Mine(Begun, frozen=True, kw_only=True):
    number: int
    text: str = "long " * 20


def test_a_folder_goes_on_with_the_same_command_alone(tmp_path):
    """Before anything was played another one may have it."""
    path = tmp_path / "run"
    begin(path, "mine.json", Mine(number=1), "rows")
    begin(path, "mine.json", Mine(number=2), "rows")
    (path / "rows").write_text("")
    before = (path / "mine.json").read_bytes()
    begin(path, "mine.json", Mine(number=2), "rows")
    for other, message in (
        (Mine(number=1), "begun with number = 2, not 1; it stays"),
        (Mine(number=2, text="else " * 20), "begun with another text; it stays"),
        (Mine(number=2, version="0"), "begun with version = .*, not '0'; it stays"),
    ):
        with pytest.raises(ValueError, match=f"--out {path}: {message}"):
            begin(path, "mine.json", other, "rows")
    assert (path / "mine.json").read_bytes() == before
    (path / "mine.json").write_text('{"number": 2, "version": "0.0.1"}')  # as earlier ones did
    with pytest.raises(ValueError, match=r"version = '0.0.1', not .*, layout = None, not 2"):
        begin(path, "mine.json", Mine(number=2), "rows")
    (path / "mine.json").write_text("{")
    with pytest.raises(ValueError, match="not a folder that this command began"):
        begin(path, "mine.json", Mine(number=2), "rows")


def test_a_folder_in_which_somebody_plays_is_not_begun_anew(tmp_path):
    """Nothing is finished in it yet. Replaced, its file would no longer be the one that is held."""
    path = tmp_path / "run"
    begin(path, "mine.json", Mine(number=1), "rows")
    busy = "another process is running it"
    with held(path / "mine.json"):
        with pytest.raises(ValueError, match=busy):
            begin(path, "mine.json", Mine(number=2), "rows")
        begin(path, "mine.json", Mine(number=1), "rows")
        with pytest.raises(ValueError, match=busy), held(path / "mine.json"):
            pass
    assert json.loads((path / "mine.json").read_bytes())["number"] == 1


def test_killed_while_it_made_its_folder_it_begins_anew(tmp_path, monkeypatch):
    def dies(*_):
        raise KeyboardInterrupt

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda path: None)  # nobody tidies up
        patch.setattr(os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            begin(path, "mine.json", Mine(number=1), "rows")
    assert any(path.iterdir())
    begin(path, "mine.json", Mine(number=1), "rows")
    assert [file.name for file in path.iterdir()] == ["mine.json"]


def test_a_folder_of_the_users_own_is_left_alone(tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ValueError, match="already exists"):
        begin(tmp_path, "mine.json", Mine(number=1), "rows")
    assert [file.name for file in tmp_path.iterdir()] == ["notes"]
