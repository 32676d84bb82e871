"""A sampling rule of your own: `rule = "own_rule:rule"`, in TOML or in `locksfl.train`.

It softens LOCKS: members are drawn in proportion to the square root of their norm.
"""

from locksfl.methods.rules import NORM, Rule


def probability(own, public, weight, dials, xp):
    """b sqrt(z_i C) / K', for one client: z_i is its norm as released, K' the clamped norm sum."""
    return dials.uploads * xp.sqrt(own * dials.clip_norm) / public


rule = Rule(
    name="square-root",
    about="in proportion to the square root of the norm",
    probability=probability,
    largest_probability=lambda arm: arm.uploads / (arm.cohort * arm.norm_low),  # at z_i = C, K_low
    asks=NORM,  # what it needs of a client ...
    released=True,  # ... is released first, with noise, and charged
    settle=lambda released, dials, xp: xp.clip(
        released, dials.least_norm_sum, dials.cohort * dials.clip_norm
    ),
    takes=("norm_low",),
)
