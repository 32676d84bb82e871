"""Every rule against its formula, the largest probability that it states, its mean, and what it is
shown. A rule that needs more than a line here has a file of its own in tests/methods/rules."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import PLAIN_RULES, mean_is
from locksfl.arm import Arm, loss_bound_of
from locksfl.experiment.config import parse_config
from locksfl.methods import ESTIMATORS, RULES, TRUSTS
from locksfl.methods.sound import unsound
from rule_checks import (
    CLIPPED,
    ESTIMATES,
    GIVEN,
    N,
    arm_of,
    cohort_of_all,
    jointly_never_above_one,
    members_of,
    never_above_what_is_charged,
    played,
    probabilities,
    scores,
    sees_released_values_only,
    stage_one,
    unbiased_where_stated,
)

BY_VALUE = [name for name, rule in RULES.items() if rule.released and rule.from_one_sum]
JOINTLY = [name for name, rule in RULES.items() if rule.jointly]

# --- Formulas -------------------------------------------------------------------------------------

ROUND = {"norm": [3] * 5 + [0], "along": [6, 3, 0, -6, 0, 0], "last_norm": [2, 2, 2, 2, 0, 2]}
U = np.array([1.0, 2.0, 3.0])


def beside(v):
    """The facts of U and a last update v."""
    return {
        "norm": [np.linalg.norm(U)], "along": [U @ v], "last_norm": [np.linalg.norm(v)],
        "sum": [U.sum()], "last_sum": [np.sum(v)], "parameters": [3],
    }  # fmt: skip


SCORES = [  # rule, facts, what it asks of each client (C = 2), settings of the arm
    # along v, at 60 degrees, across, against; then v = 0 and u = 0
    ("angle", ROUND, [0, 2 / 3, 1, 2, 1, 1], {}),
    ("cosine", ROUND, [0, 0.5, 1, 2, 1, 1], {}),
    # two that do not vary come last
    *(("correlation", beside(v), [s], {})
      for v, s in (((3, 2, 1), 2.0), ((1, 3, 2), 0.5), ((2, 2, 2), 1.0), ((0, 0, 0), 1.0))),
    # |u| = 3, <u, v> = 1, |v| = 2, spread 2: sqrt(9 - 2 + 4 + 4); without v, norm and spread
    *(("delta", {"norm": [3, 3, 0.6], "along": [1, 1, 0], "last_norm": [2, 2, 0],
                 "spread": [2, 2, 0.8]}, wanted, more)
      for wanted, more in (([2, 2, 1], {}), ([15**0.5, 15**0.5, 1], {"clip_norm": 9.0}))),
    # v = (1, 0), u = (4, 0): g = (2, 0) is 1 from v; of equal lengths, u = (1/2, 0) is as far
    *(("delta", {"norm": [4, 0.5], "along": [4, 0.5], "last_norm": [1, 1], "spread": [0, 0]},
       wanted, more) for wanted, more in (([1, 0.5], {}), ([1, 1], {"lengths": "equal"}))),
    # over the bound B = 2.5; above it C, and what is no number is 0
    ("loss", {"loss": [0.0, 1.25, 2.5, 9.0, np.inf, np.nan]}, [0, 1, 2, 2, 2, 0], {}),
    ("loss", {"loss": [1.25]}, [0.5], {"loss_bound": 5.0}),
    # losses 3 and 4: sqrt(12.5) times the size, over B = 10
    ("oort", {"rms_loss": [12.5**0.5, 12.5**0.5, 40.0], "size": [1.0, 2.0, 1.0]},
     [2 * 12.5**0.5 / 10, 4 * 12.5**0.5 / 10, 2], {"loss_bound": 10.0}),
    # r = 0.6, d z^2 = 12 * 0.25: C sqrt((0.36 + 3) / 4); without noise, the norm
    ("noise-aware", {"norm": [1.2, 9.0, 0.0], "parameters": [12] * 3},
     [2 * 0.84**0.5, 2, 2 * 0.75**0.5],
     {"trust": "local", "noise_multiplier": 0.5, "norm_multiplier": 1.0}),
    ("noise-aware", {"norm": [1.2, 9.0, 0.0], "parameters": [12] * 3}, [1.2, 2, 0], {}),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "facts", "expected", "more"), SCORES)
def test_what_a_rule_asks_of_a_client(rule, facts, expected, more):
    np.testing.assert_allclose(scores(rule, facts, **more), expected, rtol=1e-5, atol=1e-6)


def test_each_score_is_tried_above():
    by_score = {name for name, rule in RULES.items() if rule.score and not rule.compares}
    assert {rule for rule, *_ in SCORES} == by_score


EVEN = (0.1,) * 10


@pytest.mark.parametrize(
    ("rule", "public", "weight", "more", "expected"),
    [  # of clients with values 0, 1 and 2; b = 3, m = 6, C = 2
        ("norm", 8.0, 1.0, {}, [0.05, 0.9 * 3 / 8 + 0.05, 0.9 * 6 / 8 + 0.05]),
        ("fedis", 8.0, 1.0, {}, [0, 3 / 8, 6 / 8]),
        ("uniform", 0.0, 1.0, {}, [0.5] * 3),
        ("full", 0.0, 1.0, {"uploads": None}, [1.0] * 3),
        ("weights", 0.0, np.array([0.0, 1.0, 2.0]), {"weights": EVEN}, [0, 0.5, 1]),
    ],
)
def test_the_probability_of_a_value(rule, public, weight, more, expected):
    p = probabilities(rule, [0.0, 1.0, 2.0], public, weight, **more)
    np.testing.assert_allclose(p, expected, rtol=1e-12)


def test_rules_by_order():
    """Power of choice: the largest losses. Top-k: the largest norms, equal ones share what is left,
    the absent are nobody; norms that are clipped are all alike. Rank: 100^(-rank / n), limited to
    1, and the least probability is what a bound is made of."""
    p, _ = stage_one(cohort_of_all("power-of-choice", 4, 2.0), [0.1, 0.4, 0.3, 0.2])
    np.testing.assert_allclose(p, [0, 1, 1, 0])
    arm, there = cohort_of_all("top-k", 6, 2.5, clip_norm=1.0), [True] * 5 + [False]
    p, norms = stage_one(arm, [0.5, 0.1, 0.9, 0.5, 0.0, 0.8], members_of(6, there))
    np.testing.assert_allclose(p, [0.75, 0, 1, 0.75, 0, 0])
    assert float(norms.used) == 0.75
    p, _ = stage_one(cohort_of_all("top-k", 3, 1.0), [7.0, 8.0, 9.0])
    np.testing.assert_allclose(p, [1 / 3] * 3, rtol=1e-6)
    losses = np.array([0.3, 0.9, 0.1, 0.5, 0.7])
    p, norms = stage_one(cohort_of_all("rank", 5, 1.0), losses)
    by_rank = 100.0 ** (-np.array([3, 0, 4, 2, 1]) / 5)
    np.testing.assert_allclose(p, by_rank / by_rank.sum(), rtol=1e-5)
    assert float(norms.used) == pytest.approx(p.min())
    p, _ = stage_one(cohort_of_all("rank", 5, 3.0), losses)
    assert (p.sum(), p.max()) == (pytest.approx(3.0, rel=1e-6), 1.0)
    below = p < 1
    np.testing.assert_allclose(p[below] / by_rank[below], (p / by_rank)[below][0], rtol=1e-5)
    p, _ = stage_one(cohort_of_all("rank", 4, 2.0), [0.0] * 4)
    np.testing.assert_allclose(p, [0.5] * 4, rtol=1e-6)


def test_the_public_sum_and_the_uploads_to_expect():
    """K' from K_low = 0.5 m C = 6 to m C = 12; uploads (1 - lambda) b K~ / K' + lambda b."""
    arm = arm_of("norm", norm_low=0.5)
    settled = [float(RULES["norm"].settle(k, arm.dials(float), np)) for k in (-9.0, 8.0, 99.0)]
    assert settled == [6.0, 8.0, 12.0]
    uploads = [RULES["norm"].estimated_uploads(k, 6.0, arm) for k in (-1.0, 4.0, 6.0)]
    np.testing.assert_allclose(uploads, [0.3, 0.9 * 2 + 0.3, 3])


def test_the_loss_bound_follows_from_the_number_of_classes():
    """A guess among k classes loses ln k: the bound of an experiment is a little above it. What the
    file says counts, other rules have none, and an arm without data has that of about ten."""

    def bound(data, rule="loss", more=""):
        text = f"""
            data = {{ name = "{data}", clients = 12 }}
            privacy = {{ trust = "none" }}
            arm = [{{ name = "a", rule = "{rule}", cohort = 6, uploads = 3{more} }}]
        """
        return parse_config(text, seed=1).arms[0].loss_bound

    for rule in ("loss", "oort", "rank", "power-of-choice"):
        assert bound("mnist-embedded", rule) == pytest.approx(1.1 * np.log(10), abs=1e-3)
    assert bound("shakespeare") == pytest.approx(1.1 * np.log(80), abs=1e-3)
    assert bound("shakespeare", more=", loss_bound = 3.0") == 3.0
    assert bound("shakespeare", "norm") == 1.0
    assert Arm("a", 12, 5, "loss", cohort=6.0, trust="none").loss_bound == 2.5
    assert all(loss_bound_of(k) > np.log(k) for k in (1, 2, 3, 10, 80, 10**6))


# --- What is charged ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", BY_VALUE)
def test_no_probability_is_above_what_is_charged(rule):
    never_above_what_is_charged(rule)


@pytest.mark.parametrize("rule", JOINTLY)
def test_no_probability_of_a_rule_by_order_is_above_one(rule):
    jointly_never_above_one(rule)


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.compares])
def test_under_local_trust_a_rule_sees_released_values_only(rule):
    joint = RULES[rule].jointly
    sees_released_values_only(rule, "probability" if joint else "settle_from_all")


def test_the_largest_probability_of_rules_that_ask_for_nothing():
    full = arm_of("full", uploads=None)
    assert full.largest_probability == 1
    assert full.cohort == full.uploads == full.clients
    with pytest.raises(ValueError, match="asks all 10 clients"):
        arm_of("full")
    assert arm_of("uniform").largest_probability == 0.5
    assert arm_of("weights", weights=EVEN).largest_probability == pytest.approx(0.5)
    heavy = (0.15, *[0.85 / 9] * 9)
    assert arm_of("weights", weights=heavy).largest_probability == pytest.approx(0.75)


@settings(max_examples=50, deadline=None)
@given(
    share=st.floats(1e-3, 1.0),
    low=st.floats(0.0, 1.0),
    floor=st.floats(0.0, 0.999),
    clip=st.sampled_from([1e-3, 1.0, 1e3]),
    seed=st.integers(0, 1000),
)
def test_probabilities_are_probabilities(share, low, floor, clip, seed):
    """In [0, 1] before the clip removes rounding, for any norms up to C and any K' allowed. A rule
    that asks for nothing does not look at norms: nothing is charged for them."""
    rng = np.random.default_rng(seed)
    own = np.concatenate([[0, clip], rng.uniform(0, clip, 6)]).astype(np.float32)
    for name in PLAIN_RULES:
        rule, more = RULES[name], {"clip_norm": clip}
        if not rule.everyone:
            more |= {"cohort": 30.0, "uploads": None if rule.count_share else 30.0 * share}
        if "norm_low" in rule.takes:
            more |= {"norm_low": max(share + low * (1 - share), 30.0 * share / 30.0)}
        more |= {"floor": floor} if "floor" in rule.takes else {}
        if "weights" in rule.takes:
            more |= {"weights": (1 / 60,) * 60}
        arm = arm_of(name, 60, **({"uploads": None} | more))
        dials = arm.dials()
        public = jnp.clip(own.sum(), dials.least_norm_sum, dials.cohort * dials.clip_norm)
        p, other = (
            np.asarray(rule.probability(jnp.asarray(norms), public, jnp.float32(1), dials, jnp))
            for norms in (own, own[::-1])
        )
        assert (p.min() >= 0, p.max() <= 1 + 1e-6) == (True, True), name
        assert rule.asks is not None or np.array_equal(p, other), name


# --- The mean -------------------------------------------------------------------------------------

MEANS = [
    *itertools.product(BY_VALUE, ESTIMATES),
    ("fedis", ("capped", "local")),
    *itertools.product(["uniform"], [("capped", trust) for trust in TRUSTS]),
    *itertools.product(["rank"], [("horvitz-thompson", "none"), ("capped", "none"),
                                  ("horvitz-thompson", "local")]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "estimator", "trust"),
    [(rule, *pair) for rule, pair in MEANS
     if not unsound(RULES[rule], ESTIMATORS[pair[0]], TRUSTS[pair[1]])],
)  # fmt: skip
def test_an_estimate_is_unbiased_where_that_is_stated_and_nowhere_else(rule, estimator, trust):
    unbiased_where_stated(rule, estimator, trust)


@pytest.mark.parametrize("trust", TRUSTS)
def test_the_mean_of_weights_is_the_weighted_one_and_that_of_all_is_exact(trust):
    """False alarms: 1e-6. A mean that is 2% off is rejected."""
    w = np.linspace(1, 2, N)
    w /= w.sum()
    unbiased_where_stated("weights", "weighted", trust, mean=w @ CLIPPED, weights=tuple(w))
    noise = {"noise_multiplier": 0.05} if trust != "none" else {}
    updates = played(arm_of("full", N, uploads=None, trust=trust, **noise))
    assert mean_is(updates, CLIPPED.mean(axis=0))
    assert not mean_is(updates, 1.02 * CLIPPED.mean(axis=0))


def test_the_mean_of_the_largest_is_theirs():
    """Divided by b; of norms that are clipped alike, each has its share. False alarms: 1e-6; the
    mean of all is rejected."""
    lengths = np.round(np.linalg.norm(CLIPPED, axis=1), 9)
    least = np.sort(lengths)[-6]
    above, at = lengths > least, lengths == least
    shares = {
        "power-of-choice": np.isin(np.arange(N), np.argsort(-GIVEN["loss"])[:6]),
        "top-k": np.where(above, 1.0, (6 - above.sum()) / at.sum() * at),
    }
    for rule, share in shares.items():
        arm = cohort_of_all(rule, N, 6.0, clip_norm=2.0)
        assert (arm.estimator, arm.unbiased) == ("literal", False)
        updates = played(arm)
        assert mean_is(updates, share @ CLIPPED / 6), rule
        assert not mean_is(updates, CLIPPED.mean(axis=0))


def test_default_estimators_follow_what_a_rule_states():
    """Without noise nothing is lost by being unbiased; with it, one bound for all keeps the noise
    small; and noise that is divided by p has the rule that is optimal for it."""
    for rule, trust, estimator in (
        ("noise-aware", "local", "horvitz-thompson"), ("noise-aware", "central", "capped"),
        ("norm", "local", "capped"), ("rank", "local", "horvitz-thompson"),
    ):  # fmt: skip
        assert arm_of(rule, trust=trust).estimator == estimator
    assert arm_of("noise-aware", trust="local").unbiased
    with pytest.raises(ValueError, match="a noised norm may be 0"):
        arm_of("fedis", trust="local", estimator="horvitz-thompson")
