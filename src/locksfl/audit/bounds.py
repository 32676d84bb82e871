"""What two piles of attack scores prove: lower confidence bounds on epsilon.

Each test splits its scores by their position: the first half chooses the threshold, the second half
gives the bound. So the bound holds with the stated confidence, whatever the score was.
The bounds themselves are jax_privacy's (`epsilon_clopper_pearson`, `epsilon_one_run`), always with
an explicit threshold: for one run its `Split` would draw the halves by the membership that is to be
guessed, and its `epsilon_from_gdp` is positive without any leak.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats

from locksfl._arrays import Floats

Bools = npt.NDArray[np.bool_]

_THRESHOLDS = 400
_ONE_RUN_THRESHOLDS = 40


def repeated_bound(present: Floats, absent: Floats, delta: float, significance: float) -> float:
    """Epsilon is at least this, with probability 1 - significance over the repetitions.

    `present` and `absent` are the scores of independent repetitions in the two worlds. At the
    threshold, ln((TPR_low - delta) / FPR_high) with Clopper and Pearson's limits (each at half the
    significance), or the same with the worlds exchanged, the larger.
    """
    from jax_privacy import auditing

    half_in, half_out = len(present) // 2, len(absent) // 2
    threshold = _best_threshold(present[:half_in], absent[:half_out], delta, significance)
    auditor = auditing.CanaryScoreAuditor(present[half_in:], absent[half_out:])
    return float(
        auditor.epsilon_clopper_pearson(
            significance, delta, one_sided=False, threshold_strategy=auditing.Explicit(threshold)
        )
    )


def largest_repeated(repetitions: int, delta: float, significance: float) -> float:
    """What `repeated_bound` gives when the attack distinguishes every repetition of both worlds."""
    tested = repetitions - repetitions // 2
    missed = 1 - (significance / 2) ** (1 / tested)
    return float(np.log(1 - missed - delta) - np.log(missed))


def one_run_bound(scores: Floats, present: Bools, delta: float, significance: float) -> float:
    """Epsilon is at least this, from many canaries of one run, each in or out by a fair coin.

    Steinke, Nasr and Jagielski 2023, Theorem 5.2: the number of right guesses among those that were
    made is compared with a binomial of success e^eps / (1 + e^eps).
    """
    from jax_privacy import auditing

    half = len(scores) // 2

    def bound(part: slice, threshold: float) -> float:
        score, inside = scores[part], present[part]
        if not inside.any() or inside.all():
            return 0.0
        auditor = auditing.CanaryScoreAuditor(score[inside], score[~inside])
        strategy = auditing.Explicit(threshold)
        return float(auditor.epsilon_one_run(significance, delta, threshold_strategy=strategy))

    shares = 1 - np.geomspace(0.5, 5 / half, _ONE_RUN_THRESHOLDS)
    thresholds = np.quantile(scores[:half], shares)
    chosen = max(thresholds, key=lambda at: bound(slice(None, half), at))
    return bound(slice(half, None), chosen)


def largest_one_run(canaries: int, delta: float, significance: float) -> float:
    """What `one_run_bound` gives when every canary is guessed right."""
    inside = np.arange(canaries) % 2 == 0
    return one_run_bound(inside.astype(np.float64), inside, delta, significance)


def _best_threshold(present: Floats, absent: Floats, delta: float, significance: float) -> float:
    """The threshold whose bound would be largest on these scores."""
    tails = np.geomspace(5 / len(absent), 0.5, _THRESHOLDS // 2)
    shares = np.concatenate([tails, 1 - tails])
    thresholds = np.unique(np.quantile(np.concatenate([present, absent]), shares))
    missed = np.searchsorted(np.sort(present), thresholds)
    alarms = len(absent) - np.searchsorted(np.sort(absent), thresholds)
    fnr = _upper(missed, len(present), significance / 2)
    fpr = _upper(alarms, len(absent), significance / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = np.log(np.maximum(1 - fnr - delta, 0)) - np.log(fpr)
        backward = np.log(np.maximum(1 - fpr - delta, 0)) - np.log(fnr)
    return float(thresholds[int(np.argmax(np.maximum(forward, backward)))])


def _upper(hits: npt.NDArray[np.int64], trials: int, significance: float) -> Floats:
    """Clopper and Pearson's upper limit."""
    limit = stats.beta.ppf(1 - significance, hits + 1, np.maximum(trials - hits, 1))
    return np.where(hits < trials, limit, 1.0)
