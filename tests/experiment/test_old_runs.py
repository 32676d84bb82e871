"""Run folders that the version before format 3 has written are read as they were."""

from __future__ import annotations

import json
import re

import pytest

from corpus import folders
from locksfl.experiment.documents import read_document
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.verify import verify
from run_tables import line_tables, run_table
from small_runs import call_locks


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return folders.unpack(tmp_path_factory.mktemp("kept"))


@pytest.mark.parametrize("name", folders.RUNS)
def test_a_folder_of_before_is_read_shown_and_published(kept, name, capsys, tmp_path):
    """Finds a field of an old line or summary that the new record loses."""
    folder = RunFolder.open(kept / name)
    old = json.loads((kept / name / "summary.json").read_text("utf-8"))
    new = run_table(folder.run(), folder.config)
    gone = ("metrics", "unit")  # tables of classes stay in `locks evaluate`; a word
    for table in (old, new, *old["arms"], *new["arms"]):
        for key in gone:
            table.pop(key, None)
    for one, two in zip(old.pop("arms"), new.pop("arms"), strict=True):
        assert {k: v for k, v in one.items() if v != two.get(k)} == {}
    assert {k: v for k, v in old.items() if v != new[k]} == {}
    lines = (kept / name / "rounds.jsonl").read_text("utf-8").splitlines()
    assert line_tables(kept / name) == list(map(json.loads, lines))
    assert "report.html" in call_locks(capsys, "report", kept / name)
    publish_folder(kept / name, tmp_path / "bundle")
    assert verify(tmp_path / "bundle").faults == []


@pytest.mark.parametrize("name", folders.RUNS)
def test_a_bundle_of_before_is_refused_by_its_version(kept, name):
    said = "format 2; this version reads format 3 (publish the run again)"
    with pytest.raises(ValueError, match=re.escape(said)):
        read_document(kept / f"{name}-bundle")
