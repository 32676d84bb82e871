"""The numbers of an arm that a compiled round takes as arguments. Letters are those of the design.

A rule, an estimator and a trust are called with them too, by a device and by a forecast as well as
in a round: no JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from locksfl.methods.estimators import SMALLEST_NORM

if TYPE_CHECKING:
    from locksfl.arm import Arm


class Ladder(NamedTuple):
    """The rungs between which the public number of a round chooses, an entry each."""

    shares: Any  # K' / (m C) from which on it is chosen, rising
    noise_multipliers: Any  # of the updates
    largest_probabilities: Any  # the most that the rule may give a client there


class Dials(NamedTuple):
    """The numbers of an arm that a compiled round takes as arguments (so it compiles once)."""

    cohort: Any  # m, the expected first sample: n times the sampling rate
    uploads: Any  # b, the uploads wanted per round
    clip_norm: Any  # C
    floor: Any  # lambda, the share of the probability that is equal for all members
    least_norm_sum: Any  # K_low, the least value of the norm sum, fixed beforehand
    noise_multiplier: Any  # z, update noise over the bound S of a contribution
    norm_multiplier: Any  # z_K or z_s, norm noise over its sensitivity
    step: Any  # the server's base step
    largest_probability: Any  # the most that the rule may give a client: what is charged
    shortest: Any = 1.0  # |u_i| / C from which on |g_i| = C: 1 clips, less lengthens too
    count_noise: Any = 0.0  # std of the noise on the released number of uploads
    clip_quantile: Any = 0.5  # gamma, the share of updates that should be within C
    clip_rate: Any = 0.0  # eta_C
    clip_multiplier: Any = 0.0  # noise on the count of those within C, over its sensitivity 1/2
    loss_bound: Any = 1.0  # losses above it count as it
    gate: Any = 1.0  # K' / (m C) above which a gated round is uniform
    sum_noise: Any = 0.0  # std of a server's noise on each sum before the uploads, over sensitivity
    ladder: Any = None  # a Ladder where the noise follows K'

    def at_clip(self, clip_norm: Any, xp: Any) -> Dials:
        """The numbers of a round whose clip norm has been adapted: K_low stays a share of m C."""
        ratio = clip_norm / self.clip_norm
        return self._replace(
            clip_norm=clip_norm,
            least_norm_sum=self.least_norm_sum * ratio,
            shortest=xp.where(self.shortest < 1, xp.maximum(self.shortest / ratio, 1e-30), 1.0),
        )

    def rung(self, public: Any, xp: Any) -> Any:
        """The number of the highest rung that is not above K'."""
        assert self.ladder is not None
        share = xp.asarray(public / (self.cohort * self.clip_norm))
        return xp.maximum(xp.sum(share[..., None] >= self.ladder.shares, axis=-1) - 1, 0)

    def at_public(self, public: Any, xp: Any) -> Dials:
        """The numbers of a round once K' is released: the noise that goes with it, and the most
        that a client may then be given, which is what is charged."""
        if self.ladder is None:
            return self
        rung = self.rung(public, xp)
        return self._replace(
            noise_multiplier=xp.asarray(self.ladder.noise_multipliers)[rung],
            largest_probability=xp.asarray(self.ladder.largest_probabilities)[rung],
            ladder=None,
        )


def not_above(value: float, kind: Callable[[float], Any]) -> Any:
    """A probability in another type, never above it: nobody uploads more often than is charged."""
    rounded = kind(value)
    # as Python floats: NumPy would compare in the type of `rounded`, in which they are equal
    return np.nextafter(rounded, kind(0.0)) if float(rounded) > value else rounded


def dials_of(arm: Arm, kind: Callable[[float], Any]) -> Dials:
    """The numbers of an arm, each in the type that the round computes with."""
    equal = max(SMALLEST_NORM / arm.clip_norm, 1e-30)
    numbers = Dials(
        cohort=arm.cohort,
        uploads=arm.uploads,
        clip_norm=arm.clip_norm,
        floor=arm.floor,
        least_norm_sum=arm.norm_low * arm.cohort * arm.clip_norm,
        noise_multiplier=arm.update_multiplier,
        norm_multiplier=arm.sum_multiplier,
        step=arm.step,
        largest_probability=arm.largest_probability,
        shortest=1.0 if arm.lengths == "clipped" else equal,
        count_noise=arm.count_noise,
        clip_quantile=arm.clip_quantile or 0.5,
        clip_rate=arm.clip_rate,
        clip_multiplier=arm.clip_multiplier,
        loss_bound=arm.loss_bound,
        gate=arm.gate,
        sum_noise=arm.sum_multiplier if arm.parts.trust.server_adds_noise else 0.0,
    )
    ladder = None
    if arm.noise_follows and arm.ladder:
        each = arm.at_rungs()
        ladder = Ladder(
            np.array([kind(one.norm_low) for one in each]),
            np.array([kind(one.update_multiplier) for one in each]),
            np.array([not_above(one.largest_probability, kind) for one in each]),
        )
    most = not_above(arm.largest_probability, kind)
    converted = Dials._make([*map(kind, numbers[:-1]), ladder])
    return converted._replace(largest_probability=most)
