"""Clients take turns, and the noise of a round takes back part of the noise of earlier rounds.

Schedule (sampling = "cyclic"): a public shuffle puts the n clients into k groups; group t mod k is
asked in round t, all of it, and all of it uploads. k is the `separation`: a client takes part every
k rounds, T/k times (rounded up). Everybody may know when, so nothing is amplified.

Noise: sums over many rounds matter more to a model than the sum of one. With a lower-triangular
Toeplitz matrix C of `bands` coefficients c_0, c_1, ..., whose squares sum to 1, the server releases

    round t    (sum of the group's g_i) + z S x_t
               x_t = (y_t - c_1 x_(t-1) - ... - c_(bands-1) x_(t-bands+1)) / c_0,   y_t ~ N(0, I)

that is x = C^-1 y: all rounds together are C^-1 (C G + z S y), a function of C G with independent
noise. (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", without the
amplification; Kairouz et al. 2021 and Denisov et al. 2022 before.)

Cost: in C G a client moves rows t to t + bands - 1 by c g_t for each t at which it takes part. With
bands <= separation no two of these overlap, so that its share of C G is at most S sqrt(number of
times) long, 2 S under replace: one Gaussian mechanism of

    mu = sqrt(ceil(T / k)) / z   (zero-out),   2 sqrt(ceil(T / k)) / z   (replace)

whatever the bands. It also holds if updates are chosen in view of earlier releases (Denisov et al.
2022, Theorem 2.1: C is lower-triangular), and after t rounds with t in place of T, because the
first t rounds are those of a run of t rounds. z is the noise multiplier: std over the zero-out
sensitivity of one upload. bands = 1 is independent noise on the same schedule, at the same cost.

Gain: the error of the sum of rounds 1 to t has variance (z S)^2 sum over j <= t of b_j^2, b the
running sums of the first column of C^-1. C is the one for which jax_privacy finds the mean of that
over t smallest.

A run without a seed is refused if bands > 1: its noise is exact on a grid of whole numbers, and a
matrix of floats would leave that grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from locksfl.arm import Arm

SAMPLINGS = ("poisson", "cyclic")
DIGITS = 1e5  # coefficients are cut to so many digits: the same ones on every machine

Floats = npt.NDArray[np.float64]


@lru_cache(maxsize=8)
def _shuffled(clients: int) -> npt.NDArray[np.int64]:
    """The clients in an order that is public, the same for everybody, and free of data."""
    return np.argsort(np.random.Philox(0).random_raw(clients), kind="stable")


def group_of(clients: int, separation: int, round_index: int) -> npt.NDArray[np.int32]:
    """The clients whose turn it is: sorted numbers."""
    return np.sort(_shuffled(clients)[round_index % separation :: separation]).astype(np.int32)


@lru_cache(maxsize=64)
def strategy(rounds: int, bands: int) -> tuple[float, ...]:
    """The coefficients of C for so many rounds: a public function of the two numbers. Their squares
    sum to 1, or a little less after cutting, never more."""
    bands = min(bands, rounds)
    if bands == 1:
        return (1.0,)
    import jax
    from jax_privacy.matrix_factorization import toeplitz

    # also while a round is being compiled; a GPU would find other last digits
    with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        found = np.asarray(toeplitz.optimize_banded_toeplitz(rounds, bands), np.float64)
    cut = np.trunc(found / np.linalg.norm(found) * DIGITS) / DIGITS
    return tuple(cut.tolist())


def correlated(fresh: Any, recent: Any, coefficients: tuple[float, ...], xp: Any) -> Any:
    """The noise of a round.

    Args:
        fresh: y_t, standard normal.
        recent: [bands - 1, ...] the noise of the rounds before, the last one first; zeros at first.
        coefficients: of C.
        xp: numpy or jax.numpy.

    Returns:
        x_t, and `recent` for the next round.
    """
    first, *rest = coefficients
    now = fresh
    for weight, before in zip(rest, recent, strict=False):
        now = now - weight * before
    now = now / first
    return now, xp.concatenate([now[None], recent[:-1]])


def decorrelated(noise: Any, coefficients: tuple[float, ...], xp: Any) -> Any:
    """[..., T] C times what has one entry per round: the inverse of `correlated`."""
    rounds = noise.shape[-1]
    found = xp.zeros(noise.shape)
    for lag, weight in enumerate(coefficients[:rounds]):
        earlier = noise[..., : rounds - lag]
        missing = xp.zeros((*noise.shape[:-1], lag))
        found = found + weight * xp.concatenate([missing, earlier], axis=-1)
    return found


@lru_cache(maxsize=64)
def prefix_stds(rounds: int, bands: int) -> Floats:
    """[T] the std of x_1 + ... + x_t, in deviations of y: sqrt(t) if the noise is independent."""
    coefficients = strategy(rounds, bands)
    recent, column = np.zeros(max(1, len(coefficients) - 1)), np.zeros(rounds)
    for t in range(rounds):  # what y_1 becomes in every round: the first column of C^-1
        fresh = np.float64(t == 0)
        column[t], recent = correlated(fresh, recent, coefficients, np)
    found: Floats = np.sqrt(np.cumsum(np.cumsum(column) ** 2))
    return found


def checked_sampling(given: Mapping[str, Any], where: str, clients: int = 0) -> dict[str, Any]:
    """The settings of an [[arm]] table without the word `sampling`, whose place `separation` takes.

    Args:
        given: the settings.
        where: the arm, as a refusal names it.
        clients: from which a cohort gives the separation, if that is left out.
    """
    rest = dict(given)
    word, separation = rest.pop("sampling", SAMPLINGS[0]), rest.get("separation")
    if word not in SAMPLINGS:
        raise ValueError(
            f"{where}.sampling = {word!r}: expected 'poisson', or 'cyclic' with a separation; the "
            "accountants charge for independent coins or for turns, and a sample of fixed size "
            "costs more than they would report"
        )
    cyclic = word != SAMPLINGS[0]
    if cyclic and separation is None:
        cohort = rest.get("cohort")
        if not clients or not cohort or cohort < 0 or clients % cohort:
            raise ValueError(
                f"{where}.separation is missing: sampling {word!r} needs the number of rounds from "
                f"a client's turn to its next, or a cohort that divides the {clients} clients"
            )
        rest["separation"] = int(clients // cohort)
    if not cyclic and separation is not None:
        raise ValueError(
            f"{where}.separation = {separation!r}: only with sampling 'cyclic'; independent coins "
            "keep no distance between a client's rounds"
        )
    if not cyclic and "bands" in rest:
        raise ValueError(
            f"{where}.bands = {rest['bands']!r}: not with sampling {word!r}: correlated noise is "
            "charged for rounds of a client that lie `separation` apart; expected sampling 'cyclic'"
        )
    return rest


def unsound(arm: Arm) -> Iterator[tuple[str, str, str]]:
    """(setting, its value, the problem) of an arm whose clients take turns."""
    if not arm.separation:
        if arm.bands:
            yield "bands", str(arm.bands), "expected a separation too: correlated noise needs turns"
        return
    rule, _, trust = arm.parts
    if arm.separation > arm.clients:
        problem = f"expected at most the {arm.clients} clients, so that no group is empty"
        yield "separation", str(arm.separation), problem
    if arm.bands > arm.separation:
        problem = (
            f"expected at most the separation, {arm.separation}: with more, a client's rounds "
            "overlap in the noise and cost more than is charged"
        )
        yield "bands", str(arm.bands), problem
    turns = "where clients take turns"
    if trust.clients_add_noise:
        problem = (
            f"not {turns}: a client's own noise is independent in each message, and the server "
            "knows whom it asks anyway; expected a trust whose server adds noise to sums"
        )
        yield "trust", repr(arm.trust), problem
    if not trust.private and arm.bands > 1:
        yield "bands", str(arm.bands), f"trust {arm.trust!r} adds no noise; leave it out"
    plain = rule.asks is None and not rule.takes and not rule.count_share
    if not plain or rule.everyone:
        problem = f"not {turns}: everybody whose turn it is uploads; expected rule 'uniform'"
        yield "rule", repr(arm.rule), problem
    size = arm.clients / arm.separation
    for name in ("cohort", "uploads"):
        if abs(getattr(arm, name) - size) > 1e-9 * size:
            problem = f"{turns}, it is clients / separation = {size:g}; leave it out"
            yield name, f"{getattr(arm, name):g}", problem
    if arm.largest_probability < 1:
        problem = f"not {turns}: it keeps some of them from uploading; expected rule 'uniform'"
        yield "rule", repr(arm.rule), problem
    if arm.clip_quantile is not None:
        problem = (
            f"not {turns}: the noise of several rounds is one release, in units of one clip norm; "
            "expected a fixed clip norm"
        )
        yield "clip_quantile", repr(arm.clip_quantile), problem
    if arm.budget is not None:
        problem = f"not {turns}: each takes part equally often; expected privacy.epsilon alone"
        yield "budget", repr(arm.budget), problem
    if arm.dropouts:
        problem = "not in a federation: devices cannot be relied upon to come when it is their turn"
        yield "separation", str(arm.separation), problem


def check_secret(arms: Iterable[Arm]) -> None:
    """Refuse correlated noise in a run without a seed."""
    for arm in arms:
        if arm.bands > 1:
            raise ValueError(
                f"arm.{arm.name}.bands = {arm.bands}: not without a seed: secret noise is exact on "
                "a grid of whole numbers, which a matrix of floats leaves; expected bands = 1, or "
                "a seed (a simulation)"
            )
