"""Held-out people, and people whom a split would cut apart: no epsilon is claimed for them."""

from __future__ import annotations

import functools
import itertools
import json

import jax.numpy as jnp
import numpy as np
import pytest

from locksfl._arrays import flat_weights, unpack_arrays
from locksfl.experiment.config import parse_config
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.report import NOT_PUBLIC, notes
from locksfl.experiment.run import open_task, prepare
from locksfl.models.build import scores_of
from locksfl.models.losses import cross_entropy
from small_runs import (
    LABELS,
    QUICK,
    copied,
    imported,
    lines,
    new_path,
    over,
    play,
    quick,
    story,
    summary,
)


def bundle(run):
    target = new_path()
    publish_folder(run, target)
    return target


@functools.cache
def over_people():
    """A run over people, one of whom is held out."""
    return play(over(imported()))


def statement(run):
    """The statement's text in one line, and its values."""
    folder = bundle(run)
    text = (folder / "STATEMENT.md").read_text("utf-8").replace("\n", " ")
    return text, json.loads((folder / "statement.json").read_text("utf-8"))


def recovered(folder, config):
    """The attack: of all labels that the held-out records could have, those whose mean loss under
    the last model is the loss that the folder tells. None where it tells none."""
    told = lines(folder)[-1].get("loss")
    if told is None:
        return None
    population, model = open_task(config)
    weights = jnp.asarray(flat_weights(*unpack_arrays(folder / "model-locks.npz")))
    scores = scores_of(model, weights, population.test_features, population.scale)
    by_label = np.stack(
        [np.asarray(cross_entropy(scores, jnp.full(len(scores), c))) for c in range(LABELS)], 1
    ).astype(float)
    guesses = np.array(list(itertools.product(range(LABELS), repeat=len(scores))))
    losses = by_label[np.arange(len(scores)), guesses].mean(axis=1)
    return guesses[np.argmin(np.abs(losses - told))].tolist()


def test_no_label_of_a_held_out_person_comes_out_of_a_bundle():
    """All six come out of the last loss and the model, which the server alone has both of."""
    config = over(imported())
    truth = open_task(config)[0].test_labels.tolist()
    assert len(truth) == 6
    run = over_people()
    folder = bundle(run)
    assert recovered(folder, config) is None
    assert recovered(run, config) == truth  # the attack works where there is a figure
    for path in folder.iterdir():
        if path.suffix == ".json":
            for word in ("accuracy", "score", "scores", "loss", "metrics"):
                assert f'"{word}"' not in path.read_text("utf-8")


def test_the_statement_says_who_was_held_out():
    run = over_people()
    text, told = statement(run)
    assert told["held_out"] == {"public": False, "clients": 1}
    assert "1 client was held out. Their data were not used for training" in text
    assert "no epsilon covers them" in text
    assert "withheld" in text
    assert "chosen by looking at these figures" in text
    assert "The number of classes** was counted in the data" in text
    assert any("not for publication" in note for note in notes(story(run)))
    assert NOT_PUBLIC in (run / "figure.svg").read_text("utf-8")


@pytest.mark.parametrize("least", [1, 4])
def test_a_number_of_clients_that_was_counted_in_the_data_is_named(least):
    """One person's records, four more or fewer, change the published number of clients."""
    text, _ = statement(play(over(imported(), f"data.min_samples={least}")))
    assert ("that of people with at least 4 records" in text) == (least > 1)


def test_a_test_set_that_is_declared_public_is_shown():
    run = play(over(imported(test=True, test_public=True, classes=("3",))))
    folder = bundle(run)
    assert [line["loss"] for line in lines(folder)] == [line["loss"] for line in lines(run)]
    text, told = statement(run)
    assert told["held_out"] == {"public": True, "clients": 2}
    last = told["arms"][0]["rounds"][-1]["scores"]
    assert last["score"] == summary(run)["arms"][0]["accuracy"]
    assert "declared public" in text
    assert "number of classes" not in text
    assert NOT_PUBLIC not in (run / "figure.svg").read_text("utf-8")


def test_a_file_of_other_people_is_theirs_until_it_is_declared_public():
    run = play(over(imported(test=True)))
    assert summary(run)["held_out"] == {"public": False, "clients": 2}
    assert "loss" not in lines(bundle(run))[-1]
    with pytest.raises(ValueError, match="--test-public: only with --test FILE"):
        imported(test_public=True)


def test_folders_and_runs_that_declare_nothing_are_not_public():
    """Those of an earlier version."""
    data = copied(imported(test=True, test_public=True, classes=("3",)))
    header = json.loads((data / "header.json").read_text())
    del header["test_public"], header["classes_public"]
    (data / "header.json").write_text(json.dumps(header))
    run = play(over(data))
    assert "loss" not in lines(bundle(run))[-1]
    rest, old = summary(run), copied(run)
    for name in ("held_out", "classes_public", "unit"):
        del rest[name]
    (old / "summary.json").write_text(json.dumps(rest))
    with pytest.raises(ValueError, match="has no held_out"):
        bundle(old)


@pytest.mark.parametrize("kind", ["{kind='iid'}", "{kind='shards', classes=2}"])
def test_a_split_that_cuts_people_is_refused(kind):
    split = (f"data.split={kind}", "data.clients=12")
    with pytest.raises(ValueError, match=r"data.split.kind = '\w+': people says who owns its") as e:
        prepare(over(imported(), *split))
    assert "data.unit = 'record'" in str(e.value)
    assert "\n" not in str(e.value)


def test_a_unit_that_is_no_person_is_named_as_such():
    split = ("data.split={kind='iid'}", "data.clients=12", "data.unit=record")
    run = play(over(imported(), *split, seed=None))
    text, _ = statement(run)
    for said in (text, " ".join(notes(story(run)))):
        assert "NOT A PERSON" in said
        assert "several clients, and their epsilons add up" in said
        assert "one client with all its data" not in said


def test_records_of_people_are_dealt_by_their_labels_in_simulations_only():
    split = ("data.split={kind='shards', classes=2}", "data.clients=12", "data.unit=record")
    data = imported()
    with pytest.raises(ValueError, match="deals people's records by their private labels"):
        prepare(over(data, *split, seed=None))
    text, _ = statement(play(over(data, *split, seed=3)))
    assert "do not cover what this reveals about a label" in text
    with pytest.raises(ValueError, match=r"data.unit = 'record': split 'natural' keeps a person"):
        over(data, "data.unit=record")


def test_people_and_made_up_clients_are_told_apart():
    text, _ = statement(over_people())
    assert "one client with all its data; a client is one user named in the data" in text
    shards = "data.split={kind='shards', classes=2}"
    text, _ = statement(play(parse_config(QUICK, [shards])))  # no seed: it stays this easy
    assert "a group of records made by split 'shards', because the data do not say whose" in text
    assert "Split 'shards' assigned records to clients by their labels" in text
    assert "How clients were made" not in statement(quick())[0]


def test_the_devices_of_a_federation_have_records_of_their_own():
    """The server's split then deals nothing: its folder has the held-out records alone."""
    config = over(imported(), "data.split={kind='iid'}", "data.clients=12", "engine=flower")
    assert prepare(config).population.clients == 12
