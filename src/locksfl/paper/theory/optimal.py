"""The best upload probabilities: the paper's program as printed, and the one that helps.

As printed: minimise the sum over t and i of C_1 / (p_i (t + 1)) with p_i <= 1 and
sum 1/p_i <= b n / (L eta_b^2 (A^2 + 1)). The p_i are relative to uniform sampling (a client's rate
is p_i b / n), every term falls in p_i, and the second constraint only asks for larger p_i: the
optimum is p_i = 1, uniform sampling, whatever the norms. The paper's assumption on each client has
erased what importance sampling needs.

Corrected: minimise sum a_i^2 / rho_i with sum rho_i <= b and rho_i <= q. That is the part of the
variance that the rates decide (docs/theory.md): a_i = |g_i| where noise comes after the weights or
on the sum, a_i^2 = |g_i|^2 + d sigma^2 where it is divided by p_i too. The optimum is
rho_i = min(q, c a_i) by water-filling (Chen, Horvath and Richtarik 2022 for q = 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from locksfl import _validate
from locksfl._arrays import Floats
from locksfl.methods.rules.shared import water_level
from locksfl.paper.theory.bound import Constants, require, sum_constraint


def importance(norms: npt.ArrayLike, parameters: int = 1, noise: float = 0.0) -> Floats:
    """a_i = sqrt(|g_i|^2 + d sigma^2): with noise, what each uploader adds before its weight."""
    _validate.count(parameters=parameters)
    _validate.non_negative(noise=noise)
    lengths = _checked(norms)
    return np.sqrt(lengths**2 + parameters * noise**2)


def best_rates(scores: npt.ArrayLike, uploads: float, rate: float = 1.0) -> Floats:
    """rho_i = min(q, c a_i) with sum rho_i = b; less than b only where too few a_i are positive.

    rho_i / q are the probabilities of optimal client sampling (`methods.rules.ocs`) with b / q.
    """
    a = _checked(scores)
    _validate.positive(uploads=uploads)
    _validate.rate(rate=rate)
    if uploads > rate * a.size * (1 + 1e-12):
        raise ValueError(
            f"uploads = {uploads!r}: expected at most {rate * a.size:g}, every client at its "
            f"limit q = {rate:g}"
        )
    level = water_level(a, min(uploads / rate, float(a.size)), np)
    below = a < level
    return rate * np.where(below, a / np.where(below, level, 1.0), a > 0)


def rate_variance(scores: npt.ArrayLike, rates: npt.ArrayLike) -> float:
    """(1/n^2) sum a_i^2 / rho_i; a client with a_i = 0 adds nothing, at any rate."""
    a, rho = _checked(scores), np.asarray(rates, float)
    there = a > 0
    return float(np.sum(a[there] ** 2 / rho[there]) / a.size**2)


@dataclass(frozen=True)
class PrintedOptimum:
    """The paper's program, solved."""

    relative: float  # p_i, the same for every client
    objective: float  # of the program, there
    allowed: float  # the most that the mean of 1/p_i may be
    scale: float  # C_1


def printed_scale(c: Constants, clients: int) -> float:
    """C_1 = L eta_b^2 / (b n T) (K_max (sigma_L^2 + c_nu^2)/K_min + (sigma_G^2 + d sigma_0^2)/2)"""
    apart = ((c.client_spread or 0.0) ** 2 + c.parameters * c.client_noise**2) / 2
    return c.smoothness * c.step**2 / (c.uploads * clients * c.rounds) * (c.local_spread + apart)


def printed_objective(relative: npt.ArrayLike, c: Constants) -> float:
    """sum over t < T and i of C_1 / (p_i (t + 1)), with the same p_i in every round."""
    p = np.asarray(relative, float)
    harmonic = float(special.digamma(c.rounds + 1.0) + np.euler_gamma)  # sum of 1/(t+1), t < T
    return printed_scale(c, p.size) * harmonic * float(np.sum(1 / p))


def printed_optimum(c: Constants, clients: int) -> PrintedOptimum:
    """p_i = 1 for all: every term falls in p_i, and so does what the constraint limits. There is
    no feasible point at all when p_i = 1 breaks the constraint: refused."""
    _validate.count(clients=clients)
    require([sum_constraint(1.0, c)])
    allowed = c.uploads / (c.smoothness * c.step**2 * (c.dissimilarity**2 + 1))
    return PrintedOptimum(
        1.0, printed_objective(np.ones(clients), c), allowed, printed_scale(c, clients)
    )


def _checked(values: npt.ArrayLike) -> Floats:
    norms = np.asarray(values, dtype=np.float64)
    if norms.ndim != 1 or not norms.size or not np.isfinite(norms).all() or (norms < 0).any():
        raise ValueError(f"norms = {values!r}: expected numbers >= 0, one per client")
    if not norms.any():
        raise ValueError("norms: expected at least one above 0")
    return norms
