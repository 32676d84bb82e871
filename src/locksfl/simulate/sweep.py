"""A sweep: one experiment under many settings (seeds, steps, clips), played together on a GPU.

A round of a small model leaves most of a GPU idle, and whatever differs between settings (numbers,
keys, cohorts, the model itself) is an argument of the compiled block. So the block gets an axis of
settings; the data are stored only once. On a CPU, where batched products are slower, settings are
played one after another. Every setting makes the same draws as when it is played alone, so results
agree up to float rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from locksfl.arm import Arm, Dials
from locksfl.round.client import LocalWork
from locksfl.round.draws import cohort_of
from locksfl.round.randomness import Randomness
from locksfl.round.rates import RateControl
from locksfl.round.server import Server
from locksfl.simulate.block import ROUNDS_A_CALL, Program
from locksfl.simulate.layout import usual_count, usual_rate
from locksfl.simulate.secret import is_secret
from locksfl.simulate.simulator import RoundLog, Simulator, controlled, finish, read_log

MOST_TOGETHER = 16  # more would not use a GPU better, and would wait longer for the largest cohort


class Setting(NamedTuple):
    """A method with its numbers, and where its draws come from."""

    plan: Arm
    randomness: Randomness


class Played(NamedTuple):
    """All rounds of a setting, and the model after them."""

    rounds: list[RoundLog]
    weights: np.ndarray


def play_sweep(
    simulator: Simulator,
    settings: Sequence[Setting],
    work: LocalWork,
    server: Server,
    *,
    evaluate_every: int = 1,
    at_once: int | None = None,
) -> list[Played]:
    """Play every setting to its end. Returns the results in the order of the settings.

    at_once: settings played together. Default: as many as memory allows, and one on a CPU.
    """
    found: dict[int, Played] = {}
    for numbers in _groups(simulator, settings, work, at_once):
        group = [settings[number] for number in numbers]
        if len(group) == 1:
            played = [play_alone(simulator, *group[0], work, server, evaluate_every=evaluate_every)]
        else:
            played = _together(simulator, group, work, server, evaluate_every)
        found |= zip(numbers, played, strict=True)
    return [found[number] for number in range(len(settings))]


def play_alone(
    simulator: Simulator,
    plan: Arm,
    randomness: Randomness,
    work: LocalWork,
    server: Server,
    *,
    evaluate_every: int = 1,
    on_round: Callable[[RoundLog], None] = lambda log: None,
) -> Played:
    """Play one setting to its end; `on_round` is called with every round once it is played."""
    rounds: list[RoundLog] = []
    for block in simulator.play(plan, work, server, randomness, evaluate_every=evaluate_every):
        rounds += block.rounds
        for log in block.rounds:
            on_round(log)
    return Played(rounds, np.asarray(server.model(block.state, server.rounds)))


def _groups(
    simulator: Simulator, settings: Sequence[Setting], work: LocalWork, at_once: int | None
) -> Iterator[list[int]]:
    """Indices of the settings that one program can play together. Settings with client budgets,
    public weights or secret draws have arrays of their own and are played alone."""
    alike: dict[Any, list[int]] = {}
    for number, (plan, source) in enumerate(settings):
        own = plan.budget is not None or plan.weights is not None or is_secret(source, plan)
        alone = number if own else None
        key = (plan.method, plan.sampling_rate, plan.controlled, alone)
        alike.setdefault(key, []).append(number)
    for numbers in alike.values():
        most = at_once or _most_together(simulator, settings[numbers[0]].plan, work)
        pieces = -(-len(numbers) // most)
        size = -(-len(numbers) // pieces)  # equal pieces share a compiled program
        for first in range(0, len(numbers), size):
            yield numbers[first : first + size]


def _most_together(simulator: Simulator, plan: Arm, work: LocalWork) -> int:
    """The number of settings whose typical cohorts fit in memory together."""
    if simulator.on_cpu:
        return 1
    classes, class_of = simulator.classes(work)
    fits = [MOST_TOGETHER]
    for number, shape in enumerate(classes):
        usual = usual_count(int(np.sum(class_of == number)), plan.sampling_rate)
        fits.append(simulator.most_at_once(shape, work) // -(-usual // simulator.mesh.size))
    return max(1, min(fits))


def _together(
    simulator: Simulator, group: list[Setting], work: LocalWork, server: Server, evaluate_every: int
) -> list[Played]:
    """Like `Simulator.play`, with a leading axis of settings on everything that differs between
    them."""
    (plan, _), model = group[0], simulator.model
    classes, class_of = simulator.classes(work)
    layout_at = functools.cache(
        lambda rate: simulator.layout(classes, class_of, rate, work, len(group))
    )
    layout = layout_at(plan.sampling_rate)
    keys = jnp.stack([source.arm_key(plan.name) for plan, source in group])
    dials = _dials(group)
    first = jnp.stack([model.init(source.model_key()) for _, source in group])
    keys, dials, state = simulator.replicate_tree((keys, dials, jax.vmap(server.init)(first)))
    public = simulator.replicate_tree(jnp.float32(1.0))
    rounds: list[list[RoundLog]] = [[] for _ in group]
    controls = [RateControl(plan) for plan, _ in group] if plan.controlled else []
    most = 1 if controls else ROUNDS_A_CALL  # what a round releases decides the next
    for t in range(0, server.rounds, most):
        length = min(most, server.rounds - t)
        if controls:
            group = [Setting(c.arm, s.randomness) for c, s in zip(controls, group, strict=True)]
            rate = usual_rate(max(plan.sampling_rate for plan, _ in group))
            layout = layout_at(rate)
            dials = simulator.replicate_tree(_dials(group))
        cohorts = [_cohorts(setting, t, length) for setting in group]
        layout = simulator.fit(layout, [one for each in cohorts for one in each], class_of)
        program = Program(
            plan.method,
            model,
            work,
            server,
            layout,
            evaluate_every,
            together=len(group),
            keep_bytes=simulator.keep_bytes,
        )
        slots = np.stack([simulator.slots(each, class_of, layout) for each in cohorts])
        data = (simulator.records, simulator.test, public)
        arguments = (state, *data, dials, keys, simulator.put_slots(slots, most))
        numbers = (np.int32(t), np.int32(length), None, None)
        call, _ = simulator.compile(program, *arguments, *numbers)
        state, log = finish(call(*arguments, *numbers))
        log = jax.tree.map(np.asarray, log)
        for number, played in enumerate(rounds):
            logs = read_log(t, slots[number], jax.tree.map(lambda a: a[number], log))  # noqa: B023
            played += [controlled(one, controls[number]) for one in logs] if controls else logs
    weights = np.asarray(jax.vmap(lambda s: server.model(s, server.rounds))(state))
    return [Played(*pair) for pair in zip(rounds, weights, strict=True)]


def _dials(group: Sequence[Setting]) -> Dials:
    stacked: Dials = jax.tree.map(
        lambda *values: jnp.stack(values), *(plan.dials() for plan, _ in group)
    )
    return stacked


def _cohorts(setting: Setting, first: int, length: int) -> list[np.ndarray]:
    plan, randomness = setting
    return [cohort_of(randomness, plan, t) for t in range(first, first + length)]
