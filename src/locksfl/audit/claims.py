"""The accountant against a simulation of what it charges: is epsilon too small?

One client's rounds are drawn again and again, from the coins, probabilities and shifts that the
rounds are played with, and not through the accountant's formulas. If the claim is true then

    E_P[max(0, 1 - e^(epsilon - L))] <= delta,     L the privacy loss, ln P/Q, over all rounds

in both directions. The mean of many draws is far more exact than a threshold attack: it refutes an
epsilon that is a few percent too small. The claim is tested at delta 1e-3, whatever that of the
experiment: the formulas are the same, and most of a smaller delta lies in draws that never happen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from locksfl._arrays import Floats
from locksfl.arm import Arm
from locksfl.audit.evidence import Evidence
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.costs import statement

DELTA = 1e-3
DRAWS = 200_000
MOST_ROUNDS = 64


def accountant(
    arms: Sequence[Arm], rounds: int, privacy: PrivacyConfig, rng: np.random.Generator
) -> tuple[bool, str]:
    """Whether the epsilon of these arms together, each for so many rounds, is large enough."""
    rounds = min(rounds, MOST_ROUNDS)
    played = [replace(arm, rounds=rounds) for arm in arms]
    observer = "PUBLIC" if arms[0].parts[2].amplified else "SERVER"
    claims = statement(played, replace(privacy, delta=DELTA))
    epsilon = next(c.epsilon for c in claims if (c.observer, c.relation) == (observer, "zero-out"))
    evidence, deltas = Evidence(), []
    for sign in (1, -1):
        loss = sum(_loss(arm, rounds, sign, rng) for arm in arms)
        passed = np.maximum(0.0, -np.expm1(np.minimum(0.0, epsilon - loss)))
        error = np.std(passed) / np.sqrt(DRAWS)
        deltas.append(float(np.mean(passed)))
        excess = deltas[-1] - DELTA
        evidence.add("delta", max(0.0, excess / error if error else np.inf * (excess > 0)))
    result = f"epsilon {epsilon:.2f} is passed with {max(deltas):.2e}, claimed {DELTA:.0e}"
    return evidence.verdict()[0], result


def _loss(arm: Arm, rounds: int, sign: int, rng: np.random.Generator) -> Floats:
    """DRAWS privacy losses of a client with norm C: it is there (1), or its update is zero (-1)."""
    if arm.controlled:  # which chooses between rates: the smallest and the largest in turn
        low, high = arm.at_rung(0), arm.at_rung(-1)
        first = _loss(low, -(-rounds // 2), sign, rng)
        return first + _loss(high, rounds // 2, sign, rng)
    arm = arm.at_public(0.0)  # at the least K'
    a = 1 / arm.norm_multiplier if arm.releases_norms else 0.0
    if arm.clip_quantile is not None:  # a member shifts norms and bits: together one shift
        a = math.hypot(a, 1 / arm.clip_multiplier)
    c = 1 / arm.update_multiplier
    if arm.count_noise:  # an upload shifts the count too: together one shift
        c = math.hypot(c, 1 / arm.count_noise)
    coins = arm.parts[2].amplified and arm.scheme.secret
    q, p = (arm.scheme.rate(arm), _largest(arm)) if coins else (1.0, 1.0)
    total = np.zeros(DRAWS)
    for _ in range(arm.scheme.times(arm, rounds)):  # of a client whose chance is in the first
        x, y = rng.standard_normal((2, DRAWS))
        if sign > 0:
            there = rng.random(DRAWS) < q
            x, y = x + a * there, y + c * (there & (rng.random(DRAWS) < p))
        inner = np.log((1 - p) + p * np.exp(c * y - c * c / 2))
        total += np.log((1 - q) + q * np.exp(a * x - a * a / 2 + inner))
    return sign * total


def _largest(arm: Arm) -> float:
    """The upload probability of a client with norm C at the least K', as the round clamps it."""
    rule, dials = arm.parts[0], arm.dials(float)
    if not rule.from_one_sum:  # K' has no public lower limit
        return float(dials.largest_probability)
    heaviest = float(np.max(arm.scaled_weights()))
    p = rule.probability(np.float64(arm.clip_norm), dials.least_norm_sum, heaviest, dials, np)
    return float(np.clip(p, 0.0, dials.largest_probability))
