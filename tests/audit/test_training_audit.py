"""Ways to train, attacked: rounds of the client's own work under an observer who knows the models
and so the direction of the canary's update in each. At least half of a claim of 3 is proved and no
more than it, and too little noise is caught. Bounds are given at a significance of 1e-6, which is
the false-alarm rate of each test."""

from __future__ import annotations

import dataclasses

import pytest
from scripts.make_methods import AUDITED, OBSERVER, TRAINING, strongest_on_training, training_claim

from locksfl.methods import TRUSTS
from locksfl.round import anchor, control

IN_CI = [("fedprox", "central"), ("scaffold", "central"), ("anchors", "central")]
ALL = [
    (name, trust) if (name, trust) in IN_CI else pytest.param(name, trust, marks=pytest.mark.long)
    for name in TRAINING
    for trust in OBSERVER
    if training_claim(name, trust)
]


@pytest.mark.parametrize(("name", "trust"), ALL)
def test_half_of_the_claim_is_proved_and_no_more_than_it(name, trust):
    found = strongest_on_training(*training_claim(name, trust))
    assert found.claimed == pytest.approx(AUDITED["epsilon"], abs=2e-3)
    assert found.claimed / 2 <= found.lower <= found.claimed, found


@pytest.mark.parametrize(("name", "trust"), ALL)
def test_a_third_of_the_noise_is_caught(name, trust, monkeypatch):
    real = TRUSTS[trust].noise_std
    less = dataclasses.replace(TRUSTS[trust], noise_std=lambda *given: real(*given) / 3)
    monkeypatch.setitem(TRUSTS, trust, less)
    assert strongest_on_training(*training_claim(name, trust), repetitions=10_000).refuted


def test_differences_clipped_to_the_bound_of_gradients_are_caught(monkeypatch):
    """Anchors, with differences that should be a quarter as long: C under the noise of C'."""

    def faulty(work, dials, t):
        ratio = anchor.dials_of(work, dials, t).clip_norm / dials.clip_norm
        return dials._replace(noise_multiplier=dials.noise_multiplier * ratio)

    arm, work, privacy = training_claim("anchors", "central")
    work = dataclasses.replace(work, anchor_ratio=0.25)
    planted = dataclasses.replace(control.CONTROLS["anchor"], dials_of=faulty)
    monkeypatch.setitem(control.CONTROLS, "anchor", planted)
    assert strongest_on_training(arm, work, privacy, repetitions=10_000).refuted
