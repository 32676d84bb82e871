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
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from locksfl.arm import Arm
from locksfl.round.client import LocalWork
from locksfl.round.control import first_state
from locksfl.round.draws import cohort_of
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.block import ROUNDS_A_CALL, Program
from locksfl.simulate.layout import usual_count
from locksfl.simulate.secret import is_secret
from locksfl.simulate.simulator import RoundLog, Simulator, finish, read_log, read_numbers

MOST_TOGETHER = 16  # more would not use a GPU better, and would wait longer for the largest cohort
MOST_SMALL = 48  # of clients that are one product of matrices: a round is short, its start is not
ROOMS = (4, 12, 24, MOST_SMALL)  # few sizes, so that such sweeps share programs
LOG_BYTES = 2**30  # that the slots and logs of a call may take


class Setting(NamedTuple):
    """A method with its numbers, and where its draws come from."""

    arm: Arm
    randomness: Randomness


class Played(NamedTuple):
    """All rounds of a setting, and the model after them."""

    rounds: list[RoundLog]
    weights: np.ndarray  # of the model


def play_sweep(
    simulator: Simulator,
    settings: Sequence[Setting],
    work: LocalWork,
    server: Server,
    *,
    evaluate_every: int = 1,
    at_once: int | None = None,
    brief: bool = False,
) -> list[Played]:
    """Play every setting to its end. Returns the results in the order of the settings.

    at_once: settings played together. Default: as many as memory allows, and one on a CPU.
    brief: of members and uploads the counts are enough; where settings are played together, no
        more is read from the device.
    """
    results: dict[int, Played] = {}
    for numbers in _groups(simulator, settings, work, at_once):
        group = [settings[number] for number in numbers]
        room = _room(simulator, len(group), work)
        if room == 1 or (len(group) == 1 and (_plays_alone(group[0]) or not brief)):
            how = functools.partial(play_alone, evaluate_every=evaluate_every, shared=brief)
            played = [how(simulator, *group[0], work, server)]
        else:
            played = _play_at_once(simulator, group, room, work, server, evaluate_every, brief)
        results |= zip(numbers, played, strict=True)
    return [results[number] for number in range(len(settings))]


def play_alone(
    simulator: Simulator,
    arm: Arm,
    randomness: Randomness,
    work: LocalWork,
    server: Server,
    *,
    evaluate_every: int = 1,
    shared: bool = False,
    on_round: Callable[[RoundLog], None] = lambda log: None,
) -> Played:
    """Play one setting to its end; `on_round` is called with every round once it is played.
    `shared`: see `Simulator.play`."""
    rounds: list[RoundLog] = []
    for block in simulator.play(
        arm, work, server, randomness, evaluate_every=evaluate_every, shared=shared
    ):
        rounds += block.rounds
        for log in block.rounds:
            on_round(log)
    return Played(rounds, np.asarray(server.model(block.state, server.rounds)))


def _groups(
    simulator: Simulator, settings: Sequence[Setting], work: LocalWork, at_once: int | None
) -> Iterator[list[int]]:
    """Indices of the settings that one program can play together. Settings with client budgets,
    public weights or secret draws have arrays of their own and are played alone, as are those whose
    rates follow what they release."""
    alike: dict[Any, list[int]] = {}
    for number, setting in enumerate(settings):
        arm, alone = setting.arm, number if _plays_alone(setting) else None
        rate = arm.sampling_rate if simulator.on_cpu else simulator.shared_rate(arm, work)
        adapts = arm.clip_quantile is not None
        key = (arm.method, rate, adapts, arm.strategy, len(arm.ladder), alone)
        alike.setdefault(key, []).append(number)
    for (_, rate, *_), numbers in alike.items():
        most = at_once or _most_at_once(simulator, rate, work)
        pieces = -(-len(numbers) // most)
        size = -(-len(numbers) // pieces)  # equal pieces share a compiled program
        for first in range(0, len(numbers), size):
            yield numbers[first : first + size]


def _plays_alone(setting: Setting) -> bool:
    arm, source = setting
    own = arm.budget is not None or arm.weights is not None or is_secret(source, arm)
    return own or arm.controlled


def _most_at_once(simulator: Simulator, rate: float, work: LocalWork) -> int:
    """The number of settings whose typical cohorts fit in memory together."""
    if simulator.on_cpu:
        return 1
    classes, class_of = simulator.classes(work)
    fits = [MOST_SMALL if simulator.is_small(work) else MOST_TOGETHER]
    slots = 0
    for number, shape in enumerate(classes):
        usual = usual_count(int(np.sum(class_of == number)), rate)
        fits.append(simulator.most_at_once(shape, work) // -(-usual // simulator.mesh.size))
        slots += usual
    fits.append(simulator.most_controls(work))
    fits.append(LOG_BYTES // (9 * ROUNDS_A_CALL * slots))
    return max(1, min(fits))


def _room(simulator: Simulator, settings: int, work: LocalWork) -> int:
    """The settings that the program is compiled for: where rounds are short, one for many sizes."""
    if simulator.on_cpu or not simulator.is_small(work):
        return settings
    return next(size for size in ROOMS if size >= settings)


def _play_at_once(
    simulator: Simulator,
    settings: list[Setting],
    room: int,
    work: LocalWork,
    server: Server,
    evaluate_every: int,
    brief: bool,
) -> list[Played]:
    """Like `Simulator.play`, with a leading axis of settings on everything that differs between
    them."""
    group = [*settings, *[settings[-1]] * (room - len(settings))]  # the last one fills the room
    (arm, _), model = group[0], simulator.model
    classes, class_of = simulator.classes(work)
    rate, shared = arm.sampling_rate, not simulator.on_cpu
    if shared:
        rate = simulator.shared_rate(arm, work)
    layout = simulator.layout(classes, class_of, rate, work, len(group), shared=shared)
    arm_keys = {(arm.name, source): source.arm_key(arm.name) for arm, source in group}
    keys = jnp.stack([arm_keys[arm.name, source] for arm, source in group])
    dials = jax.tree.map(lambda *values: np.stack(values), *(arm.dials() for arm, _ in group))
    models = {source: model.init(source.model_key()) for source in {one[1] for one in group}}
    first = jnp.stack([models[source] for _, source in group])
    clips = None
    if arm.clip_quantile is not None:
        clips = jnp.stack([jnp.float32(p.clip_norm) for p, _ in group])
    simulator.check_control(work)
    begin = functools.partial(first_state, server, arm=arm, work=work)
    state = jax.vmap(lambda weights, clip: begin(weights, clip_norm=clip))(first, clips)
    keys, dials, state = simulator.replicate_tree((keys, dials, state))
    public = simulator.replicate_tree(jnp.float32(1.0))
    # settings that differ in clip or step have the same cohorts: drawn, packed and sent once
    draws = [(source, p.name, p.sampling, p.sampling_rate, p.separation) for p, source in group]
    unique = list(dict.fromkeys(draws))
    which = np.array([unique.index(one) for one in draws])
    rounds: list[list[RoundLog]] = [[] for _ in settings]
    for t in range(0, server.rounds, ROUNDS_A_CALL):
        length = min(ROUNDS_A_CALL, server.rounds - t)
        cohorts = [_cohorts(group[draws.index(one)], t, length) for one in unique]
        layout = simulator.fit(layout, [one for each in cohorts for one in each], class_of)
        program = Program(
            arm.method,
            model,
            work,
            server,
            layout,
            evaluate_every,
            strategy=arm.strategy,
            at_once=len(group),
            keep_bytes=simulator.keep_bytes,
        )
        slots = np.stack([simulator.slots(each, class_of, layout) for each in cohorts])
        data = (simulator.records, simulator.test, public)
        placed = simulator.put_slots(slots)
        placed = jax.device_put(placed[which], placed.sharding)
        arguments = (state, *data, dials, keys, placed)
        numbers = (np.int32(t), np.int32(length), None, None)
        call, _ = simulator.compile(program, *arguments, *numbers)
        with simulator.device:
            state, log = finish(call(*arguments, *numbers))
        if brief:
            uploads = np.asarray(jnp.sum(log.uploaded, axis=(-2, -1)))
            log = log._replace(norms=None, uploaded=None)
        log = jax.tree.map(np.asarray, log)
        for number, played in enumerate(rounds):
            mine = jax.tree.map(lambda a: a[number], log)  # noqa: B023
            if brief:
                members = [len(cohort) for cohort in cohorts[which[number]]]
                counts = zip(members, uploads[number].tolist(), strict=False)
                numbered = read_numbers(t, length, mine)
                played += [replace(r, counts=c) for r, c in zip(numbered, counts, strict=True)]
            else:
                played += read_log(t, slots[which[number]], mine)
    weights = np.asarray(jax.vmap(lambda s: server.model(s, server.rounds))(state))
    return [Played(*pair) for pair in zip(rounds, weights, strict=False)]


def _cohorts(setting: Setting, first: int, length: int) -> list[np.ndarray]:
    arm, randomness = setting
    return [cohort_of(randomness, arm, t) for t in range(first, first + length)]
