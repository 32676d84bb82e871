"""What would other ways to score a client gain? Those that the paper mentions and that are no rule
of this program, measured on the embedded digits (docs/methods.md has the answers):

python -m scripts.check_suggestions     # about two minutes

Softmax regression is trained with uniform sampling and noise of epsilon 8. At every round each
client's clipped gradient g_i is computed, and what a way to choose b uploads would have done there:
the sampling variance sum |g_i|^2 / p_i with p_i in proportion to the score, over that of equal p_i.
Then devices are away: asked, charged, and not there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from locksfl.data.datasets import open_population
from locksfl.privacy import calibrate_central

Array = NDArray[np.floating]
ROUNDS, UPLOADS_A_ROUND, FLOOR, SIMILAR = 40, 0.02, 0.1, 0.9
SEEDS = 5
SETTINGS = {  # clients, clip norm, step
    "10,000 clients with 1 digit": (10_000, 1.0, 1.0),
    "the same, clip norm 8": (10_000, 8.0, 0.25),
    "1,000 clients with 10 digits": (1_000, 1.0, 1.0),
    "the same, clip norm 4": (1_000, 4.0, 0.25),
    "100 clients with 100 digits": (100, 1.0, 0.5),
}


class Gradients(NamedTuple):
    """All clients' mean gradients at one model, as they would be clipped."""

    clipped: Array  # [clients, parameters]
    l1: Array  # of what is not clipped yet
    l2: Array


def gradients(weights: Array, x: Array, y: Array, clip_norm: float) -> Gradients:
    """Of softmax regression, from x [clients, records, features] and one-hot y."""
    scores = x @ weights
    errors = np.exp(scores - scores.max(axis=2, keepdims=True))
    errors = errors / errors.sum(axis=2, keepdims=True) - y
    flat = np.matmul(x.transpose(0, 2, 1), errors).reshape(len(x), weights.size)
    flat /= x.shape[1]
    l2 = np.linalg.norm(flat, axis=1)
    l1 = np.abs(flat).sum(axis=1)
    flat /= np.maximum(1.0, l2 / clip_norm)[:, None]
    return Gradients(flat, l1, l2)


def relative_variance(score: Array, lengths: Array) -> float:
    """sum |g_i|^2 / p_i for p_i in proportion to the score, over that for equal p_i."""
    by_score = np.sum(lengths**2 / score) * np.sum(score)
    return float(by_score / (len(lengths) * np.sum(lengths**2)))


def with_floor(score: Array) -> Array:
    """A share of all uploads is drawn evenly, as by the rule `norm`."""
    return (1 - FLOOR) * score / score.mean() + FLOOR


def one_of_similar(clipped: Array, members: NDArray[np.int64]) -> NDArray[np.int64]:
    """The members of a cohort that are left if of two similar gradients one is used."""
    unit = clipped[members] / np.linalg.norm(clipped[members], axis=1, keepdims=True)
    cosines, kept = unit @ unit.T, list[int]()
    for at in range(len(members)):
        if not kept or np.max(cosines[at, kept]) < SIMILAR:
            kept.append(at)
    return members[kept]


class Training:
    """Uniform sampling at epsilon 8, of which `here` are the clients' probabilities to be there."""

    def __init__(
        self, clients: int, clip_norm: float, step: float, seed: int, here: Array | None = None
    ) -> None:
        self.clients, self.clip_norm, self.step = clients, clip_norm, step
        self.source = np.random.default_rng(seed)
        self.people = people = open_population("mnist-embedded", clients, "iid", {}, seed=0)
        self.x = with_ones(people.features).reshape(clients, -1, people.features[0].size + 1)
        one_hot = np.eye(people.classes, dtype=np.float32)[people.labels]
        self.y = one_hot.reshape(clients, -1, people.classes)
        self.weights = np.zeros((self.x.shape[2], people.classes), np.float32)
        self.z = calibrate_central(8.0, 1e-5, ROUNDS, UPLOADS_A_ROUND).noise_multiplier
        self.here = np.ones(clients) if here is None else here

    def of(self, who: Any) -> Gradients:
        """The gradients of some clients, or of all."""
        return gradients(self.weights, self.x[who], self.y[who], self.clip_norm)

    def advance(self) -> None:
        """One round."""
        joined = self.source.random(self.clients) < UPLOADS_A_ROUND * self.here
        noise = self.source.normal(0.0, self.z * self.clip_norm, self.weights.size)
        update = self.of(joined).clipped.sum(axis=0) + noise
        update /= UPLOADS_A_ROUND * self.here.sum()
        self.weights -= (self.step * update.reshape(self.weights.shape)).astype(np.float32)

    def accuracy(self) -> float:
        """Of the last model on the held-out digits, in percent."""
        for _ in range(ROUNDS):
            self.advance()
        scores = with_ones(self.people.test_features) @ self.weights
        return float(100 * np.mean(scores.argmax(axis=1) == self.people.test_labels))


def with_ones(records: NDArray[np.generic]) -> Array:
    """Pixels from 0 to 1, and a constant."""
    pixels = records.reshape(len(records), -1) / np.float32(255)
    return np.hstack([pixels, np.ones((len(pixels), 1), np.float32)])


def measure(clients: int, clip_norm: float, step: float) -> dict[str, float]:
    """Means over the rounds after the first tenth."""
    training, rows = Training(clients, clip_norm, step, seed=0), []
    source = training.source
    last = np.full(clients, clip_norm)  # of whom nothing is known yet
    for t in range(ROUNDS):
        seen = training.of(slice(None))
        lengths = np.minimum(seen.l2, clip_norm)
        stale = with_floor(last)
        rates = np.minimum(1.0, UPLOADS_A_ROUND * stale)
        uploaded = source.random(clients) < rates
        members = np.flatnonzero(source.random(clients) < 5 * UPLOADS_A_ROUND)
        kept, mean = one_of_similar(seen.clipped, members), seen.clipped.mean(axis=0)
        evenly = source.choice(members, len(kept), replace=False)
        errors = [np.sum((seen.clipped[who].mean(axis=0) - mean) ** 2) for who in (kept, evenly)]
        row = {
            "mean norm over clip norm": float(lengths.mean() / clip_norm),
            "variance by the L2 norm": relative_variance(with_floor(lengths), lengths),
            "variance by the L1 norm": relative_variance(
                with_floor(seen.l1 * lengths / seen.l2), lengths
            ),
            "variance by the stale norm": relative_variance(stale, lengths),
            "stale: above the cap": float(np.mean(lengths / stale > clip_norm / stale.max())),
            "one of two similar: kept": len(kept) / len(members),
            "one of two similar: error over that of as many drawn evenly": errors[0] / errors[1],
        }
        last = np.where(uploaded, lengths, last)
        training.advance()
        if t >= ROUNDS // 10:
            rows.append(row)
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def away() -> dict[str, list[float]]:
    """Accuracy, over seeds, of 10,000 clients with one digit each, of whom half are away."""
    setting = SETTINGS["10,000 clients with 1 digit"]
    labels = open_population("mnist-embedded", setting[0], "iid", {}, seed=0).labels
    half = {
        "nobody is away": np.ones(setting[0]),
        "half are away, at random": np.full(setting[0], 0.5),
        "9 in 10 of the digits 0 to 4, and 1 in 10 of the others": np.where(labels < 5, 0.1, 0.9),
    }
    return {
        name: [Training(*setting, seed, here).accuracy() for seed in range(SEEDS)]
        for name, here in half.items()
    }


def main() -> None:
    """A column for each setting; then what devices that are away cost."""
    columns = {name: measure(*setting) for name, setting in SETTINGS.items()}
    for name in next(iter(columns.values())):
        print(f"{name:62}" + "".join(f"{column[name]:8.3f}" for column in columns.values()))
    print("\n".join(f"column {at + 1}: {name}" for at, name in enumerate(columns)))
    for name, found in away().items():
        print(f"accuracy, {name:52}{np.mean(found):8.2f} +- {np.std(found, ddof=1):.2f}")


if __name__ == "__main__":
    main()
