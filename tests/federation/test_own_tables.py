"""Tables of one's own in a federation: what docs/federation.md says, word for word."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from typer.testing import CliRunner

from code_blocks import ROOT, blocks_of, commands, words_of
from locksfl.cli.main import app
from locksfl.experiment.config import parse_config
from locksfl.experiment.run import prepare
from locksfl.federation.device.files import built_in_update
from locksfl.federation.server.serving import as_federation

GUIDE = ROOT / "docs" / "federation.md"
COLUMNS = ("age", "income", "city", "ill")


def table(path, columns=COLUMNS, rows=12, **more):
    """A table of people: the same values under the same names, in whatever order."""
    rng = np.random.default_rng(0)
    values = {
        "age": rng.integers(18, 90, rows),
        "income": rng.integers(10, 90, rows),
        "city": rng.choice(["Oslo", "Rome"], rows),
        "ill": rng.integers(0, 2, rows),
        **more,
    }
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(values[name] for name in columns), strict=True))


@pytest.fixture
def guide(tmp_path, monkeypatch):
    """The blocks of the section, in a folder with the files that it names."""
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text()
    section = text.partition("### Tables of your own\n")[2].partition("\n### ")[0]
    whole = blocks_of(text, "federation.md")
    (experiment,) = [b.text for b in whole if ("file", "experiment.toml") in b.marks]
    Path("experiment.toml").write_text(experiment)
    blocks = blocks_of(section, "federation.md")
    for block in blocks:
        for file in block.marked("file"):
            Path(file).write_text(block.text)
    table("public.csv", rows=20)
    return blocks


def locks(*words):
    return CliRunner().invoke(app, [*map(str, words)])


def imports(blocks):
    return [words_of(c) for block in blocks if block.kind == "sh" for c, _ in commands(block)]


def server():
    """The experiment of the guide with the change that the section names."""
    text = Path("experiment.toml").read_text()
    old, new = 'name = "mnist-embedded"', 'name = "public"'
    assert f"write `{new}` in place of `{old}`" in " ".join(GUIDE.read_text().split())
    assert text.count(old) == 1
    Path("experiment.toml").write_text(text.replace(old, new))
    return as_federation(parse_config(text.replace(old, new)))


def test_the_guide_s_path_works_word_for_word(guide):
    """Finds a folder refused as --data, users counted in test records, columns in another order."""
    table("mine.csv", ("city", "note", "ill", "age", "income"), note=["x"] * 12)
    for words in imports(guide):
        told = locks(*words)
        assert told.exit_code == 0, told.stderr
    config = server()
    assert config.data.clients == 3
    prepared = prepare(config)
    assert len(prepared.population.test_labels) == 20
    assert prepared.population.test_public
    device = built_in_update(Path("mine"), Path("experiment.toml"))
    assert (device.parameters, device.model) == (prepared.model.size, prepared.model.name)
    assert np.isfinite(device(np.zeros(device.parameters, np.float32), 1)).all()
    mine, public = np.load("mine/features.npy"), np.load("public/test_features.npy")
    table("again.csv", rows=12)  # the same people, in the order of the server's columns
    assert locks("data", "import", "again.csv", *imports(guide)[1][3:-1], "again").exit_code == 0
    np.testing.assert_array_equal(mine, np.load("again/features.npy"))
    assert mine.shape[1] == public.shape[1]


def test_a_column_that_a_site_lacks_is_said_at_import(guide):
    """Finds the silence after which every round is refused with MODEL."""
    table("mine.csv", ("age", "city", "ill"))
    (at_server, on_device) = imports(guide)
    assert locks(*at_server).exit_code == 0
    told = locks(*on_device)
    assert told.exit_code == 2
    assert "mine.csv: no column 'income' (--recipe); it has age, city, ill" in told.stderr
    assert not Path("mine").exists()
    listed = 'features = ["income", "age"]\n[columns."*"]\nlow = 0.0\nhigh = 100.0\n'
    Path("listed.toml").write_text(listed)  # a recipe that names its columns does the same
    told = locks(*("listed.toml" if word == "public" else word for word in on_device))
    assert "mine.csv: no column 'income' (--recipe)" in told.stderr


@pytest.mark.usefixtures("guide")
def test_an_ordinary_import_serves_both_ends():
    """A site whose table names people, and test records of which a share is held out: the server
    scores on the held-out ones, the device trains on the others, and neither counts clients."""
    table("mine.csv", (*COLUMNS, "user"), user=np.arange(12) % 4)
    make = ("--client", "user", "--label", "ill", "--classes", 2, "--recipe", "recipe.toml")
    for name in ("public", "mine"):
        assert locks("data", "import", "mine.csv", *make, "--out", name).exit_code == 0
    prepared = prepare(server())
    assert len(prepared.population.test_labels) == 3
    device = built_in_update(Path("mine"), Path("experiment.toml"))
    assert device.parameters == prepared.model.size


def test_what_is_made_for_a_federation_is_refused_elsewhere_in_one_line(guide):
    table("mine.csv")
    for words in imports(guide):
        assert locks(*words).exit_code == 0
    config = server()
    for name, why in (
        ("public", "data.clients is missing: public has held-out"),
        ("mine", "mine: no held-"),
    ):
        Path("one.toml").write_text(
            f'[data]\nname = "{name}"\n[privacy]\nepsilon = 8.0\n[[arm]]\nname = "a"\ncohort = 1\n'
        )
        told = locks("run", "one.toml", "--out", "one")
        assert (told.exit_code, told.stderr.count("\n")) == (2, 1)
        assert why in told.stderr
    with pytest.raises(ValueError, match="public: no training records; expected a folder with"):
        built_in_update(Path("public"), Path("experiment.toml"))
    Path("public").rename("elsewhere")
    Path("mine").rename("public")
    with pytest.raises(ValueError, match="public: no held-out records; expected a folder with"):
        prepare(config)
    told = locks("data", "import", "mine.csv", "--label", "ill", "--test", "mine.csv")
    assert "--client is missing" in told.stderr
