"""Metrics that tell the truth: every score beside what a constant answer would get.

All are functions of a final model's scores on the held-out records and of their labels, so they may
be shown where accuracy may: if these records are public. The baseline is the best constant answer
in hindsight, found in the same labels: the most frequent class, the mean, the more frequent of yes
and no for each tag. `gain` is the score minus that of the baseline, with a 95% interval over the
records, which are taken as independent. What cannot be said (an AUC of one class) is None.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax
from scipy.stats import rankdata

from locksfl._arrays import Floats
from locksfl._tables import or_null
from locksfl.data.population import Population
from locksfl.data.task import Task
from locksfl.models.build import Model, score_parts
from locksfl.round.client import PRECISIONS

Metrics = dict[str, Any]

BINS = 15  # of confidences, as Guo et al. (2017)
MOST_CLASSES = 100  # of a confusion matrix that is written out
MOST_COLUMNS = 1000  # classes or tags that are looked at one by one
MOST_SCORES = 2e7  # that are kept and sorted for an AUC
NORMAL = 1.959964  # half of a 95% interval, in standard errors
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
BASELINES = {  # what the constant answer is, in words
    "classes": "always the most frequent",
    "numbers": "always the mean",
    "tags": "always the more frequent",
}


def held_out_metrics(model: Model, weights: Any, population: Population) -> Metrics:
    """Every metric of a model on the held-out records."""
    parts = _exact_scores(model, weights, population.test_features, population.scale)
    return metrics_of(population.task, parts, population.test_labels)


def metrics_of(task: Task, parts: Iterable[Any], labels: NDArray[Any]) -> Metrics:
    """Every metric of scores for labels [records, ...].

    parts: the scores [some records, ..., outputs], one part after another, so that no more than
        one of them need be in memory.
    """
    return _plain(_METRICS[task.kind](task, parts, np.asarray(labels)))


def of_classes(task: Task, parts: Iterable[Any], labels: NDArray[Any]) -> Metrics:
    """Accuracy and its kin. `f1` is the mean over classes, for two classes that of class 1;
    `confusion[i][j]` counts records of class i that were taken for j."""
    del task
    there, done = labels >= 0, 0
    pieces = []  # of each answer: its class, how sure it was, its loss, all log probabilities
    for part in parts:
        mine = slice(done, done := done + len(part))
        logs = log_softmax(np.asarray(part, np.float64)[there[mine]], axis=-1)
        best, truth = logs.argmax(axis=-1), labels[mine][there[mine]]
        classes, each = logs.shape[-1], np.arange(len(logs))
        sorts = classes <= MOST_COLUMNS and there.sum() * classes <= MOST_SCORES
        kept = logs if sorts else logs[:0]
        pieces.append((best, np.exp(logs[each, best]), -logs[each, truth], kept))
    answers, sure, lost, kept = (np.concatenate(each) for each in zip(*pieces, strict=True))
    record, labels = np.nonzero(there)[0], labels[there]  # a sequence has several answers
    right, most = answers == labels, np.bincount(labels, minlength=classes)
    constant = labels == most.argmax()
    hits, said = (np.bincount(a, minlength=classes) for a in (labels[right], answers))
    occurs = most > 0
    recall = np.divide(hits, most, out=np.full(classes, np.nan), where=occurs)
    f1 = _f1(hits, said, most)
    gains = np.bincount(record, weights=right.astype(float) - constant, minlength=len(there))
    confusion = None
    if classes <= MOST_CLASSES:
        pairs = np.bincount(labels * classes + answers, minlength=classes**2)
        confusion = pairs.reshape(classes, classes).tolist()
    return {
        "accuracy": right.mean(),
        "baseline": constant.mean(),
        **_interval(gains, len(labels)),
        "loss": lost.mean(),
        "balanced_accuracy": np.nanmean(recall),
        "auc": _mean_auc(kept, labels[:, None] == np.arange(classes)) if len(kept) else None,
        "f1": f1[1] if classes == 2 else f1[occurs | (said > 0)].mean(),
        "calibration_error": calibration_error(sure, right),
        "accuracy_by_class": recall.tolist() if classes <= MOST_COLUMNS else None,
        "confusion": confusion,
    }


def of_numbers(task: Task, parts: Iterable[Any], labels: NDArray[Any]) -> Metrics:
    """Errors in the units of the targets; means over targets if there are several."""
    truth = labels.astype(np.float64)
    found = task.predict(_whole(parts)).reshape(truth.shape)
    off, apart = found - truth, truth - truth.mean(axis=0)
    squares = np.square(apart).sum(axis=0)
    # a target that never varies has nothing to explain: R^2 of 0
    share = np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)
    with np.errstate(invalid="ignore"):  # of a model that diverged
        explained = (np.square(apart) - np.square(off)) * share
    return {
        "r2": explained.sum(axis=0).mean(),
        "baseline": 0.0,
        **_interval(explained.mean(axis=-1), 1),
        "mae": np.abs(off).mean(),
        "rmse": np.sqrt(np.square(off).mean(axis=0)).mean(),
        "baseline_mae": np.abs(apart).mean(),
        "baseline_rmse": np.sqrt(np.square(apart).mean(axis=0)).mean(),
        "r2_by_target": explained.sum(axis=0).tolist(),
    }


def of_tags(task: Task, parts: Iterable[Any], labels: NDArray[Any]) -> Metrics:
    """Accuracy is the share of right answers to "does this record have this tag?"; an exact match
    has them all."""
    scores = _whole(parts)
    truth, said = labels == 1, task.predict(scores) == 1
    right = said == truth
    often = truth.mean(axis=0) > 0.5
    constant = truth == often
    hits = (truth & said).sum(axis=0)
    counts = (hits, said.sum(axis=0), truth.sum(axis=0))
    rows = np.unique(truth, axis=0, return_counts=True)[1]
    probabilities = expit(scores)
    sure = np.maximum(probabilities, 1 - probabilities)
    return {
        "accuracy": right.mean(),
        "baseline": constant.mean(),
        **_interval((right.astype(float) - constant).mean(axis=-1), len(labels)),
        "loss": np.logaddexp(0.0, np.where(truth, -scores, scores)).mean(),
        "exact_match": right.all(axis=-1).mean(),
        "baseline_exact_match": rows.max() / len(labels),
        "f1_micro": _f1(*(np.atleast_1d(count.sum()) for count in counts))[0],
        "f1_macro": _f1(*counts).mean(),
        "auc": _mean_auc(scores, truth) if truth.shape[1] <= MOST_COLUMNS else None,
        "calibration_error": calibration_error(sure.ravel(), right.ravel()),
        "f1_by_tag": _f1(*counts).tolist() if truth.shape[1] <= MOST_COLUMNS else None,
    }


def auc(scores: NDArray[Any], positive: NDArray[Any]) -> float:
    """The probability that a positive record has the higher score, ties counted half; NaN if all
    are of one kind."""
    ones = int(positive.sum())
    others = len(positive) - ones
    if not ones or not others or not np.isfinite(scores).all():
        return math.nan
    ranks = float(rankdata(scores)[positive].sum())
    return (ranks - ones * (ones + 1) / 2) / (ones * others)


def calibration_error(confidence: NDArray[Any], right: NDArray[Any]) -> float:
    """The expected calibration error: |confidence - accuracy| within bins of equal width, weighted
    by how many answers each has."""
    if not np.isfinite(confidence).all():
        return math.nan
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    off = np.bincount(place, weights=confidence - right, minlength=BINS)
    return float(np.abs(off).sum() / len(right))


def score_by_client(
    model: Model, weights: Any, population: Population, clients: NDArray[Any]
) -> dict[str, float | None]:
    """Quantiles over clients of the score of each client's own records: for numbers, of their root
    mean square error. Exact functions of private data: diagnostics of a simulation."""
    owned = [slice(*population.offsets[i : i + 2]) for i in clients]
    rows = np.concatenate([np.arange(one.start, one.stop) for one in owned])
    scores = _whole(_exact_scores(model, weights, population.features[rows], population.scale))
    ends = np.cumsum([one.stop - one.start for one in owned])[:-1]
    pairs = zip(np.split(scores, ends), np.split(population.labels[rows], ends), strict=True)
    numbers = population.task.kind == "numbers"
    found = []
    for mine, labels in pairs:
        answers = population.task.predict(mine).reshape(labels.shape)
        there = population.task.there(labels)
        off = np.square(answers - labels) if numbers else answers == labels
        if there.any():
            value = float(off[there].mean())
            found.append(math.sqrt(value) if numbers else value)
    told = {"mean": np.mean(found), **{str(q): np.quantile(found, q) for q in QUANTILES}}
    return {"clients": len(found), **_plain(told)}


def _exact_scores(model: Model, weights: Any, features: Any, scale: float) -> Iterator[Any]:
    """Scores of records, on a GPU too as float32 has them."""
    with jax.default_matmul_precision(PRECISIONS["full"]):
        yield from score_parts(model, jnp.asarray(weights), features, scale)


def _whole(parts: Iterable[Any]) -> Floats:
    return np.concatenate([np.asarray(part, np.float64) for part in parts])


def _f1(hits: NDArray[Any], said: NDArray[Any], there: NDArray[Any]) -> Floats:
    """2 hits / (said + there); 0 where a class is neither said nor there."""
    return np.asarray(2 * hits / np.maximum(1, said + there), np.float64)


def _mean_auc(scores: Floats, truth: NDArray[Any]) -> float:
    """The mean over columns that have both kinds, each against the rest."""
    found = [auc(*column) for column in zip(scores.T, truth.T, strict=True)]
    known = [one for one in found if not math.isnan(one)]
    return float(np.mean(known)) if known else math.nan


def _interval(gains: NDArray[Any], answers: int) -> Metrics:
    """The sum of the records' gains over the answers, with its 95% interval."""
    mean = float(gains.sum()) / answers
    error = math.sqrt(len(gains)) * float(np.std(gains, ddof=1)) if len(gains) > 1 else math.nan
    wide = NORMAL * error / answers
    return {"gain": mean, "gain_low": mean - wide, "gain_high": mean + wide}


def _plain(found: Metrics) -> Metrics:
    """Python's own numbers, None in place of what JSON has no word for."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(one) for one in value]
        if isinstance(value, int):
            return value
        return or_null(value)

    return {name: plain(value) for name, value in found.items()}


_METRICS = {
    "classes": of_classes,
    "numbers": of_numbers,
    "tags": of_tags,
}
