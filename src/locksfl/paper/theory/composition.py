"""What the paper says a run costs, line by line, as printed and as it should be.

The formulas are those of `paper.as_printed`, which `locks privacy paper` shows for the paper's own
experiment; here they are evaluated at settings that a user types.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from locksfl import _validate
from locksfl.paper import as_printed as as_written
from locksfl.privacy import mu_from_epsilon
from locksfl.privacy.rdp import ORDERS, epsilon_from_rdp


def gaussian_std(epsilon: float, delta: float, sensitivity: float = 1.0) -> dict[str, Any]:
    """The Gaussian mechanism's std: printed (c_0 = 2 sqrt(ln(1.25/delta)), called a variance),
    its textbook form (epsilon < 1 only), and the exact one."""
    _validate.positive(epsilon=epsilon, sensitivity=sensitivity)
    _validate.probability(delta=delta)
    log = math.log(1.25 / delta)
    return {
        "printed": sensitivity * 2 * math.sqrt(log) / epsilon,
        "textbook": sensitivity * math.sqrt(2 * log) / epsilon if epsilon < 1 else None,
        "exact": sensitivity / mu_from_epsilon(epsilon, delta),
    }


def converted(order: float, rdp: float, delta: float) -> float:
    """The paper's conversion at one order: tau + (log(1/delta) + (alpha-1) log(1 - 1/alpha)
    - log alpha) / (alpha - 1). It is right, and to be minimised over the orders."""
    _validate.probability(delta=delta)
    if not (math.isfinite(order) and order > 1):
        raise ValueError(f"order = {order!r}: expected a number > 1")
    _validate.non_negative(rdp=rdp)
    top = math.log(1 / delta) + (order - 1) * math.log1p(-1 / order) - math.log(order)
    return max(0.0, rdp + top / (order - 1))


def answer(
    *,
    epsilon_step: float,
    epsilon_norm: float,
    rounds: int,
    delta: float,
    cohort: float,
    uploads: float,
    order: float,
) -> dict[str, Any]:
    """Everything that `locks theory composition` says."""
    _validate.positive(
        epsilon_step=epsilon_step, epsilon_norm=epsilon_norm, cohort=cohort, uploads=uploads
    )
    _validate.count(rounds=rounds)
    _validate.probability(delta=delta)
    slack = delta / 2  # the other half is for the steps: delta / (2 T) each
    mechanism = gaussian_std(epsilon_step, slack / rounds)
    rho = rounds / (2 * mechanism["exact"] ** 2)
    return {
        "gaussian_mechanism": mechanism,
        "rdp_conversion": {
            "order": order,
            "printed": converted(order, rho * order, delta),
            "minimised": epsilon_from_rdp(ORDERS, rho * np.asarray(ORDERS), delta),
        },
        "strong_composition": {
            "printed": as_written.composed_as_printed(epsilon_step, rounds, delta / (rounds + 1)),
            "mended": as_written.composed(epsilon_step, rounds, slack),
        },
        "norms_and_updates": {
            "printed": as_written.expected_epsilon_as_printed(
                cohort, uploads, epsilon_norm, epsilon_step
            ),
            "one_client_one_round": epsilon_norm + epsilon_step,
            "one_client_all_rounds": as_written.client_epsilon(
                rounds, epsilon_norm, epsilon_step, slack
            ),
        },
        "reconstructed": as_written.reconstructed(),
    }
