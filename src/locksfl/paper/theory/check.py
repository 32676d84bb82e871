"""Both bounds against problems whose constants are known: what `locks theory check` shows.

What is compared, over many seeds of the real round:
* in expectation: the mean over seeds of the eta_t-weighted mean of |grad F(w_t)|^2, and of its
  least over t, against the bound;
* as an observation: the largest weighted mean of one seed. A bound of an expectation promises
  nothing about it, and on other problems single seeds do lie above;
* on every path, for certain: its inequality (`problems.Descent.left_over`), of which
  the bound is the expectation.

The corrected bound is given twice: from the constants alone, and with the rates along the path
(`bound.Constants.path_variance`), by which sampling by norm can be better than uniform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from locksfl import _validate
from locksfl.arm import Arm
from locksfl.paper.theory.bound import Constants, corrected, each_bound, printed
from locksfl.paper.theory.methods import with_method, with_worst_client
from locksfl.paper.theory.problems import Descent, Problem, descend, logistic, quadratic
from locksfl.privacy import calibrate


def quadratics() -> Problem:
    """50 clients in 10 dimensions, curvatures from 0.1 to 1, centres that differ."""
    rng = np.random.default_rng(5)
    centres = rng.normal(size=(50, 10))
    return quadratic(centres, np.linspace(0.1, 1.0, 10), np.full(10, 2.0), clip_norm=8.0)


def at_the_optimum() -> Problem:
    """The same curvature everywhere, clients all alike, begun at the minimum: only noise is left,
    and the bound is within a factor of two."""
    return quadratic(
        np.zeros((1000, 10)), np.ones(10), np.zeros(10), clip_norm=8.0, name="quadratic, noise only"
    )


def one_far_away() -> Problem:
    """Nine clients at -1 and one at 9: the mean is 0, but clipped to 2 the far one cannot hold the
    others. From w_0 = -1 the path stays in [-1, -7/9], where clipping takes (7 - w)/10 <= 0.8."""
    centres = np.array([[-1.0]] * 9 + [[9.0]])
    far = quadratic(centres, [1.0], [-1.0], clip_norm=2.0, name="quadratic, clipped")
    return replace(far, clip_bias=0.8, worst_clip_bias=8.0)


def few_matter() -> Problem:
    """40 of 400 clients have almost all of the gradient: they are 9 away from the others, the mean
    of all is 0, and so is w_0 but for half a unit."""
    directions = np.random.default_rng(7).normal(size=(40, 10))
    far = 9 * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    centres = np.concatenate([far - far.mean(axis=0), np.zeros((360, 10))])
    start = 0.5 * np.eye(10)[0]
    return quadratic(centres, np.ones(10), start, clip_norm=12.0, name="quadratic, few matter")


def all_alike(clients: int = 100) -> Problem:
    """|w|^2 / 2 for every client, from 1: nothing is random, nothing differs, nothing is clipped
    before |w| = 10^12."""
    return quadratic(
        np.zeros((clients, 1)), [1.0], [1.0], clip_norm=1e12, name="quadratic, all alike"
    )


def logistics() -> Problem:
    """40 clients of 30 records in 5 dimensions; each client's labels lean its own way."""
    rng = np.random.default_rng(6)
    features = rng.normal(size=(40, 30, 5))
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    truth = np.array([6.0, -3.0, 1.5, 0.0, 3.0]) + 2 * rng.normal(size=(40, 5))
    score = np.einsum("nkd,nd->nk", features, truth)
    signs = np.where(rng.random((40, 30)) < 1 / (1 + np.exp(-score)), 1.0, -1.0)
    return logistic(features, signs)


@dataclass(frozen=True)
class Case:
    """A problem, and the arm that descends it."""

    problem: Problem
    arm: Arm

    @property
    def constants(self) -> Constants:
        """What both bounds take. Every client's gradient is exact: no sigma_L."""
        return with_method(self.problem, self.arm, sample_spread=0.0)

    @property
    def printed_constants(self) -> Constants:
        """The same for the printed bound."""
        return with_worst_client(self.constants, self.problem)


def _case(
    problem: Problem,
    rule: str,
    trust: str = "none",
    step: float | None = None,
    epsilon: float | None = None,
    **settings: Any,
) -> Case:
    """An arm as the program would run it. Without a step: 1/L, the largest that the corrected
    bound takes. With an epsilon: the noise that all rounds need together, norms paid."""
    name = f"{problem.name}: {rule}, trust {trust}" + (f", step {step:g}" if step else "")
    name += f", epsilon {epsilon:g}" if epsilon else ""
    given = {"rounds": 200, "clip_norm": problem.clip_norm, **settings}
    step = step or 0.999 / problem.smoothness
    arm = Arm.of(name, problem.clients, rule=rule, trust=trust, step=step, **given)
    return Case(problem, calibrate(arm, epsilon, 1e-5, accountant="rdp") if epsilon else arm)


def cases() -> list[Case]:
    """Sampling, norms, noise of the server and of clients, clipping, and a step too large."""
    bowl, curve = quadratics(), logistics()
    ten: dict[str, Any] = {"cohort": 10}
    by_norm: dict[str, Any] = {"rule": "norm", "cohort": 20, "uploads": 10}
    noise: dict[str, Any] = {"noise_multiplier": 0.5}
    norms: dict[str, Any] = {**by_norm, **noise, "norm_multiplier": 1.0}
    local: dict[str, Any] = {"trust": "local", "estimator": "horvitz-thompson", "floor": 0.5}
    return [
        _case(bowl, "uniform", **ten),
        _case(bowl, **by_norm),
        _case(bowl, "uniform", "central", **ten, noise_multiplier=0.1),
        _case(at_the_optimum(), "full", "central", rounds=30, noise_multiplier=100.0),
        _case(one_far_away(), "full"),
        _case(curve, "uniform", **ten),
        _case(curve, "uniform", step=5.0, **ten),
        _case(curve, step=5.0, **by_norm),
        _case(curve, "uniform", "central", 5.0, **ten, **noise),
        _case(curve, trust="central", step=5.0, **norms),
        _case(curve, "uniform", "local", 5.0, **ten, **noise),
        _case(curve, step=5.0, **norms, **local),
        _case(all_alike(), "full", rounds=20, step=10.0),
    ]


def sampling_cases(epsilons: Sequence[float] = (50.0, 10.0, 3.0)) -> list[Case]:
    """Uniform and by norm, 16 uploads each, where few clients matter: without noise, and with that
    of a falling total epsilon. The norm sum stays above b C, else by norm had fewer uploads."""
    few = few_matter()
    rules: list[dict[str, Any]] = [
        {"rule": "uniform", "cohort": 16},
        {"rule": "norm", "cohort": 200, "uploads": 16},
    ]
    privacy: list[dict[str, Any]] = [{}]
    privacy += [{"trust": "central", "epsilon": epsilon} for epsilon in epsilons]
    return [
        _case(few, **rule, **noise, step=0.5, rounds=100) for noise in privacy for rule in rules
    ]


@dataclass(frozen=True)
class Row:
    """One case, measured, beside both bounds; None: the bound does not apply, `why` says why."""

    case: str
    rounds: int  # T
    seeds: int  # how many paths
    before: float  # |grad F(w_0)|^2: a bound above it says nothing
    least: float  # min over t of the mean over seeds
    weighted: float  # mean over seeds of the weighted mean over t
    standard_error: float  # of `weighted`
    worst_seed: float  # the largest weighted mean of one seed
    uploads: float  # of a round, on average
    path_variance: float  # of a round, in the mean by eta_t^2
    corrected: float | None  # the corrected bound
    along_path: float | None  # the same with the rates along the path
    printed: float | None  # the bound as printed
    why: str
    paths_hold: bool  # the inequality of a path, on each

    @property
    def corrected_holds(self) -> bool | None:
        """In expectation, with 5 standard errors to spare; None: there is no bound."""
        if self.corrected is None:
            return None
        return self.below(self.corrected)

    def below(self, bound: float) -> bool:
        """Whether the expectation is, with 5 standard errors to spare."""
        return self.weighted + 5 * self.standard_error <= bound

    @property
    def corrected_verdict(self) -> str:
        """Of a bound on the weighted mean."""
        return self._verdict(self.corrected, self.weighted)

    @property
    def printed_verdict(self) -> str:
        """Of a bound on the least."""
        return self._verdict(self.printed, self.least)

    def _verdict(self, bound: float | None, measured: float) -> str:
        """fails: what was measured is above it. says nothing: it is above what was known."""
        if bound is None:
            return "no bound"
        if measured > bound:
            return "fails"
        return "says nothing" if bound >= self.before else "holds"


def measure(case: Case, seeds: int) -> tuple[Row, Descent]:
    """Descend, and compare."""
    descent = descend(case.problem, case.arm, seeds)
    gradient, weighted = descent.gradient, descent.weighted()[:, -1]
    variance = descent.path_variance().mean()
    bounds, reasons = each_bound(
        corrected=lambda: corrected(case.constants).total,
        along_path=lambda: corrected(replace(case.constants, path_variance=variance)).total,
        printed=lambda: printed(case.printed_constants).total,
    )
    row = Row(
        case=case.arm.name,
        rounds=case.arm.rounds,
        seeds=seeds,
        before=gradient[0, 0],
        least=gradient.mean(axis=0).min(),
        weighted=float(weighted.mean()),
        standard_error=float(weighted.std(ddof=1) / math.sqrt(seeds)),
        worst_seed=weighted.max(),
        uploads=descent.steps.uploads.mean(),
        path_variance=variance,
        **bounds,
        why="; ".join(dict.fromkeys(reasons.values())),
        paths_hold=_paths_hold(case, descent),
    )
    return row, descent


def _paths_hold(case: Case, descent: Descent) -> bool:
    """Up to float32's rounding of sums of this size. With L eta > 1 nothing is promised."""
    if case.arm.step * case.problem.smoothness > 1:
        return True
    steps = descent.steps
    size = descent.gap + np.sum(steps.step * (steps.gradient + steps.chance), axis=1)
    return bool((descent.left_over() >= -1e-5 * size).all())


def rows(seeds: int) -> list[Row]:
    """Every case."""
    _validate.count(seeds=seeds)
    if seeds < 2:
        raise ValueError("seeds = 1: expected at least 2, to estimate the standard error")
    return [measure(case, seeds)[0] for case in (*cases(), *sampling_cases())]
