"""How alike clients are: the measures on vectors with known answers, and where they may be seen."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from locksfl.experiment.config import parse_config
from locksfl.experiment.diagnostics import (
    client_updates,
    compare,
    compared_clients,
    gradients_per_update,
    likeness,
)
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.run import open_task, run_experiment
from locksfl.round.client import LocalWork
from locksfl.simulate.simulator import Simulator
from small_runs import CENTRAL

WATCHED = """
name = "watched"
[data]
clients = 6
split = { kind = "shards", classes = 2 }
[local]
update = "epochs"
epochs = 2
batch = 16
step = 0.05
max_samples = 30
[train]
rounds = 4
[privacy]
trust = "none"
[diagnostics]
every = 2
[[arm]]
name = "uniform"
cohort = 3
"""


def test_equal_vectors_are_alike_in_every_measure() -> None:
    found = compare(np.tile([3.0, 4.0, -2.0], (5, 1)))
    assert found["dissimilarity"] == pytest.approx(1)
    assert found["diversity"] == pytest.approx(1 / 5)
    assert found["spread"] == pytest.approx(0, abs=1e-6)
    assert found["cosine"]["mean"] == pytest.approx(1)
    assert found["correlation"]["mean"] == pytest.approx(1)
    assert found["angle"]["mean"] == pytest.approx(0, abs=1e-5)


def test_orthogonal_vectors_have_diversity_one() -> None:
    """Yin et al.: orthogonal gradients have sum |g|^2 / |sum g|^2 = 1."""
    found = compare(2 * np.eye(4))
    assert found["diversity"] == pytest.approx(1)
    assert found["dissimilarity"] == pytest.approx(4)
    assert found["cosine"]["mean"] == pytest.approx(0)
    assert found["angle"]["mean"] == pytest.approx(90)
    assert found["correlation"]["mean"] == pytest.approx(-1 / 3)  # of indicator vectors
    assert found["spread"] ** 2 == pytest.approx(4 - 4 / 4)


def test_vectors_that_cancel_and_vectors_that_are_zero_have_no_ratio() -> None:
    found = compare(np.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert found["dissimilarity"] is found["diversity"] is None
    assert found["angle"]["mean"] == pytest.approx(180)
    silent = compare(np.zeros((3, 2)))
    assert silent["cosine"] is silent["angle"] is silent["dissimilarity"] is None
    json.dumps([found, silent], allow_nan=False)


def test_updates_are_those_that_training_makes() -> None:
    """Of gradients: their mean over all clients is the gradient of the mean loss."""
    config = parse_config(CENTRAL)
    population, model = open_task(config)
    simulator, work = Simulator(population, model), config.local.work()
    weights = 0.01 * jax.random.normal(jax.random.key(1), (model.size,))
    everyone = compared_clients(population.clients, 100)
    assert everyone.tolist() == list(range(population.clients))
    without_limit = LocalWork("gradient")
    found = client_updates(
        model, weights, simulator.records, population.sizes, everyone, jax.random.key(0),
        without_limit,
    )  # fmt: skip
    features = jnp.asarray(population.features, jnp.float32).reshape(len(population.labels), -1)
    labels = jnp.asarray(population.labels)
    for client in (0, 7):
        mine = slice(*population.offsets[client : client + 2])

        def loss(w: jax.Array, mine: slice = mine) -> jax.Array:
            scores = model.apply(model.unravel(w), features[mine] * population.scale)
            right = jnp.take_along_axis(scores, labels[mine][:, None], axis=1)[:, 0]
            return jnp.mean(jax.nn.logsumexp(scores, axis=1) - right)

        np.testing.assert_allclose(found[client], jax.grad(loss)(weights), atol=2e-6)
    one = likeness(
        model, weights, simulator.records, population.sizes, everyone, jax.random.key(0), work
    )
    assert one["clients"] == population.clients
    assert "gradients" not in one  # the updates are gradients


def test_drift_is_the_mean_of_updates_over_what_a_client_moved() -> None:
    config = parse_config(WATCHED)
    population, model = open_task(config)
    simulator, work = Simulator(population, model), config.local.work()
    clients, key = compared_clients(population.clients, 6), jax.random.key(3)
    weights = model.init(jax.random.key(0))
    moved = gradients_per_update(population.sizes[clients], work)
    assert set(moved.tolist()) == {4 * 0.05}  # two passes over 30 samples in batches of 16
    arguments = (model, weights, simulator.records, population.sizes, clients, key, work)
    mean = client_updates(*arguments).mean(axis=0)
    found = likeness(*arguments)
    assert found["drift"] == pytest.approx(np.linalg.norm(mean) / (4 * 0.05), rel=1e-5)
    assert found["gradients"]["norms"]["mean"] > 0


def test_a_run_writes_them_where_it_is_told_to_and_changes_nothing_else(tmp_path) -> None:
    summaries = []
    for name, changes in (("with", ()), ("without", ("diagnostics.every=0",))):
        config = parse_config(WATCHED, changes, seed=0)
        folder = RunFolder.create(tmp_path / name, config)
        summaries.append(run_experiment(config, folder))
    lines = RunFolder.open(tmp_path / "with").lines("diagnostics.jsonl")[1:]
    assert [line["round"] for line in lines if "likeness" in line] == [2, 4]
    assert (tmp_path / "with/diagnostics.svg").is_file()
    assert not (tmp_path / "without/diagnostics.svg").exists()
    first, second = (run.public.arms[0].rounds[-1] for run in summaries)
    assert first.scores is not None
    assert first.scores == second.scores
    same = [(tmp_path / n / "rounds.jsonl").read_bytes() for n in ("with", "without")]
    assert same[0] == same[1]


def test_in_a_private_run_they_are_stamped_and_never_published(tmp_path) -> None:
    config = parse_config(CENTRAL, ("diagnostics.every=2",), seed=0)
    folder = RunFolder.create(tmp_path / "run", config)
    run_experiment(config, folder)
    picture = (tmp_path / "run/diagnostics.svg").read_text()
    assert "NOT A RELEASE" in picture
    assert "released to nobody" in picture
    assert "NOT A RELEASE" not in (tmp_path / "run/figure.svg").read_text()
    for path in publish_folder(tmp_path / "run", tmp_path / "public"):
        assert "diagnostics" not in path.name
        assert b"likeness" not in path.read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("diagnostics.every=-1", "diagnostics.every = -1: expected a whole number >= 0"),
        ("diagnostics.clients=1", "diagnostics.clients = 1: expected at least 2 to compare"),
        ("diagnostics.evry=1", "diagnostics.evry = 1: unknown setting"),
    ],
)
def test_bad_settings(change: str, said: str) -> None:
    with pytest.raises(ValueError, match="diagnostics") as error:
        parse_config(WATCHED, (change,))
    assert said in str(error.value)
