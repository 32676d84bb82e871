"""Lemmas 1 to 3 as experiments: `algorithm.play` itself, on fixed vectors, with fresh coins.

Two tables: what the paper claims, with a verdict on just that, and what one would want of such a
round, of the paper's and of ours. (Lemma 1 says "less than b" and Lemma 3 promises neither the
unweighted mean nor a variance: that few clients upload refutes neither.)

Each claim is tried twice: exactly, over every outcome of the coins of a few clients (3^n of them:
not asked, asked only, uploaded), and by Monte Carlo at the paper's size. A claim is refused where
the measured value is more than 5 standard errors off, which happens to a true one once in a million
times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from locksfl import _validate
from locksfl._arrays import Floats
from locksfl.paper.theory.fixed_clients import (
    FixedClients,
    Outcomes,
    arm_for,
    every_outcome,
    population,
    sampled,
)

ERRORS = 5.0  # standard errors that a true claim may be off


@dataclass(frozen=True)
class Finding:
    """A claim beside what came out."""

    lemma: int  # its number
    claim: str
    claimed: float  # the value that the claim means
    measured: float  # at the paper's size, by Monte Carlo
    standard_error: float  # of `measured`
    exact_claimed: float  # the same for a few clients, over every outcome
    exact: float  # what came out
    at_most: bool  # the claim is an upper bound
    why: str  # the claim holds, or does not

    @property
    def holds(self) -> bool:
        """Within the statistical and the rounding error, in both."""
        tried = (
            (self.measured - self.claimed, ERRORS * self.standard_error),
            (self.exact - self.exact_claimed, 1e-5 * max(1.0, abs(self.exact_claimed))),
        )
        return all((off if self.at_most else abs(off)) <= slack for off, slack in tried)

    @property
    def verdict(self) -> str:
        """The same as a word."""
        return "holds" if self.holds else "fails"


Settings = Mapping[str, str | float]
# What a claim is about: a number for each round, and the value that it should average to.
Measure = Callable[[FixedClients, Outcomes], tuple[Floats, float]]


def _count(fixed: FixedClients, rounds: Outcomes) -> tuple[Floats, float]:
    return rounds.uploads, fixed.uploads


def _along(target: Callable[[FixedClients], Floats]) -> Measure:
    """How much of the target arrives: 1 where the update averages to it."""

    def measure(fixed: FixedClients, rounds: Outcomes) -> tuple[Floats, float]:
        mean = target(fixed)
        return rounds.updates @ mean / (mean @ mean), 1.0

    return measure


def _variance(fixed: FixedClients, rounds: Outcomes) -> tuple[Floats, float]:
    """Around the weighted mean, beside what the corrected normalisation has."""
    spread = np.sum((rounds.updates - fixed.weighted_mean()) ** 2, axis=1)
    return spread, weighted_variance(fixed, 1.0)


def weighted_variance(fixed: FixedClients, coins: float) -> float:
    """Of (1 / (b s)) sum over Z of g_i at the rates s b w_i: (1 / (b s)) sum w_i (1 - s b w_i)
    |g_i|^2. s = 1 is the corrected normalisation, s = 1/n the printed one."""
    w, b = fixed.weights, fixed.uploads * coins
    squares = np.sum(fixed.clipped**2, axis=1)
    return float(np.sum(w * (1 - b * w) * squares) / b)


@dataclass(frozen=True)
class Claim:
    """What is said, of which round, and why it holds or does not."""

    lemma: int  # its number
    text: str  # the claim
    settings: Settings  # of the arm
    measure: Measure  # what is compared
    why: str
    at_most: bool = False  # an upper bound is claimed, not a value
    alike: bool = False  # all norms are C
    divisions: int = 0  # of the coin that sends b, by k = m/b
    lemma_3: bool = False  # rates b p_i / n, the sum times n/b: as printed


UNIFORM, NORM, WEIGHTS = ({"rule": rule} for rule in ("uniform", "norm", "weights"))
FLOORLESS: Settings = {**NORM, "floor": 0.0}
LITERAL: Settings = {**FLOORLESS, "estimator": "literal"}
NOISE: Settings = {"noise_multiplier": 0.5, "norm_multiplier": 0.3}
NOISED: Settings = {**NORM, **NOISE, "estimator": "horvitz-thompson", "trust": "local"}
MEAN, WEIGHTED_MEAN = _along(FixedClients.mean), _along(FixedClients.weighted_mean)

# fmt: off
PAPER = (
    Claim(1, "E|Z| <= b: uniform, p_j = 1", UNIFORM, _count,
          "equality: q/k = b/n for every client", at_most=True),
    Claim(1, "E|Z| <= b: the coin of Algorithm 1, p_j", FLOORLESS, _count,
          "p_j <= 1/k while norms are exact, because z_S' >= b C", at_most=True, divisions=1),
    Claim(1, "E|Z| <= b: the coin of the proof, p_j/k", FLOORLESS, _count,
          "p_j <= 1, whatever the noise of the norms", at_most=True, divisions=2),
    Claim(2, "E Delta = mean g: the proof, (1/b) sum g_j/p_j, coin p_j/k", FLOORLESS, MEAN,
          "the weights undo the coins", divisions=2),
    Claim(2, "E Delta = mean g: Algorithm 1, (1/b) sum g_j, coin p_j", LITERAL, MEAN,
          "nothing undoes the coins: p_j stays, and a factor b/m", divisions=1),
    Claim(3, "E Delta = sum p_i g_i", WEIGHTS, WEIGHTED_MEAN,
          "(n/b) times the rate b p_i/n", lemma_3=True),
    Claim(3, "E|Z| <= b", WEIGHTS, _count, "it is b/n", at_most=True, lemma_3=True),
)
WANTED = (
    Claim(1, "E|Z| = b: the coin of Algorithm 1, p_j", FLOORLESS, _count,
          "about b^2/m: p_j has a factor 1/k = b/m", divisions=1),
    Claim(1, "E|Z| = b: the coin of the proof, p_j/k", FLOORLESS, _count,
          "about b^3/m^2: 1/k twice", divisions=2),
    Claim(1, "E|Z| <= b: ours, by norm, norms that differ", NORM, _count,
          "less than b where the clamp K' >= b C binds", at_most=True),
    Claim(1, "E|Z| <= b: ours, by norm, all norms at C", NORM, _count,
          "our own clamp: K' <= m C, so a cohort above m sends b |X|/m",
          at_most=True, alike=True),
    Claim(2, "E Delta = mean g: ours, uniform", UNIFORM, MEAN, "weights are 1/p_i"),
    Claim(2, "E Delta = mean g: ours, by norm", NORM, MEAN, "weights are 1/p_i"),
    Claim(2, "E Delta = mean g: ours, horvitz-thompson, noised norms", NOISED, MEAN,
          "p_i depends on the cohort; given cohort and norms, the coin is p_i"),
    Claim(2, "E Delta = mean g: Algorithm 1's sum, our coin", {**NORM, "estimator": "literal"},
          MEAN, "without 1/p large norms count more, 1/k or not"),
    Claim(3, "E Delta = mean g: as printed", WEIGHTS, MEAN,
          "it is another objective, sum p_i f_i, as the lemma says", lemma_3=True),
    Claim(3, "E|Z| = b: as printed", WEIGHTS, _count, "b/n, because sum p_i = 1", lemma_3=True),
    Claim(3, "no round without an upload: as printed", WEIGHTS,
          lambda fixed, rounds: ((rounds.uploads == 0) * 1.0, 0.0),
          "prod (1 - b p_i/n) of them, about e^(-b/n)", lemma_3=True),
    Claim(3, "variance of ours: as printed", WEIGHTS, _variance,
          "(n/b) sum p_i (1 - b p_i/n) |g_i|^2: about n times as much", lemma_3=True),
    Claim(3, "E Delta = sum w_i g_i: ours", WEIGHTS, WEIGHTED_MEAN, "rates b w_i"),
    Claim(3, "E|Z| = b: ours", WEIGHTS, _count, "sum b w_i = b"),
    Claim(3, "variance (1/b) sum w_i (1 - b w_i) |g_i|^2: ours", WEIGHTS, _variance,
          "independent coins"),
)
# fmt: on
TABLES = {"what the paper claims": PAPER, "what one would want": WANTED}


def findings(repetitions: int = 20_000, seed: int = 0) -> dict[str, list[Finding]]:
    """Every claim of each table, tried at the paper's size (n = 100, m = 30, b = 20) and on 6
    clients."""
    _validate.count(repetitions=repetitions)
    _validate.non_negative(seed=seed)
    if repetitions < 100:
        raise ValueError(
            f"repetitions = {repetitions}: expected at least 100, to estimate the standard error"
        )
    return {
        title: [_try(claim, repetitions, seed) for claim in claims]
        for title, claims in TABLES.items()
    }


def _try(claim: Claim, repetitions: int, seed: int) -> Finding:
    large = population(100, 30.0, 20.0, claim.alike)
    small = population(6, 3.6, 2.0, claim.alike)
    values, claimed = claim.measure(large, _rounds(claim, large, repetitions, seed))
    outcomes = _rounds(claim, small)
    exact_values, exact_claimed = claim.measure(small, outcomes)
    return Finding(
        lemma=claim.lemma,
        claim=claim.text,
        claimed=claimed,
        measured=float(np.mean(values)),
        standard_error=float(np.std(values, ddof=1) / math.sqrt(repetitions)),
        exact_claimed=exact_claimed,
        exact=float(outcomes.chance @ exact_values),
        at_most=claim.at_most,
        why=claim.why,
    )


def _rounds(claim: Claim, fixed: FixedClients, repetitions: int = 0, seed: int = 0) -> Outcomes:
    """The claim's rounds: sampled, or every outcome where no number of repetitions is given."""
    settings = dict(claim.settings)
    assumed = arm_for(fixed, str(settings.pop("rule")), **settings)
    uploads = assumed.uploads * (assumed.uploads / assumed.cohort) ** claim.divisions
    arm = replace(assumed, uploads=uploads)
    public = fixed.weights if claim.lemma_3 else None  # in place of n w_i
    if repetitions:
        rounds = sampled(arm, fixed.vectors, repetitions, seed, public)
    else:
        rounds = every_outcome(arm, fixed.vectors, public)
    # the server divides the sum by what it assumes, whatever the coins are
    divisor = arm.parts[1].divisor
    scale = divisor(arm.dials()) / divisor(assumed.dials())
    scale *= len(fixed.vectors) if claim.lemma_3 else 1
    return rounds._replace(updates=scale * rounds.updates)
