"""Every client tosses a coin of its own, in secret, in every round: a Poisson cohort.

Guarantee: nobody but the server knows who was drawn, and each draw is independent, so that a sum
over the cohort is amplified by the rate of the coins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from locksfl.methods.events import Chosen, Coins, Sampled, SampledTwice
from locksfl.methods.releases import joint_multiplier
from locksfl.methods.samplings import Sampling

if TYPE_CHECKING:
    from locksfl.arm import Arm
    from locksfl.methods.sound import Problem


def event(arm: Arm) -> Coins | Chosen:
    """Two draws with nothing released between them equal one draw with the product of their
    probabilities. What the whole cohort releases, norms and bits, is one Gaussian; if all of it
    uploads, the update is part of that Gaussian too."""
    if arm.ladder:
        return Chosen(tuple(map(_one, arm.at_rungs())))
    return _one(arm)


def _one(arm: Arm) -> Coins:
    """The event of an arm of one rate and one noise."""
    noise, q, p = arm.noise.known(), arm.sampling_rate, arm.largest_probability
    cohort = [arm.noise.known("norm_multiplier")] if arm.releases_norms else []
    if arm.clip_quantile is not None:
        cohort.append(arm.noise.known("clip_multiplier"))
    if not cohort:
        return Sampled(q * p, noise)
    if p == 1 and not arm.releases_norms:
        return Sampled(q, joint_multiplier(noise, *cohort))
    before = joint_multiplier(*cohort) if len(cohort) > 1 else cohort[0]
    return SampledTwice(q, before, p, noise)


def unsound(arm: Arm) -> Iterator[Problem]:
    """Settings that need turns."""
    for name in ("separation", "bands"):
        if value := getattr(arm, name):
            yield name, str(value), "expected a separation too: correlated noise needs turns"


sampling = Sampling(
    name="poisson",
    about="'poisson'",
    event=event,
    unsound=unsound,
    planned=True,
    asked="an independent random draw for {} decided whether it was asked",
    counts="Who took part and how many they were is known to the server only, and where it "
    "adds the noise it is a secret: these are the expected numbers of clients asked, and uploads "
    "estimated from what was released, which may fall below zero.",
)
