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

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

from locksfl.arm import Arm
from locksfl.audit.attacks import canary_probability, in_deviations, one_round
from locksfl.audit.statements import broken_statements
from locksfl.round.algorithm import GivenClients, RoundResult, Uploads, contribution_bounds
from locksfl.round.randomness import Randomness

FALSE_ALARM = 1e-6
REPETITIONS = 4000
SIZE = 3
SLOTS = 6
_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

Result = tuple[bool, str]  # whether a property holds, and what was found


@dataclass(frozen=True)
class Check:
    """One property of one arm."""

    arm: str
    name: str
    holds: bool
    found: str


def check_arm(arm: Arm, randomness: Randomness) -> list[Check]:
    """Every property of an arm that adds noise."""
    noises = _noises(arm, randomness)
    silent = replace(arm, noise_multiplier=0.0, norm_multiplier=0.0)  # what noise would hide
    broken = broken_statements(arm)
    found = {
        "noise as charged": _noise_as_charged(arm, noises),
        "no noise twice": _no_noise_twice(noises),
        "clipping": _clipping(silent, randomness),
        "public divisor": _public_divisor(silent, randomness),
        "statements": (not broken, "; ".join(broken) or "none broken"),
    }
    return [Check(arm.name, name, *result) for name, result in found.items()]


def _alone(arm: Arm, key: Array, t: Array, raw: Array | float) -> tuple[RoundResult, Uploads, Any]:
    """A round with one client, whose update has this length; its probability comes third."""
    clients = GivenClients(jnp.zeros((1, SIZE)).at[0, 0].set(raw))
    result, uploads = one_round(arm, clients, key, t, jnp.arange(1), SIZE)
    p = canary_probability(arm, result.released_norm_sum, result.used_norm_sum)
    return result, uploads, p


def _noises(arm: Arm, randomness: Randomness) -> dict[str, np.ndarray]:
    """The noises of two rounds of two arms in claimed standard deviations, by repetition.

    One client with a zero update that always uploads, alone: then what is released is noise.
    """
    _, estimator, trust = arm.parts
    local = trust.clients_add_noise
    # in local trust the norm is sent clipped to [0, C]: a client in the middle, a wide range
    raw = 0.5 * arm.clip_norm if local and arm.releases_norms else 0.0

    def noise(arm_key: Array, t: Array) -> tuple[Array, Array]:
        result, uploads, p = _alone(arm, arm_key, t, raw)
        there = uploads.uploaded[0]
        expected = jnp.where(there, uploads.coefficient[0] * raw, 0.0)
        mean = jnp.zeros(SIZE).at[0].set(expected / estimator.divisor(arm.dials()))
        update = in_deviations(arm, result.update - mean, result.used_norm_sum, p)
        update = jnp.where(there | (not local), update, jnp.nan)
        norm_std = arm.norm_multiplier * arm.clip_norm
        return update, (result.released_norm_sum - raw) / (norm_std or 1.0)

    found: dict[str, np.ndarray] = {}
    rounds = jnp.arange(2)
    play = _jit(jax.vmap(lambda key: jax.vmap(noise, (None, 0))(key, rounds)))
    for name in ("a", "b"):
        keys = jax.random.split(randomness.arm_key(f"checks-{name}-{arm.name}"), REPETITIONS)
        update, norm = (np.asarray(values, np.float64) for values in play(keys))
        for t in range(len(rounds)):
            for k in range(SIZE):
                found[f"update {name}{t}{k}"] = update[:, t, k]
            if arm.releases_norms:
                found[f"norm {name}{t}"] = norm[:, t]
    return found


def _noise_as_charged(arm: Arm, noises: dict[str, np.ndarray]) -> Result:
    worst, holds = 1.0, True
    for name in ("update", "norm"):
        parts = [v[np.isfinite(v)] for k, v in noises.items() if k.startswith(name)]
        if not parts:
            continue
        values = np.concatenate(parts)
        if name == "norm" and arm.parts[2].clients_add_noise:
            ratio, fits = _clipped_scale(values, arm.norm_multiplier)
        else:
            square, law = float(np.sum(values**2)), stats.chi2(values.size)
            ratio = math.sqrt(square / values.size)
            fits = law.ppf(FALSE_ALARM / 4) <= square <= law.isf(FALSE_ALARM / 4)
        holds = holds and bool(fits)
        worst = max(worst, ratio, key=lambda r: abs(math.log(max(r, 1e-9))))
    return holds, f"{worst:.3f} of the claimed std"


def _clipped_scale(values: np.ndarray, multiplier: float) -> tuple[float, bool]:
    """A norm in the middle of [0, C] is sent unclipped with probability 2 Phi(1/(2z)) - 1."""
    inside = np.abs(values) < 0.5 / multiplier * (1 - 1e-5)
    wanted = float(2 * stats.norm.cdf(0.5 / multiplier) - 1)
    test = stats.binomtest(int(inside.sum()), inside.size, wanted)
    share = min(max(inside.mean(), 1e-9), 1 - 1e-9)
    ratio = 0.5 / multiplier / float(stats.norm.ppf((1 + share) / 2))
    return ratio, bool(test.pvalue >= FALSE_ALARM / 2)


def _no_noise_twice(noises: dict[str, np.ndarray]) -> Result:
    worst, told, holds = 0.0, "", True
    pairs = [(first, second) for i, first in enumerate(noises) for second in list(noises)[:i]]
    limit = stats.norm.isf(FALSE_ALARM / 2 / len(pairs))
    for first, second in pairs:
        both = np.isfinite(noises[first]) & np.isfinite(noises[second])
        if both.sum() < 30:
            continue
        r = float(np.corrcoef(noises[first][both], noises[second][both])[0, 1])
        score = abs(math.atanh(min(max(r, -1 + 1e-12), 1 - 1e-12))) * math.sqrt(both.sum() - 3)
        holds = holds and bool(score <= limit)
        if abs(r) > worst:
            worst, told = abs(r), f"{second} with {first}"
    return holds, f"largest correlation {worst:.3f} ({told})"


def _clipping(arm: Arm, randomness: Randomness) -> Result:
    """Updates from a tenth of the clip norm to a million of it, without noise."""
    key = randomness.arm_key(f"checks-clip-{arm.name}")
    _, estimator, _ = arm.parts

    def contribution(t: Array, raw: Array) -> Array:
        result, uploads, p = _alone(arm, key, t, raw * arm.clip_norm)
        most = contribution_bounds(arm.method, p, result.used_norm_sum, arm.dials())
        moved = jnp.linalg.norm(result.update) * estimator.divisor(arm.dials())
        return jnp.where(uploads.uploaded[0], moved / most, 0.0)

    play = _jit(jax.vmap(contribution))
    raw = jnp.tile(jnp.array([0.1, 1.0, 10.0, 1e6]), 64)
    worst = float(jnp.max(play(jnp.arange(raw.size), raw)))
    return worst <= 1 + 1e-5, f"{worst:.5f} of the bound at most"


def _public_divisor(arm: Arm, randomness: Randomness) -> Result:
    """The same canary alone, and among members whose updates are zero, without noise."""
    key = randomness.arm_key(f"checks-divisor-{arm.name}")
    updates = jnp.zeros((SLOTS, SIZE)).at[0, 0].set(arm.clip_norm)
    alone, together = jnp.full(SLOTS, -1).at[0].set(0), jnp.arange(SLOTS)

    def update(t: Array, numbers: Array) -> Array:
        return one_round(arm, GivenClients(updates), key, t, numbers, SIZE)[0].update[0]

    play = _jit(jax.vmap(update, (0, None)))
    found = [np.asarray(play(jnp.arange(64), numbers)) for numbers in (alone, together)]
    off = float(np.max(np.abs(found[0] - found[1])) / max(float(np.max(np.abs(found[0]))), 1e-30))
    return off <= 1e-5, f"zero updates alter it by {off:.1e}"
