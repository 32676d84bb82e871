"""200 random faults under the messages: no crash, no double draw, nobody over budget, all paid.

Whatever escapes `Device.answer` fails the test: a guard may refuse, it may not crash. The same
harness finds each of six faults that are planted in the guard.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from faults import KINDS, POLICY, charged, play_with_faults

from locksfl.federation.device import Guard, Refusal, Refused
from locksfl.round.noise import add_noise, gaussian_std


@pytest.mark.parametrize("seed", range(3))
def test_200_faults_cost_nothing_but_rounds(tmp_path, seed):
    federation = play_with_faults(tmp_path, Guard, seed, faults=200)
    watch = federation.watch
    assert sum(federation.injected.values()) == 200
    assert all(federation.injected[kind] > 20 for kind in KINDS)
    assert watch.violations == []
    # and it was no quiet time: releases were made, and each line of defence was tried
    assert watch.left > 40
    assert set(watch.refusals) >= {
        Refusal.MALFORMED,
        Refusal.NOISE,
        Refusal.REPEATED,
        Refusal.ORDER,
        Refusal.BUDGET,
    }
    for device in federation.devices:  # one that is opened again is whole, and within its budget
        with Guard.open(POLICY, device.path):
            assert charged(device.path) <= POLICY.budget.mu_squared * (1 + 1e-9)


def test_without_faults_every_question_is_answered_until_the_budget_ends(tmp_path):
    federation = play_with_faults(tmp_path, Guard, seed=1, faults=0)
    assert not federation.watch.refusals
    assert federation.watch.left > 60
    federation.play("until all is spent", 40)
    assert set(federation.watch.refusals) == {Refusal.BUDGET}
    assert federation.watch.violations == []


class PaysAfterwards(Guard):
    """Draws, then debits."""

    def release_norm(self, terms, norm):
        self.check(terms, "norm")
        add_noise(np.array([norm]), gaussian_std(terms.norm_multiplier, 1.0), self._noise)
        self._noise, quiet = None, self._noise
        with self._transaction():
            self._close_rounds(terms.run, terms.round - 1)
            self.ledger.enter(terms, "reserve")
        self._noise = quiet
        return 0.5


class AnswersAgain(Guard):
    """A replay gets an answer, with new noise."""

    def release_update(self, terms, contribution, bound):
        try:
            return super().release_update(terms, contribution, bound)
        except Refused as refused:
            if refused.code is not Refusal.REPEATED:
                raise
            return add_noise(np.ones(3), gaussian_std(terms.noise_multiplier, bound), self._noise)


class RoundForgotten(Guard):
    """Looks for a reservation of the run, not of the round."""

    def _admit(self, terms, stage):
        if stage == "update" and self.ledger.last_round(terms.run):
            return
        super()._admit(terms, stage)

    def release_update(self, terms, _contribution, bound):
        self._admit(terms, "update")
        return add_noise(np.ones(3), gaussian_std(terms.noise_multiplier, bound), self._noise)


class RefundsAnyTime(Guard):
    """A refund does not close the round, and follows every release."""

    def release_update(self, terms, _contribution, bound):
        with self._transaction():
            self._admit(terms, "update")
            self.ledger.enter(terms, "refund")
        return add_noise(np.ones(3), gaussian_std(terms.noise_multiplier, bound), self._noise)


class NoLimit(Guard):
    """Forgets the budget."""

    def _afford(self, charged, rounds):
        del charged, rounds


class LessNoise(Guard):
    """Half of the noise that is charged for."""

    def release_update(self, terms, _contribution, bound):
        with self._transaction():
            self._admit(terms, "update")
            self.ledger.enter(terms, "commit")
        std = gaussian_std(terms.noise_multiplier, bound) / 2
        return add_noise(np.ones(3), std, self._noise)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (PaysAfterwards, "unpaid release"),
        (AnswersAgain, "double draw"),
        (RoundForgotten, "double draw"),
        (RefundsAnyTime, "unpaid release"),
        (NoLimit, "over budget"),
        (LessNoise, "unpaid release"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, fault, found):
    for seed in itertools.count():
        folder = tmp_path / str(seed)
        folder.mkdir()
        violations = play_with_faults(folder, fault, seed, faults=200).watch.violations
        if any(found in told for told in violations):
            return
        assert seed < 3, f"not found: {violations}"
