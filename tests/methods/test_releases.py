"""Records of releases: what they accept, and what they are turned into."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest

from locksfl.arm import Arm
from locksfl.methods import TRUSTS
from locksfl.methods.releases import NORM, UPDATE
from locksfl.privacy import ClientReleases, SampledRound, central_epsilon, local_epsilon


@pytest.mark.parametrize("kind", [int, np.int64, np.float32, np.float64])
def test_multipliers_become_python_floats(kind):
    event = SampledRound(kind(1), kind(2), kind(3), kind(1))
    assert all(type(value) is float for value in dataclasses.astuple(event))
    assert event == SampledRound(1.0, 2.0, 3.0, 1.0)
    releases = ClientReleases(kind(2), np.int64(5), kind(3), 4)
    assert type(releases.noise_multiplier) is type(releases.norm_multiplier) is float
    assert type(releases.uploads) is int


def test_dp_accounting_charges_too_little_for_an_int_or_a_float32_and_we_do_not():
    """The trap: the same composed event, with a multiplier of another type, costs less there."""
    import dp_accounting
    from dp_accounting import rdp

    def upstream(first, second):
        gaussians = [dp_accounting.GaussianDpEvent(z) for z in (first, second)]
        event = dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.ComposedDpEvent(gaussians))
        return rdp.RdpAccountant(list(range(2, 64))).compose(event, 100).get_epsilon(1e-5)

    def ours(first, second):
        return central_epsilon([(SampledRound(0.2, second, first), 100)], 1e-5, accountant="rdp")

    right = upstream(2.0, 3.0)
    for first in (2, np.float32(2.0)):
        assert upstream(first, 3.0) < 0.9 * right
        assert ours(first, 3) == ours(2.0, 3.0)
    assert ours(2.0, 3.0) == pytest.approx(right, rel=0.02)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SampledRound(0.0, 1.0), "sampling_rate = 0.0: expected a rate in"),
        (lambda: SampledRound(1.5, 1.0), "sampling_rate = 1.5: expected a rate in"),
        (lambda: SampledRound("0.2", 1.0), "sampling_rate = '0.2': expected a number"),
        (lambda: SampledRound(0.2, 0.0), "noise_multiplier = 0.0: expected a number > 0"),
        (lambda: SampledRound(0.2, math.nan), "noise_multiplier = nan: expected a number > 0"),
        (lambda: SampledRound(0.2, True), "noise_multiplier = True: expected a number"),
        (lambda: SampledRound(0.2, 1.0, -1), "norm_multiplier = -1.0: expected a number > 0"),
        (lambda: SampledRound(0.2, 1.0, 1, 2), "upload_probability = 2.0: expected a rate in"),
        (lambda: ClientReleases(1.0, -1), "uploads = -1: expected a whole number >= 0"),
        (lambda: ClientReleases(1.0, 1.5), "uploads = 1.5: expected a whole number >= 0"),
        (lambda: ClientReleases(1.0, 1, None, 2), "norm_multiplier = None: expected a number > 0"),
        (
            lambda: central_epsilon([], 1.0),
            r"delta = 1.0: expected a number in \(0, 1\)",
        ),
        (
            lambda: central_epsilon([], 1e-5, "replac"),
            r"relation = 'replac': .* \(did you mean 'replace'\?\)",
        ),
        (
            lambda: central_epsilon([], 1e-5, accountant="rpd"),
            r"accountant = 'rpd': .* \(did you mean",
        ),
        (
            lambda: central_epsilon([(SampledRound(0.2, 1.0), -3)], 1e-5),
            "rounds = -3: expected a whole number >= 0",
        ),
        (lambda: local_epsilon([], 1e-5, "zero"), "relation = 'zero': expected one of"),
    ],
)
def test_bad_input_names_the_setting_its_value_and_what_is_expected(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_nothing_released_costs_nothing():
    for relation in ("zero-out", "replace"):
        assert central_epsilon([], 1e-5, relation) == 0
        assert central_epsilon([(SampledRound(0.2, 1.0), 0)], 1e-5, relation) == 0
        assert local_epsilon([ClientReleases(1.0, 0)], 1e-5, relation) == 0


def test_two_coins_without_a_norm_release_are_one_coin():
    assert SampledRound(0.3, 1.0, upload_probability=0.5).rate == pytest.approx(0.15)
    assert SampledRound(0.3, 1.0, 5.0, 0.5).rate == 0.3


def test_import_needs_neither_jax_nor_dp_accounting():
    code = (
        "import sys, locksfl.privacy;"
        "bad = {'jax', 'dp_accounting'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_sensitivities_are_derived_from_where_a_value_lies():
    """An interval [0, C] and a ball of radius S, searched: never beyond, and reached."""
    rng = np.random.default_rng(0)
    norms = np.append(rng.uniform(0, 1, 500), [0.0, 1.0])
    vectors = rng.normal(size=(500, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)  # the sphere, and its antipodes
    vectors = np.concatenate([vectors, -vectors])
    for relation, from_what in (("zero-out", False), ("replace", True)):
        for domain, apart in (
            (NORM, np.abs(norms[:, None] - (norms[None] if from_what else 0.0))),
            (UPDATE, np.linalg.norm(vectors - (-vectors if from_what else 0.0), axis=1)),
        ):
            assert apart.max() == pytest.approx(domain.sensitivity(relation), rel=1e-9)
    with pytest.raises(ValueError, match="relation"):
        NORM.sensitivity("other")


@pytest.mark.parametrize("asks", [NORM, None])
def test_a_round_says_what_it_releases_to_whom(asks):
    def seen(trust, observer):
        found = TRUSTS[trust].releases(2.0, 5.0, asks)
        return [(r.what, r.noise_multiplier, r.summed) for r in found if r.observer == observer]

    kinds = [("norm", 5.0), ("update", 2.0)] if asks else [("update", 2.0)]
    noised = {s: [(what, z, s) for what, z in kinds] for s in (True, False)}
    raw = [(what, None, False) for what, _ in kinds]
    assert seen("local", "SERVER") == seen("local", "PUBLIC") == noised[False]
    assert (seen("central", "SERVER"), seen("central", "PUBLIC")) == (raw, noised[True])
    assert seen("none", "SERVER") == seen("none", "PUBLIC") == raw
    alone = TRUSTS["local"].releases(2.0, 5.0, None)
    (update,) = [r for r in alone if r.observer == "SERVER"]
    assert (update.mu_squared("zero-out"), update.mu_squared("replace")) == (0.25, 1.0)
    with pytest.raises(ValueError, match="trust = 'secure'"):
        Arm("", 10, 1, cohort=5, trust="secure")
