"""The same client in NumPy alone: softmax regression by hand, with the same adapter.

locks federation client ... --update numpy_client:update
"""

from __future__ import annotations

import os

import numpy as np

data = np.load(os.environ.get("MY_DATA", "data.npz"))
records = data["features"].reshape(len(data["labels"]), -1) / 255.0
right = np.eye(10)[data["labels"]]


def train(model: np.ndarray) -> np.ndarray:
    """Your own training: here one step of gradient descent. The last column is the bias."""
    inputs = np.column_stack([records, np.ones(len(records))])
    scores = inputs @ model.T
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return model - (shares - right).T @ inputs / len(inputs)


def update(weights: np.ndarray, _round: int) -> np.ndarray:
    """The adapter: the model in, the update out. In order: ten rows of weights, ten biases."""
    model = np.column_stack([weights[:7840].reshape(10, 784), weights[7840:]])
    trained = train(model)
    return weights - np.concatenate([trained[:, :-1].ravel(), trained[:, -1]])


update.parameters = 7850  # a server with a model of another size or name is refused, unpaid
update.model = "softmax"
