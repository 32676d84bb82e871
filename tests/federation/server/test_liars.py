"""Liars under local trust: the limit on a length, the score that finds them, what honest devices
suffer from it, and what is left to a liar that knows all of this. The server's own functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from checks import ragged
from locksfl.arm import Arm
from locksfl.experiment.config import PrivacyConfig
from locksfl.federation.server import liars
from locksfl.federation.server.engine import Federation
from locksfl.federation.server.ledger import ServerLedger
from locksfl.federation.server.liars import Scores, length_limit, threshold
from locksfl.federation.server.rounds import check_norms, check_updates
from locksfl.federation.wire import Answer
from locksfl.models.build import softmax
from locksfl.privacy.ledger import LEDGER
from locksfl.round.noise import SYSTEM, add_noise
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from memory_network import MemoryNetwork

# --- The limit ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 100, 7850, 1_000_000])
@pytest.mark.parametrize("z", [0.05, 1.0, 5.0])
def test_the_limit_is_the_quantile_of_an_honest_length(size, z):
    """At |c| = S the exact tail is at most e^-50, and the exact quantile is close; the limit that
    allows S and the noise's length apart, S + z S (sqrt(d) + 10), was farther."""
    limit = length_limit(z, size)
    assert stats.ncx2.sf((limit / z) ** 2, size, z**-2) <= math.exp(-50)
    exact = z * math.sqrt(stats.ncx2.isf(math.exp(-50), size, z**-2))
    assert exact < limit < 1.25 * exact
    assert limit < 1 + z * (math.sqrt(size) + 10)
    if size >= 7850:
        assert limit < 1.005 * exact


def test_honest_lengths_pass_at_the_stated_rate(monkeypatch):
    """With 1e-2 in place of e^-50, of 20,000: at most that (5 standard errors), and some."""
    monkeypatch.setattr(liars, "TAIL", 1e-2)
    rng, size, z = np.random.default_rng(0), 300, 2.0
    sent = z * rng.standard_normal((20_000, size))
    sent[:, 0] += 1.0  # |c| = S
    long = np.mean(np.linalg.norm(sent, axis=1) > length_limit(z, size))
    assert 1e-4 < long < 1e-2 + 5 * math.sqrt(1e-2 / 20_000)


PLAN = Arm.of(
    "arm", rule="uniform", trust="local", clients=30, rounds=4, cohort=30.0, clip_norm=1.0,
    step=0.1, noise_multiplier=2.0,
)  # fmt: skip


@pytest.mark.parametrize(("over", "taken"), [(0.9999, True), (1.0001, False)])
def test_a_length_above_the_limit_is_left_out(over, taken):
    size, bound = 500, 1.7
    honest = add_noise(np.full(size, bound / math.sqrt(size)), 2 * bound, SYSTEM, np.float32)
    longest = np.zeros(size, np.float32)
    longest[3] = over * length_limit(2.0, size) * bound
    answers = {0: Answer(released=honest), 1: Answer(released=longest)}
    found = check_updates(PLAN, np.ones(2, bool), answers, size, np.full(2, bound))
    np.testing.assert_array_equal(found.received, [True, taken])


@pytest.mark.parametrize(("norm", "taken"), [(0.0, True), (0.6, True), (0.6000001, False)])
def test_a_norm_beyond_the_interval_of_every_guard_is_left_out(norm, taken):
    _, present, _ = check_norms(np.ones(1, bool), {0: Answer(released=np.array([norm]))}, 0.6)
    assert present[0] == taken


# --- The score ------------------------------------------------------------------------------------


def signs(clients, seed=0):
    """Repeatable ones."""
    found = np.random.default_rng(seed).choice([-1.0, 1.0], (liars.REFERENCES, clients))
    found[0] = 1.0
    return found


@pytest.mark.parametrize("liar_count", [4, 20])  # 1% and 5%
def test_liars_of_the_largest_length_in_one_direction_are_found(liar_count):
    """All of 400 upload. Every liar is flagged in the first round, and nobody else in three."""
    clients, size, z, rng = 400, 2_000, 5.0, np.random.default_rng(1)
    scores, found = Scores(clients, size, 100, signs=signs), []
    for _ in range(3):
        sent = z * rng.standard_normal((clients, size))
        sent[:, 1] += 0.7
        sent[:liar_count] = np.eye(1, size)[0] * length_limit(z, size)
        found.append(scores.judge(dict(enumerate(sent)), np.ones(clients), z))
    assert found == [list(range(liar_count)), [], []]


def test_a_single_liar_is_found_by_its_own_past():
    clients, size, z, rng = 400, 2_000, 5.0, np.random.default_rng(1)
    scores, found = Scores(clients, size, 100, signs=signs), []
    for _ in range(6):
        sent = z * rng.standard_normal((clients, size))
        sent[7] = np.eye(1, size)[0] * length_limit(z, size)
        found += scores.judge(dict(enumerate(sent)), np.ones(clients), z)
    assert found == [7]


def flagged_share(rate, rounds, shift, forgets=0.0):
    """The share of 4,000 honest devices that is flagged. Their updates are as long as the bound
    allows, along the server's running mean itself: nothing honest scores higher. `forgets`: the
    part of S that a score does not allow for."""
    clients, size, z, rng = 4_000, 16, 0.5, np.random.default_rng(2)
    scores = Scores(clients, size, rounds, rate=rate, signs=signs)
    scores._sums += 1e6 * rng.standard_normal(scores._sums.shape)  # a long past
    along = scores._sums[0] / np.linalg.norm(scores._sums[0])
    for _ in range(rounds):
        sent = (shift + forgets) * along + z * rng.standard_normal((clients, size))
        scores.judge(dict(enumerate(sent)), np.ones(clients), z)
    return scores.flagged.mean()


def test_honest_devices_are_flagged_at_most_at_the_stated_rate():
    """Stated 20%, within 5 standard errors. Fewer are flagged, because the rate is divided among
    48 statistics (4 references, 2 signs, the latest and the sum, 3 rounds), which depend on each
    other, and an update can be at its worst for one reference only. A score that forgets S is far
    beyond."""
    rate = 0.2
    most = rate + 5 * math.sqrt(rate / 4_000)
    assert 0.002 < flagged_share(rate, 3, 1.0) < most
    assert flagged_share(rate, 3, 0.0) < most
    assert flagged_share(rate, 3, 1.0, forgets=1.0) > most


def test_the_threshold_grows_slowly_with_the_rounds():
    assert threshold(1) < threshold(1_000) < threshold(1) + 1.5
    assert stats.norm.sf(threshold(100)) * 100 * 4 * liars.REFERENCES == pytest.approx(1e-6)


# --- A liar that knows all of this, and stays below every limit -----------------------------------

SIZE, CLIENTS, Z = 7_850, 400, 5.0


def attack(direction, count, rounds=20, seed=0):
    """Whether any of `count` colluding liars is flagged, and how far one of them moves the sum
    along its target in a round, in bounds S. `direction(liar, round, running mean)` is what each
    sends. The others are honest noise, as it enters the references."""
    rng = np.random.default_rng(seed)
    scores = Scores(count, SIZE, rounds, signs=lambda n: signs(n, seed))
    moved, flagged = 0.0, []
    for t in range(rounds):
        mean, sent = scores._sums[0].copy(), {}
        for i in range(count):
            sent[i], along = direction(i, t, mean)
            assert np.linalg.norm(sent[i]) <= length_limit(Z, SIZE)
            moved += along
        scores._sums += Z * math.sqrt(CLIENTS - count) * rng.standard_normal(scores._sums.shape)
        flagged += scores.judge(sent, np.ones(count), Z)
    return bool(flagged), moved / (rounds * count)


def steady(length):
    """The same in every round."""
    target = np.eye(1, SIZE)[0]
    return lambda *_: (length * target, length)


def aside(length):
    """What is orthogonal to the running mean, which the models tell."""
    target = np.eye(1, SIZE)[0]

    def direction(_i, _t, mean):
        sent = target - mean * (mean @ target) / max(mean @ mean, 1e-9)
        sent *= length / np.linalg.norm(sent)
        return sent, float(sent @ target)

    return direction


def spread(count, rounds=20):
    """Orthogonal to all that any of them sent before, as noise is; only the sum of all, of length
    sqrt(count rounds), goes along the target. No inner product tells it from noise."""
    length = 0.999 * length_limit(Z, SIZE)

    def direction(i, t, _mean):
        return length * np.eye(1, SIZE, i * rounds + t)[0], length / math.sqrt(count * rounds)

    return direction


@pytest.mark.parametrize(("count", "below", "above"), [(1, 100, 200), (4, 70, 130), (20, 30, 80)])
def test_what_is_left_to_a_liar_below_every_limit(count, below, above):
    """docs/federation.md states it for 20 rounds: the length that passes, of 480 that the limit
    allows; twice that does not. Orthogonal to the mean is no way out, spread over all is."""
    assert attack(steady(below), count) == (False, pytest.approx(below))
    assert attack(steady(above), count)[0]
    assert attack(aside(2.2 * above), count)[0]
    passed, moved = attack(spread(count), count)
    assert not passed
    assert moved == pytest.approx(479.66 / math.sqrt(20 * count), rel=2e-3)


# --- In the server's loop -------------------------------------------------------------------------


@pytest.mark.parametrize("exclude", [False, True])
def test_flagged_devices_are_in_the_records_and_left_out_if_the_operator_says_so(tmp_path, exclude):
    """Three of 30 lie. Who is left out is not asked and not charged; nobody gets a credit."""
    model, rng, asked = softmax(60, 10), np.random.default_rng(3), []

    def answer(number):
        def device(_run, question, _kept):
            asked.append((question.terms["round"], number))
            sent = 2.0 * question.bound * rng.standard_normal(model.size)
            if number < 3:
                sent = np.eye(1, model.size)[0] * 0.999 * length_limit(2.0, model.size)
            return Answer(released=sent.astype(np.float32))

        return device

    federation = Federation(
        ragged(np.full(30, 2), 60, 10), model, MemoryNetwork({i: answer(i) for i in range(30)}),
        [PLAN], folder=tmp_path, experiment="x", privacy=PrivacyConfig(trust="local"),
        seconds=1.0, exclude=exclude,
    )  # fmt: skip
    blocks = federation.play(PLAN, None, Server(rounds=4), Randomness.seeded(0))
    logs = [log for block in blocks for log in block.rounds]
    stages = [log.stages["update"] for log in logs]
    assert logs[0].received.sum() == (27 if exclude else 30)  # left out of this sum already
    assert [s.get("flagged", []) for s in stages] == [[0, 1, 2], [], [], []]
    assert [s["asked"] for s in stages] == ([30, 27, 27, 27] if exclude else [30] * 4)
    late = {number for round_number, number in asked if round_number > 1}
    assert late == set(range(3 if exclude else 0, 30))
    with ServerLedger.open_for(tmp_path / LEDGER, "x") as ledger:
        commits = [e.uploaders for e in ledger.entries() if e.kind == "commit"]
        (arm,) = ledger.books.arms
    assert set(commits) == ({1} if exclude else {30})
    np.testing.assert_array_equal(arm.uploads[:4], [1, 1, 1, 4] if exclude else [4] * 4)
