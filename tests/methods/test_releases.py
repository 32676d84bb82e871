"""Records of releases: what they accept, and what they are turned into."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from msgspec import structs

from checks import sent
from locksfl.arm import Arm
from locksfl.methods.events import (
    Chosen,
    Event,
    Exact,
    Filtered,
    Message,
    Rounds,
    Sampled,
    SampledTwice,
    Turns,
    from_json,
    to_json,
)
from locksfl.methods.releases import NORM, UPDATE
from locksfl.privacy.accountant import epsilon_of, mu_squared
from locksfl.privacy.terms import terms_of


@pytest.mark.parametrize("kind", [int, np.int64, np.float32, np.float64])
def test_multipliers_become_python_floats(kind):
    event = SampledTwice(kind(1), kind(3), kind(1), kind(2))
    assert all(type(value) is float for value in structs.astuple(event))
    assert event == SampledTwice(1.0, 3.0, 1.0, 2.0)
    assert type(Turns(np.int64(5), kind(1)).separation) is int


def test_dp_accounting_charges_too_little_for_an_int_or_a_float32_and_we_do_not():
    """The trap: the same composed event, with a multiplier of another type, costs less there."""
    import dp_accounting
    from dp_accounting import rdp

    def upstream(first, second):
        gaussians = [dp_accounting.GaussianDpEvent(z) for z in (first, second)]
        event = dp_accounting.PoissonSampledDpEvent(0.2, dp_accounting.ComposedDpEvent(gaussians))
        return rdp.RdpAccountant(list(range(2, 64))).compose(event, 100).get_epsilon(1e-5)

    def ours(first, second):
        return epsilon_of(
            [(SampledTwice(0.2, first, 1.0, second), 100)], 1e-5, accountant="rdp"
        ).epsilon

    right = upstream(2.0, 3.0)
    for first in (2, np.float32(2.0)):
        assert upstream(first, 3.0) < 0.9 * right
        assert ours(first, 3) == ours(2.0, 3.0)
    assert ours(2.0, 3.0) == pytest.approx(right, rel=0.02)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Sampled(0.0, 1.0), "sampling_rate = 0.0: expected a rate in"),
        (lambda: Sampled(1.5, 1.0), "sampling_rate = 1.5: expected a rate in"),
        (lambda: Sampled("0.2", 1.0), "sampling_rate = '0.2': expected a number"),
        (lambda: Sampled(0.2, 0.0), "noise_multiplier = 0.0: expected a number > 0"),
        (lambda: Sampled(0.2, math.nan), "noise_multiplier = nan: expected a number > 0"),
        (lambda: Sampled(0.2, True), "noise_multiplier = True: expected a number"),
        (lambda: SampledTwice(0.2, -1, 1.0, 1.0), "first_multiplier = -1: expected a number > 0"),
        (lambda: SampledTwice(0.2, 1, 2, 1.0), "second_rate = 2: expected a rate in"),
        (lambda: Sampled(0.2, None), "noise_multiplier = None: expected a number"),
        (lambda: Message("updte", 1.0), r"release = 'updte': .* \(did you mean 'update'\?\)"),
        (lambda: Turns(0, 1.0), "separation = 0: expected a whole number >= 1"),
        (lambda: Turns(1.5, 1.0), "separation = 1.5: expected a whole number >= 0"),
        (lambda: Message("update", math.inf), "noise_multiplier = inf: expected a number > 0"),
        (
            lambda: epsilon_of([], 1.0).epsilon,
            r"delta = 1.0: expected a number in \(0, 1\)",
        ),
        (
            lambda: epsilon_of([], 1e-5, "replac").epsilon,
            r"relation = 'replac': .* \(did you mean 'replace'\?\)",
        ),
        (
            lambda: epsilon_of([], 1e-5, accountant="rpd").epsilon,
            r"accountant = 'rpd': .* \(did you mean",
        ),
        (
            lambda: epsilon_of([(Sampled(0.2, 1.0), -3)], 1e-5).epsilon,
            "rounds = -3: expected a whole number >= 0",
        ),
        (lambda: epsilon_of([], 1e-5, "zero").epsilon, "relation = 'zero': expected one of"),
    ],
)
def test_bad_input_names_the_setting_its_value_and_what_is_expected(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_nothing_released_costs_nothing():
    for relation in ("zero-out", "replace"):
        assert epsilon_of([], 1e-5, relation).epsilon == 0
        assert epsilon_of([(Sampled(0.2, 1.0), 0)], 1e-5, relation).epsilon == 0
        assert epsilon_of(sent(1.0, 0), 1e-5, relation).epsilon == 0


def test_two_coins_without_a_norm_release_are_one_coin():
    uniform = Arm.of("a", 10, 5, cohort=3.0, uploads=1.5, noise_multiplier=1.0)
    assert uniform.event() == Sampled(0.3 * 0.5, 1.0)
    norms = {"noise_multiplier": 1.0, "norm_multiplier": 5.0, "floor": 0.0}
    assert Arm.of("a", 10, 5, "norm", cohort=3.0, uploads=1.5, norm_low=1.0, **norms).event() == (
        SampledTwice(0.3, 5.0, 0.5, 1.0)
    )


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


@pytest.mark.parametrize("rule", ["norm", "uniform"])
def test_a_round_says_what_it_releases_to_whom(rule):
    def seen(trust, observer):
        noise = {} if trust == "none" else {"noise_multiplier": 2.0}
        noise |= {"norm_multiplier": 5.0} if noise and rule == "norm" else {}
        arm = Arm.of("a", 10, 4, rule, trust=trust, cohort=5.0, uploads=2.5, **noise)
        return terms_of(arm)[observer]

    raw = (Rounds(Exact(), 1),)
    kinds = [Message("update", 2.0), *([Message("norm", 5.0)] if rule == "norm" else [])]
    messages = tuple(Rounds(kind, 4) for kind in kinds)
    assert seen("local", "SERVER") == seen("local", "PUBLIC") == messages
    assert seen("central", "SERVER") == seen("none", "SERVER") == seen("none", "PUBLIC") == raw
    (sums,) = seen("central", "PUBLIC")
    assert isinstance(sums.event, SampledTwice if rule == "norm" else Sampled)
    by_relation = [mu_squared(messages[0], r) for r in ("zero-out", "replace")]
    assert by_relation == [4 * 0.25, 4 * 1.0]
    with pytest.raises(ValueError, match="trust = 'secure'"):
        Arm("", 10, 1, cohort=5, trust="secure")


def test_an_event_is_read_as_it_was_written_and_nothing_odd_is():
    """JSON there and back; an unknown kind, a field more or less, and numbers of another kind."""
    every = [
        Rounds(Exact(), 1),
        Rounds(Sampled(0.1, 1.5), 3),
        Rounds(Chosen((Sampled(0.1, 1.5), SampledTwice(1.0, 2.0, 0.5, 3.0))), 7),
        Rounds(Turns(4, 2.0, 2, (0.8, 0.6)), 9),
        Rounds(Message("update", 2.0, 12), 5),
        Rounds(Filtered(2.0, 8.0, 1e-5, "replace"), 5),
        Rounds(Filtered(2.0, 8.0, 1e-5, "replace", 4.0), 5),
    ]
    for one in every:
        assert from_json(json.loads(json.dumps(to_json(one)))) == one
        assert pickle.loads(pickle.dumps(one)) == one
    sound = to_json(every[1])
    for wrong in (
        {"mechanism": "guess"}, {"more": 1}, {"rounds": None}, {"rounds": 2.0}, {"rounds": True},
        {"sampling_rate": True}, {"sampling_rate": 1.5}, {"sampling_rate": "0.1"},
        {"noise_multiplier": math.inf}, {"noise_multiplier": math.nan}, {"noise_multiplier": 0},
        {"noise_multiplier": None}, {"mechanism": "gaussian"}, {"mechanism": None},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"mechanism = "):
            from_json(sound | wrong)
    with pytest.raises(ValueError, match="noise_multiplier"):
        from_json({k: v for k, v in sound.items() if k != "noise_multiplier"})


def test_an_event_that_no_accountant_names_is_refused():
    class Guess(Event, frozen=True):
        """A kind of release that is new here."""

    with pytest.raises(TypeError, match="Guess: expected an event that `from_json` reads"):
        to_json(Rounds(Guess(), 1))
    with pytest.raises(TypeError, match="no accountant charges Guess"):
        epsilon_of([(Guess(), 1)], 1e-5)
    with pytest.raises(TypeError, match="no accountant charges Guess, poisson-gaussian together"):
        epsilon_of([(Guess(), 1), (Sampled(0.1, 1.0), 1)], 1e-5)
