"""The simulator against the NumPy reference, and what must not change its result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import reference
from checks import JOINT, SOUND, arm_for, ragged
from locksfl._arrays import aligned
from locksfl.data.population import Population
from locksfl.methods import TRUSTS, Method
from locksfl.models.build import mlp, softmax
from locksfl.round.client import LocalWork, uses_errors
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate import block
from locksfl.simulate import simulator as simulate
from locksfl.simulate.simulator import Simulator

CLIENTS = 24
SIZES = np.tile([1, 2, 3, 9, 14, 30], 4)
GRADIENT = LocalWork(min_samples=2, max_samples=12)  # classes of 3 and of 12 rows, both limits bind
EPOCHS = LocalWork("epochs", epochs=2, batch=5, step=0.3, min_samples=2, max_samples=12)
SEED = Randomness.seeded(5)
WIDTHS = {"softmax": (6, 3), "mlp": (6, 16, 3), "wide": (12, 9)}
WEIGHTS = np.linspace(1, 3, CLIENTS)
WEIGHTS[3] = 30
USUAL = {
    "clients": CLIENTS,
    "rounds": 3,
    "cohort": 12.0,
    "uploads": 5.0,
    "clip_norm": 0.6,
    "step": 0.7,
    "floor": 0.2,
    "norm_low": 0.5,
    "weights": tuple(WEIGHTS / WEIGHTS.sum()),
}


def plan_for(method, noise=0.0, **other):
    """An arm whose clip binds for some clients only, with weights that pass b w_i / q = 1."""
    multipliers = {"noise_multiplier": noise, "norm_multiplier": 2 * noise}
    return arm_for(method, USUAL, **(multipliers | other))


def play(simulator, plan, work, server=None, randomness=SEED, **options):
    """All rounds, and the last state as NumPy arrays."""
    server = server or Server(rounds=plan.rounds)
    rounds, state = [], None
    for done in simulator.play(plan, work, server, randomness, **options):
        rounds += done.rounds
        state = jax.tree.map(np.asarray, done.state)
    return rounds, state


def first_weights(simulator, randomness=SEED):
    return np.asarray(simulator.model.init(randomness.model_key()))


def assert_same(simulator, plan, work, server=None, tolerance=2e-5):
    """The simulator's rounds are the reference's, number by number."""
    server = server or Server(rounds=plan.rounds)
    rounds, state = play(simulator, plan, work, server)
    widths = WIDTHS_OF[simulator.model]
    population = simulator.population
    expected, models, steps = reference.play(
        plan, work, server, widths, first_weights(simulator), population, SEED
    )
    assert len(rounds) == len(expected) == server.rounds
    close = {"rtol": 20 * tolerance, "atol": tolerance}
    for t, (found, wanted, model) in enumerate(zip(rounds, expected, models, strict=True)):
        assert found.round == t
        np.testing.assert_array_equal(found.cohort, wanted.cohort)
        np.testing.assert_array_equal(found.uploaded, wanted.uploaded)
        np.testing.assert_allclose(np.nan_to_num(found.norms), wanted.norms, **close)
        for name, value in {
            "released_norm_sum": wanted.released,
            "used_norm_sum": wanted.used,
            "signal": wanted.signal,
            "noise": wanted.noise,
            "released_count": np.nan if wanted.count is None else wanted.count,
            "expected_weight": wanted.expected_weight,
            "loss": reference.mean_loss(
                model, widths, population.test_features, population.test_labels
            ),
            "accuracy": reference.accuracy(
                model, widths, population.test_features, population.test_labels
            ),
        }.items():
            seen = getattr(found, name)
            seen = np.nan if seen is None else seen
            np.testing.assert_allclose(seen, value, err_msg=name, **close)
    np.testing.assert_allclose(state.weights, steps.flat, **close)
    return rounds, state, expected


@pytest.fixture(scope="module")
def simulators():
    """One simulator a model, so that programs are compiled once."""
    made = {
        "softmax": Simulator(ragged(SIZES), softmax(6, 3)),
        "mlp": Simulator(ragged(SIZES), mlp(6, 3, (16,))),
        "wide": Simulator(ragged(SIZES, 12, 9), softmax(12, 9)),
    }
    WIDTHS_OF.update({made[name].model: WIDTHS[name] for name in made})
    return made


WIDTHS_OF: dict = {}


def test_the_settings_reach_what_they_should(simulators):
    """Two devices, several size classes, both code paths of local.py, both limits on samples."""
    assert simulators["mlp"].mesh.size == 2
    classes, _ = simulate.size_classes(SIZES, GRADIENT)
    assert [shape.rows for shape in classes] == [3, 12]
    assert classes[0].repeats
    assert classes[1].subsample_from == 30
    assert [uses_errors(simulators["mlp"].model, shape.rows, GRADIENT) for shape in classes] == [
        True,
        False,
    ]
    assert not any(uses_errors(simulators["mlp"].model, s.rows, EPOCHS) for s in classes)
    assert len(SOUND) == 32


@pytest.mark.parametrize("method", SOUND, ids=lambda m: f"{m.estimator}-{m.rule}-{m.trust}")
@pytest.mark.parametrize("mode", ["gradient", "epochs"])
def test_every_round_is_the_reference(simulators, method, mode):
    """Every allowed combination, first without noise, then with it from the same draws."""
    simulator = simulators["mlp" if mode == "gradient" else "softmax"]
    work = GRADIENT if mode == "gradient" else EPOCHS
    rounds, _, _ = assert_same(simulator, plan_for(method), work)
    assert all(found.noise == 0 for found in rounds)
    norms = np.concatenate([found.norms for found in rounds])
    assert norms.min() < 0.6 < norms.max(), "the clip should bind for some, not for all"
    if TRUSTS[method.trust].private:
        rounds, _, _ = assert_same(simulator, plan_for(method, noise=0.3), work)
        assert all(found.noise > 0 for found in rounds)


@pytest.mark.parametrize("method", JOINT, ids=lambda m: f"{m.estimator}-{m.rule}-{m.trust}")
def test_rules_that_look_at_all_members_are_the_reference(simulators, method):
    """Members are on two devices, and empty slots between them."""
    assert_same(simulators["softmax"], plan_for(method), GRADIENT)
    if TRUSTS[method.trust].private:
        assert_same(simulators["softmax"], plan_for(method, noise=0.3), GRADIENT)


@pytest.mark.parametrize(
    ("name", "work"), [("softmax", GRADIENT), ("wide", GRADIENT), ("mlp", EPOCHS)]
)
def test_every_model_is_the_reference_in_both_modes(simulators, name, work):
    plan = plan_for(Method("norm", "capped", "local"), noise=0.3)
    assert_same(simulators[name], plan, work)


@pytest.mark.parametrize("trust", TRUSTS)
@pytest.mark.parametrize("rule", ["uniform", "norm"])
def test_contributions_of_one_length_are_the_reference(simulators, rule, trust):
    """Both traces; the compiled program is the one that clips."""
    simulator, noise = simulators["mlp"], 0.3 * TRUSTS[trust].private
    plan = plan_for(Method(rule, "capped", trust), noise=noise, lengths="equal")
    rounds, _, _ = assert_same(simulator, plan, GRADIENT)
    programs = len(simulator._compiled)
    clipped, _, _ = assert_same(simulator, replace(plan, lengths="clipped"), GRADIENT)
    assert len(simulator._compiled) == programs
    assert any(a.signal > 1.05 * b.signal for a, b in zip(rounds, clipped, strict=True))


SIZED = {"weight": "size"}


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("mlp", replace(GRADIENT, **SIZED)),  # both traces; K_ref is max_samples
        ("softmax", replace(EPOCHS, **SIZED, reference_samples=7)),
        ("wide", LocalWork(**SIZED, reference_samples=40)),
    ],
)
def test_weights_by_size_are_the_reference(simulators, name, work):
    plan = plan_for(Method("norm", "capped", "central"), noise=0.3)
    weighted, _, _ = assert_same(simulators[name], plan, work)
    equal, _ = play(simulators[name], plan, replace(work, weight="equal"))
    assert not np.allclose(weighted[0].norms, equal[0].norms, rtol=0.01)


def test_weights_by_size_give_the_weighted_mean_where_nothing_is_clipped(simulators):
    """One round of everybody: the gradient of all records, K_ref / mean of K_i times as long; and
    equal weights do not give that."""
    simulator, server = simulators["mlp"], Server(rounds=1)
    plan = plan_for(Method("full", "capped", "none"), clip_norm=1e6, rounds=1)
    population, first = simulator.population, first_weights(simulator).astype(float)
    features = population.features.reshape(len(population.labels), -1).astype(float)
    pooled = reference.gradient(
        first, WIDTHS["mlp"], features * population.scale, population.labels
    )

    def moved(work):
        _, state = play(simulator, plan, work, server)
        return (first - state.weights) / plan.step

    work = LocalWork(**SIZED, reference_samples=10)
    np.testing.assert_allclose(moved(work) * 10 / SIZES.mean(), pooled, rtol=2e-3, atol=2e-5)
    assert not np.allclose(moved(LocalWork()), pooled, rtol=0.1, atol=1e-2)


def test_a_client_s_size_changes_its_own_contribution_alone():
    """Its records are left out one by one; the norms of all others stay, bit for bit."""
    work = LocalWork(**SIZED, reference_samples=10)
    plan = plan_for(Method("full", "capped", "none"), rounds=1)
    found = []
    for size in (30, 12):
        whole = ragged(SIZES)
        keep = np.ones(len(whole.labels), bool)
        keep[whole.offsets[5] + size : whole.offsets[6]] = False
        owner = np.repeat(np.arange(CLIENTS), SIZES)
        fewer = Population.from_split(
            whole.features[keep], whole.labels[keep], owner[keep],
            whole.test_features, whole.test_labels, classes=3,
        )  # fmt: skip
        rounds, _ = play(Simulator(fewer, mlp(6, 3, (16,)), chunk=1), plan, work, Server(rounds=1))
        found.append(rounds[0].norms)
    others = np.arange(CLIENTS) != 5
    np.testing.assert_allclose(found[0][others], found[1][others], rtol=1e-6)
    assert abs(found[0][5] / found[1][5] - 1) > 0.2


def test_linear_decay_is_the_reference(simulators):
    plan = plan_for(Method("norm", "capped", "central"), noise=0.3)
    assert_same(simulators["softmax"], plan, GRADIENT, Server(schedule="linear", rounds=3))


def test_the_reference_notices_a_wrong_round(simulators):
    """The comparison can fail: another floor, a forgotten limit on samples, another seed."""
    simulator, plan = simulators["mlp"], plan_for(Method("norm", "capped", "central"), noise=0.3)
    found, _ = play(simulator, plan, GRADIENT)
    for wrong in (
        (plan_for(plan.method, noise=0.3, floor=0.21), GRADIENT, SEED),
        (plan, LocalWork(min_samples=2, max_samples=13), SEED),
        (plan, GRADIENT, Randomness.seeded(6)),
    ):
        expected, _, _ = reference.play(
            wrong[0],
            wrong[1],
            Server(rounds=3),
            WIDTHS["mlp"],
            first_weights(simulator),
            simulator.population,
            wrong[2],
        )
        same = [
            a.signal == pytest.approx(b.signal, rel=1e-4)
            for a, b in zip(found, expected, strict=True)
        ]
        assert not all(same)


# --- What must not change the result ------------------------------------------------

LOCKS = Method("norm", "capped", "central")
MODES = [("mlp", GRADIENT), ("softmax", EPOCHS)]


def fresh(simulators, name, population=None, **options):
    """A simulator of the same model that has compiled nothing yet."""
    old = simulators[name]
    return Simulator(population or old.population, old.model, **options)


def assert_equal(found, wanted, exact=True, tolerance=1e-5):
    """Two runs (rounds, state) are one."""
    for a, b in zip(jax.tree.leaves(found[1]), jax.tree.leaves(wanted[1]), strict=True):
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=10 * tolerance, atol=tolerance)
    for a, b in zip(found[0], wanted[0], strict=True):
        np.testing.assert_array_equal(a.cohort, b.cohort)
        np.testing.assert_array_equal(a.uploaded, b.uploaded)
        np.testing.assert_allclose(a.norms, b.norms, rtol=0 if exact else 1e-4)


def test_same_seed_same_run_bit_for_bit(simulators):
    plan = plan_for(LOCKS, noise=0.3)
    once = play(simulators["mlp"], plan, GRADIENT)
    assert_equal(play(simulators["mlp"], plan, GRADIENT), once)
    other = play(simulators["mlp"], plan, GRADIENT, randomness=Randomness.seeded(6))
    assert not np.allclose(other[1].weights, once[1].weights)
    renamed = replace(plan, name="another")
    assert not np.allclose(play(simulators["mlp"], renamed, GRADIENT)[1].weights, once[1].weights)


@pytest.mark.parametrize(("name", "work"), MODES)
@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_do_not_matter(simulators, name, work, chunk):
    plan = plan_for(LOCKS, noise=0.3)
    other = play(fresh(simulators, name, chunk=chunk), plan, work)
    assert_equal(other, play(simulators[name], plan, work), exact=False)


@pytest.mark.parametrize(("name", "work"), MODES)
def test_the_number_of_devices_does_not_matter(simulators, monkeypatch, name, work):
    plan, both = plan_for(LOCKS, noise=0.3), jax.devices()
    monkeypatch.setattr(jax, "devices", lambda: both[:1])
    alone = fresh(simulators, name)
    assert (alone.mesh.size, simulators[name].mesh.size) == (1, 2)
    assert_equal(play(alone, plan, work), play(simulators[name], plan, work), exact=False)


def test_optimisation_does_not_matter(simulators):
    """Another process, with XLA as it comes: one device, every optimisation that tests turn off."""
    program = """
import json, test_simulate as here
from locksfl.simulate.simulator import Simulator
simulator = Simulator(here.ragged(here.SIZES), here.mlp(6, 3, (16,)))
assert simulator.mesh.size == 1
_, state = here.play(simulator, here.plan_for(here.LOCKS, noise=0.3), here.GRADIENT)
print(json.dumps(state.weights.tolist()))
"""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | flags, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    _, state = play(simulators["mlp"], plan_for(LOCKS, noise=0.3), GRADIENT)
    np.testing.assert_allclose(json.loads(done.stdout), state.weights, rtol=1e-4, atol=1e-5)


def test_block_lengths_do_not_matter(simulators, monkeypatch):
    simulator, plan = simulators["mlp"], plan_for(LOCKS, noise=0.3)
    server = Server(rounds=3)
    whole = play(simulator, plan, GRADIENT, server)
    monkeypatch.setattr(simulate, "BLOCK_SECONDS", 0.0)
    blocks = list(simulator.play(plan, GRADIENT, server, SEED))
    assert [len(done.rounds) for done in blocks] == [1, 1, 1]
    assert_equal(play(simulator, plan, GRADIENT, server), whole)
    monkeypatch.setattr(simulate, "BLOCK_SECONDS", 1e9)
    monkeypatch.setattr(simulate, "ROUNDS_A_CALL", 2)
    monkeypatch.setattr(block, "ROUNDS_A_CALL", 2)
    blocks = list(fresh(simulators, "mlp").play(plan, GRADIENT, server, SEED))
    assert [len(done.rounds) for done in blocks] == [1, 2]
    found = [r for done in blocks for r in done.rounds], blocks[-1].state
    assert_equal(found, whole, exact=False)


def test_a_large_cohort_widens_the_layout(simulators, monkeypatch):
    """With slots for one client of a class, the whole cohort is still played."""
    monkeypatch.setattr(simulate, "likely_count", lambda clients, rate: 1)
    monkeypatch.setattr(simulate, "BLOCK_SECONDS", 1e9)
    plan, narrow = plan_for(LOCKS, noise=0.3), fresh(simulators, "mlp")
    rounds, _, _ = assert_same(narrow, plan, GRADIENT)
    layouts = [program.layout for program, *_ in narrow._compiled]
    assert max(found.cohort.size for found in rounds) > 2 * len(layouts[0])
    assert all(bucket.slots > 1 for bucket in layouts[-1])


@pytest.mark.parametrize(("name", "work"), MODES)
def test_computing_again_is_keeping(simulators, monkeypatch, name, work):
    plan = plan_for(LOCKS, noise=0.3)
    kept = play(simulators[name], plan, work)  # compiled before the limit is lowered
    monkeypatch.setattr(simulate, "KEEP_BYTES", 0)
    again = play(fresh(simulators, name, chunk=2), plan, work)
    assert_equal(again, kept, exact=False)


# --- Odd rounds ------------------------------------------------


@pytest.mark.parametrize("trust", ["central", "local"])
def test_an_empty_cohort_is_a_round_of_noise(simulators, trust):
    """Central noise does not depend on who came; in local trust nobody is there to add any."""
    method = Method("norm", "capped", trust)
    plan = plan_for(method, noise=1e-3, cohort=0.01, uploads=0.005)
    rounds, state, _ = assert_same(simulators["mlp"], plan, GRADIENT)
    assert all(found.cohort.size == 0 and found.signal == 0 for found in rounds)
    moved = state.weights - first_weights(simulators["mlp"])
    if trust == "central":
        assert all(found.noise > 0 for found in rounds)
        assert np.all(moved != 0)
    else:
        np.testing.assert_array_equal(moved, 0)


def test_no_uploader_is_a_round_of_noise(simulators):
    plan = plan_for(LOCKS, noise=1e-5, uploads=1e-4)
    rounds, _, _ = assert_same(simulators["mlp"], plan, GRADIENT)
    assert all(found.cohort.size and not found.uploaded.any() for found in rounds)
    assert all(found.signal == 0 < found.noise for found in rounds)


@pytest.mark.parametrize(("name", "work"), [*MODES, ("wide", GRADIENT)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_client_counts_as_zero(simulators, name, work, value):
    """Clients 0 (whose first row also pads other clients), 3 and 8 are broken: they add nothing,
    are told by a NaN norm, and nobody else changes: the reference gives them zero."""
    whole, broken = simulators[name], {0, 3, 8}
    features = whole.population.features.shape[1]
    population = ragged(SIZES, features, whole.population.classes, broken=broken, value=value)
    simulator = fresh(simulators, name, population)
    simulator._compiled = whole._compiled  # the data are arguments of the compiled program
    plan = plan_for(Method("uniform", "capped", "none"), cohort=20.0, uploads=16.0)
    if name == "wide":
        plan = plan_for(LOCKS, noise=0.1, cohort=20.0, uploads=16.0, norm_low=0.9)
    rounds, state, _ = assert_same(simulator, plan, work)
    assert np.isfinite(state.weights).all()
    told = [(found.cohort[np.isnan(found.norms)], found.cohort) for found in rounds]
    for odd, cohort in told:
        assert set(odd) == broken & set(cohort)
    assert {int(client) for odd, _ in told for client in odd} == broken


def test_a_client_that_is_not_asked_changes_nothing(simulators):
    """Client 0 is outside of every cohort: its data, however odd, reach nobody."""
    simulator, plan = simulators["mlp"], plan_for(LOCKS, noise=0.3)
    for seed in range(20):
        randomness = Randomness.seeded(seed)
        rounds, state = play(simulator, plan, GRADIENT, Server(rounds=3), randomness)
        if all(0 not in found.cohort for found in rounds):
            break
    assert all(0 not in found.cohort for found in rounds)
    for value in (np.nan, 1e30):
        other = fresh(simulators, "mlp", ragged(SIZES, broken={0}, value=value))
        other._compiled = simulator._compiled
        assert_equal(play(other, plan, GRADIENT, Server(rounds=3), randomness), (rounds, state))


# --- Evaluation, the server's state, resuming ------------------------------------------------

LATE = Server("adam", "constant", rounds=4, average_last=2)


def test_evaluation_is_as_often_as_asked(simulators):
    plan = plan_for(LOCKS, noise=0.3)
    rounds, _ = play(simulators["mlp"], plan, GRADIENT, evaluate_every=2)
    often, _ = play(simulators["mlp"], plan, GRADIENT)
    assert [found.accuracy is None for found in rounds] == [True, False, False]  # the last one too
    assert [found.loss is None for found in rounds] == [True, False, False]
    for a, b in zip(rounds[1:], often[1:], strict=True):
        assert (a.accuracy, a.loss) == (b.accuracy, pytest.approx(b.loss, rel=1e-6))


def test_adam_with_averaged_iterates_is_the_reference(simulators):
    """The losses that assert_same compares are those of the averaged model."""
    plan = plan_for(LOCKS, noise=0.3, step=0.05)
    _, state, _ = assert_same(simulators["mlp"], plan, GRADIENT, LATE, tolerance=1e-4)
    assert not np.allclose(LATE.model(state, 4), state.weights)


def test_resuming_gives_the_same_bits(simulators, monkeypatch):
    """From the state after any round, as the simulator gave it or as arrays from a file."""
    simulator, plan = simulators["mlp"], plan_for(LOCKS, noise=0.3, step=0.05)
    whole = play(simulator, plan, GRADIENT, LATE)
    monkeypatch.setattr(simulate, "BLOCK_SECONDS", 0.0)
    blocks = list(simulator.play(plan, GRADIENT, LATE, SEED))
    for done in (1, 3):
        state = blocks[done - 1].state  # still there, though later blocks were played
        for given in (state, jax.tree.map(np.asarray, state), state):
            rest = play(simulator, plan, GRADIENT, LATE, state=given, first_round=done)
            assert [found.round for found in rest[0]] == list(range(done, 4))
            assert_equal((whole[0][:done] + rest[0], rest[1]), whole)
        late = play(simulator, plan, GRADIENT, LATE, state=state, first_round=done - 1)
        assert not np.array_equal(late[1].weights, whole[1].weights)


# --- Compiling ------------------------------------------------


class Compilations:
    """Counts what XLA compiles, whoever asks for it."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, name, seconds, **_):
        del seconds
        self.count += name == "/jax/core/compile/backend_compile_duration"


def test_seeds_rounds_and_arms_share_a_program(simulators, monkeypatch):
    """After the first arm nothing is compiled: not for other cohorts, seeds, clips, steps, noises,
    names or lengths of blocks. Another rule is another program, and is compiled once."""
    simulator, compilations = fresh(simulators, "mlp"), Compilations()
    plan, server = plan_for(LOCKS, noise=0.3), Server(rounds=9)
    play(simulator, plan, GRADIENT, server)
    assert compilations.count > 0, "the count can move"
    before = compilations.count
    for seed in range(4):
        other = plan_for(LOCKS, noise=0.1 * seed, clip_norm=0.2 + seed, step=0.1, uploads=4.0)
        play(simulator, other, GRADIENT, server, Randomness.seeded(seed))
    play(simulator, replace(plan, name="another"), GRADIENT, server)
    monkeypatch.setattr(simulate, "BLOCK_SECONDS", 0.0)
    play(simulator, plan, GRADIENT, server)
    assert compilations.count == before
    assert len(simulator._compiled) == 1
    uniform = plan_for(Method("uniform", "capped", "central"), noise=0.3)
    for seed in (5, 6):
        play(simulator, uniform, GRADIENT, server, Randomness.seeded(seed))
    assert len(simulator._compiled) == 2
    assert compilations.count == before + 1


def test_the_data_are_on_the_devices_once():
    """Neither a constant of the compiled program, nor copied for each core; also where the array
    begins at an odd place and XLA takes a copy of its own."""
    population = ragged(np.full(40, 25), 64)
    room = np.zeros(population.features.size + 1, np.float32)
    shifted = room[1:].reshape(population.features.shape)
    shifted[:] = population.features
    population = replace(population, features=shifted)
    simulator = Simulator(population, softmax(64, 3))
    plan = plan_for(LOCKS, clients=40)
    play(simulator, plan, GRADIENT)
    shards = simulator.records.features.addressable_shards
    assert len(shards) == simulator.mesh.size == 2
    assert len({shard.data.unsafe_buffer_pointer() for shard in shards}) == 1
    (compiled,) = simulator._compiled.values()
    data = [line for line in compiled.as_text().splitlines() if "f32[1000,64]" in line]
    assert any("parameter(" in line for line in data)
    assert not any("constant(" in line for line in data)


def test_the_devices_of_a_cpu_share_the_populations_own_memory() -> None:
    """XLA copies what is not aligned, once for each device: a population that was opened is, and a
    mapped file too (its header has 128 bytes)."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 255, (64, 784), dtype=np.uint8)
    owner = rng.permutation(np.arange(64) % 8)  # unsorted: dealt to clients, in a new array
    people = Population.from_split(
        rows, rng.integers(0, 10, 64), owner, rows[:4], rng.integers(0, 10, 4), classes=10
    )
    simulator = Simulator(people, softmax(784, 10))
    places = [s.data.unsafe_buffer_pointer() for s in simulator.records.features.addressable_shards]
    assert places == [people.features.ctypes.data] * len(jax.devices())


def test_an_unaligned_array_is_copied_once() -> None:
    room = np.zeros(4096 + 64, np.uint8)
    off = room[(16 - room.ctypes.data) % 64 :][:4096]
    off[:] = np.arange(4096) % 251
    copy = aligned(off)
    assert copy.ctypes.data % 64 == 0
    np.testing.assert_array_equal(copy, off)
    assert aligned(copy) is copy
