"""What the paper says a run costs, line by line, as printed and as it should be.

The formulas are those of `paper.as_printed`, which `locks privacy paper` shows for the paper's own
experiment; here they are evaluated at settings that a user types.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from locksfl import _validate
from locksfl.paper import as_printed as as_written
from locksfl.privacy import epsilon_from_mu, mu_from_epsilon


def gaussian_std(epsilon: float, delta: float) -> dict[str, float | None]:
    """The Gaussian mechanism's std at sensitivity 1: printed, in both readings, its textbook form
    (epsilon < 1 only), and the exact one.

    The paper adds noise "with the variance = C c_0 / epsilon", c_0 = 2 sqrt(ln(1.25/delta)), where
    the textbook has a std with sqrt(2 ln(1.25/delta)).
    """
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    log = math.log(1.25 / delta)
    printed = 2 * math.sqrt(log) / epsilon
    return {
        "printed": printed,
        "printed_as_variance": math.sqrt(printed),
        "epsilon_as_variance": epsilon_from_mu(1 / math.sqrt(printed), delta),
        "textbook": math.sqrt(2 * log) / epsilon if epsilon < 1 else None,
        "exact": 1 / mu_from_epsilon(epsilon, delta),
    }


@dataclass(frozen=True)
class Composition:
    """What `locks theory composition` shows, line by line."""

    gaussian_mechanism: Mapping[str, float | None]  # std of one update at sensitivity 1
    strong_composition: Mapping[str, float]  # epsilon of T updates
    norms_and_updates: Mapping[str, float]  # epsilon of both
    reconstructed: list[dict[str, float]]  # the multipliers of the paper's experiment


def composition(
    *,
    epsilon_step: float,
    epsilon_norm: float,
    rounds: int,
    delta: float,
    cohort: float,
    uploads: float,
) -> Composition:
    """Returns each line as printed and as it should be."""
    _validate.positive(
        epsilon_step=epsilon_step, epsilon_norm=epsilon_norm, cohort=cohort, uploads=uploads
    )
    _validate.count(rounds=rounds)
    _validate.probability(delta=delta)
    one_round = epsilon_norm + epsilon_step  # of a client that is asked, and uploads
    slack = delta / 2  # the other half is for the releases: delta / (2 T) each
    return Composition(
        gaussian_mechanism=gaussian_std(epsilon_step, slack / rounds),
        strong_composition={
            "printed": as_written.composed_as_printed(epsilon_step, rounds, delta / (rounds + 1)),
            "mended": as_written.composed(epsilon_step, rounds, slack),
        },
        norms_and_updates={
            "printed": cohort * epsilon_norm + uploads * epsilon_step,  # an expectation
            "one_client_one_round": one_round,
            "one_client_all_rounds": as_written.composed(one_round, rounds, slack),
            "delta_of_each_release": slack / (2 * rounds),  # a norm and an update in each round
        },
        reconstructed=as_written.reconstructed(),
    )
