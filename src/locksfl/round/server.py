"""The server's step: an optax rule applied to the averaged update, and averaging of iterates.

All of it is post-processing of released values, so it costs no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

OPTIMIZERS = ("sgd", "momentum", "adam")
SCHEDULES = ("inverse-sqrt", "constant", "linear")


@dataclass(frozen=True)
class Server:
    """How the server updates the model. The paper uses sgd with step eta_b / sqrt(t + 1)."""

    optimizer: str = "sgd"
    schedule: str = "inverse-sqrt"
    momentum: float = 0.9
    rounds: int = 100
    average_last: int = 0  # the model is the mean of the last this many iterates (0: the last one)

    def _rule(self) -> optax.GradientTransformation:
        # every rule at step 1: the step is an argument of the compiled round
        if self.optimizer == "adam":
            return optax.adam(1.0)
        return optax.sgd(1.0, momentum=self.momentum if self.optimizer == "momentum" else None)

    def init(self, weights: Array) -> ServerState:
        """The state before the first round; an arm's may have more (`control.first_state`)."""
        return ServerState(weights, self._rule().init(weights), jnp.zeros_like(weights))

    def eta(self, base_step: Any, t: Any) -> Any:
        """The step of round t: eta_b / sqrt(t + 1), eta_b, or eta_b (1 - t / T), which is eta_b / T
        in the last of T rounds."""
        if self.schedule == "inverse-sqrt":
            return base_step / jnp.sqrt(t + 1.0)
        return base_step * (1.0 - t / self.rounds) if self.schedule == "linear" else base_step

    def step(self, state: ServerState, update: Array, base_step: Array, t: Array) -> ServerState:
        """w <- w - eta_t * rule(update).

        Args:
            state: before the round.
            update: the noisy average of the round.
            base_step: eta_b.
            t: the round, counted from 0.

        Returns:
            The state after the round.
        """
        eta = self.eta(base_step, t)
        change, inner = self._rule().update(update, state.optimizer, state.weights)
        weights = state.weights + eta * jnp.asarray(change)
        average = self._average(state.average, weights, t)
        last = None if state.last is None else update
        return state._replace(weights=weights, optimizer=inner, average=average, last=last)

    def _average(self, average: Array, weights: Array, t: Array) -> Array:
        if not self.average_last:
            return average
        seen = t - (self.rounds - self.average_last)  # iterates averaged before this one
        mean = average + (weights - average) / jnp.maximum(1.0, seen + 1.0)
        return jnp.where(seen >= 0, mean, average)

    def model(self, state: ServerState, rounds_done: Array | int) -> Array:
        """The weights to use after `rounds_done` rounds, averaged once averaging has begun."""
        if not self.average_last:
            return state.weights
        averaging = jnp.asarray(rounds_done) > self.rounds - self.average_last
        return jnp.where(averaging, state.average, state.weights)


class ServerState(NamedTuple):
    """The state passed from one round to the next."""

    weights: Array  # of the model
    optimizer: Any  # optax's own state
    average: Array  # of the last iterates, if they are averaged
    clip_norm: Any = None  # of the next round, if it adapts
    last: Any = None  # the last released update, if the rule asks about it
    control: Any = None  # of a control variate (control.py)
    recent_noise: Any = None  # of the last rounds, the last one first, if it is correlated
