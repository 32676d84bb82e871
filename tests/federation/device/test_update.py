"""What a device makes of a user's training code: the simulator's numbers, or zero."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.federation.device import DeviceLedger, Guard, Policy, Refusal, Refused, RoundTerms
from locksfl.federation.device.answering import KEPT, answer
from locksfl.federation.device.update import clip, contribution, norm, safe_update
from locksfl.federation.wire import Question
from locksfl.methods import ESTIMATORS
from locksfl.round.algorithm import bounded_weight, clip_factor, clipped_norms

WEIGHTS = np.arange(6.0)
POLICY = Policy(100.0, 0.01, 1000, 1e6, 1e-5, min_norm_multiplier=0.01)


class Silent:
    def steps(self, _std, _grid, size):
        return np.zeros(size, np.int64)


def three_lines(weights, round_number):
    """An adapter as a user would write it."""
    model = weights * 0.5
    return weights - model - round_number


def failing(weights, round_number):
    raise RuntimeError(f"a secret: {weights} {round_number}")


def leaving(*_):
    raise SystemExit(1)


BROKEN = [
    failing,
    leaving,
    lambda weights, _: np.full_like(weights, math.nan),
    lambda weights, _: [*weights[:-1], math.inf],
    lambda weights, _: weights[:-1],
    lambda weights, _: "nonsense",
    lambda weights, _: None,
]


def test_an_adapter_gives_a_flat_update():
    np.testing.assert_array_equal(safe_update(three_lines, WEIGHTS, 2), WEIGHTS / 2 - 2)
    square = safe_update(lambda weights, _: weights.reshape(2, 3), WEIGHTS, 1)
    np.testing.assert_array_equal(square, WEIGHTS)


@pytest.mark.parametrize("broken", BROKEN)
def test_training_that_fails_contributes_zero_and_says_nothing(broken):
    np.testing.assert_array_equal(safe_update(broken, WEIGHTS, 1), np.zeros(6))


def test_training_cannot_spoil_the_weights():
    def careless(weights, _):
        weights[:] = 7.0
        return weights

    safe_update(careless, WEIGHTS, 1)
    np.testing.assert_array_equal(WEIGHTS, np.arange(6.0))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("probability", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("length", [0.0, 1e-14, 0.3, 1.0, 7.0])
@pytest.mark.parametrize("lengths", ["clipped", "equal"])
def test_a_device_sends_what_the_simulator_would(tmp_path, estimator, probability, length, lengths):
    """A cohort of one: clipped, weighted and cut exactly as the simulator's functions do it."""
    clip_norm, capped_bound = 1.0, 4.0
    update = np.random.default_rng(0).normal(size=6)
    update *= length / np.linalg.norm(update)
    known = ESTIMATORS[estimator]
    dials = Arm("", 2, 1, cohort=1, clip_norm=clip_norm, lengths=lengths).dials()
    raw = jnp.array([length], jnp.float32)
    p, norms = jnp.array([probability]), clipped_norms(raw, dials)
    bounds = known.bound(p, clip_norm / capped_bound, clip_norm, jnp)
    scale, weight = (
        float(bounds[0]),
        bounded_weight(known.weight(norms, p, bounds, jnp), bounds, norms),
    )
    expected = np.asarray(weight * clip_factor(raw, dials))[0] * update

    DeviceLedger.create(tmp_path / "l.db").close()
    terms = RoundTerms("one", 1, False, clip_norm, 0.01, lengths=lengths)
    with Guard.open(POLICY, tmp_path / "l.db", Silent()) as guard:
        question = Question("update", terms.as_dict(), WEIGHTS, estimator, probability, scale)
        sent = answer(guard, terms, question, lambda *_: update, {})
    np.testing.assert_allclose(sent, expected, rtol=2e-6, atol=1e-7)


def test_both_stages(tmp_path):
    DeviceLedger.create(tmp_path / "l.db").close()
    terms = RoundTerms("one", 1, True, 2.0, 0.01, 0.01)
    with Guard.open(POLICY, tmp_path / "l.db", Silent()) as guard:
        memory = {}
        (released,) = answer(guard, terms, Question("norm", {}, WEIGHTS), three_lines, memory)
        kept = memory[KEPT]
        assert released == pytest.approx(2.0)
        assert norm(kept) == pytest.approx(2.0)
        question = Question("update", {}, None, "capped", 0.5, 3.0)
        sent = answer(guard, terms, question, three_lines, memory)
        assert not memory
    assert np.linalg.norm(sent) == pytest.approx(3.0)
    np.testing.assert_allclose(sent / 3, kept / 2, atol=1e-6)


def test_nobody_trains_for_a_request_that_is_refused(tmp_path):
    DeviceLedger.create(tmp_path / "l.db").close()
    terms = RoundTerms("one", 1, True, 1e5, 0.01, 0.01)

    def never(_weights, _round_number):
        pytest.fail("trained in vain")

    with (
        Guard.open(POLICY, tmp_path / "l.db", Silent()) as guard,
        pytest.raises(Refused) as caught,
    ):
        answer(guard, terms, Question("norm", {}, WEIGHTS), never, {})
    assert caught.value.code is Refusal.CLIP


@pytest.mark.parametrize(
    ("estimator", "probability"),
    [("capped", 0.0), ("capped", -1.0), ("capped", 1.1), ("capped", math.nan), ("other", 0.5)],
)
def test_odd_numbers_of_a_server_are_malformed(estimator, probability):
    with pytest.raises(Refused) as caught:
        contribution(estimator, np.ones(3), probability, 1.0)
    assert caught.value.code is Refusal.MALFORMED


def test_a_tiny_probability_overflows_to_nothing_or_is_cut():
    assert not clip(contribution("horvitz-thompson", np.ones(3), 5e-324, 1.0), 1.0).any()
    assert np.linalg.norm(clip(contribution("capped", np.ones(3), 5e-324, 1.0), 1.0)) <= 1.0


# --- A device that decides by itself ------------------------------------------------

TRUSTING = Policy(trust="central", max_clip_norm=10.0, min_noise_multiplier=0.001, max_rounds=1000)


def decided(tmp_path, update, coins=(0,), rule="coin", most=1.0, trust="central", policy=TRUSTING):
    """The answers to one question a round, with these coins of 64 bits."""
    if not (tmp_path / "l.db").exists():
        DeviceLedger.create(tmp_path / "l.db").close()
    found = []
    with Guard.open(policy, tmp_path / "l.db", Silent()) as guard:
        for number, coin in enumerate(coins, 1):
            terms = RoundTerms("one", number, False, 2.0, 0.01, trust=trust)
            question = Question("update", terms.as_dict(), WEIGHTS, "capped", most, 2.0, rule)
            entropy = lambda size, coin=coin: coin.to_bytes(size, "big")  # noqa: E731
            found.append(answer(guard, terms, question, lambda *_: update, {}, entropy))
    return found


def test_a_device_flips_the_coin(tmp_path):
    """r = 1/4: it uploads at length C below that, exactly, and else answers an empty array. Both
    are paid for, so that the ledger does not tell them apart."""
    update = np.array([0.3, 0.4, *[0.0] * (WEIGHTS.size - 2)])  # a quarter of C = 2
    quarter = 2**62
    coins = (0, quarter - 1, quarter, 2**64 - 1)
    sent = decided(tmp_path, update, coins)
    assert [one.size > 0 for one in sent] == [True, True, False, False]
    assert all(one.dtype == np.float32 for one in sent)
    for one in sent[:2]:
        assert np.linalg.norm(one) == pytest.approx(2.0, rel=1e-6)
        np.testing.assert_allclose(one / 2, update / 0.5, atol=1e-6)
    with DeviceLedger.open(tmp_path / "l.db") as ledger:
        assert sum(tally.sent for tally in ledger.tallies()) == 4


@pytest.mark.parametrize("value", [0.0, 1e-300, 1e-13, math.nan, math.inf])
def test_a_device_without_an_update_answers_nothing(tmp_path, value):
    (sent,) = decided(tmp_path, np.full(WEIGHTS.size, value))
    assert sent.size == 0


@pytest.mark.parametrize("rule", ["norm", "uniform", "full", "weights", "", "package.module:name"])
def test_a_device_decides_by_no_other_rule(tmp_path, rule):
    with pytest.raises(Refused) as caught:
        decided(tmp_path, np.ones(WEIGHTS.size), rule=rule)
    assert caught.value.code is Refusal.MALFORMED


def test_a_device_under_local_trust_tells_no_norm_by_uploading(tmp_path):
    with pytest.raises(Refused) as caught:
        decided(tmp_path, np.ones(WEIGHTS.size), trust="local", policy=POLICY)
    assert caught.value.code is Refusal.MALFORMED


def test_a_device_uploads_no_more_often_than_the_server_says(tmp_path):
    """A smaller largest probability holds; one above 1 is no number that a server may name."""
    far = np.full(WEIGHTS.size, 5.0)
    assert [one.size > 0 for one in decided(tmp_path, far, (2**63 - 1, 2**63), most=0.5)] == [
        True,
        False,
    ]
    with pytest.raises(Refused):
        decided(tmp_path, far, most=1.5)
