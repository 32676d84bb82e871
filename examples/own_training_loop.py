"""The accountant in a training loop of your own: what a DP-SGD model costs, by a tight bound.

The loop is NumPy, so that it runs anywhere; comments say what PyTorch and Opacus have in its place.
Run it with: python examples/own_training_loop.py

What the epsilon rests on is in the loop, not in the accountant:
* coins: every record (or user) is drawn independently, with one rate;
* clipping: one gradient per record (or per user), each at most CLIP long;
* noise: once a step, on the sum, also when nobody was drawn; from a generator that nobody can
  guess. A seed, as here, is for an example only.
"""

from __future__ import annotations

import numpy as np

from locksfl.privacy import Meter, calibrate_central

EPSILON, DELTA = 3.0, 1e-5
RECORDS, BATCH, STEPS, CLIP, RATE_OF_LEARNING = 2000, 100, 150, 1.0, 0.5


def main() -> float:
    rng = np.random.default_rng(0)  # yours: secrets, not a seed
    x = rng.normal(size=(RECORDS, 5))
    y = (x @ np.array([2.0, -1.0, 0.5, 0.0, 1.0]) > 0).astype(float)

    sampling_rate = BATCH / RECORDS  # of the Poisson sampler, Opacus' `sample_rate`
    noise = calibrate_central(EPSILON, DELTA, STEPS, sampling_rate).noise_multiplier
    meter = Meter(delta=DELTA)
    # With Opacus: PrivacyEngine().make_private(..., noise_multiplier=noise, max_grad_norm=CLIP,
    #     poisson_sampling=True), then charge every step where the noise is added:
    # optimizer.attach_step_hook(
    #     lambda step: meter.step(noise_multiplier=step.noise_multiplier, sampling_rate=...)
    # )

    weights = np.zeros(5)
    for _ in range(STEPS):
        if not meter.allows(EPSILON, noise_multiplier=noise, sampling_rate=sampling_rate):
            break
        drawn = rng.random(RECORDS) < sampling_rate  # torch: opacus' UniformWithReplacementSampler
        # torch: torch.func.vmap(torch.func.grad(loss), (None, 0, 0)), or Opacus' `grad_sample`
        errors = 1 / (1 + np.exp(-x[drawn] @ weights)) - y[drawn]
        gradients = errors[:, None] * x[drawn]
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        clipped = gradients * np.minimum(1, CLIP / np.maximum(norms, 1e-12))
        total = clipped.sum(axis=0) + rng.normal(0, noise * CLIP, 5)
        meter.step(noise_multiplier=noise, sampling_rate=sampling_rate)
        weights -= RATE_OF_LEARNING * total / BATCH  # a public number, not how many were drawn

    accuracy = float(np.mean((x @ weights > 0) == y))
    print(f"{meter.steps} steps, noise multiplier {noise:.3f}: accuracy {accuracy:.3f}")
    print(f"epsilon {meter.epsilon():.3f} at delta {DELTA:g}, for one record")
    return meter.epsilon()


if __name__ == "__main__":
    main()
