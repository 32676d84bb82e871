"""Statistical checks with a stated false-alarm rate; the arms and small populations of tests."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from scipy import stats

from locksfl.arm import Arm
from locksfl.data.population import Population
from locksfl.methods import ESTIMATORS, TRUSTS, Method
from locksfl.methods.events import Message, Rounds, Sampled, SampledTwice
from locksfl.methods.sound import unsound
from locksfl.privacy.accountant import mu_squared
from locksfl.privacy.budget import Filter
from locksfl.privacy.terms import PlannedArm

# the rules that the NumPy reference plays; each of the others has tests of its own
PLAIN_RULES = ("coin", "full", "norm", "uniform", "weights")
SOUND = [
    method
    for method in itertools.starmap(Method, itertools.product(PLAIN_RULES, ESTIMATORS, TRUSTS))
    if not unsound(*method.parts)
]
# rules that look at all members or at sums of them, which the reference plays too
JOINT = [
    method
    for method in itertools.starmap(
        Method, [*itertools.product(("ocs", "aocs"), ["capped"], TRUSTS),
                 *itertools.product(["top-k"], ["literal", "horvitz-thompson"], TRUSTS)]
    )
    if not unsound(*method.parts)
]  # fmt: skip


def sent(noise, uploads, norm=None, norms=0):
    """What one client releases: so many updates and norms, with their noise multipliers."""
    seen = [Rounds(Message("update", noise), uploads)]
    return seen if norm is None else [*seen, Rounds(Message("norm", norm), norms)]


def client_cost(arm, uploads, norms=None, relation="zero-out"):
    """mu^2 of a client of the arm that releases so many updates and norms, one norm per update if
    their number is not given."""
    update, norm = arm.messages()
    seen = [Rounds(update, uploads)]
    seen += [] if norm is None else [Rounds(norm, uploads if norms is None else norms)]
    return sum(mu_squared(one, relation) for one in seen)


def filter_of(arm, budget):
    """The filter of an arm whose clients keep a budget."""
    return Filter(PlannedArm.of(dataclasses.replace(arm, budget=budget)))


def coins(rate, noise, norm=None, probability=1.0):
    """A round of sums over a secret cohort, with or without a release before the uploads."""
    if norm is None:
        return Sampled(rate * probability, noise)
    return SampledTwice(rate, norm, probability, noise)


FALSE_ALARM = 1e-6  # of one check, over all numbers that it looks at


def mean_is(samples, truth):
    """Whether the mean of the rows of `samples` may be `truth`: all columns within the normal
    quantile of FALSE_ALARM, which is 4.9 standard errors for one column and more for several."""
    samples = np.asarray(samples, float)
    samples = samples.reshape(len(samples), -1)
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    off = np.abs(samples.mean(axis=0) - np.ravel(truth))
    limit = stats.norm.isf(FALSE_ALARM / 2 / samples.shape[1])
    # a column that never varies must be exact, up to float32's rounding
    return bool((off <= limit * error + 2e-7 * np.abs(truth)).all())


def std_is(samples, sigma):
    """Whether normal samples of mean 0 may have the standard deviation `sigma` (chi-square)."""
    samples = np.ravel(samples)
    law = stats.chi2(samples.size)
    value = np.sum((samples / sigma) ** 2)
    return bool(law.ppf(FALSE_ALARM / 2) <= value <= law.isf(FALSE_ALARM / 2))


def counts_are(observed, expected):
    """Whether counts may come from the expected ones (chi-square, cells of 10 or more)."""
    observed, expected = np.asarray(observed, float), np.asarray(expected, float)
    few = expected < 10
    if few.any():  # rare outcomes in one cell
        observed = np.append(observed[~few], observed[few].sum())
        expected = np.append(expected[~few], expected[few].sum())
        if expected[-1] < 10:
            observed = np.append(observed[:-2], observed[-2:].sum())
            expected = np.append(expected[:-2], expected[-2:].sum())
    value = np.sum((observed - expected) ** 2 / expected)
    return bool(value <= stats.chi2(len(expected) - 1).isf(FALSE_ALARM))


def arm_for(method, usual, name="arm", **settings):
    """The arm of a method: of the `usual` settings those that its rule takes, then `settings`."""
    rule, _, _ = method.parts
    foreign = {"floor", "norm_low", "weights"} - set(rule.takes)
    if rule.count_share:  # its uploads are what comes, unless a test asks for rate control
        foreign |= {"uploads"}
    if rule.everyone:
        foreign |= {"cohort", "uploads"}
    kept = {key: value for key, value in usual.items() if key not in foreign}
    names = {"rule": method.rule, "estimator": method.estimator, "trust": method.trust}
    return Arm.of(name, **(names | kept | settings))


def charged_arm(
    trust, rule, clients, rounds, cohort, uploads, floor=0.0, norm_low=1.0, noise_multiplier=0.0,
    norm_multiplier=0.0, name="locks", budget=None,
):  # fmt: skip
    """An arm of which accountants and ledgers see everything that they charge for."""
    return Arm.of(
        name, clients, rounds, rule, "capped", trust, cohort, uploads, floor=floor,
        norm_low=norm_low, noise_multiplier=noise_multiplier,
        norm_multiplier=norm_multiplier or 0.0, budget=budget,
    )  # fmt: skip


def ragged(sizes, features=6, classes=3, seed=0, broken=(), value=np.nan):
    """Clients of the given sizes with norms that differ much; the `broken` have one odd feature."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    spread = rng.uniform(0.2, 2.5, len(sizes))[owner]
    x = (rng.normal(size=(len(owner), features)) * spread[:, None]).astype(np.float32)
    y = rng.integers(0, classes, len(owner))
    for client in broken:
        x[np.flatnonzero(owner == client)[0], 1] = value
    test_x = rng.normal(size=(11, features)).astype(np.float32)
    test_y = rng.integers(0, classes, 11)
    return Population.from_split(x, y, owner, test_x, test_y, classes=classes)
