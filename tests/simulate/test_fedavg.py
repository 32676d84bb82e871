"""FedAvg, FedProx, DP-FedAvg and DP-SGD at client level are settings of this program: each against
the formula of its paper, written out."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from checks import ragged
from locksfl.arm import Arm
from locksfl.experiment.config import parse_config
from locksfl.models.build import softmax
from locksfl.round.client import LocalWork
from locksfl.round.draws import cohort_of, draw_server
from locksfl.round.randomness import Purpose, Randomness, client_keys, draw_key
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator

SIZES = np.tile([1, 2, 4, 9, 14, 30], 4)  # 10 on average
N, WIDTHS, SEED = len(SIZES), (6, 3), Randomness.seeded(5)
CLOSE = {"rtol": 4e-4, "atol": 2e-5}


@pytest.fixture(scope="module")
def simulator():
    return Simulator(ragged(SIZES), softmax(*WIDTHS))


EXPERIMENT = """
[data]
name = "mnist-embedded"
clients = 24
[train]
rounds = 2
[train.optimizer]
step = 1.0
schedule = "constant"
"""
FEDAVG = """
[local]
update = "epochs"
epochs = 2
batch = 5
step = 0.3
weight = "size"
reference_samples = 10  # the mean size of a client: then K_i / (n K_ref) = n_k / n
[privacy]
trust = "none"
[[arm]]
name = "fedavg"
rule = "full"
clip_norm = 1e9
"""
DP_FEDAVG = """
[local]
update = "epochs"
epochs = 2
batch = 5
step = 0.3
max_samples = 12
weight = "size"         # w_k = min(n_k, 12) / 12
[[arm]]
name = "dp-fedavg"
cohort = 9
clip_norm = 0.6
noise_multiplier = 0.7
"""
DP_SGD = """
[[arm]]
name = "dp-sgd"
cohort = 9
clip_norm = 0.6
noise_multiplier = 0.7
"""


def of(text):
    """(arm, local work, server) of an experiment."""
    config = parse_config(EXPERIMENT + text, (), 5)
    (arm,) = config.arms
    return arm, config.local.work(), Server(schedule="constant", rounds=2)


def models(simulator, arm, work, server):
    """w_0, w_1, ..."""
    first = np.asarray(simulator.model.init(SEED.model_key()), float)
    blocks = simulator.play(arm, work, server, SEED, pause_every=1)
    return [first, *(np.asarray(block.state.weights, float) for block in blocks)]


def client_keys_of(arm, t):
    return client_keys(draw_key(SEED.arm_key(arm.name), t, Purpose.LOCAL), jnp.arange(N))


def local_model(population, client, flat, work, key):
    """w_k: the model after a client's local epochs."""
    features, labels = population.client(client)
    plain = replace(work, weight="equal")
    return flat - reference.client_update(flat, WIDTHS, features.astype(float), labels, plain, key)


def test_fedavg(simulator):
    """McMahan et al. 2017: w <- sum of (n_k / n) w_k."""
    arm, work, server = of(FEDAVG)
    found = models(simulator, arm, work, server)
    for t in range(2):
        keys, flat = client_keys_of(arm, t), found[t]
        each = [local_model(simulator.population, k, flat, work, keys[k]) for k in range(N)]
        np.testing.assert_allclose(found[t + 1], np.average(each, axis=0, weights=SIZES), **CLOSE)
        assert np.abs(found[t + 1] - np.mean(each, axis=0)).max() > 0.01


@pytest.mark.parametrize("text", [DP_FEDAVG, DP_SGD], ids=["dp-fedavg", "dp-sgd"])
def test_private_averages(simulator, text):
    """McMahan et al. 2018, estimator f_f: sum of clip(w_k Delta_k, S) / (q W) with noise of std
    z S / (q W), W = n a public number and never the weight that came. (They clip before they
    weight: the bound S is the same.) Abadi et al. 2016, a client for an example: (sum of
    clip(g, C) + N(0, z^2 C^2)) / L, L = q n."""
    arm, work, server = of(text)
    found = models(simulator, arm, work, server)
    members, clipped_ones = [], 0
    for t in range(2):
        keys, flat = client_keys_of(arm, t), found[t]
        cohort, summed = cohort_of(SEED, arm, t), np.zeros(flat.size)
        for k in cohort:
            if work.update == "epochs":
                weight = min(SIZES[k], 12) / 12
                one = weight * (flat - local_model(simulator.population, k, flat, work, keys[k]))
            else:
                features, labels = simulator.population.client(k)
                one = reference.gradient(flat, WIDTHS, features.astype(float), labels)
            clipped_ones += np.linalg.norm(one) > 0.6
            summed += one / max(1.0, np.linalg.norm(one) / 0.6)
        noise = 0.7 * 0.6 * np.asarray(draw_server(SEED.arm_key(arm.name), t, flat.size)[1], float)
        np.testing.assert_allclose(found[t + 1], flat - (summed + noise) / 9, **CLOSE)
        members.append(len(cohort))
    assert members != [9, 9], "to divide by who came would give the same"
    assert 0 < clipped_ones < sum(members)


PROX = LocalWork("epochs", epochs=2, batch=5, step=0.3, max_samples=12, proximal=0.8)
PLAN = Arm("arm", N, 2, trust="none", cohort=12.0, clip_norm=0.6, step=0.7)


def played(simulator, work):
    blocks = simulator.play(PLAN, work, Server(rounds=2), SEED)
    return np.asarray(jax.tree.leaves(list(blocks)[-1].state)[0])


def test_fedprox(simulator):
    """Li et al. 2020: y <- y - eta (g(y) + mu (y - w)), against NumPy; mu = 0 is another run."""
    found = played(simulator, PROX)
    first = np.asarray(simulator.model.init(SEED.model_key()))
    given = (Server(rounds=2), WIDTHS, first, simulator.population, SEED)
    _, _, steps = reference.play(PLAN, PROX, *given)
    np.testing.assert_allclose(found, steps.flat, **CLOSE)
    _, _, without = reference.play(PLAN, replace(PROX, proximal=0.0), *given)
    assert np.abs(found - without.flat).max() > 0.01


def test_a_proximal_term_keeps_clients_near_the_model(simulator):
    """With mu = 1/eta a step forgets all steps before it: u_i is one step long at most."""
    near = replace(PROX, epochs=8, proximal=1 / PROX.step)
    moved = {}
    for work in (near, replace(near, proximal=0.0)):
        (block,) = simulator.play(replace(PLAN, rounds=1), work, Server(rounds=1), SEED)
        moved[work.proximal] = np.nanmedian(block.rounds[0].norms)
    assert moved[near.proximal] < 0.5 * moved[0.0]
