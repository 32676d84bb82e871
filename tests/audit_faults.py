"""Faults to plant in the program, each with the ordinary test and the audit's line that see it.

The site shows this table below docs/audit.md. A fault replaces a function wherever the program has
it under a name, so that it does not matter who imported it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from msgspec import structs

from locksfl.arm import Arm
from locksfl.experiment import costs, own_data, publish
from locksfl.experiment.record import Counts
from locksfl.federation.server import rounds
from locksfl.methods import ESTIMATORS, RULES, TRUSTS
from locksfl.methods.events import Sampled, Sent
from locksfl.methods.rules import as_released
from locksfl.privacy import accountant, budget, guarantee
from locksfl.privacy.population import PopulationJournal
from locksfl.round import algorithm, client, draws, exact, randomness
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Purpose, Randomness, Stream
from locksfl.round.rates import RateControl
from locksfl.simulate import block, simulator
from locksfl.simulate.secret import SecretRounds
from replay_cases import arm_of

TESTS = Path(__file__).parent


def everywhere(function: Any, fault: Any) -> ExitStack:
    """Replace a function in every module of the program that has it."""
    stack = ExitStack()
    for name, module in list(sys.modules.items()):
        if name.startswith("locksfl"):
            for word, value in list(vars(module).items()):
                if value is function:
                    stack.enter_context(mock.patch.object(module, word, fault))
    return stack


def method(table: dict[str, Any], name: str, **parts: Any) -> Any:
    """Replace parts of a rule, an estimator or a trust."""
    return mock.patch.dict(table, {name: dataclasses.replace(table[name], **parts)})


def wrapped(function: Any, fault: Callable[..., Any]) -> Any:
    """Replace f by a function of (f, *its arguments)."""
    return everywhere(function, functools.partial(fault, function))


def keyed(fault: Callable[[Any, Purpose], tuple[Any, Purpose]]) -> Any:
    """Draw with the key of another round or purpose."""
    return wrapped(randomness.draw_key, lambda real, key, t, p: real(key, *fault(t, p)))


def instead(purpose: Purpose, other: Purpose) -> Any:
    """One purpose has another's key."""
    return keyed(lambda t, p: (t, other if p is purpose else p))


@contextmanager
def both(*faults: Any) -> Iterator[None]:
    """Several at once."""
    with ExitStack() as stack:
        for fault in faults:
            stack.enter_context(fault)
        yield


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is planted, the test that fails, and the audit's line for an arm (or why there is none).

    test: "file::function", with the arguments of one parametrised case.
    """

    name: str
    plant: Callable[[], Any]
    test: str
    args: tuple[Any, ...] = ()
    arm: str = "central-norm"
    line: str | None = None
    why: str = ""
    secret: bool = False  # planted in runs without a seed


COIN, ADAPTIVE = "methods/rules/test_coin.py", "simulate/test_adaptive.py"
KEYS, RECORDED = "round/test_keys.py::test_every_key_is_drawn_once", "simulate/test_recorded.py"
FOLLOWS = f"{RECORDED}::test_every_round_follows_from_the_draws_that_were_made"
UPDATE = "methods/test_trusts.py::test_update_noise_is_as_charged"
NORM = "methods/test_trusts.py::test_norm_noise_is_as_charged"
CLAIM = "audit/test_claims.py::test_a_claim_holds_in_a_simulation"
TOGETHER = "audit/test_claims.py::test_all_arms_together_cost_more_than_the_largest"
COHORT = "round/test_draws.py::test_the_cohort_is_independent_coins"
NORMAL = "round/test_randomness.py::test_noise_is_normal_and_long"
STREAMS = "round/test_streams.py::test_a_run_draws_no_bytes_twice"
EXACT_NOISE = "round/test_exact.py::test_secret_noise_is_as_charged_and_never_repeats"
REPLAY = "audit/test_replay.py::test_no_release_moves_by_more_than_is_charged"
REPLAYED = arm_of("norm", "capped", "central", "poisson")
PURPOSES = "round/test_purposes.py::test_without_a_seed_each_noise_has_the_bytes_of_its_own_purpose"
PLAYED = (
    "round/test_purposes.py::"
    "test_whatever_leaves_a_round_of_nothing_is_the_noise_of_its_own_purpose"
)
RELATION = "privacy/test_relation.py::test_replace_at_twice_the_noise_costs_what_zero_out_costs"
JOURNAL = "the audit has no journal"
CENTRAL, LOCAL = TRUSTS["central"], TRUSTS["local"]
RELEASE_NORMS = FloatSums.release_norms


def short(sums: Any, method: Any, values: Any, members: Any, dials: Any) -> Any:
    """A fifth of both norm noises is missing."""
    less = dials._replace(norm_multiplier=0.8 * dials.norm_multiplier)
    return RELEASE_NORMS(sums, method, values, members, less)


def unclamped(real: Any, method: Any, sent: Any, norms: Any, *rest: Any) -> Any:
    result = real(method, sent, norms._replace(used=norms.released), *rest)
    return result._replace(used_norm_sum=norms.used)


def over_who_came(real: Any, method: Any, sent: Any, norms: Any, sums: Any, dials: Any) -> Any:
    result = real(method, sent, norms, sums, dials)
    size = jnp.maximum(1, sums.total(sent.uploads.uploaded))
    return result._replace(
        update=result.update * ESTIMATORS[method.estimator].divisor(dials) / size
    )


def within_the_block(real: Any, *arguments: Any) -> Any:
    """play_block with every block beginning at round 0."""
    given = list(arguments)
    given[8] = 0 * given[8]
    return real(*given)


def one_class_unclipped(real: Any, model: Any, weights: Any, records: Any, chunk: Any, *rest: Any):
    visit = real(model, weights, records, chunk, *rest)
    longer = chunk.rows.shape[-1] > 3
    return visit._replace(norms=visit.norms / 1000) if longer else visit


def trace_kept(norms: Any, trace: Any) -> Any:
    finite = jnp.isfinite(norms)
    return client.Visit(jnp.where(finite, norms, 0.0), finite, trace)


def half_the_norms(self: Any, asked: Any, uploaded: Any) -> None:
    self.norms[asked[::2]] += self.asks_norms
    self.uploads[asked[uploaded]] += 1


def exact_counts(real: Any, run: Any, *rest: Any, **more: Any) -> Any:
    counts, arms = Counts(cohort=5, uploads=4), []
    for arm in run.arms:
        rounds = tuple(structs.replace(one, counts=counts) for one in arm.rounds)
        arms.append(structs.replace(arm, rounds=rounds))
    return real(structs.replace(run, arms=tuple(arms)), *rest, **more)


def largest_arm(arms: Any, *rest: Any) -> Any:
    each = [guarantee([arm], *rest) for arm in arms]
    return [max(costs, key=lambda cost: cost.epsilon or 0.0) for costs in zip(*each, strict=True)]


def charged(**changes: Callable[[Any], Any]) -> Any:
    """The accountant is told other numbers than are played."""
    real = Arm.event

    def changed(self: Arm) -> Any:
        event = real(self)
        others = {k: f(getattr(event, k)) for k, f in changes.items() if hasattr(event, k)}
        return structs.replace(event, **others)

    return mock.patch.object(Arm, "event", changed)


def repeating(real: Any, key: Any, size: int) -> Any:
    return jnp.tile(real(key, min(size, 4096)), -(-size // 4096))[:size]


def shifted(real: Any, arm_key: Any, t: Any, *sizes: int) -> Any:
    """Every other round has the noise of the one before, moved by a coordinate."""
    drawn = real(arm_key, t - t % 2, *sizes)
    return drawn._replace(update_noise=jnp.roll(drawn.update_noise, t % 2))


def flat(key: Any, size: int) -> Any:
    return jnp.sqrt(12.0) * (jax.random.uniform(key, (size,)) - 0.5)


def fixed_size(rng: Any, clients: int, rate: float) -> Any:
    size = round(clients * rate)
    return np.sort(rng.choice(clients, size, replace=False)).astype(np.int32)


def sparing(bounds: Any, bound: Any, uploaded: Any, dials: Any, total: Any, xp: Any) -> Any:
    """Central noise only if somebody uploaded."""
    std = CENTRAL.noise_std(bounds, bound, uploaded, dials, total, xp)
    return xp.where(total(uploaded) > 0, std, 0.0)


def without_bits(self: Arm, real: Any) -> Any:
    return real(self.changed(clip_quantile=None, clip_multiplier=0.0))


def seven_unclipped(real: Any, model: Any, weights: Any, records: Any, chunk: Any, *rest: Any):
    visit = real(model, weights, records, chunk, *rest)
    return visit._replace(norms=jnp.where(chunk.used.sum(axis=1) == 7, 1e-3, 1.0) * visit.norms)


def some_unclipped(real: Any, norms: Any, dials: Any) -> Any:
    share = norms / dials.clip_norm
    return jnp.where((share > 3) & (share < 4), 1.0, real(norms, dials))


def counting(real: Any, method: Any, released: Any, dials: Any) -> Any:
    """Each probability depends on how many true norms are above C / 2."""
    share = jnp.mean(released.shown > dials.clip_norm / 2)
    return real(method, released, dials)._replace(scores=(1 - 0.002 * share) * released.shown)


def halved(trust: Any) -> Any:
    return lambda *given: trust.noise_std(*given) / 2


FAULTS = [
    Fault(
        "update noise halved",
        lambda: method(TRUSTS, "central", noise_std=halved(CENTRAL)),
        UPDATE, ("capped", "central"), line="noise as charged",
    ),
    Fault(
        "norm noise 20% short",
        lambda: mock.patch.object(FloatSums, "release_norms", short),
        NORM, line="noise as charged",
    ),
    Fault(
        "norm noise equal in every round",
        lambda: keyed(lambda t, p: (0 * t if p is Purpose.SERVER_NORM_NOISE else t, p)),
        KEYS, ("simulator",), line="no noise twice",
    ),
    Fault(
        "upload coin from the norm-noise key",
        lambda: instead(Purpose.UPLOAD_COIN, Purpose.NORM_NOISE),
        KEYS, ("federation",), "local-norm", "upload coins",
    ),
    Fault(
        "norm and update noise from one key",
        lambda: instead(Purpose.UPDATE_NOISE, Purpose.SERVER_NORM_NOISE),
        KEYS, ("federation",), line="no noise twice",
    ),
    Fault(
        "one key for all arms",
        lambda: mock.patch.object(
            Randomness, "arm_key", functools.partialmethod(shared_arm, Randomness.arm_key)
        ),
        KEYS, ("sweep",), line="no noise twice",
    ),
    Fault(
        "cohort coins equal across arms",
        lambda: mock.patch.object(
            Randomness, "host", functools.partialmethod(shared_arm, Randomness.host)
        ),
        KEYS, ("federation",), line="cohort coins",
    ),
    Fault(
        "noise that repeats after 4,096 coordinates",
        lambda: wrapped(randomness.normal, repeating),
        NORMAL, line="no noise twice",
    ),
    Fault(
        "round index taken within the block",
        lambda: wrapped(block.play_block, within_the_block),
        KEYS, ("simulator",), line="no noise twice",
    ),
    Fault(
        "S from the unclamped sum",
        lambda: wrapped(algorithm.aggregate, unclamped),
        FOLLOWS, ("central",), line="noise as charged",
    ),
    Fault(
        "K' not clamped",
        lambda: method(RULES, "norm", settle=as_released),
        FOLLOWS, ("central",), line="public number",
    ),
    Fault(
        "accountant's rate too small",
        lambda: charged(sampling_rate=lambda q: 0.9 * q),
        CLAIM, ("central",), line="accountant",
    ),
    Fault(
        "first coin 20% above q",
        lambda: wrapped(draws.draw_cohort, lambda real, rng, n, q: real(rng, n, min(1.0, 1.2 * q))),
        COHORT, line="cohort coins",
    ),
    Fault(
        "second coin 10% too likely",
        lambda: wrapped(draws.second_sample, lambda real, c, p, there: real(c, 1.1 * p, there)),
        FOLLOWS, ("central",), line="upload coins",
    ),
    Fault(
        "clip skipped in one size class",
        lambda: wrapped(client.measure, one_class_unclipped),
        FOLLOWS, ("central",), line="contributions",
    ),
    Fault(
        "a broken client's trace not cleared",
        lambda: everywhere(client._visit, trace_kept),
        FOLLOWS, ("central",), line="contributions",
    ),
    Fault(
        "the filter forgets half the norms",
        lambda: mock.patch.object(budget.Filter, "enter", half_the_norms),
        "privacy/test_filter.py::test_counts_of_its_own_stay_within_the_budget", (),
        "local-norm", "filter",
    ),
    Fault(
        "exact central counts published",
        lambda: wrapped(publish.publish, exact_counts),
        "experiment/test_publish.py::test_central_trust_shows_no_secret",
        why="the audit publishes nothing",
    ),
    Fault(
        "all arms' epsilon a maximum instead of a composition",
        lambda: mock.patch.object(costs, "guarantee", largest_arm),
        TOGETHER, ("central",), line="accountant (all arms)",
    ),
    # --- more of the same kinds ---
    Fault(
        "local noise halved",
        lambda: method(TRUSTS, "local", noise_std=halved(LOCAL)),
        UPDATE, ("capped", "local"), "local-uniform", "noise as charged",
    ),
    Fault(
        "each client's norm noise 20% short",
        lambda: mock.patch.object(FloatSums, "release_norms", short),
        NORM, (), "local-norm", "noise as charged",
    ),
    Fault(
        "no noise in a round without uploads",
        lambda: method(TRUSTS, "central", noise_std=sparing),
        "methods/test_trusts.py::test_central_update_noise_does_not_depend_on_who_came",
        line="noise as charged",
    ),
    Fault(
        "noise cut at 3 deviations",
        lambda: wrapped(randomness.normal, lambda real, *a: jnp.clip(real(*a), -3.0, 3.0)),
        NORMAL, line="noise as charged",
    ),
    Fault(
        "uniform noise of the right variance",
        lambda: everywhere(randomness.normal, flat),
        NORMAL, line="noise as charged",
    ),
    Fault(
        "every other round's noise moved by one coordinate",
        lambda: wrapped(draws.draw_server, shifted),
        KEYS, ("simulator",), line="no noise twice",
    ),
    Fault(
        "one coin for all clients",
        lambda: wrapped(randomness.client_keys, lambda real, key, c: real(key, jnp.zeros_like(c))),
        KEYS, ("federation",), line="upload coins",
    ),
    Fault(
        "upload coins equal in every round",
        lambda: keyed(lambda t, p: (0 * t if p is Purpose.UPLOAD_COIN else t, p)),
        KEYS, ("simulator",), line="upload coins",
    ),
    Fault(
        "the same cohort in every round",
        lambda: mock.patch.object(
            Randomness, "host", functools.partialmethod(first_round, Randomness.host)
        ),
        KEYS, ("federation",), line="cohort coins",
    ),
    Fault(
        "a cohort of fixed size",
        lambda: everywhere(draws.draw_cohort, fixed_size),
        COHORT, line="cohort coins",
    ),
    Fault(
        "clip to twice the clip norm",
        lambda: wrapped(
            algorithm.clip_factor,
            lambda real, norms, dials: real(norms, dials._replace(clip_norm=2 * dials.clip_norm)),
        ),
        FOLLOWS, ("central",), line="contributions",
    ),
    Fault(
        "average over the realised uploads",
        lambda: wrapped(algorithm.aggregate, over_who_came),
        FOLLOWS, ("central",), line="contributions",
    ),
    Fault(
        "contributions not capped at S",
        lambda: both(
            everywhere(algorithm.bounded_weight, lambda weight, bound, clipped: weight),
            method(ESTIMATORS, "capped", weight=lambda norm, p, bound, xp: 1 / xp.maximum(p, 1e-9)),
        ),
        FOLLOWS, ("local",), "local-norm", "statements",
    ),
    Fault(
        "half of the rounds charged",
        lambda: wrapped(
            accountant.epsilon_of,
            lambda real, spent, *rest: real([(e, -(-n // 2)) for e, n in spent], *rest),
        ),
        CLAIM, ("central",), line="accountant",
    ),
    Fault(
        "uploads charged at half their probability",
        lambda: charged(second_rate=lambda p: p / 2),
        CLAIM, ("central",), line="accountant",
    ),
    # --- the coin ---
    Fault(
        "an uncharged count",
        lambda: both(
            mock.patch.object(Arm, "update_multiplier", property(lambda a: a.noise_multiplier)),
            mock.patch.object(Arm, "count_noise", property(lambda a: 3 * a.noise_multiplier)),
        ),
        f"{COIN}::test_the_count_costs_half_a_percent_of_noise", (), "central-coin", "accountant",
    ),
    Fault(
        "count noise missing",
        lambda: wrapped(
            algorithm.release_count, lambda real, m, uploads, sums, dials: real(
                m, uploads, SimpleNamespace(total=sums.total, count_noise=lambda _: 0.0), dials
            )
        ),
        f"{COIN}::test_played_rounds_have_the_mean_and_the_variance_of_the_formulas", (0.7,),
        "central-coin", "noise as charged",
    ),
    Fault(
        "a coin that uploads with more than r",
        lambda: wrapped(
            algorithm.upload_probability,
            lambda real, method, own, *rest: jnp.minimum(1.0, 1.2 * real(method, own, *rest)),
        ),
        f"{COIN}::test_played_rounds_have_the_mean_and_the_variance_of_the_formulas", (0.0,),
        "central-coin", "upload coins",
    ),
    Fault(
        "an upload longer than C",
        lambda: wrapped(algorithm.bounded_weight, lambda real, *given: 1.5 * real(*given)),
        f"{COIN}::test_an_upload_has_the_length_of_the_clip_norm_or_is_nothing", (),
        "central-coin", "contributions",
    ),
    # --- adaptive clipping ---
    Fault(
        "bits uncharged",
        lambda: mock.patch.object(
            Arm, "event", functools.partialmethod(without_bits, Arm.event)
        ),
        "privacy/test_bits.py::test_the_charge_is_the_formula_of_the_joint_pair", ("coin",),
        "central-coin", "accountant",
    ),
    Fault(
        "bits without noise",
        lambda: wrapped(
            draws.draw_server, lambda real, *given: real(*given)._replace(clip_noise=0.0)
        ),
        f"{ADAPTIVE}::test_the_noise_on_the_bits_is_as_charged", (),
        "central-coin", "noise as charged",
    ),
    Fault(
        "the sum of bits with twice the sensitivity",
        lambda: wrapped(algorithm.sum_of_bits, lambda real, *given: 2 * real(*given)),
        f"{ADAPTIVE}::test_one_client_moves_the_sum_by_its_bound", (),
        "central-coin", "noise as charged",
    ),
    # --- for a replay ---
    Fault(
        "clip skipped for clients with 7 records",
        lambda: wrapped(client.measure, seven_unclipped),
        REPLAY, (REPLAYED, "seed"), line="replay",
    ),
    Fault(
        "clip skipped for updates 3 to 4 clip norms long",
        lambda: wrapped(algorithm.clip_factor, some_unclipped),
        REPLAY, (REPLAYED, "seed"), line="replay",
    ),
    Fault(
        "a count of raw norms in the upload probability",
        lambda: wrapped(algorithm.settle_norms, counting),
        REPLAY, (REPLAYED, "seed"), line="replay",
    ),
    # --- in runs without a seed ---
    Fault(
        "no seed: a count of raw norms in the upload probability",
        lambda: wrapped(algorithm.settle_norms, counting),
        REPLAY, (REPLAYED, "no seed"), line="replay", secret=True,
    ),
    Fault(
        "no seed: bits without noise",
        lambda: drawn(lambda one: one._replace(clip_noise=0 * one.clip_noise)),
        f"{ADAPTIVE}::test_the_noise_on_the_bits_is_as_charged", (),
        "central-coin", "noise as charged", secret=True,
    ),
    Fault(
        "no seed: count noise halved",
        lambda: drawn(lambda one: one._replace(count_noise=one.count_noise // 2)),
        "round/test_exact.py::test_the_noise_of_a_count_is_as_charged", (),
        "central-coin", "noise as charged", secret=True,
    ),
    Fault(
        "no seed: update noise halved",
        lambda: drawn(lambda one: one._replace(update_noise=one.update_noise // 2)),
        EXACT_NOISE, ("central",), line="noise as charged", secret=True,
    ),
    Fault(
        "no seed: norm noise 20% short",
        lambda: drawn(lambda one: one._replace(norm_noise=one.norm_noise * 4 // 5)),
        EXACT_NOISE, ("local",), line="noise as charged", secret=True,
    ),
    Fault(
        "no seed: noise that repeats after 4,096 coordinates",
        lambda: mock.patch.object(
            Stream, "__call__", functools.partialmethod(repeating_bytes, Stream.__call__)
        ),
        EXACT_NOISE, ("central",), line="no noise twice", secret=True,
    ),
    Fault(
        "no seed: one stream for all rounds",
        lambda: streamed(lambda arm, t, p: (arm, 0, p)),
        KEYS, ("secret",), line="no noise twice", secret=True,
    ),
    Fault(
        "no seed: one stream for all arms",
        lambda: streamed(lambda arm, t, p: ("arm", t, p)),
        KEYS, ("secret",), line="cohort coins", secret=True,
    ),
    Fault(
        "no seed: upload coin from the norm-noise stream",
        lambda: streamed(
            lambda arm, t, p: (arm, t, Purpose.NORM_NOISE if p is Purpose.UPLOAD_COIN else p)
        ),
        KEYS, ("secret",), "local-norm", "upload coins", secret=True,
    ),
    Fault(
        "no seed: two rounds share a stream",
        lambda: streamed(lambda arm, t, p: (arm, t - t % 2, p)),
        STREAMS, ("central",), line="no noise twice", secret=True,
    ),
    Fault(
        "no seed: norm and update noise from one stream",
        lambda: streamed(lambda arm, t, p: (arm, t, one_noise(p))),
        STREAMS, ("central",), line="no noise twice", secret=True,
    ),
    Fault(
        "no seed: first coin 20% above q",
        lambda: wrapped(draws.cohort_of, likelier),
        "round/test_exact.py::test_cohorts_follow_the_rate_and_the_members_of_a_run_are_independent",
        line="cohort coins", secret=True,
    ),
    Fault(
        "no seed: contributions of twice their length, unchecked",
        lambda: everywhere(exact.contribution_steps, unchecked),
        "round/test_exact.py::test_no_contribution_passes_its_bound", (20,),
        line="contributions", secret=True,
    ),
    Fault(
        "no seed: a float sum",
        lambda: everywhere(exact.total_steps, float_sum),
        "round/test_exact.py::test_sums_of_steps_are_exact_and_a_float_sum_is_not",
        why="a matter of the last digits",
    ),
    Fault(
        "no seed: true counts told",
        lambda: everywhere(simulator.released_only, lambda log, arm: log),
        "experiment/test_run.py::test_a_run_without_a_seed_tells_nothing_before_its_noise",
        why="the audit reads no log",
    ),
    Fault(
        "no seed: refining noise from the norm noise's stream",
        lambda: streamed(lambda arm, t, p: (arm, t, instead_of_refining(p))),
        PURPOSES, (("aocs", "central", "plain"),), "central-aocs", "no noise twice", secret=True,
    ),
    Fault(
        "no seed: count noise from the clip noise's stream",
        lambda: streamed(lambda arm, t, p: (arm, t, instead_of_counting(p))),
        PURPOSES, (("coin", "central", "adaptive"),), "central-coin", "no noise twice",
        secret=True,
    ),
    Fault(
        "no seed: the plan's noise in place of the round's under rate control",
        lambda: mock.patch.object(
            SecretRounds, "draw", functools.partialmethod(as_planned, SecretRounds.draw)
        ),
        PURPOSES, (("coin", "central", "chosen"),), "central-rates", "noise as charged",
        secret=True,
    ),
    Fault(
        "no seed: one noise for all rates in a federation",
        lambda: wrapped(rounds.play_round, one_noise_for_all),
        "federation/server/test_parity.py::test_without_a_seed_every_rate_has_its_own_noise",
        why="the audit plays the simulator",
    ),
    Fault(
        "refining noise from the norm noise's key",
        lambda: instead(Purpose.REFINE_NOISE, Purpose.SERVER_NORM_NOISE),
        KEYS, ("federation",), "central-aocs", "no noise twice",
    ),
    Fault(
        "count noise from the clip noise's key",
        lambda: instead(Purpose.COUNT_NOISE, Purpose.CLIP_NOISE),
        KEYS, ("federation",), "central-coin", "no noise twice",
    ),
    Fault(
        "the plan's noise in place of the round's under rate control",
        lambda: mock.patch.object(RateControl, "arm", property(of_the_plan)),
        PLAYED, (("coin", "central", "chosen"), Randomness.seeded(5)), "central-rates",
        "noise as charged",
    ),
    # --- the relation replace, in which a client moves a sum twice as far ---
    Fault(
        "a client's own rounds at half the distance in a journal, under replace",
        lambda: wrapped(accountant.as_coins, as_zero_out),
        RELATION, ("planned arms together",), why=JOURNAL,
    ),
    Fault(
        "a settlement charged as zero-out under replace",
        lambda: mock.patch.object(
            PopulationJournal, "settle", functools.partialmethod(settled, PopulationJournal.settle)
        ),
        RELATION, ("settlement",), why=JOURNAL,
    ),
    Fault(
        "released statistics noised as zero-out under replace",
        lambda: wrapped(own_data.release, noised_as_zero_out),
        "privacy/test_relation.py::test_replace_asks_for_twice_the_noise", ("statistics",),
        why="the audit imports no table",
    ),
    Fault(
        "a run settled in any copy of its journal",
        lambda: mock.patch.object(PopulationJournal, "check_noted"),
        "experiment/test_coverage.py::test_an_ended_run_is_settled_in_the_journal_that_it_noted",
        why=JOURNAL,
    ),
    # --- accountants ---
    Fault(
        "local uploads charged with 10% more noise",
        lambda: mock.patch.object(
            Arm, "messages", functools.partialmethod(louder, Arm.messages)
        ),
        CLAIM, ("local",), "local-uniform", "accountant",
    ),
]  # fmt: skip


def drawn(fault: Callable[[Any], Any]) -> Any:
    """Other draws of a round without a seed."""
    return wrapped(draws.draw_secret, lambda real, *given: fault(real(*given)))


def streamed(fault: Callable[..., tuple[Any, ...]]) -> Any:
    """The stream of another arm, round or purpose."""
    real = Randomness.stream
    return mock.patch.object(Randomness, "stream", lambda self, *label: real(self, *fault(*label)))


def one_noise(purpose: Purpose) -> Purpose:
    return Purpose.SERVER_NORM_NOISE if purpose is Purpose.UPDATE_NOISE else purpose


def instead_of_refining(purpose: Purpose) -> Purpose:
    return Purpose.SERVER_NORM_NOISE if purpose is Purpose.REFINE_NOISE else purpose


def instead_of_counting(purpose: Purpose) -> Purpose:
    return Purpose.CLIP_NOISE if purpose is Purpose.COUNT_NOISE else purpose


def as_planned(self: SecretRounds, real: Any, first: int, length: int, asked: Arm) -> Any:
    """On the update: the count shows what goes with the rate."""
    plan = asked.changed(noise_multiplier=self._arm.noise_multiplier)
    each = (real(self, first, length, arm) for arm in (asked, plan))
    return [one._replace(update_noise=two.update_noise) for one, two in zip(*each, strict=True)]


RATE = RateControl.arm.fget


def of_the_plan(self: RateControl) -> Arm:
    assert RATE is not None
    return RATE(self).changed(noise_multiplier=self._arm.noise_multiplier)


def one_noise_for_all(real: Any, arm: Arm, *rest: Any, **options: Any) -> Any:
    """Whatever the rate: those of the rates differ."""
    return real(arm.changed(noise_multiplier=1.0), *rest, **options)


def as_zero_out(real: Any, seen: Any, relation: Any) -> Any:
    """A client's own Gaussians with half of the multiplier that stands for them under replace."""
    own = [one for one in seen if isinstance(one.event, Sent)]
    coins = real([one for one in seen if one not in own], relation)
    half = 2 if relation == "replace" else 1
    return *coins, *((Sampled(1.0, e.noise_multiplier / half), n) for e, n in real(own, relation))


def settled(self: PopulationJournal, real: Any, ended: Any) -> Any:
    total = dataclasses.replace(self.total, relation="zero-out")
    with mock.patch.object(PopulationJournal, "total", total):
        return real(self, ended)


def noised_as_zero_out(real: Any, rows: Any, bound: float, paid: Any, *noise: Any) -> Any:
    with PopulationJournal.find(paid.population) as journal:
        distance = 2.0 if journal.total.relation == "replace" else 1.0
    with wrapped(own_data.gaussian_std, lambda real, z, bound: real(z, bound) / distance):
        return real(rows, bound, paid, *noise)


def repeating_bytes(self: Any, real: Any, size: int) -> bytes:
    found = real(self, min(size, 8 * 4096))
    return (found * -(-size // (8 * 4096)))[:size]


def likelier(real: Any, source: Any, arm: Arm, t: int) -> Any:
    more = min(arm.clients, 1.2 * arm.cohort)
    return real(source, dataclasses.replace(arm, cohort=more, uploads=min(arm.uploads, more)), t)


def unchecked(updates: Any, coefficient: Any, bounds: Any, steps: Any) -> Any:
    scaled = updates * (2 * coefficient * steps / bounds)[:, None]
    return jnp.where(jnp.isfinite(scaled), scaled, 0.0).astype(jnp.int32)


def float_sum(steps: Any) -> Any:
    total = jnp.sum(steps.astype(jnp.float32), axis=0)
    high = jnp.floor(total / 65536.0)
    return exact.Words(high.astype(jnp.int32), (total - high * 65536.0).astype(jnp.int32))


def shared_arm(self: Any, real: Any, arm: str, *rest: Any) -> Any:
    del arm
    return real(self, "arm", *rest)


def first_round(self: Any, real: Any, arm: str, round_index: int, *rest: Any) -> Any:
    del round_index
    return real(self, arm, 0, *rest)


def louder(self: Arm, real: Any) -> Any:
    update, norm = real(self)
    return structs.replace(update, noise_multiplier=1.1 * update.noise_multiplier), norm


def run_ordinary(fault: Fault) -> None:
    """The ordinary test of a fault, in a module loaded now: what it imports may be planted."""
    path, function = fault.test.split("::")
    spec = importlib.util.spec_from_file_location(f"ordinary_{Path(path).stem}", TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, function)(*fault.args)


def table() -> str:
    """The table that the site shows below docs/audit.md."""
    rows = ["| fault | test in tests/ | line of the audit |", "|---|---|---|"]
    for fault in FAULTS:
        line = f"{fault.line}, {fault.arm}" if fault.line else f"not visible: {fault.why}"
        rows.append(f"| {fault.name} | `{fault.test.split('/')[-1]}` | {line} |")
    return "\n".join(rows) + "\n"
