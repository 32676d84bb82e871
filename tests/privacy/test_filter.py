"""The filter: no client passes its budget, whatever is drawn, and results do not depend on how the
rounds were cut into blocks."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import charged_arm, client_cost, filter_of
from locksfl.experiment.config import parse_config
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.plan import plan_arms
from locksfl.privacy import Budget, calibrate_local, epsilon_from_mu
from locksfl.privacy.ledger import account_ledger, read_run
from locksfl.simulate import simulator as simulate
from small_runs import CENTRAL, costs, lines, new_path, play, run_experiment, summary

ROUNDS = 12
FILTERED = (
    "privacy.trust=local",
    "privacy.filter=true",
    "privacy.epsilon=20.0",
    "privacy.releases=3",
    f"train.rounds={ROUNDS}",
    "train.evaluate_every=12",
)


@functools.cache
def run(relation="zero-out"):
    return play(parse_config(CENTRAL, (*FILTERED, f"privacy.relation={relation}"), 5))


@given(
    rule=st.sampled_from(["uniform", "norm"]),
    relation=st.sampled_from(["zero-out", "replace"]),
    noise=st.floats(0.5, 20),
    norm=st.floats(0.5, 20),
    rounds=st.integers(1, 40),
    epsilon=st.floats(0.5, 60),
    sampler=st.sampled_from(["coins", "everybody", "one", "greedy", "never uploads"]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=200)
def test_no_client_passes_its_budget_whatever_the_sampler_does(
    rule, relation, noise, norm, rounds, epsilon, sampler, seed
):
    """And nobody is turned away too early: who cannot pay would pass the budget by a round."""
    norm_multiplier = norm if rule == "norm" else None
    terms = charged_arm("local", rule, 6, rounds, 3.0, 3.0, 0.0, 1.0, noise, norm_multiplier)
    budget = Budget(epsilon, 1e-5, relation)
    cost = client_cost(terms, 1, relation=relation)
    if cost > budget.mu_squared:
        with pytest.raises(ValueError, match="less than the cost of one round"):
            filter_of(terms, budget)
        return
    kept, rng, everyone = filter_of(terms, budget), np.random.default_rng(seed), np.arange(6)
    for _ in range(rounds + 3):  # more than were planned: a filter does not trust the plan
        heads = {"coins": everyone[rng.random(6) < 0.5], "one": everyone[:1]}.get(sampler, everyone)
        if sampler == "greedy":  # whoever has spent most is asked again
            heads = everyone[np.argsort(-kept.uploads)[:2]]
        before = kept.can_pay()
        asked = kept.ask(heads)
        drawn = rng.random(len(asked)) < 0.5 if sampler == "coins" else np.ones(len(asked), bool)
        kept.enter(asked, np.zeros(len(asked), bool) if sampler == "never uploads" else drawn)
        for i in np.setdiff1d(heads, asked):
            assert not before[i]
    for n, u, pays in zip(kept.norms, kept.uploads, kept.can_pay(), strict=True):
        here = client_cost(terms, int(u), int(n), relation)
        assert here <= budget.mu_squared
        assert epsilon_from_mu(math.sqrt(here), 1e-5) <= epsilon * (1 + 1e-9)
        if not pays and max(n, u) < rounds:
            assert here + cost > budget.mu_squared * (1 - 1e-12)


def test_counts_of_its_own_stay_within_the_budget():
    """Norms and uploads counted here, not by the filter: at most the budget, and nearly all of it
    by those that are asked whenever they can pay."""
    terms = charged_arm("local", "norm", 6, 60, 3.0, 3.0, 0.0, 1.0, 2.0, 4.0)
    limit = 20 * client_cost(terms, 1)
    kept = filter_of(terms, Budget(epsilon_from_mu(math.sqrt(limit), 1e-5), 1e-5))
    norms, uploads, rng = np.zeros(6), np.zeros(6), np.random.default_rng(0)
    for _ in range(60):
        asked = kept.ask(np.arange(6))
        drawn = rng.random(asked.size) < 0.7
        kept.enter(asked, drawn)
        norms[asked] += 1
        uploads[asked[drawn]] += 1
    spent = norms / 4.0**2 + uploads / 2.0**2
    assert 0.9 * limit < spent.min()
    assert spent.max() <= limit * (1 + 1e-9)


def test_the_filter_is_not_idle_and_refuses_who_cannot_pay():
    made = calibrate_local(8.0, 1e-5, uploads=3)
    terms = charged_arm("local", "uniform", 4, 10, 4.0, 4.0, noise_multiplier=made.noise_multiplier)
    kept = filter_of(terms, Budget(8.0, 1e-5))
    who = np.array([0, 2])
    for _ in range(3):
        kept.enter(kept.ask(who), np.ones(2, bool))
    assert kept.ask(np.arange(4)).tolist() == [1, 3]
    assert kept.exhausted == 2
    for wrong in ([0], [1, 1]):
        with pytest.raises(ValueError, match="cannot pay was asked"):
            kept.enter(np.array(wrong), np.zeros(len(wrong), bool))
    assert kept.uploads.tolist() == [3, 0, 3, 0]


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_a_run_keeps_every_clients_budget_and_says_who_is_exhausted(relation):
    path = run(relation)
    told, ledger = summary(path), read_run(path)
    for arm, entry in zip(told["arms"], ledger.arms, strict=True):
        mine = [line for line in lines(path) if line["arm"] == arm["name"]]
        gone = [line["exhausted"] for line in mine]
        assert gone == sorted(gone)
        assert gone[0] == 0 < gone[-1] == arm["exhausted"]
        assert min(line["cohort"] for line in mine[-3:]) < mine[0]["cohort"]
        spent = costs(arm["spent_so_far"])["SERVER", relation]
        assert 0.5 * 20 < spent <= 20 * (1 + 1e-9)
        assert costs(arm["privacy"])["SERVER", relation] == pytest.approx(20.0, rel=1e-9)
        assert entry.uploads.max() >= 3  # norms alone are cheaper: some upload more often
        assert entry.uploads.sum() == arm["uploads"]
        for observer in ("SERVER", "PUBLIC"):  # the other relation is bounded by what the filter
            for other in ("zero-out", "replace"):  # lets through
                done = costs(arm["spent_so_far"])[observer, other]
                assert done <= costs(arm["privacy"])[observer, other] * (1 + 1e-9)


def test_blocks_of_any_length_and_a_stop_give_the_same_run(monkeypatch):
    """The filter acts round by round, not block by block."""
    config = parse_config(CENTRAL, FILTERED, 5)
    monkeypatch.setattr(simulate, "BLOCK_SECONDS", 0.0)  # one round a block
    short = RunFolder.create(new_path(), config)
    seen = []

    def stop(record):
        seen.append(record)
        if len(seen) == ROUNDS + 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(config, short, on_round=stop)
    half = account_ledger(read_run(short.path))
    assert half.arms[1].rounds_played == 7
    monkeypatch.undo()
    run_experiment(config, short, resume=True)
    whole, cut = lines(run()), lines(short.path)
    assert [line["exhausted"] for line in cut] == [line["exhausted"] for line in whole]
    assert cut == whole
    kept, other = read_run(run()), read_run(short.path)
    for mine, theirs in zip(kept.arms, other.arms, strict=True):
        assert np.array_equal(mine.uploads, theirs.uploads)
        assert np.array_equal(mine.norms, theirs.norms)
        assert np.allclose(mine.shares, theirs.shares)


def test_a_budget_that_nobody_reaches_changes_nothing():
    """The filtered program is the same round: with money for all rounds, the same numbers."""
    calibrated = [f"arm.uniform.noise_multiplier={4.0}", f"arm.locks.noise_multiplier={4.0}"]
    calibrated += ["arm.locks.norm_multiplier=8.0", "privacy.trust=local"]
    rich = parse_config(CENTRAL, (*calibrated, "privacy.filter=true", "privacy.epsilon=90.0"), 5)
    free = CENTRAL.replace("epsilon = 8.0", "")
    paid, plain = play(rich), play(parse_config(free, calibrated, 5))
    drop = ("epsilon", "exhausted")
    mine, theirs = (
        [{k: v for k, v in line.items() if k not in drop} for line in lines(path)]
        for path in (paid, plain)
    )
    for one, other in zip(mine, theirs, strict=True):  # two programs: a sum may round otherwise
        assert one == other | {"loss": pytest.approx(other["loss"], rel=1e-6)}
    assert {line["exhausted"] for line in lines(paid)} == {0}
    assert {line["exhausted"] for line in lines(plain)} == {None}


def test_without_releases_the_budget_lasts_for_the_rounds_expected():
    config = parse_config(CENTRAL, [c for c in FILTERED if "releases" not in c])
    for plan in plan_arms(config):
        expected = math.ceil(ROUNDS * plan.sampling_rate)
        table = np.asarray(plan.budget.most_uploads(*plan.messages(), plan.rounds))
        assert table[expected if plan.releases_norms else 0] == expected


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["privacy.filter=true"], "privacy.filter = true: only with trust 'local', not 'central'"),
        (["privacy.releases=3"], "privacy.releases = 3: only with privacy.filter"),
        (["privacy.max_epsilon=3"], "privacy.max_epsilon = 3.0: only with trust 'central' and"),
        (
            ["privacy.trust=local", "privacy.accounting=as-printed", "privacy.filter=true"],
            "privacy.accounting = 'as-printed'",
        ),
        (["privacy.accounting=as-printed"], "expected trust 'local'"),
        (["arm.locks.sampling=fixed-size"], "arm.locks.sampling = 'fixed-size': expected 'poisson"),
        (["arm.locks.denominator=realised"], "arm.locks.denominator = 'realised': unknown setting"),
        (
            [*FILTERED, "arm.uniform.noise_multiplier=0.01"],
            "arm.uniform: privacy.epsilon = 20.0: less than the cost of one round",
        ),
        (
            [*FILTERED, "arm.locks.noise_multiplier=3.0"],
            "arm.locks.norm_multiplier is missing",
        ),
    ],
)
def test_what_a_filter_cannot_keep_is_refused(changes, told):
    with pytest.raises(ValueError, match=r"\S") as caught:
        plan_arms(parse_config(CENTRAL, changes))
    assert told in str(caught.value)
