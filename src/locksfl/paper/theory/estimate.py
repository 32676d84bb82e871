"""The constants of the bounds, estimated along the path of a run, and the path under its bounds.

A diagnostic, not a release: it reads every client's data exactly, which only a simulation can. What
comes out must not be shown as if it were private.

An arm is played again from its seed, round by round, and looked at on the way:

* L: the largest eigenvalue in size of the Hessian of F, by power iteration, at some rounds. A
  largest value that was seen is a lower estimate of the true constant. For softmax regression L is
  known: lambda_max(mean of x x^T) / 2 (the Hessian of the loss in the scores is at most 1/2).
* Delta F: F(w_0), because cross-entropy is never below zero: at least the true one.
* sigma_L: of one record's gradient around its client's, the largest of all clients and looks.
* A, sigma_G: the line (A^2 + 1) |grad F|^2 + sigma_G^2 that lies above what was seen, closest to
  it in sum; of the mean over clients (all that the corrected bound needs) and of the worst client
  (the paper's assumption 3).
* c_nu: the longest grad F - mean of g_i; of the worst client for the paper's assumption 4.

An update of local epochs is the local step times the local steps, times the mean gradient on the
client's way. Divided by the first two (the mean over clients, `scale`) it is a gradient, the
server's step times them is the eta_b of the bounds, and c_nu holds what is left: the drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
from jax import Array
from scipy import optimize

from locksfl._arrays import Floats
from locksfl._tables import Value
from locksfl.arm import Arm
from locksfl.experiment.config import Config
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.run import open_task, server_for
from locksfl.paper.theory.bound import by_round, corrected, each_bound, printed
from locksfl.paper.theory.methods import not_covered, with_method, with_worst_client
from locksfl.paper.theory.observe import Look, Observer
from locksfl.paper.theory.problems import running_mean
from locksfl.round.client import LocalWork, used_samples
from locksfl.round.randomness import Purpose, Randomness, draw_key
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator

NOTE = (
    "Seen by this simulation and released to nobody: every client's data were read. No privacy "
    "guarantee covers these numbers."
)


def dissimilarity(gradient: npt.ArrayLike, clients: npt.ArrayLike) -> tuple[float, float]:
    """(A, sigma_G) of the lowest line (A^2 + 1) x + sigma_G^2 above all points, A^2 >= 0."""
    x, y = np.asarray(gradient, float), np.asarray(clients, float)
    scale = max(float(y.max()), 1e-30)
    line = optimize.linprog(
        [x.sum() / scale, len(x)],
        A_ub=-np.stack([x / scale, np.ones_like(x)], axis=1),
        b_ub=-(y - x) / scale,
        bounds=[(0, None), (0, None)],
    )
    squared, spread = line.x[0], line.x[1] * scale
    return float(np.sqrt(max(0.0, squared))), float(np.sqrt(max(0.0, spread)))


@dataclass(frozen=True)
class Estimates:
    """What the bounds take, as seen on the paths; see the module's words on each."""

    smoothness_seen: float  # L, from below
    smoothness_known: float | None  # L of softmax regression
    gap: float  # at most F(w_0)
    gap_seen: float  # F(w_0) less the smallest F on the way
    sample_spread: float  # sigma_L
    dissimilarity: float  # A of the mean over clients
    client_spread: float  # sigma_G of the mean over clients
    worst_dissimilarity: float  # A of the worst client
    worst_client_spread: float  # sigma_G of the worst client
    clip_bias: float  # c_nu of the mean
    worst_clip_bias: float  # c_nu of the worst client
    fewest_samples: int  # K_min
    most_samples: int  # K_max
    parameters: int  # d
    scale: float = 1.0  # gradients in an update

    @property
    def smoothness(self) -> float:
        """The known one where there is one."""
        return self.smoothness_known or self.smoothness_seen


def path(
    simulator: Simulator, arm: Arm, work: LocalWork, server: Server, randomness: Randomness
) -> Iterator[Array]:
    """w_0, w_1, ..., w_T of an arm, as its run had them."""
    yield simulator.model.init(randomness.model_key())
    task = (arm, work, server, randomness)
    for block in simulator.play(*task, evaluate_every=server.rounds, pause_every=1):
        yield block.state.weights


@dataclass(frozen=True)
class Study:
    """An arm's paths, looked at, and what the bounds say of them."""

    arm: str
    seeds: tuple[int, ...]  # of the paths
    estimates: Estimates  # over all paths
    steps: Floats  # eta_t
    gradient: Floats  # [seeds, T] |grad F(w_t)|^2
    corrected: list[float] | None  # after 1, 2, ... T rounds
    printed: list[float] | None  # the same of the bound as printed
    reasons: dict[str, str]  # why there is no bound

    def weighted(self) -> Floats:
        """Means over t weighted by eta_t, after each number of rounds: [seeds, T]."""
        return running_mean(self.steps, self.gradient)

    def as_dict(self) -> dict[str, Value]:
        """For JSON."""
        return {
            "note": NOTE,
            "arm": self.arm,
            "seeds": list(self.seeds),
            "estimates": asdict(self.estimates) | {"smoothness": self.estimates.smoothness},
            "gradient_squared": self.gradient.tolist(),
            "weighted_mean": self.weighted().tolist(),
            "corrected": self.corrected,
            "printed": self.printed,
            "no_bound_because": self.reasons,
        }


def study(
    config: Config,
    name: str | None = None,
    seeds: int = 1,
    looks: int = 5,
    say: Callable[[str], None] = lambda text: None,
) -> Study:
    """Play an arm of an experiment again and look at it. The configuration has a seed; more seeds
    are the next ones, and the constants are the largest over all."""
    if config.seed is None:
        raise ValueError("seed is missing: expected one, so that the path can be played (again)")
    if config.local.control is not None:
        raise ValueError(
            f"local.control = {config.local.control!r}: the theory is of updates without control "
            "variates; leave it out"
        )
    arms = {one.name: one for one in config.arms}
    if name is not None and name not in arms:
        raise ValueError(f"--arm {name!r}: expected one of {', '.join(arms)}")
    say("opening the data")
    simulator = Simulator(*open_task(config))
    arm = plan_arms(config)[list(arms).index(name) if name else 0]
    if not arm.scheme.planned:
        raise ValueError(
            f"arm.{arm.name}.sampling = {arm.sampling!r}: the theory is that of independent "
            "coins and noise; expected another --arm"
        )
    work, server = config.local.work(), server_for(config.train, arm.rounds)
    observer = Observer(simulator, work)
    closer = set(np.linspace(0, arm.rounds - 1, min(looks, arm.rounds)).round().astype(int))
    seen: list[list[Look]] = []
    smooth, spread = 0.0, 0.0
    numbers = tuple(range(config.seed, config.seed + seeds))
    for seed in numbers:
        randomness, rows = Randomness.seeded(seed), []
        weights_by_round = path(simulator, arm, work, server, randomness)
        for t, weights in enumerate(islice(weights_by_round, arm.rounds)):
            say(f"seed {seed}: round {t + 1} of {arm.rounds}")
            key = draw_key(randomness.arm_key(arm.name), t, Purpose.LOCAL)
            rows.append(observer.look(weights, arm.dials(), key))
            if t in closer:
                smooth = max(smooth, observer.smoothness(weights))
                spread = max(spread, observer.sample_spread(weights))
        seen.append(rows)
    estimates = _estimates(seen, observer, smooth, spread)
    steps = np.array([float(server.eta(arm.step, t)) for t in range(arm.rounds)])
    gradient = np.array([[look.gradient for look in rows] for rows in seen])
    bounds, reasons = bounds_by_round(estimates, arm, server, work, observer.exact)
    return Study(arm.name, numbers, estimates, steps, gradient, **bounds, reasons=reasons)


def _estimates(
    seen: list[list[Look]], observer: Observer, smooth: float, spread: float
) -> Estimates:
    looks = Look(*np.array(seen, float).reshape(-1, len(Look._fields)).T)
    average, worst = (
        dissimilarity(looks.gradient, each) for each in (looks.mean_client, looks.worst_client)
    )
    used = used_samples(observer.population.sizes, observer.work)
    losses = [[look.loss for look in rows] for rows in seen]
    return Estimates(
        smooth,
        observer.known_smoothness(),
        gap=max(path[0] for path in losses),
        gap_seen=max(path[0] - min(path) for path in losses),
        sample_spread=spread,
        dissimilarity=average[0],
        client_spread=average[1],
        worst_dissimilarity=worst[0],
        worst_client_spread=worst[1],
        clip_bias=np.sqrt(np.max(looks.bias)),
        worst_clip_bias=np.sqrt(np.max(looks.worst_bias)),
        fewest_samples=int(used.min()),
        most_samples=int(used.max()),
        parameters=observer.model.size,
        scale=observer.scale,
    )


def bounds_by_round(
    e: Estimates, arm: Arm, server: Server, work: LocalWork, exact: bool
) -> tuple[dict[str, list[float] | None], dict[str, str]]:
    """Both bounds after each number of rounds, or why there is none. How gradients and samples
    differ says nothing about updates of local epochs or weighted ones: of those only the clip norm
    is known, which bounds their whole variance."""
    plain = work.update == "gradient" and work.counts_once is None
    sound = with_method(
        e,
        arm,
        sample_spread=e.sample_spread if plain and not exact else 0.0,
        client_spread=e.client_spread if plain else None,
    ).in_gradients(e.scale)
    paper = with_worst_client(sound, e)

    def by_corrected() -> list[float]:
        if reason := not_covered(arm, server):
            raise ValueError(reason)
        return by_round(lambda c: corrected(c, server.schedule), sound)

    def by_printed() -> list[float]:
        if server.schedule != "inverse-sqrt":
            raise ValueError(f"schedule {server.schedule!r}: Theorem 1 is for 'inverse-sqrt'")
        return by_round(printed, paper)

    return each_bound(corrected=by_corrected, printed=by_printed)
