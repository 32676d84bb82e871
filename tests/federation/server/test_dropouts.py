"""What a dropout does to the estimator. False-alarm rate of the bounds: below 1e-6 (6 standard
errors over 60 rounds; seeds are fixed), and each is shown to reject what is not so."""

from __future__ import annotations

import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.federation.server.rounds import draw_round, play_round, round_terms
from locksfl.federation.wire import Answer
from locksfl.round.randomness import Randomness
from memory_network import MemoryNetwork

CLIENTS, SIZE, ROUNDS = 300, 2, 60
VECTORS = np.random.default_rng(1).normal(size=(CLIENTS, SIZE)) * 0.1 + [0.3, 0.1]
PLAN = Arm.of(
    "arm",
    rule="norm",
    trust="central",
    clients=CLIENTS,
    rounds=ROUNDS,
    cohort=200.0,
    uploads=100.0,
    clip_norm=1.0,
    step=1.0,
    floor=0.1,
    norm_low=0.5,
    noise_multiplier=1e-3,
    norm_multiplier=1e-3,
)


def honest(number):
    """A device without a guard: exact answers, quickly."""
    vector = VECTORS[number]

    def respond(run, question, kept):
        del run, kept
        if question.stage == "norm":
            return Answer(released=np.array([np.linalg.norm(vector)]))
        return Answer(released=(vector / question.probability).astype(np.float32))

    return respond


class LossyNetwork(MemoryNetwork):
    """Answers get lost: with these probabilities for each device, in one of the stages."""

    def __init__(self, stage, lost):
        super().__init__({i: honest(i) for i in range(CLIENTS)})
        self.stage, self.lost, self.rng = stage, lost, np.random.default_rng(5)

    def ask(self, questions, seconds, round_number):
        answers = super().ask(questions, seconds, round_number)
        if next(iter(questions.values())).stage != self.stage:
            return answers
        kept = self.rng.random(CLIENTS) >= self.lost
        return {i: a for i, a in answers.items() if kept[i]}


def average(stage, lost):
    """The mean over many rounds of the server's update, and its standard error."""
    network, source = LossyNetwork(stage, lost), Randomness.seeded(3)
    updates, shares = [], []
    for t in range(ROUNDS):
        played = play_round(
            PLAN,
            network,
            np.zeros(SIZE, np.float32),
            draw_round(PLAN, source, t, SIZE),
            terms=round_terms(PLAN, "r", t + 1, "zero-out"),
            seconds=1.0,
            reserve=lambda cohort: cohort,
        )
        updates.append(np.asarray(played.result.update))
        tally = played.tallies[stage]
        shares.append(tally.missing / tally.asked)
    error = np.std(updates, axis=0, ddof=1) / np.sqrt(ROUNDS)
    return np.mean(updates, axis=0), error, np.mean(shares)


def far(mean, error, target):
    return (np.abs(mean - target) > 6 * error).any()


def test_without_dropouts_it_is_the_mean():
    mean, error, missing = average("update", np.zeros(CLIENTS))
    assert missing == 0
    assert not far(mean, error, VECTORS.mean(axis=0))
    assert far(mean, error, 0.9 * VECTORS.mean(axis=0))


@pytest.mark.parametrize("stage", ["norm", "update"])
def test_an_independent_dropout_scales_the_mean_by_the_answer_rate(stage):
    mean, error, missing = average(stage, np.full(CLIENTS, 0.3))
    assert missing == pytest.approx(0.3, abs=0.03)  # and the share is reported
    assert not far(mean, error, 0.7 * VECTORS.mean(axis=0))
    assert far(mean, error, VECTORS.mean(axis=0))


def test_a_dropout_that_depends_on_the_data_biases_the_mean():
    """Each device's share is multiplied by the probability that its answer comes."""
    lost = np.where(VECTORS[:, 1] > 0.1, 0.9, 0.0)
    mean, error, missing = average("update", lost)
    assert not far(mean, error, ((1 - lost)[:, None] * VECTORS).mean(axis=0))
    assert far(mean, error, (1 - missing) * VECTORS.mean(axis=0))  # no scale of the mean
