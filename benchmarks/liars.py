"""The accuracy of 400 devices under local trust, some of which lie: docs/federation.md.

    python -m benchmarks.liars

Softmax on the embedded digits, all devices in every round, without network, ledger or guard: honest
devices clip and add noise, liars send one direction, against the first gradient, and the server's
own score decides who is flagged. About half a minute for each line.
"""

from __future__ import annotations

import numpy as np

from locksfl.experiment.config import parse_config
from locksfl.experiment.run import prepare
from locksfl.federation.demo import experiment_text
from locksfl.federation.server.liars import Scores, length_limit

DEVICES, ROUNDS, NOISE, STEP = 400, 60, 1.0, 0.1


def records():
    """Features with a one, labels, where each device's begin, and the same of the test."""
    population = prepare(parse_config(experiment_text(DEVICES, 5, "local", 10.0))).population

    def flat(features):
        rows = np.asarray(features, np.float32).reshape(len(features), -1) * population.scale
        return np.column_stack([rows, np.ones(len(rows), np.float32)])

    test = flat(population.test_features), np.asarray(population.test_labels)
    return flat(population.features), np.asarray(population.labels), population.offsets, *test


def accuracy(data, liars, exclude, length=None, aside=False, seed=0):
    """Accuracy, and how many liars and honest devices were flagged. `length`: of a lie, if not the
    largest; `aside`: orthogonal to the running mean."""
    inputs, labels, offsets, test, answers = data
    rng, size = np.random.default_rng(seed), inputs.shape[1] * 10
    weights, lie = np.zeros((inputs.shape[1], 10), np.float32), None
    scores = Scores(DEVICES, size, ROUNDS, exclude)
    length = length or 0.999 * length_limit(NOISE, size)
    for t in range(ROUNDS):
        shares = np.exp(inputs @ weights)
        errors = shares / shares.sum(1, keepdims=True) - np.eye(10, dtype=np.float32)[labels]
        if lie is None:
            lie = -(inputs.T @ errors).ravel()
            lie /= np.linalg.norm(lie)
        mean = scores._sums[0]
        sent = lie - mean * (mean @ lie) / (mean @ mean) if aside and t else lie
        updates = {}
        for i in range(DEVICES):
            if exclude and scores.flagged[i]:
                continue
            if i < liars:
                updates[i] = length * sent / np.linalg.norm(sent)
                continue
            mine = slice(offsets[i], offsets[i + 1])
            gradient = (inputs[mine].T @ errors[mine]).ravel() / (offsets[i + 1] - offsets[i])
            gradient /= max(1.0, np.linalg.norm(gradient))
            updates[i] = gradient + NOISE * rng.standard_normal(size, np.float32)
        found = scores.judge(updates, np.ones(DEVICES), NOISE)
        summed = sum(u for i, u in updates.items() if not (exclude and i in found))
        weights -= (STEP / np.sqrt(t + 1) / DEVICES * summed).reshape(weights.shape)
    flagged = scores.flagged
    return (
        float((np.argmax(test @ weights, 1) == answers).mean()),
        flagged[:liars].sum(),
        flagged[liars:].sum(),
    )


def main():
    """One line for every case of the guide."""
    data = records()
    for liars, exclude, length in [
        (0, False, None), (4, False, None), (4, True, None), (20, False, None), (20, True, None),
        (4, True, 10.0), (20, True, 9.0),
    ]:  # fmt: skip
        found, caught, honest = accuracy(data, liars, exclude, length, aside=length is not None)
        told = f"{liars} liars, {'left out' if exclude else 'summed'}, length {length or 'largest'}"
        print(f"{told}: {found:.3f}; flagged {caught}, honest {honest}", flush=True)


if __name__ == "__main__":
    main()
