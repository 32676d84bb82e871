"""The loss of each task: what a client's update descends, and every report of a loss means.

A model carries its task, so that whatever holds a model holds its loss too. `losses` gives one
value per record; `errors` its derivative by the scores, from which dense networks compute norms
without gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array

from locksfl.data.task import Task
from locksfl.models.build import Model


def losses(model: Model, scores: Array, labels: Array) -> Array:
    """The loss of each record: scores [B, outputs] and labels [B, ...] -> [B]."""
    return _LOSSES[model.task.kind](model.task, scores, labels)


def errors(model: Model, scores: Array, labels: Array) -> Array:
    """The derivative of each record's loss by its scores, [..., outputs]; not for sequences."""
    if model.task.kind == "classes":
        return jax.nn.softmax(scores) - jax.nn.one_hot(labels, scores.shape[-1])
    outputs = scores.shape[-1]
    flat = scores.reshape(-1, outputs), labels.reshape(-1, outputs)
    slopes = jax.grad(lambda s: jnp.sum(losses(model, s, flat[1])))(flat[0])
    return slopes.reshape(scores.shape)


def cross_entropy(scores: Array, labels: Array) -> Array:
    """Cross-entropy: -ln of the probability of the correct class, one value per record.

    For sequences, scores [B, L, C] and labels [B, L]: a record's mean over its labelled positions;
    label -1 means that a position has none.
    """
    if labels.ndim == 2:
        labelled = labels >= 0
        right = jnp.take_along_axis(scores, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
        each = jnp.where(labelled, jax.nn.logsumexp(scores, axis=-1) - right, 0.0)
        return jnp.sum(each, axis=-1) / jnp.maximum(1, jnp.sum(labelled, axis=-1))
    # a mask instead of indexing: the gradient of indexing is a scatter, which is slow on a GPU
    chosen = jnp.arange(scores.shape[-1]) == labels[:, None]
    return jax.nn.logsumexp(scores, axis=-1) - jnp.sum(jnp.where(chosen, scores, 0.0), axis=-1)


def _of_numbers(task: Task, scores: Array, labels: Array) -> Array:
    """The mean over targets of d^2 / 2, d in spreads; with huber |d| - 1/2 where |d| > 1."""
    center, spread = (jnp.asarray(values, jnp.float32) for values in (task.center, task.spread))
    loss = optax.huber_loss if task.loss == "huber" else optax.l2_loss
    return jnp.mean(loss(scores, (labels - center) / spread), axis=-1)


def _of_tags(task: Task, scores: Array, labels: Array) -> Array:
    """The mean over tags of the cross-entropy of yes or no."""
    del task
    each = optax.sigmoid_binary_cross_entropy(scores, labels.astype(jnp.float32))
    return jnp.mean(each, axis=-1)


_LOSSES: dict[str, Callable[[Task, Array, Array], Array]] = {
    "classes": lambda task, scores, labels: cross_entropy(scores, labels),
    "numbers": _of_numbers,
    "tags": _of_tags,
}
