"""The public terms of an arm: what it releases to each observer, in the words of mechanisms.

A statement has them beside its epsilons, so that anybody can compute these again with a program of
their own (docs/verify.md). They are made of what the accountants read (`Arm.releases`,
`Arm.sampled_round`, `Arm.client_releases`, `Arm.budget`), and a kind of round that is not described
here is refused: it is never left out. All values are public settings, and no data enter.

    exact                   something leaves without noise: epsilon is infinite
    poisson-gaussian        noise on a sum over clients drawn by independent coins, so many rounds
    joint-poisson-gaussian  two sums of each round: one over the clients drawn, then one over those
                            of them that a second coin draws, of at most `second_rate`
    chosen                  every round is one of `choices`, whichever earlier releases decide on
    turns                   noise on sums over groups that take turns in public
    gaussian                a client's own noisy messages, so many
    filtered-gaussian       the same, until a client's own budget is spent
"""

from __future__ import annotations

from typing import Any

from locksfl.arm import Arm
from locksfl.methods.releases import (
    NORM,
    OBSERVERS,
    UPDATE,
    CyclicRound,
    Observer,
    RatedRound,
    Round,
    SampledRound,
)

Term = dict[str, Any]
Terms = dict[str, list[Term]]


def terms_of(arm: Arm) -> Terms:
    """What all rounds of an arm release, by observer: what `privacy.guarantee` charges."""
    return {observer: _seen_by(observer, arm) for observer in OBSERVERS}


def _seen_by(observer: Observer, arm: Arm) -> list[Term]:
    seen = [release for release in arm.releases() if release.observer == observer]
    if not all(release.noise_multiplier for release in seen):
        return [{"mechanism": "exact"}]
    if all(release.summed for release in seen):
        return [_sums(arm.sampled_round(), arm)]
    return _messages(observer, arm)


def _sums(event: Round, arm: Arm) -> Term:
    """The rounds of an arm whose server adds the noise."""
    if isinstance(event, CyclicRound):
        found = {"separation": event.separation, "noise_multiplier": event.noise_multiplier}
        bands = {"bands": arm.bands, "strategy": list(arm.strategy)}
        return {"mechanism": "turns", **found, **bands, "rounds": arm.rounds}
    if isinstance(event, RatedRound):
        choices = [_coins(one) for one in event.rungs]
        return {"mechanism": "chosen", "choices": choices, "rounds": arm.rounds}
    if isinstance(event, SampledRound):
        return {**_coins(event), "rounds": arm.rounds}
    raise TypeError(f"{type(event).__name__}: a kind of round without public terms")


def _coins(event: SampledRound) -> Term:
    if event.norm_multiplier is None:
        noise = {"sampling_rate": event.rate, "noise_multiplier": event.noise_multiplier}
        return {"mechanism": "poisson-gaussian", **noise}
    return {
        "mechanism": "joint-poisson-gaussian",
        "sampling_rate": event.sampling_rate,
        "first_multiplier": event.norm_multiplier,
        "second_rate": event.upload_probability,
        "noise_multiplier": event.noise_multiplier,
    }


def _messages(observer: Observer, arm: Arm) -> list[Term]:
    """One client's own messages, of the client that sends most; `uploaders`: PUBLIC sees only sums
    in which the noise of so many adds up."""
    sent = arm.client_releases(arm.rounds)
    noise: Term = {UPDATE.name: sent.noise_multiplier}
    if sent.norm_multiplier is not None:
        noise[NORM.name] = sent.norm_multiplier
    if arm.budget is not None:
        budget = {name: getattr(arm.budget, name) for name in ("epsilon", "delta", "relation")}
        multipliers = {f"{what}_multiplier": each for what, each in noise.items()}
        mechanism = {"mechanism": "filtered-gaussian", "rounds": arm.rounds}
        return [{**mechanism, **multipliers, **{f"budget_{k}": v for k, v in budget.items()}}]
    together = observer == "PUBLIC" and arm.credited and arm.everyone_uploads
    share = {"uploaders": arm.clients} if together else {}
    return [
        {"mechanism": "gaussian", "release": what, "noise_multiplier": z, "rounds": arm.rounds}
        | share
        for what, z in noise.items()
    ]
