"""The count of updates within the clip norm is a release like any other: charged, and refused where
nobody can sum it."""

from __future__ import annotations

import math

import pytest

from locksfl.arm import Arm
from locksfl.experiment.arm_config import ArmConfig
from locksfl.privacy import account, calibrate
from locksfl.privacy.rdp import rdp_epsilon

CASES = {
    "uniform": {"cohort": 50},
    "thinned": {"cohort": 50, "uploads": 20},
    "coin": {"cohort": 50, "rule": "coin"},
    "norm": {"cohort": 50, "uploads": 20, "rule": "norm"},
    "small": {"cohort": 5},
    "few": {"cohort": 50, "uploads": 2},
}


def arm_of(case, **more):
    return Arm.of("", 500, 30, **(CASES[case] | {"clip_quantile": 0.5} | more))


def public(arm, accountant="rdp"):
    (cost,) = (
        c.epsilon
        for c in account(arm, 1e-5, accountant)
        if (c.observer, c.relation) == ("PUBLIC", "zero-out")
    )
    return cost


@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_paid_out_of_epsilon(case):
    """The total is the target; without the bits the same arm costs less: so they were charged."""
    arm = calibrate(arm_of(case), 4.0, 1e-5, accountant="rdp")
    assert 4.0 * (1 - 2e-3) < public(arm) <= 4.0
    uncharged = arm.changed(clip_quantile=None, clip_multiplier=0.0)
    assert public(uncharged) < 4.0 * (1 - 1e-3)
    least = max(arm.cohort / 10, 4.8 * (arm.norm_multiplier or arm.noise_multiplier))
    assert arm.clip_multiplier >= least  # more than m / 10 in a small cohort
    without = calibrate(uncharged, 4.0, 1e-5, accountant="rdp")
    for name in ("noise_multiplier", "norm_multiplier"):
        assert 1.0 <= getattr(arm, name) / (getattr(without, name) or 1.0) < 1.03 or not getattr(
            arm, name
        )


@pytest.mark.parametrize("case", CASES)
def test_the_charge_is_the_formula_of_the_joint_pair(case):
    """RDP of integer orders of the pair P/Q = (1-q) + q e^(ax - a^2/2) ((1-p) + p e^(cy - c^2/2)),
    written out; with the bits left out of it the accountant would be above, so it can fail."""
    norms = {"norm_multiplier": 9.0} if case == "norm" else {}
    arm = arm_of(case, noise_multiplier=1.5, clip_multiplier=4.0, **norms)

    def rdp(a2, alpha):
        q, p, c2 = arm.sampling_rate, arm.largest_probability, 1.5**-2
        total = 0.0
        for j in range(alpha + 1):
            inner = sum(
                math.comb(j, k) * (1 - p) ** (j - k) * p**k * math.exp(k * (k - 1) / 2 * c2)
                for k in range(j + 1)
            )
            outer = math.comb(alpha, j) * (1 - q) ** (alpha - j) * q**j
            total += outer * math.exp(j * (j - 1) / 2 * a2) * inner
        return math.log(total) / (alpha - 1)

    def epsilon(a2):
        return min(
            30 * rdp(a2, k) + math.log(1 - 1 / k) - math.log(1e-5 * k) / (k - 1)
            for k in range(2, 38)
        )

    charged = rdp_epsilon([(arm.event(), 30)], 1e-5)
    norm = 9.0**-2 if case == "norm" else 0.0
    full = epsilon(norm + 4.0**-2)
    assert charged == pytest.approx(full, rel=0.03)  # real orders are a little better
    assert charged <= full * (1 + 1e-9)
    assert epsilon(norm) < 0.97 * charged


def test_where_nobody_sums_the_bits_they_are_refused():
    with pytest.raises(ValueError, match=r"clip_quantile = 0.5: not with trust 'local'.*'central'"):
        arm_of("uniform", trust="local")
    with pytest.raises(ValueError, match=r"clip_quantile = 0.5: not in a federation"):
        arm_of("uniform", dropouts=True)
    with pytest.raises(ValueError, match=r"clip_multiplier = 2.0: only with clip_quantile"):
        arm_of("uniform", clip_quantile=None, clip_multiplier=2.0)
    with pytest.raises(ValueError, match=r"clip_multiplier = 0.5: .* alone cost more than epsilon"):
        calibrate(arm_of("uniform", clip_multiplier=0.5), 4.0, 1e-5, accountant="rdp")
    with pytest.raises(
        ValueError, match=r"clip_multiplier = 0.5: \d+ releases of bits cost .* epsilon > "
    ):
        calibrate(arm_of("thinned", clip_multiplier=0.5), 4.0, 1e-5, accountant="rdp")
    few = arm_of("uniform", clip_multiplier=0.5, uploads=5.0)  # bits of the cohort, uploads of some
    with pytest.raises(ValueError, match=r"^clip_multiplier = 0.5: \d+ releases of bits cost"):
        calibrate(few, 4.0, 1e-5, accountant="rdp")
    table = ArmConfig("a", cohort=5.0, clip_rate=0.5)
    with pytest.raises(ValueError, match=r"^arm.a.clip_rate = 0.5: only with clip_quantile"):
        table.arm(10, rounds=1)
    assert table.arm(10, rounds=1, clip_quantile=0.5).clip_rate == 0.5


def test_the_bits_are_charged_with_the_norms():
    arm = calibrate(arm_of("norm"), 4.0, 1e-5, accountant="rdp")
    alone = arm.changed(clip_quantile=None, clip_multiplier=0.0).event()
    assert arm.event().first_multiplier < alone.first_multiplier
