"""What is forecast is what a run then measures, and the verdicts are those that were measured."""

from __future__ import annotations

import numpy as np
import pytest

from checks import SOUND, arm_for, ragged
from locksfl.arm import Arm
from locksfl.models.build import softmax
from locksfl.privacy import calibrate
from locksfl.privacy.forecast import (
    HOPELESS,
    _given_sum,
    _mean_root,
    expected_round,
    forecast_line,
    norm_points,
    reach,
    smallest_population,
    verdict,
)
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator

CLIENTS, ROUNDS, CLIP = 60, 60, 0.8


@pytest.fixture(scope="module")
def simulator():
    return Simulator(ragged(np.full(CLIENTS, 6)), softmax(6, 3))


# --- The noise ------------------------------------------------


@pytest.mark.parametrize("rule", ["uniform", "norm"])
@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_run_has_the_noise_that_was_forecast(simulator, trust, rule):
    """The mean of RoundLog.noise over 60 rounds within 5%; The noise of epsilon 6 is told
    apart."""
    settings = {"floor": 0.1, "norm_low": 0.6} if rule == "norm" else {}
    cohort = 30.0 if rule == "norm" else 15.0
    played = Arm.of(
        *("arm", CLIENTS, ROUNDS, rule, "capped", trust, cohort, 15.0, CLIP),
        step=1e-6,  # the model stays where it is, and so do the norms
        **settings,
    )
    played = calibrate(played, 8.0, 1e-4)
    server = Server(rounds=ROUNDS)
    source = Randomness.seeded(2)
    blocks = simulator.play(played, LocalWork(), server, source, evaluate_every=ROUNDS)
    rounds = [log for block in blocks for log in block.rounds]
    norms = np.concatenate([log.norms for log in rounds])
    share = float(np.minimum(norms / CLIP, 1).mean())
    told = expected_round(played, simulator.model.size, share)
    measured = np.mean([log.noise for log in rounds]) / CLIP
    assert told.noise == pytest.approx(measured, rel=0.05)
    assert told.uploads == pytest.approx(np.mean([log.uploaded.sum() for log in rounds]), rel=0.12)
    assert told.kept == pytest.approx(np.mean([log.expected_weight for log in rounds]), rel=0.12)
    bare = played.changed(noise_multiplier=0.0, norm_multiplier=0.0)
    other = expected_round(calibrate(bare, 6.0, 1e-4), simulator.model.size, share)
    assert other.noise != pytest.approx(measured, rel=0.1)


def test_the_noise_over_uniform_is_that_of_the_audit():
    """audit 2.7: m = 30, b = 10, z_K = 10, no floor, K'/(m C) = r; epsilon 4 and 10, RDP."""
    from locksfl.privacy import calibrate_central

    for epsilon, wanted in ((4.0, [1.06, 1.0, 0.94, 0.9]), (10.0, [1.02, 0.91, 0.81, 0.71])):
        uniform = calibrate_central(epsilon, 1e-5, 100, 0.1, accountant="rdp").noise_multiplier
        for r, ratio in zip((1.0, 0.8, 0.6, 0.4), wanted, strict=True):
            z = calibrate_central(
                *(epsilon, 1e-5, 100, 0.3),
                accountant="rdp",
                upload_probability=10 / 30 / r,
                norm_multiplier=10.0,
            ).noise_multiplier
            arm = Arm.of(
                *("", 100, 100, "norm", "capped", "central", 30.0, 10.0),
                floor=0.0,
                norm_low=r,
                noise_multiplier=z,
            )
            points = np.ones((1, 1))
            noise = _given_sum(arm, 1, points, points, 30 * r)[0]
            assert noise / (uniform / 10) == pytest.approx(ratio, abs=0.03)


def test_the_sampling_error_is_the_variance_of_two_samples():
    """(1/n^2) sum (1/rho_i - 1) r_i^2, by hand for uniform and for a known norm sum."""
    norms = np.array(norm_points(0.4))
    shape = {"cohort": 50.0, "uploads": 20.0, "noise_multiplier": 1.0}
    arm = Arm.of("", 200, 10, "uniform", **shape)
    by_hand = np.mean((200 / 20 - 1) * norms**2) / 200
    assert expected_round(arm, 5, 0.4).sampling ** 2 == pytest.approx(by_hand, rel=1e-9)
    arm = Arm.of("", 200, 10, "norm", floor=0.2, norm_low=0.4, **shape)
    k = 0.5 * 50
    p = 0.8 * 20 * norms / k + 0.2 * 20 / 50
    by_hand = np.mean((1 / (0.25 * p) - 1) * norms**2) / 200
    found = _given_sum(arm, 5, norms[:, None], norms[:, None], k)
    assert found[1] == pytest.approx(by_hand, rel=1e-9)
    assert found[2] == pytest.approx(1)


def test_stated_norms_have_the_mean_that_was_asked():
    for mean in (0.05, 0.5, 0.97, 1.0):
        assert np.mean(norm_points(mean)) == pytest.approx(mean, abs=1e-3)
        assert max(norm_points(mean)) <= 1
    rng = np.random.default_rng(0)
    for mean, most in ((3.0, 20), (20.0, 100), (60.0, 100), (500.0, 20_000)):
        drawn = np.sqrt(rng.binomial(most, mean / most, 400_000)).mean()
        assert _mean_root(mean, most) == pytest.approx(drawn, rel=2e-3)


# --- Verdicts ------------------------------------------------


def test_local_10_with_100_clients_will_fail():
    """Measured: about .2. It is said before a run."""
    for rule in ("uniform", "norm"):
        arm = calibrate(Arm("mine", 100, 100, rule, trust="local", cohort=20.0), 10.0, 1e-5)
        assert "mine: training will fail" in (forecast_line(arm, 7850) or "")
        assert forecast_line(arm, 10) is None


def test_what_worked_is_not_called_hopeless():
    """Measured: central 10 with 100 clients .77, central 8 with 1,000 clients .855 to .906."""
    found = {}
    for clients, epsilon in ((100, 10.0), (1000, 8.0)):
        arm = calibrate(Arm("", clients, 100, cohort=20.0), epsilon, 1e-5)
        found[clients] = reach(arm, expected_round(arm, 7850).noise)
        assert verdict(found[clients]) == "fine"
        if clients == 100:
            assert arm.noise_multiplier == pytest.approx(1.25, abs=0.01)
    assert found[100] < found[1000]
    uniform = Arm("u", 100, 100, cohort=20.0)
    assert forecast_line(calibrate(uniform, 10.0, 1e-5), 7850) is None
    none = Arm("n", 100, 100, trust="none", cohort=20.0)
    assert forecast_line(none, 10**9) is None


@pytest.mark.parametrize("trust", ["central", "local"])
def test_the_smallest_population_is_where_the_verdict_changes(trust):
    """At that n, the same shares asked, reach is HOPELESS; a tenth fewer are below it."""
    first = calibrate(Arm("", 400, 100, trust=trust, cohort=40.0), 2.0, 1e-5)
    n = smallest_population(first, reach(first, expected_round(first, 7850).noise))
    for clients, factor in ((n, 1.0), (round(0.9 * n), 0.0)):
        arm = calibrate(Arm("", clients, 100, trust=trust, cohort=clients / 10), 2.0, 1e-5)
        found = reach(arm, expected_round(arm, 7850).noise)
        assert found == pytest.approx(HOPELESS, rel=0.05) if factor else found < HOPELESS


def test_every_sound_method_has_a_forecast():
    """Whatever a rule's probability depends on: nothing, a weight, or a norm."""
    usual = {"clients": 20, "rounds": 4, "cohort": 10.0, "uploads": 5.0, "noise_multiplier": 2.0}
    usual |= {"weights": tuple(np.full(20, 0.05)), "norm_low": 0.8}
    for method in SOUND:
        arm = arm_for(method, usual)
        if not arm.private:
            arm = arm.changed(noise_multiplier=0.0)
        found = expected_round(arm, 100, 0.6)
        assert found.noise > 0 if arm.private else found.noise == 0
        assert 0 < found.uploads <= 20
