"""What methods state of themselves is charged, enforced and searched: no name decides anything."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.audit.statements import broken_statements
from locksfl.methods import ESTIMATORS, RULES, TRUSTS, find_rule
from locksfl.methods.estimators import Estimator
from locksfl.methods.events import Rounds
from locksfl.methods.releases import UPDATE
from locksfl.methods.rules import NORM, Rule
from locksfl.methods.sound import unsound
from locksfl.privacy import guarantee
from locksfl.privacy.accountant import epsilon_of
from locksfl.privacy.journal import Header
from locksfl.round.algorithm import GivenClients, play
from locksfl.round.draws import Members, ServerDraws
from locksfl.round.floats import FloatSums

CLIENTS = 20
NORM_RULE, CAPPED = RULES["norm"], ESTIMATORS["capped"]


def arm_of(rule: str, estimator: str = "capped", trust: str = "local", **more) -> Arm:
    numbers = {"noise_multiplier": 4.0, "norm_multiplier": 6.0, "uploads": 5.0, "cohort": 10.0}
    if not find(rule).released:
        numbers["norm_multiplier"] = 0.0
    if find(rule).everyone:
        numbers |= {"uploads": None, "cohort": None}
    elif find(rule).all_clients:
        numbers["cohort"] = None
    if "weights" in find(rule).takes:
        w = 1.0 + np.arange(CLIENTS) % 3
        numbers["weights"] = tuple(w / w.sum())
    return Arm.of("a", CLIENTS, 50, rule, estimator, trust, **(numbers | more))


def find(rule: str) -> Rule:
    return find_rule(rule)


@pytest.fixture
def own(monkeypatch):
    """Register methods under made-up module names, as a user's own files have them."""

    def register(method):
        module = types.ModuleType("a_users_own")
        module.method = method
        monkeypatch.setitem(sys.modules, "a_users_own", module)
        return "a_users_own:method"

    return register


def renamed(**changes) -> Rule:
    return dataclasses.replace(NORM_RULE, name="second", **changes)


SOUND = [
    (rule, estimator, trust)
    for rule, estimator, trust in itertools.product(RULES, ESTIMATORS, TRUSTS)
    if not unsound(RULES[rule], ESTIMATORS[estimator], TRUSTS[trust])
]


@pytest.mark.parametrize(("rule", "estimator", "trust"), SOUND)
def test_no_registered_statement_is_broken_by_the_search(rule, estimator, trust):
    for seed, (clip_norm, uploads) in enumerate(((1.0, 5.0), (0.03, 9.0), (40.0, 0.5))):
        numbers = {} if RULES[rule].everyone else {"uploads": uploads}
        if "norm_low" in RULES[rule].takes:
            numbers |= {"floor": 0.2, "norm_low": 0.9}
        arm = arm_of(rule, estimator, trust, clip_norm=clip_norm, **numbers)
        assert broken_statements(arm, seed) == []


def test_the_search_finds_a_probability_and_a_bound_that_are_stated_too_small(own):
    low = renamed(largest_probability=lambda arm: 0.5 * NORM_RULE.largest_probability(arm))
    (said,) = broken_statements(arm_of(own(low)))
    assert re.search(r"at most 0\.475 and gives 0\.9[45]", said)
    tight = dataclasses.replace(
        CAPPED, bound=lambda p, at, clip, xp: clip + 0 * p, weight=lambda norm, p, bound, xp: 1 / p
    )
    (said,) = broken_statements(arm_of("uniform", own(tight)))
    assert "states a bound of 1 " in said
    negative = renamed(probability=lambda own, public, weight, dials, xp: own - 0.5)
    assert any("-0.5 as a probability" in said for said in broken_statements(arm_of(own(negative))))


def test_a_second_rule_that_releases_norms_is_charged_like_the_first(own):
    second = arm_of(own(renamed()))
    first = arm_of("norm")
    for arm in (first, second):
        costs = {(c.observer, c.relation): c.epsilon for c in guarantee([arm], 1e-5, "pld")}
        for relation in ("zero-out", "replace"):
            seen = [Rounds(one, 50) for one in arm.messages()]
            both = epsilon_of(seen, 1e-5, relation).epsilon
            updates = epsilon_of(seen[:1], 1e-5, relation).epsilon
            assert costs["SERVER", relation] == pytest.approx(both)
            assert both > 1.05 * updates  # an uncharged norm would be seen
    assert second.messages() == first.messages()
    assert second.event() == first.event()


@pytest.mark.parametrize(
    ("changes", "trusts", "said"),
    [
        ({"released": False}, ["local"], "a norm that is not released"),
        ({"largest_probability": None}, ["local", "central"], "states no largest probability"),
        ({"jointly": True}, ["central"], "other clients' raw values"),
    ],
)
def test_a_rule_that_does_not_state_what_it_does_is_refused_with_privacy(
    own, changes, trusts, said
):
    name = own(renamed(**changes))
    for trust in trusts:
        with pytest.raises(ValueError, match=said) as refusal:
            arm_of(name, trust=trust, norm_multiplier=6.0)
        assert "\n" not in str(refusal.value)
        assert name in str(refusal.value)
    arm_of(name, trust="none", noise_multiplier=0.0, norm_multiplier=0.0)


def test_an_estimator_without_a_bound_is_refused_with_privacy(own):
    name = own(dataclasses.replace(CAPPED, bound=None))
    for trust in ("local", "central"):
        with pytest.raises(ValueError, match="states no bound"):
            arm_of("uniform", name, trust)
    arm_of("uniform", name, "none", noise_multiplier=0.0)


def test_a_largest_probability_that_is_none_is_refused(own):
    for stated in (0.0, -1.0, float("nan")):
        arm = arm_of(own(renamed(largest_probability=lambda arm, p=stated: p)))
        with pytest.raises(ValueError, match=r"expected a number in \(0, 1\]"):
            arm.event()
    assert arm_of(own(renamed(largest_probability=lambda arm: 7.0))).largest_probability == 1.0


def test_a_rule_cannot_release_what_it_does_not_ask_for():
    with pytest.raises(ValueError, match="does not ask for"):
        Rule("r", "", NORM_RULE.probability, released=True)


def round_of(arm: Arm, updates: np.ndarray, coins: float):
    n = len(updates)
    ones = jnp.ones(n)
    members = Members(jnp.arange(n), ones > 0, ones, coins * ones, 0 * ones)
    quiet = FloatSums(ServerDraws(jnp.zeros(()), jnp.zeros(updates.shape[1])))
    return play(
        arm.method, GivenClients(jnp.asarray(updates, jnp.float32)), members, quiet, arm.dials()
    )


@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_probability_above_its_statement_is_clamped_by_the_round(own, trust):
    greedy = Rule(
        "greedy", "", lambda own, public, weight, dials, xp: own * 0 + 0.9, lambda arm: 0.3
    )
    arm = arm_of(own(greedy), trust=trust)
    updates = np.ones((4, 3))
    for coins, expected in ((0.29, 4), (0.31, 0), (0.89, 0)):
        _, uploads, _ = round_of(arm, updates, coins)
        assert int(uploads.uploaded.sum()) == expected
    assert arm.event().sampling_rate == pytest.approx(0.5 * 0.3)
    wild = Rule("wild", "", lambda own, *_: own / 0.0, lambda arm: 0.3)
    _, uploads, _ = round_of(arm_of(own(wild), trust=trust), updates, 0.0)
    assert not uploads.uploaded.any()  # 0/0 is no probability


@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_contribution_above_its_stated_bound_is_cut_by_the_round(own, trust):
    loud = Estimator(
        "loud",
        "",
        weight=lambda norm, p, bound, xp: 1e6 + 0 * p,
        bound=lambda p, at_clip, clip, xp: 2.0 * clip + 0 * p,
        divisor=lambda dials: dials.cohort,
    )
    arm = arm_of("full", own(loud), trust)
    updates = np.array([[0.6, 0.8, 0.0]])
    result, uploads, _ = round_of(arm, updates, 0.0)
    assert np.linalg.norm(result.update) * arm.cohort == pytest.approx(2.0, rel=1e-5)
    assert float(uploads.scale[0]) == pytest.approx(2.0)


@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_bound_that_is_not_stated_as_a_clients_own_is_the_same_for_all(own, trust):
    sly = dataclasses.replace(
        CAPPED,
        bound=lambda p, at_clip, clip, xp: clip / p,  # noise on a sum could not follow it
        weight=lambda norm, p, bound, xp: 1 / p,
    )
    arm = arm_of("norm", own(sly), trust, norm_low=0.8, floor=0.1)
    _, uploads, norms = round_of(arm, np.eye(3) * [[1.0], [0.1], [0.01]], 0.0)
    assert np.allclose(uploads.scale, uploads.scale[0])
    assert (uploads.coefficient * norms <= uploads.scale * (1 + 1e-5)).all()


def test_a_rule_sees_one_client_at_a_time_under_a_private_trust(own):
    shapes = []

    def nosy(own, *others):
        shapes.append(np.shape(own))
        return own / others[-1].max(own)  # the largest of all, if it could

    name = own(renamed(probability=nosy, largest_probability=lambda arm: 1.0))
    updates = np.diag([1.0, 0.5, 0.25])
    _, uploads, _ = round_of(arm_of(name, trust="central"), updates, 0.9)
    assert set(shapes) == {()}
    assert uploads.uploaded.all()  # each is its own largest


def test_a_rule_that_compares_clients_runs_without_privacy(own):
    def largest_two(own, *others):
        xp = others[-1]
        return (own >= xp.sort(own)[-2]).astype(xp.float32)

    top = Rule("top", "", largest_two, asks=NORM, released=True, jointly=True)
    arm = arm_of(own(top), "literal", "none", noise_multiplier=0.0, norm_multiplier=0.0)
    _, uploads, _ = round_of(arm, np.diag([0.2, 0.9, 0.1, 0.5]), 0.5)
    assert uploads.uploaded.tolist() == [False, True, False, True]


@pytest.mark.parametrize("trust", ["central", "local"])
def test_an_estimator_sees_one_client_at_a_time_too(own, trust):
    """A weight that looked at all clients would let one of them move the others' contributions."""
    shapes = set()

    def nosy_weight(norm, *more):
        shapes.add(np.shape(norm))
        return more[1] / more[2].max(norm)

    def sized_bound(p, *more):
        shapes.add(np.shape(p))
        return more[1] * more[2].ones_like(p) * np.size(p)

    nosy = dataclasses.replace(CAPPED, weight=nosy_weight, bound=sized_bound)
    arm = arm_of("full", own(nosy), trust)
    alone = round_of(arm, np.array([[0.1, 0.0]]), 0.0)[1]
    beside = round_of(arm, np.array([[0.1, 0.0], [1.0, 0.0]]), 0.0)[1]
    assert shapes == {()}
    assert float(alone.coefficient[0]) == float(beside.coefficient[0])
    assert (beside.scale == 1.0).all()


def test_a_method_that_returns_an_array_for_a_client_is_refused(own):
    pair = renamed(probability=lambda own, *_: np.ones(2) * own)
    with pytest.raises((TypeError, ValueError), match="reshape"):
        round_of(arm_of(own(pair)), np.ones((3, 2)), 0.5)


def test_updates_too_short_to_be_measured_stay_within_their_bound(own):
    """Squares below 1e-38 are 0 in float32: such an update is longer than its measured norm."""
    unit = dataclasses.replace(CAPPED, weight=lambda norm, p, bound, xp: bound / norm)
    for estimator in (own(unit), "capped"):
        arm = arm_of("norm", estimator, "central", floor=0.0)
        updates = np.full((1, 100_000), 1.05e-19)
        updates[0, 0] = 1.2e-19
        result, uploads, _ = round_of(arm, updates, 0.0)
        sent = float(np.linalg.norm(np.asarray(result.update, np.float64))) * arm.cohort
        assert sent <= float(uploads.scale[0])
        assert np.isfinite(np.asarray(result.update)).all()


def test_only_the_norm_can_be_asked_for():
    with pytest.raises(ValueError, match="expected NORM"):
        renamed(asks=UPDATE)
    with pytest.raises(ValueError, match="expected NORM"):
        renamed(asks=dataclasses.replace(NORM))


def test_a_ledger_remembers_what_methods_released(own):
    """Whatever they state when it is read."""
    written = json.dumps(header_of(own(renamed())).as_dict())
    now = header_of(own(renamed(largest_probability=lambda arm: 0.01)))
    again = Header.read(json.loads(written))
    assert json.dumps(again.as_dict()) == written
    assert again.arms[0].terms != now.arms[0].terms


def header_of(rule):
    arm = arm_of(rule, trust="central")
    return Header.of("e", [(arm, None)], delta=1e-5, relation="zero-out", accountant="pld")


def test_the_credit_needs_everybody_to_upload_whatever_their_weights(own):
    rule = dataclasses.replace(
        RULES["weights"],
        probability=lambda own, public, weight, *_: 0.11 / weight,
        largest_probability=lambda arm: 1.0,
    )
    weights = np.ones(CLIENTS)
    weights[0] = 0.01
    arm = arm_of(
        own(rule),
        "weighted",
        cohort=CLIENTS,
        uploads=CLIENTS,
        weights=tuple(weights / weights.sum()),
    )
    assert not arm.everyone_uploads
    assert arm_of("full").everyone_uploads
