"""What an attack cannot see: properties of a round that must hold, checked on the code that runs.

* noise as charged: over repetitions without any client, both noises have the claimed standard
  deviation (chi-square);
* no noise twice: the noises of rounds, purposes, arms and coordinates are uncorrelated;
* clipping: a contribution stays within the bound that its noise is scaled to, however large the
  update;
* public divisor: clients with a zero update alter nothing, so the average is not over the size
  that came out;
* statements: rule and estimator keep what they state even without the round's clamps.

Each check calls a sound implementation broken with a probability below FALSE_ALARM.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

from locksfl.arm import Arm, Dials
from locksfl.audit.attacks import Public, one_round, public_knowledge
from locksfl.audit.statements import broken_statements
from locksfl.round.algorithm import GivenClients, contribution_bounds
from locksfl.round.randomness import Randomness

FALSE_ALARM = 1e-6
REPETITIONS = 4000
SIZE = 3
SLOTS = 6
_COMPILE_QUICKLY: Any = {"xla_backend_optimization_level": 0}


@dataclass(frozen=True)
class Check:
    """One property of one arm."""

    arm: str
    name: str
    holds: bool
    found: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def check_arm(plan: Arm, randomness: Randomness) -> list[Check]:
    """Every property of an arm that adds noise."""
    noises = _noises(plan, randomness)
    return [
        _noise_as_charged(plan, noises),
        _no_noise_twice(plan, noises),
        _clipping(plan, randomness),
        _public_divisor(plan, randomness),
        _statements(plan),
    ]


def _statements(plan: Arm) -> Check:
    """What rule and estimator state, searched without the round's clamps."""
    broken = broken_statements(plan)
    return Check(plan.name, "statements", not broken, "; ".join(broken) or "none broken")


def _noises(plan: Arm, randomness: Randomness) -> dict[str, np.ndarray]:
    """The noises of two rounds of two arms in claimed standard deviations, by repetition.

    One client with a zero update that always uploads, alone: then what is released is noise.
    """
    public = public_knowledge(plan)
    norm_std = float(plan.norm_multiplier * plan.clip_norm)
    local = plan.parts[2].clients_add_noise
    # in local trust the norm is sent clipped to [0, C]: a client in the middle, a wide range
    raw = 0.5 * plan.clip_norm if local and plan.releases_norms else 0.0

    def noise(arm_key: Array, t: Array) -> tuple[Array, Array]:
        updates = jnp.zeros((1, SIZE)).at[0, 0].set(raw)
        result, uploads = one_round(public, GivenClients(updates), arm_key, t, jnp.arange(1), SIZE)
        p = public.probability(result.released_norm_sum, result.used_norm_sum)
        update = public.in_deviations(result.update, result.used_norm_sum, p)
        expected = jnp.where(uploads.uploaded[0], uploads.coefficient[0] * raw, 0.0)
        _, estimator, _ = plan.parts
        shift = public.in_deviations(
            expected / estimator.divisor(public.dials), result.used_norm_sum, p
        )
        update = update - jnp.zeros(SIZE).at[0].set(shift)
        update = jnp.where(uploads.uploaded[0] | (not local), update, jnp.nan)
        norm = (result.released_norm_sum - raw) / (norm_std or 1.0)
        return update, norm

    found: dict[str, np.ndarray] = {}
    rounds = jnp.arange(2)
    play = jax.jit(
        jax.vmap(lambda key: jax.vmap(noise, (None, 0))(key, rounds)),
        compiler_options=_COMPILE_QUICKLY,
    )
    for arm in ("a", "b"):
        keys = jax.random.split(randomness.arm_key(f"checks-{arm}-{plan.name}"), REPETITIONS)
        update, norm = (np.asarray(values, np.float64) for values in play(keys))
        for t in range(len(rounds)):
            for k in range(SIZE):
                found[f"update {arm}{t}{k}"] = update[:, t, k]
            if plan.releases_norms:
                found[f"norm {arm}{t}"] = norm[:, t]
    return found


def _noise_as_charged(plan: Arm, noises: dict[str, np.ndarray]) -> Check:
    worst, holds = 1.0, True
    for name in ("update", "norm"):
        parts = [v[np.isfinite(v)] for k, v in noises.items() if k.startswith(name)]
        if not parts:
            continue
        values = np.concatenate(parts)
        if name == "norm" and plan.parts[2].clients_add_noise:
            ratio, fits = _clipped_scale(values, plan.norm_multiplier)
        else:
            square, law = float(np.sum(values**2)), stats.chi2(values.size)
            ratio = math.sqrt(square / values.size)
            fits = law.ppf(FALSE_ALARM / 4) <= square <= law.isf(FALSE_ALARM / 4)
        holds = holds and bool(fits)
        worst = max(worst, ratio, key=lambda r: abs(math.log(max(r, 1e-9))))
    return Check(plan.name, "noise as charged", holds, f"{worst:.3f} of the claimed std")


def _clipped_scale(values: np.ndarray, multiplier: float) -> tuple[float, bool]:
    """A norm in the middle of [0, C] is sent unclipped with probability 2 Phi(1/(2z)) - 1."""
    inside = np.abs(values) < 0.5 / multiplier * (1 - 1e-5)
    wanted = float(2 * stats.norm.cdf(0.5 / multiplier) - 1)
    test = stats.binomtest(int(inside.sum()), inside.size, wanted)
    share = min(max(inside.mean(), 1e-9), 1 - 1e-9)
    ratio = 0.5 / multiplier / float(stats.norm.ppf((1 + share) / 2))
    return ratio, bool(test.pvalue >= FALSE_ALARM / 2)


def _no_noise_twice(plan: Arm, noises: dict[str, np.ndarray]) -> Check:
    names = list(noises)
    worst, pair, holds = 0.0, "", True
    pairs = len(names) * (len(names) - 1) // 2
    limit = stats.norm.isf(FALSE_ALARM / 2 / pairs)
    for i, first in enumerate(names):
        for second in names[:i]:
            both = np.isfinite(noises[first]) & np.isfinite(noises[second])
            if both.sum() < 30:
                continue
            r = float(np.corrcoef(noises[first][both], noises[second][both])[0, 1])
            score = abs(math.atanh(min(max(r, -1 + 1e-12), 1 - 1e-12))) * math.sqrt(both.sum() - 3)
            holds = holds and score <= limit
            if abs(r) > worst:
                worst, pair = abs(r), f"{second} with {first}"
    return Check(
        plan.name, "no noise twice", bool(holds), f"largest correlation {worst:.3f} ({pair})"
    )


def _silent(public: Public) -> Public:
    """The same arm with noises of zero, to look at what they would hide."""
    dials: Dials = public.dials._replace(
        noise_multiplier=jnp.float32(0.0), norm_multiplier=jnp.float32(0.0)
    )
    return replace(public, dials=dials)


def _clipping(plan: Arm, randomness: Randomness) -> Check:
    """Updates from a tenth of the clip norm to a million of it."""
    public = _silent(public_knowledge(plan))
    key = randomness.arm_key(f"checks-clip-{plan.name}")
    _, estimator, _ = plan.parts

    def contribution(t: Array, raw: Array) -> Array:
        updates = jnp.zeros((1, SIZE)).at[0, 1].set(raw * plan.clip_norm)
        result, uploads = one_round(public, GivenClients(updates), key, t, jnp.arange(1), SIZE)
        p = public.probability(result.released_norm_sum, result.used_norm_sum)
        most = contribution_bounds(plan.method, p, result.used_norm_sum, public.dials)
        moved = jnp.linalg.norm(result.update) * estimator.divisor(public.dials)
        return jnp.where(uploads.uploaded[0], moved / most, 0.0)

    play = jax.jit(jax.vmap(contribution), compiler_options=_COMPILE_QUICKLY)
    raw = jnp.tile(jnp.array([0.1, 1.0, 10.0, 1e6]), 64)
    worst = float(jnp.max(play(jnp.arange(raw.size), raw)))
    return Check(plan.name, "clipping", worst <= 1 + 1e-5, f"{worst:.5f} of the bound at most")


def _public_divisor(plan: Arm, randomness: Randomness) -> Check:
    """The same canary alone, and among members whose updates are zero."""
    public = _silent(public_knowledge(plan))
    key = randomness.arm_key(f"checks-divisor-{plan.name}")
    updates = jnp.zeros((SLOTS, SIZE)).at[0, 0].set(plan.clip_norm)
    alone, together = jnp.full(SLOTS, -1).at[0].set(0), jnp.arange(SLOTS)

    def update(t: Array, numbers: Array) -> Array:
        result, _ = one_round(public, GivenClients(updates), key, t, numbers, SIZE)
        return result.update[0]

    play = jax.jit(jax.vmap(update, (0, None)), compiler_options=_COMPILE_QUICKLY)
    found = [np.asarray(play(jnp.arange(64), numbers)) for numbers in (alone, together)]
    off = float(np.max(np.abs(found[0] - found[1])) / max(float(np.max(np.abs(found[0]))), 1e-30))
    return Check(plan.name, "public divisor", off <= 1e-5, f"zero updates alter it by {off:.1e}")
