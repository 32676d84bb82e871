"""From a question to advice: rounds, cohort and rule, with the numbers behind them.

The rounds are those that minimise 2 PROGRESS / T + noise^2 + sampling, the bound on the mean
squared gradient at a constant step 1/L; PROGRESS = L (F(first) - F(best)) / C^2 is a guess that
was fitted to one measurement: 15 to 30 rounds were best for the digits at n = 100, epsilon 8 and
full participation. NEAR_FULL was chosen so that 200 of 1,000 clients, as good as all when measured,
pass. Both are rules of thumb from one task.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from locksfl.arm import Arm
from locksfl.methods import TRUSTS
from locksfl.privacy.forecast import (
    HOPELESS,
    SPREAD,
    Expected,
    Question,
    reach,
    smallest_population,
    verdict,
)

PROGRESS = 40.0
PAYS = 0.97  # of uniform's error; less is worth the second message
NEAR_FULL = 1.3  # the error that a cheaper cohort may have, over full participation's
BYTES = 4
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
ROUNDS = (10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 1000, 2000)
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def forecast(question: Question) -> dict[str, Any]:
    """Everything that `locks privacy plan` says, as plain tables."""
    q = question
    share = q.norm_share or 1.0
    rounds, rate = recommended(q)
    uploads = q.uploads or q.cohort or max(1.0, round(rate * q.clients))
    cohort = q.cohort if q.cohort and q.uploads else min(float(q.clients), 3 * uploads)
    uniform = q.calibrated(q.arm("uniform", cohort=uploads))
    arms = {"uniform": uniform, "norm": q.calibrated(_by_norm(q, cohort, uploads, q.norm_share))}
    expected = {name: q.expected(arm, share) for name, arm in arms.items()}
    found = reach(uniform, expected["uniform"].noise)
    table = [_row(q, uniform, cohort, uploads, mean) for mean in SHARES]
    return {
        "question": dataclasses.asdict(q),
        "verdict": verdict(found),
        "reach": found,
        "reach_needed": HOPELESS,
        "smallest_clients": smallest_population(uniform, found),
        "arms": {name: _told(q, arms[name], expected[name]) for name in arms},
        "recommended": {
            "rounds": rounds,
            "uploads": max(1, round(rate * q.clients)),
            "why": _why(q, rounds, rate),
            **_norm_advice(q, table, cohort, uploads),
        },
        "norm_against_uniform": table,
        "assumed": {
            "norms": f"log-normal (log-std {SPREAD:g}) cut at the clip norm, with the mean named",
            "norm_share": share,
            "progress": PROGRESS,
        },
    }


def _by_norm(q: Question, cohort: float, uploads: float, share: float | None) -> Arm:
    """Rule norm, with K_low at the norm sum that is expected."""
    # of norms that nobody knows, all are the clip norm
    low = q.norm_low or max(uploads / cohort, share or 1.0)
    return q.arm("norm", cohort=cohort, uploads=uploads, floor=q.floor, norm_low=low)


def recommended(q: Question) -> tuple[int, float]:
    """(rounds, share of the clients that uploads), by RDP and uniform sampling.

    Rounds: the least of 2 PROGRESS / T + error^2 at full participation. Share: central, the
    smallest whose error is within NEAR_FULL of full participation's; local, all of them, because
    every client is charged for every round and noise falls with the number of uploads.
    """
    share = q.norm_share or 1.0

    def error(rounds: int, rate: float) -> float:
        asked = max(1.0, rate * q.clients)
        arm = q.calibrated(q.arm("uniform", rounds=rounds, cohort=asked), "rdp")
        return q.expected(arm, share).error

    rounds = min(ROUNDS, key=lambda t: 2 * PROGRESS / t + error(t, 1.0) ** 2)
    if not TRUSTS[q.trust].amplified:
        return rounds, 1.0
    most = NEAR_FULL * error(q.rounds, 1.0)
    rates = (rate for rate in RATES if rate * q.clients >= 1 and error(q.rounds, rate) <= most)
    return rounds, next(rates, 1.0)


def _why(q: Question, rounds: int, rate: float) -> list[str]:
    if not TRUSTS[q.trust].amplified:
        asked = "all clients upload: a client is charged for every round, asked or not"
    elif rate < 1:
        asked = (
            f"{rate:.0%} of the clients per round: within {NEAR_FULL - 1:.0%} of the error of "
            "asking all, and cheaper"
        )
    else:
        asked = "every client every round: a smaller cohort would add much noise"
    return [
        f"{rounds} rounds: with more, the noise that each needs outweighs the progress "
        "(a guess that fits the digits; half or double costs little)",
        asked,
    ]


def _told(q: Question, arm: Arm, expected: Expected) -> dict[str, Any]:
    signal = (q.norm_share or 1.0) * (q.alignment or 1.0)
    norms = arm.cohort if arm.releases_norms else 0.0
    up = BYTES * (expected.uploads * q.parameters + norms)
    down = BYTES * arm.cohort * q.parameters
    return {
        "cohort": arm.cohort,
        "uploads": arm.uploads,
        "expected_uploads": expected.uploads,
        "floor": arm.floor,
        "norm_low": arm.norm_low if arm.releases_norms else None,
        "noise_multiplier": arm.noise_multiplier,
        "norm_multiplier": arm.norm_multiplier or None,
        "noise_to_signal": expected.noise,
        "noise_to_typical_signal": (
            expected.noise / (signal * expected.kept) if q.norm_share and q.alignment else None
        ),
        "sampling_error": expected.sampling,
        "kept": expected.kept,
        "reach": reach(arm, expected.noise / expected.kept),
        "bytes_up_a_round": up,
        "bytes_down_a_round": down,
        "bytes_total": q.rounds * (up + down),
    }


def _row(q: Question, uniform: Arm, cohort: float, uploads: float, mean: float) -> dict[str, Any]:
    """Rule norm beside uniform at equal epsilon and uploads, for clients of this mean norm."""
    same = q.calibrated(uniform, "rdp")
    arm = q.calibrated(_by_norm(q, cohort, uploads, mean), "rdp")
    ours, theirs = q.expected(arm, mean), q.expected(same, mean)
    return {
        "norm_share": mean,
        "norm_low": arm.norm_low,
        "noise": ours.noise / theirs.noise,
        "error": ours.error / theirs.error,
        "uploads": ours.uploads,
        "kept": ours.kept,
    }


def _norm_advice(
    q: Question, table: list[dict[str, Any]], cohort: float, uploads: float
) -> dict[str, Any]:
    """Which rule to take, and where the other one would be better."""
    noised = TRUSTS[q.trust].clients_add_noise
    biased = " (and the mean is biased: large norms count less)" if noised else ""
    paying = [row["norm_share"] for row in table if row["error"] < PAYS]
    below = max(paying, default=None)
    about = f"with a cohort of {cohort:g} and {uploads:g} uploads"
    if below is None:
        best = min(row["error"] for row in table)
        change = "no gain" if math.isclose(best, 1, abs_tol=0.03) else f"at best {best:.2f} times"
        said = f"take uniform: norm-based sampling cannot pay here ({change} uniform's error)"
        return {"rule": "uniform", "norm_pays_below": None, "norm_can_pay": False, "said": said}
    if q.norm_share is None:
        said = (
            f"norm-based sampling pays {about} if the mean norm is at most about {below:g} clip "
            f"norms; with a clip so small that all norms equal it, take uniform{biased}"
        )
        rule = "norm" if below >= 0.9 else "uniform"
    else:
        near = min(table, key=lambda row: abs(row["norm_share"] - (q.norm_share or 1.0)))
        rule = "norm" if near["error"] < PAYS else "uniform"
        said = (
            f"take {rule}: at a mean norm of {q.norm_share:g} clip norms, norm-based sampling has "
            f"about {near['error']:.2f} times uniform's error {about}{biased}"
        )
    return {"rule": rule, "norm_pays_below": below, "norm_can_pay": True, "said": said}
