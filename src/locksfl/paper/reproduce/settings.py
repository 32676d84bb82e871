"""What the paper says of its experiment, what it does not, and the two versions that we run.

From the paper: MNIST, 100 clients, 5 local epochs, uniform sampling of 20% against a first sample
of 30% for LOCKS, and multipliers 0, 0.5 and 1.32 for epsilon infinity, 50 and 10. Everything in
RECONSTRUCTED is not in the paper; T and delta are those that lead to its multipliers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from locksfl.experiment.arm_config import ArmConfig
from locksfl.experiment.config import (
    Config,
    DataConfig,
    LocalConfig,
    ModelConfig,
    OptimizerConfig,
    PrivacyConfig,
    SplitConfig,
    TrainConfig,
)
from locksfl.paper.as_printed import CLIENTS, DELTA, MULTIPLIERS, ROUNDS

PRINTED, HONEST = "as-printed", "honest"
VERSIONS = (PRINTED, HONEST)
EPSILONS = (math.inf, 50.0, 10.0)
METHODS = ("uniform", "locks")
UPLOADS, COHORT = 20, 30
SEEDS = (0, 1, 2)  # unless others are asked for

RECONSTRUCTED = {
    "rounds": f"{ROUNDS}, and delta {DELTA:g}: with 20% a round they give z = 1.326 for epsilon 10 "
    "and 0.556 for 50",
    "uploads of LOCKS": f"{UPLOADS} wanted of its {COHORT}: as many as uniform sends",
    "model": "softmax regression, and an MLP 784-200-10",
    "split": "two classes a client, equal sizes",
    "local work": "batches of 32, step 0.05",
    "clip norm and server step": "tuned for every method on one grid, without privacy, with other "
    "seeds and on the other half of the held-out data; the step is eta / sqrt(t + 1) as in the "
    "paper's theorem",
}


@dataclass(frozen=True)
class Scale:
    """How large the reproduction is: every method is run with each of the seeds."""

    name: str
    data: str
    models: tuple[str, ...]
    rounds: int = ROUNDS
    seeds: tuple[int, ...] = SEEDS


QUICK = Scale("quick", "mnist-embedded", ("softmax",))
FULL = Scale("full", "mnist", ("softmax", "mlp"))


class Panel(NamedTuple):
    """Runs that are compared with each other: all methods of a version, model and epsilon."""

    version: str
    model: str
    epsilon: float

    @property
    def label(self) -> str:
        """A name for files."""
        return f"{self.version}-{self.model}-{self.epsilon:g}"

    @property
    def epsilon_text(self) -> str:
        """The epsilon in words."""
        return "infinity" if math.isinf(self.epsilon) else f"{self.epsilon:g}"


class Tuned(NamedTuple):
    """What is chosen for each method."""

    clip_norm: float
    step: float


def panels(scale: Scale) -> Iterator[Panel]:
    """Every comparison, in the order of the report."""
    return itertools.starmap(Panel, itertools.product(VERSIONS, scale.models, EPSILONS))


def config_for(
    scale: Scale, panel: Panel, tuned: Mapping[str, Tuned], data_dir: str | None = None
) -> Config:
    """The panel as an experiment: one arm per method."""
    arms = [_arm(panel, method, tuned[method]) for method in METHODS]
    return Config(
        name=panel.label,
        data=DataConfig(scale.data, CLIENTS, SplitConfig("shards", classes=2), dir=data_dir),
        model=ModelConfig(panel.model),
        # a GPU compiles and runs it a third faster in reduced precision; a CPU is not concerned
        local=LocalConfig("epochs", epochs=5, batch=32, step=0.05, precision="reduced"),
        train=TrainConfig(rounds=scale.rounds, optimizer=OptimizerConfig("sgd")),
        privacy=_privacy(panel),
        arm=arms,
    )


def _privacy(panel: Panel) -> PrivacyConfig:
    if math.isinf(panel.epsilon):
        return PrivacyConfig("none", delta=DELTA)
    if panel.version == HONEST:  # noise by a trusted server, whom the paper's multiplier needs
        return PrivacyConfig("central", panel.epsilon, DELTA, "pld", tuned_without_privacy=True)
    return PrivacyConfig(
        "local", None, DELTA, "rdp", tuned_without_privacy=True, accounting="as-printed"
    )


def _arm(panel: Panel, method: str, tuned: Tuned) -> ArmConfig:
    """As printed: (1/b) times the sum, no 1/p, norms noised and charged nothing. Honest: the mean
    of the clipped updates, norms charged, and a clamp of the norm sum that pays with privacy."""
    printed, private = panel.version == PRINTED, not math.isinf(panel.epsilon)
    noise = MULTIPLIERS[panel.epsilon] if printed and private else None
    arm = partial(ArmConfig, name=method, noise_multiplier=noise, **tuned._asdict())
    if method == METHODS[0]:  # of a uniform cohort nobody is left out: "capped" is "literal"
        return arm(rule="uniform", estimator="capped", cohort=UPLOADS)
    return arm(
        rule="norm",
        estimator="literal" if printed else "capped",
        cohort=COHORT,
        uploads=UPLOADS,
        floor=0.0 if printed else None,
        norm_low=0.9 if private and not printed else None,
        norm_multiplier=noise,
    )
