"""A method with all its numbers: what will run, checked before anything runs.

`ArmPlan` is the one place that knows which combinations are sound. What cannot be sound is refused
with the reason; what is left has a sampler that fits its accountant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import jax.numpy as jnp
import numpy as np

from locksfl._validate import count, naming, positive, rate
from locksfl.experiment.config import ArmConfig, Config, PrivacyConfig
from locksfl.methods.estimators import ESTIMATORS
from locksfl.methods.trusts import MECHANISMS
from locksfl.privacy import (
    Accountant,
    Budget,
    ClientReleases,
    SampledRound,
    Terms,
    calibrate_central,
    calibrate_local,
    central_epsilon,
    most_rounds,
)
from locksfl.round.algorithm import Method
from locksfl.round.sampling import RULES, Dials

DEFAULT_FLOOR = 0.1


@dataclass(frozen=True)
class ArmPlan:
    """One arm of an experiment, resolved and sound. Letters are those of the design."""

    name: str
    method: Method
    clients: int  # n
    rounds: int  # T
    cohort: float  # m, expected
    uploads: float  # b, wanted
    clip_norm: float  # C
    step: float
    floor: float = 0.0  # lambda
    norm_low: float = 1.0  # K_low as a share of m C
    weights: tuple[float, ...] | None = None  # public, summing to 1
    noise_multiplier: float = 0.0
    norm_multiplier: float = 0.0
    budget: Budget | None = None  # of each client, kept by a filter (trust local)
    dropouts: bool = False  # a federation: who is asked may not answer

    def __post_init__(self) -> None:
        where = f"arm.{self.name}"
        count(clients=self.clients, rounds=self.rounds)
        positive(**{f"{where}.cohort": self.cohort, f"{where}.uploads": self.uploads})
        positive(**{f"{where}.clip_norm": self.clip_norm, f"{where}.step": self.step})
        if self.cohort > self.clients:
            raise ValueError(
                f"{where}.cohort = {self.cohort:g}: expected at most the {self.clients} clients"
            )
        if self.uploads > self.cohort:
            raise ValueError(
                f"{where}.uploads = {self.uploads:g}: expected at most the cohort, {self.cohort:g}"
            )
        if not 0 <= self.floor < 1:
            raise ValueError(f"{where}.floor = {self.floor!r}: expected a share in [0, 1)")
        rate(**{f"{where}.norm_low": self.norm_low})
        if self.norm_low < self.uploads / self.cohort:
            raise ValueError(
                f"{where}.norm_low = {self.norm_low!r}: expected at least uploads / cohort = "
                f"{self.uploads / self.cohort:.4g}, so that no probability passes 1"
            )
        self._check_method(where)
        self._check_weights(where)

    def _check_method(self, where: str) -> None:
        rule, trust, name = self.method.rule, self.method.trust, self.method.estimator
        estimator = ESTIMATORS[name]
        if trust not in estimator.trusts:
            reason = (
                " (the noise would have to grow with 1/p on a sum)" if trust == "central" else ""
            )
            raise ValueError(
                f"{where}.estimator = {name!r}: not with trust {trust!r}{reason}; expected trust "
                f"{' or '.join(estimator.trusts)}"
            )
        if rule not in estimator.rules:
            raise ValueError(
                f"{where}.rule = {rule!r}: not with estimator {name!r}; expected rule "
                f"{' or '.join(estimator.rules)}"
            )
        if rule == "norm" and estimator.needs_floor and self.floor == 0:
            raise ValueError(
                f"{where}.floor = 0: estimator {name!r} divides by the probability; expected > 0"
            )
        if rule == "full" and not self.cohort == self.uploads == self.clients:
            raise ValueError(
                f"{where}.cohort = {self.cohort:g}: rule 'full' asks all {self.clients} clients; "
                "leave cohort and uploads out"
            )

    def _check_weights(self, where: str) -> None:
        if (self.method.rule == "weights") != (self.weights is not None):
            raise ValueError(
                f"{where}.weights: "
                + (
                    "missing: rule 'weights' needs one number a client"
                    if self.weights is None
                    else f"only with rule 'weights', not {self.method.rule!r}"
                )
            )
        if self.weights is None:
            return
        values = np.asarray(self.weights)
        sound = np.isfinite(values).all() and (values >= 0).all() and abs(values.sum() - 1) <= 1e-6
        if values.shape != (self.clients,) or not sound:
            raise ValueError(
                f"{where}.weights: expected {self.clients} numbers >= 0 that sum to 1, "
                f"got {values.size} that sum to {values.sum():.6g}"
            )

    def warnings(self) -> list[str]:
        """What is sound but not what a user may expect."""
        if self.weights is None or self.uploads * max(self.weights) <= self.sampling_rate:
            return []
        return [
            f"arm.{self.name}.weights: the largest, {max(self.weights):.4g}, asks for more than "
            f"every round: above cohort / (clients x uploads) = "
            f"{self.sampling_rate / self.uploads:.4g} a weight counts as that"
        ]

    @property
    def sampling_rate(self) -> float:
        """q, the coin of the first sample."""
        return self.cohort / self.clients

    @property
    def noisy(self) -> bool:
        """Whether anybody adds noise."""
        return MECHANISMS[self.method.trust].noisy

    @property
    def releases_norms(self) -> bool:
        """Whether the cohort is asked for norms."""
        return RULES[self.method.rule].uses_norms

    @property
    def largest_probability(self) -> float:
        """The most that any client's second coin can be, whatever the data."""
        return self.terms.largest_probability

    @property
    def terms(self) -> Terms:
        """What the accountants have to know of it."""
        return Terms(
            trust=self.method.trust,
            rule=self.method.rule,
            clients=self.clients,
            rounds=self.rounds,
            cohort=self.cohort,
            uploads=self.uploads,
            floor=self.floor,
            norm_low=self.norm_low,
            noise_multiplier=self.noise_multiplier or None,
            norm_multiplier=self.norm_multiplier or None,
            estimator=self.method.estimator,
            heaviest=max(self.weights) if self.weights is not None else None,
            dropouts=self.dropouts,
        )

    def dials(self) -> Dials:
        """The numbers that a compiled round takes."""
        values = (
            self.cohort,
            self.uploads,
            self.clip_norm,
            self.floor,
            self.norm_low * self.cohort * self.clip_norm,
            self.noise_multiplier,
            self.norm_multiplier,
            self.step,
        )
        return Dials(*(jnp.float32(v) for v in values))

    def scaled_weights(self) -> np.ndarray | None:
        """The public weights times n, as a round takes them."""
        if self.weights is None:
            return None
        return np.asarray(self.weights, np.float32) * self.clients

    def most_uploads(self) -> np.ndarray | None:
        """For each number of norms released, the uploads that the budget pays beside them."""
        return None if self.budget is None else np.asarray(self.budget.most_uploads(self.terms))

    def sampled_round(self) -> SampledRound:
        """What PUBLIC sees of one round in central trust."""
        return self.terms.sampled_round()

    def client_releases(self, rounds: int) -> ClientReleases:
        """The most that a client sends in so many rounds of local trust: it is asked in each."""
        return self.terms.client_releases(rounds)

    def calibrated(self, privacy: PrivacyConfig) -> ArmPlan:
        """The plan with multipliers that spend privacy.epsilon over all its rounds, norms paid;
        with a filter, over the rounds that a client is expected to be asked in."""
        if privacy.epsilon is None:
            raise ValueError("privacy.epsilon is missing")
        if privacy.accounting == "as-printed":
            return self._as_printed(privacy)
        typed = {name: f"privacy.{name}" for name in ("epsilon", "delta")}
        with naming(norm_multiplier=f"arm.{self.name}.norm_multiplier", **typed):
            noise, norm = self._calibrate(privacy, privacy.epsilon)
        return replace(self, noise_multiplier=noise, norm_multiplier=norm or 0.0)

    def _calibrate(self, privacy: PrivacyConfig, epsilon: float) -> tuple[float, float | None]:
        """Noise on the update and on the norms."""
        given = self.norm_multiplier or None
        if self.method.trust == "local":
            rounds = self.rounds
            if privacy.filter:
                rounds = privacy.releases or math.ceil(self.rounds * self.sampling_rate)
            releases = calibrate_local(
                epsilon,
                privacy.delta,
                uploads=rounds,
                norms=rounds if self.releases_norms else 0,
                relation=privacy.relation,
                norm_multiplier=given,
            )
            return releases.noise_multiplier, releases.norm_multiplier
        joint = self.releases_norms
        event = calibrate_central(
            epsilon,
            privacy.delta,
            self.rounds,
            self.sampling_rate * (1.0 if joint else self.largest_probability),
            relation=privacy.relation,
            accountant=privacy.accountant,
            upload_probability=self.largest_probability if joint else 1.0,
            norm_release=joint,
            norm_multiplier=given,
            cohort=self.cohort if joint else None,
            norm_share=self.norm_low,
        )
        return event.noise_multiplier, event.norm_multiplier

    def _as_printed(self, privacy: PrivacyConfig) -> ArmPlan:
        """The paper's mistake, to be shown: the multiplier of a trusted server's sum over a secret
        sample of b of n, added by each client, and the norms for nothing."""
        event = calibrate_central(
            privacy.epsilon or 0.0,
            privacy.delta,
            self.rounds,
            self.uploads / self.clients,
            accountant=privacy.accountant,
        )
        norm = (self.norm_multiplier or event.noise_multiplier) if self.releases_norms else 0.0
        return replace(self, noise_multiplier=event.noise_multiplier, norm_multiplier=norm)

    def claimed_epsilon(self, privacy: PrivacyConfig) -> float | None:
        """What `accounting = "as-printed"` claims, without any guarantee; else None."""
        if privacy.accounting != "as-printed":
            return None
        event = SampledRound(self.uploads / self.clients, self.noise_multiplier)
        return _claimed(event, self.rounds, privacy.delta, privacy.accountant)


@lru_cache(maxsize=16)
def _claimed(event: SampledRound, rounds: int, delta: float, accountant: Accountant) -> float:
    return central_epsilon([(event, rounds)], delta, accountant=accountant)


def plan_arm(arm: ArmConfig, config: Config) -> ArmPlan:
    """The plan of one arm, not yet calibrated where a total epsilon is asked for."""
    where = f"arm.{arm.name}"
    by_norm = arm.rule == "norm"
    clients = config.data.clients
    if clients is None:
        raise ValueError("data.clients is missing: expected the number of users of the data")
    if arm.rule == "full":
        cohort = float(arm.cohort or clients)
    elif arm.cohort is None:
        raise ValueError(f"{where}.cohort is missing: expected the clients asked in a round")
    else:
        cohort = float(arm.cohort)
    uploads = float(arm.uploads if arm.uploads is not None else cohort)
    for name in ("floor", "norm_low", "norm_multiplier"):
        if getattr(arm, name) is not None and not by_norm:
            raise ValueError(
                f"{where}.{name} = {getattr(arm, name)!r}: rule {arm.rule!r} takes no {name}"
            )
    estimator = arm.estimator or ("weighted" if arm.rule == "weights" else "capped")
    plan = ArmPlan(
        name=arm.name,
        method=Method(arm.rule, estimator, config.privacy.trust),
        clients=clients,
        rounds=config.train.rounds,
        cohort=cohort,
        uploads=uploads,
        clip_norm=arm.clip_norm or config.train.clip_norm,
        step=arm.step or config.train.optimizer.step,
        floor=(DEFAULT_FLOOR if arm.floor is None else arm.floor) if by_norm else 0.0,
        norm_low=(uploads / cohort if arm.norm_low is None else arm.norm_low) if by_norm else 1.0,
        weights=tuple(arm.weights) if arm.weights is not None else None,
        noise_multiplier=arm.noise_multiplier or 0.0,
        norm_multiplier=arm.norm_multiplier or 0.0,
        dropouts=config.engine is not None,
    )
    _check_noise(plan, config.privacy)
    return plan


def _check_noise(plan: ArmPlan, privacy: PrivacyConfig) -> None:
    """Either a total epsilon or multipliers, never both, never neither."""
    where = f"arm.{plan.name}"
    if not plan.noisy:
        for name in ("noise_multiplier", "norm_multiplier"):
            if value := getattr(plan, name):
                raise ValueError(
                    f"{where}.{name} = {value!r}: trust 'none' adds no noise; leave it out"
                )
        return
    if privacy.filter:  # the epsilon is a budget: multipliers may stand beside it
        if plan.noise_multiplier and plan.releases_norms and not plan.norm_multiplier:
            raise ValueError(f"{where}.norm_multiplier is missing: rule 'norm' releases norms")
        return
    if privacy.epsilon is not None and plan.noise_multiplier:
        raise ValueError(
            f"{where}.noise_multiplier = {plan.noise_multiplier!r}: privacy.epsilon = "
            f"{privacy.epsilon!r} already fixes it; leave one of them out"
        )
    if privacy.epsilon is None and not plan.noise_multiplier:
        raise ValueError(
            f"{where}.noise_multiplier is missing: expected it, or privacy.epsilon, "
            f"with trust {privacy.trust!r} (no noise at all is trust 'none')"
        )
    if privacy.epsilon is None and plan.releases_norms and not plan.norm_multiplier:
        raise ValueError(f"{where}.norm_multiplier is missing: rule 'norm' releases norms")


def plan_arms(config: Config, multipliers: list[list[float]] | None = None) -> list[ArmPlan]:
    """Every arm, with the noise that its epsilon asks for, or with the multipliers given; the
    budget of its clients, and the rounds that its accountant allows."""
    privacy = config.privacy
    plans = [plan_arm(arm, config) for arm in config.arm]
    if multipliers is not None:
        pairs = zip(plans, multipliers, strict=True)
        plans = [replace(p, noise_multiplier=z, norm_multiplier=zn) for p, (z, zn) in pairs]
    elif plans[0].noisy and privacy.epsilon is not None:
        plans = [p if p.noise_multiplier else p.calibrated(privacy) for p in plans]
    return [_limited(plan, privacy) for plan in plans]


def _limited(plan: ArmPlan, privacy: PrivacyConfig) -> ArmPlan:
    """The plan within its limits; a limit that does not pay for one round is refused."""
    try:
        if privacy.filter and privacy.epsilon is not None:
            budget = Budget(privacy.epsilon, privacy.delta, privacy.relation)
            budget.check(plan.terms)
            return replace(plan, budget=budget)
        if privacy.max_epsilon is not None:
            rounds = most_rounds(
                plan.terms,
                privacy.max_epsilon,
                privacy.delta,
                privacy.relation,
                privacy.accountant,
            )
            return replace(plan, rounds=rounds)
    except ValueError as error:
        raise ValueError(f"arm.{plan.name}: privacy.{error}") from None
    return plan
