"""The simulator: it keeps the data on the devices, draws the cohorts and plays blocks of rounds.

The cohorts of a whole block are drawn on the host, then the block is one call (see block.py). A
block takes at most two seconds, so that progress is visible and Ctrl-C works. A secret run draws
everything on the host (secret.py).
"""

from __future__ import annotations

import copy
import functools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from locksfl._arrays import aligned
from locksfl.arm import Arm
from locksfl.data.population import Population
from locksfl.models.build import Model, records_at_once
from locksfl.privacy.budget import Filter
from locksfl.privacy.terms import PlannedArm
from locksfl.round.client import NO_LIMIT, LocalWork, Records, SizeClass, uses_errors
from locksfl.round.control import check_arm, control_of, first_state
from locksfl.round.draws import SecretDraws, cohort_of, grid_of
from locksfl.round.exact import NoiseSteps
from locksfl.round.randomness import Randomness
from locksfl.round.rates import RateControl
from locksfl.round.server import Server, ServerState
from locksfl.simulate.block import (
    AXIS,
    ROUNDS_A_CALL,
    SETTINGS,
    Log,
    Program,
    Secrets,
    Spending,
    play_block,
)
from locksfl.simulate.cache import compiled_once
from locksfl.simulate.layout import (
    MOST_CLASSES,
    Bucket,
    Layout,
    class_counts,
    likely_count,
    pack,
    public_classes,
    size_classes,
    usual_count,
    usual_rate,
    widen,
)
from locksfl.simulate.scoring import TestData, held_out
from locksfl.simulate.secret import SecretRounds, is_secret

BLOCK_SECONDS = 2.0
TEST_ROWS = 1000  # held-out records evaluated at a time
TEST_FLOATS = 2**26  # floats that a model may hold while evaluating them, on a CPU
CONTROL_BYTES = 2**31  # that clients' own vectors may take on a CPU; checkpoints hold them too
KEEP_BYTES = 2**29  # what a core may keep of stage 1 for stage 2; a GPU keeps 1/8 of its memory
MEMORY = 2**36  # bytes, for a device that does not report its memory
SHARED_SLOTS = 256  # cohorts up to this size share a program
SHARED_CHUNKS = 8  # that a full cohort has then: a smaller one skips those that are empty
SMALL_MODEL = 2**17  # weights
SHARE = 24  # bytes of memory per float held: 1/6 of memory going forward, as much going backward


@dataclass(frozen=True)
class RoundLog:
    """What was seen in one round. Norms and the cohort are secrets of the server or of the clients:
    in a secret run they are left out unless they were released; a simulation has all of them."""

    round: int  # counted from 0
    released_norm_sum: float  # K~
    used_norm_sum: float  # K'
    noise: float  # the expected norm of the noise on the averaged update
    accuracy: float | None  # or the task's other score
    loss: float | None  # on the held-out records
    cohort: np.ndarray | None = None  # client numbers; None: a secret
    uploaded: np.ndarray | None = None  # whether each of them uploaded
    norms: np.ndarray | None = None  # true ones before clipping; NaN for what was not finite
    signal: float = math.nan  # the norm of the update without noise: a secret
    expected_weight: float = math.nan  # of a member: 1 if the estimator is unbiased
    clip_norm: float | None = None  # C of the round, known to everybody
    exhausted: int | None = None  # clients that could not pay, with a filter
    received: np.ndarray | None = None  # in a federation: whether its update arrived
    stages: dict[str, Any] | None = None  # in a federation: the outcome of the requests
    released_count: float | None = None  # the number of uploads, if the rule releases it
    expected_cohort: float | None = None  # under rate control, by which it is public
    counts: tuple[int, int] | None = None  # of members and uploads, where a sweep keeps no more
    refined: list[list[float]] | None = None  # the sums by which the rule refined its public number


@dataclass(frozen=True)
class BlockLog:
    """A block of rounds, the state after it, and how long it took (compilation separately)."""

    rounds: list[RoundLog]
    state: ServerState
    seconds: float
    compile_seconds: float


class Simulator:
    """A population on the devices. Arms are played one after another on the same data."""

    simulates = True
    journal = None  # a checkpoint holds all of its ledger

    def __init__(self, population: Population, model: Model, chunk: int | None = None) -> None:
        self.model, self.population = model, population
        self.chunk = chunk
        devices = jax.devices()
        self.mesh = Mesh(np.array(devices), (AXIS,))
        self.on_cpu = devices[0].platform == "cpu"
        self.records = self._records(population)
        self.test = self._test(population)
        self._compiled: dict[Any, Any] = {}  # of the process's programs, those played here
        self.device = threading.Lock()  # held by the sweep whose block is being played

    def scoring(self, records: slice) -> Simulator:
        """The same simulator, evaluated on some of the held-out records only: one copy of the
        clients' data, and programs are shared where as many records are held out."""
        tests = (self.population.test_features[records], self.population.test_labels[records])
        other = copy.copy(self)
        other.population = replace(self.population, test_features=tests[0], test_labels=tests[1])
        other.test = other._test(other.population)
        return other

    def play(
        self,
        arm: Arm,
        work: LocalWork,
        server: Server,
        randomness: Randomness,
        *,
        evaluate_every: int = 1,
        state: ServerState | None = None,
        first_round: int = 0,
        released: tuple[np.ndarray, np.ndarray] | None = None,
        pause_every: int = 0,
        counts: Sequence[float] = (),
        shared: bool = False,
    ) -> Iterator[BlockLog]:
        """Play an arm's rounds from `first_round` on, block by block.

        Args:
            arm: the arm.
            work: how a client computes its update.
            server: the server's optimiser and the number of rounds.
            randomness: the source of all draws.
            first_round: the first round to play, counted from 0.
            state: the state before `first_round`; without it, a new model.
            evaluate_every: the number of rounds between evaluations.
            released: the norms and uploads of every client before `first_round`; read only if
                the arm has a budget.
            pause_every: a block ends at every multiple of this many rounds, so that the caller can
                save the state.
            counts: the released counts of the rounds before `first_round`; read only under rate
                control, where a block is one round: what it releases decides the next.
            shared: many arms of similar cohorts will be played: one program for them all.

        Yields:
            The blocks, each with its rounds and the state after it.
        """
        check_arm(work, arm)
        self.check_control(work)
        kept = None
        if arm.budget is not None:
            kept = Filter(PlannedArm.of(arm), *(released or ()))
        control = None
        if arm.controlled:
            if len(counts) != first_round:
                raise ValueError(f"counts = {len(counts)} numbers: expected {first_round}")
            control = RateControl(arm, counts)
        asked, pause_every = arm, 1 if control else pause_every
        secret = (
            SecretRounds(randomness, arm, self.model.size) if is_secret(randomness, arm) else None
        )
        classes, class_of = self.classes(work, secret is not None)
        shared, exact = shared and secret is None, secret is not None
        layout_at = functools.cache(
            lambda rate: self.layout(classes, class_of, rate, work, exact=exact, shared=shared)
        )
        layout = layout_at(self.shared_rate(arm, work) if shared else arm.sampling_rate)
        most = secret.rounds_a_call if secret else 1 if control else ROUNDS_A_CALL
        public = self._replicate(arm.scaled_weights())
        key, dials = self.replicate_tree((randomness.arm_key(arm.name), arm.dials()))
        if state is None:
            first = self.model.init(randomness.model_key())
            state = first_state(server, first, arm, work)
        state = self.replicate_tree(state)
        t, length = first_round, 1
        while t < server.rounds:
            if control is not None:
                asked = control.arm
                layout = layout_at(min(arm.sampling_rate, usual_rate(asked.sampling_rate)))
                dials = self.replicate_tree(asked.dials())
            length = min(length, most, server.rounds - t)
            if pause_every:
                length = min(length, pause_every - t % pause_every)
            drawn = secret.draw(t, length, asked) if secret else []
            cohorts = [one.cohort for one in drawn] or [
                cohort_of(randomness, asked, r) for r in range(t, t + length)
            ]
            layout = self.fit(layout, cohorts, class_of)
            program = Program(
                arm.method,
                self.model,
                work,
                server,
                layout,
                evaluate_every,
                exact=secret is not None,
                filtered=kept is not None,
                strategy=arm.strategy,
                keep_bytes=self._publicly_kept(arm) if secret else self.keep_bytes,
            )
            slots = self.slots(cohorts, class_of, layout)
            arguments = (self.records, self.test, public, dials, key, self.put_slots(slots, most))
            secrets = self._secrets(secret, drawn, slots, asked) if secret else None
            numbers = (np.int32(t), np.int32(length), self._spending(kept), secrets)
            call, compile_seconds = self.compile(program, state, *arguments, *numbers)
            began = time.perf_counter()
            state, log = finish(call(state, *arguments, *numbers))
            seconds = time.perf_counter() - began
            rounds = read_log(t, slots, log)
            if secret is not None:
                rounds = [released_only(played, arm) for played in rounds]
            if kept is not None:
                rounds = [_asked(played, kept) for played in rounds]
            if control is not None:
                rounds = [controlled(played, control) for played in rounds]
            yield BlockLog(rounds, state, seconds, compile_seconds)
            t += length
            length = max(1, int(BLOCK_SECONDS / (seconds / length)))

    def check_control(self, work: LocalWork) -> None:
        """Refuse a control variate whose vectors do not fit in memory."""
        if not self.most_controls(work):
            raise ValueError(
                f"local.control = {work.control!r}: {self.population.clients} clients with "
                f"{self.model.size} numbers each take more than {self._control_bytes / 2**30:.3g} "
                "GiB; expected fewer clients or a smaller model"
            )

    def most_controls(self, work: LocalWork) -> int:
        """The number of settings for which clients may keep vectors at once."""
        control = control_of(work)
        if control is None or not control.keeps:
            return NO_LIMIT
        return self._control_bytes // (4 * self.population.clients * self.model.size)

    @property
    def _control_bytes(self) -> int:
        """The bytes that clients' own vectors may take on each device; they are on all."""
        return CONTROL_BYTES // self.mesh.size if self.on_cpu else self._memory // 8

    def compile(self, program: Program, *arguments: Any) -> tuple[Any, float]:
        """The compiled block, made once in a process for each program and shape of its arguments,
        and the seconds that it took. For a sweep, whatever differs between settings (state, dials,
        key and slots) has one more axis."""
        shapes = tuple((a.shape, str(a.dtype)) for a in jax.tree.leaves(arguments))
        # a rule of the user's own may have been edited and loaded anew under its name
        key = (program, program.method.parts, shapes)
        began, seconds = time.perf_counter(), 0.0

        def make() -> Any:
            nonlocal seconds
            made = self._lower(program, *arguments).compile()
            seconds = time.perf_counter() - began
            return made

        return compiled_once(self._compiled, key, self.mesh, make), seconds

    def _lower(self, program: Program, *arguments: Any) -> Any:
        block: Any = functools.partial(play_block, program)
        slots, split = P(None, AXIS), P(AXIS)
        if program.at_once > 1:
            axes = (0, None, None, None, 0, 0, 0, None, None, None, None)
            block, slots = jax.vmap(block, axes, axis_name=SETTINGS), P(None, None, AXIS)
        logs: Any = Log(*[slots] * 2, *[P()] * 10)  # type: ignore[arg-type]
        tests: Any = TestData(split, split, P(), P(), P())
        secrets = None
        if program.exact:  # noise of the server is everywhere, that of members in their slots
            noise = slots if program.method.parts.trust.clients_add_noise else P()
            noises: Any = NoiseSteps(noise, noise, *[P()] * 3)  # type: ignore[arg-type]
            secrets = Secrets(slots, noises, P())  # type: ignore[arg-type]
        mapped = jax.shard_map(
            block,
            mesh=self.mesh,
            in_specs=(P(), P(), tests, P(), P(), P(), slots, P(), P(), P(), secrets),
            out_specs=(P(), logs),
            check_vma=False,
        )
        # no donation: a state that was handed out must stay valid
        return jax.jit(mapped).lower(*arguments)

    def _spending(self, kept: Filter | None) -> Spending | None:
        if kept is None:
            return None
        counts = np.stack([kept.norms, kept.uploads])
        return Spending(self._replicate(counts), self._replicate(kept.table))

    def _secrets(
        self, secret: SecretRounds, drawn: list[SecretDraws], slots: np.ndarray, asked: Arm
    ) -> Secrets:
        """The draws of a block, as a compiled block takes them: members' in their slots."""

        def put(name: str, in_slots: bool) -> Array:
            rows = [getattr(one, name) for one in drawn]
            shape = (*slots.shape[1:], *rows[0].shape[1:]) if in_slots else rows[0].shape
            room = np.zeros((secret.rounds_a_call, *shape), rows[0].dtype)
            for r, row in enumerate(rows):
                if in_slots:
                    there = slots[r] >= 0
                    room[r][there] = row[np.searchsorted(drawn[r].cohort, slots[r][there])]
                else:
                    room[r] = row
            spec = P(None, AXIS) if in_slots else P()
            return jax.device_put(room, NamedSharding(self.mesh, spec))

        noise = NoiseSteps(
            norm=put("norm_noise", secret.each),
            update=put("update_noise", secret.each),
            counted=put("count_noise", False),
            bits=put("clip_noise", False),
            refine=put("refine_noise", False),
        )
        return Secrets(put("coins", True), noise, self.replicate_tree(grid_of(asked)))

    def classes(self, work: LocalWork, exact: bool = False) -> tuple[list[SizeClass], np.ndarray]:
        """The size classes, and the class of every client. Each size class adds a program to the
        compiled round, so use no more classes than pay off. A core skips the steps for which a
        small client has no rows; a GPU processes all clients of a class at once, and one class
        after another."""
        gradient_on_cpu = self.on_cpu and work.update == "gradient"
        if exact:
            finely = gradient_on_cpu or not self.on_cpu
            return public_classes(self.population.sizes, work, finely)
        return size_classes(self.population.sizes, work, MOST_CLASSES if gradient_on_cpu else 2)

    def layout(
        self,
        classes: list[SizeClass],
        class_of: np.ndarray,
        rate: float,
        work: LocalWork,
        at_once: int = 1,
        exact: bool = False,
        shared: bool = False,
    ) -> Layout:
        """Slots for the cohorts that a round is likely to have; `at_once`: settings. In a
        secret run (`exact`) the size of a chunk is a public constant, whoever is in the class. If
        smaller cohorts share the layout, chunks are small, so that most empty ones are skipped."""
        layout = []
        for number, shape in enumerate(classes):
            members = int(np.sum(class_of == number))
            on_device = -(-likely_count(members, rate) // self.mesh.size)
            most = max(1, self.most_at_once(shape, work, exact) // at_once)
            if exact:
                usual = -(-usual_count(self.population.clients, rate) // self.mesh.size)
                chunk = self.chunk or min(most, usual)
                layout.append(Bucket(shape, chunk, -(-on_device // chunk)))
                continue
            usual = -(-usual_count(members, rate) // self.mesh.size)
            if shared:
                most = min(most, -(-usual // SHARED_CHUNKS))
            # equal chunks that the usual cohort fills: an extra chunk costs as much as a full one
            chunk = min(self.chunk or -(-usual // -(-usual // most)), on_device)
            layout.append(Bucket(shape, chunk, -(-on_device // chunk)))
        return tuple(layout)

    def is_small(self, work: LocalWork) -> bool:
        """Whether a round is so short that compiling takes longer than playing many of them."""
        return work.update == "gradient" and self.model.size <= SMALL_MODEL

    def shared_rate(self, arm: Arm, work: LocalWork) -> float:
        """The rate that slots are made for where arms of similar cohorts share a program: that of
        the next power of four, unless stage 1 could not keep that many updates."""
        slots = SHARED_SLOTS * 4 ** max(0, math.ceil(math.log(arm.cohort / SHARED_SLOTS, 4)))
        if not self.is_small(work) or 4 * self.model.size * slots > self.keep_bytes:
            return arm.sampling_rate
        return min(1.0, slots / arm.clients)

    def most_at_once(self, shape: SizeClass, work: LocalWork, exact: bool = False) -> int:
        """The number of clients to process at a time, to keep a core's caches or a GPU busy.

        On a GPU their updates, what the model holds of their batches, and their records must fit.
        """
        if not exact and uses_errors(self.model, shape.rows, work):
            return max(1, (1024 if self.on_cpu else 65536) // shape.rows)
        if self.on_cpu:  # plain matrix products are faster than batched ones
            return 1
        updates = 2**28 // self.model.size  # 1 GiB of them
        batch = min(work.batch, shape.rows) if work.update == "epochs" else shape.rows
        record = self.population.features[:1]
        held = records_at_once(self.model, record.shape[1:], self._memory // SHARE) // batch
        read = self._memory // 8 // (shape.rows * record.nbytes)
        return int(np.clip(min(updates, held, read), 1, 4096))

    @property
    def _memory(self) -> int:
        """Memory of a device, in bytes."""
        stats = self.mesh.devices.flat[0].memory_stats() or {}
        return int(stats.get("bytes_limit", MEMORY))

    @property
    def keep_bytes(self) -> int:
        """The bytes that stage 1 may keep for stage 2."""
        return KEEP_BYTES if self.on_cpu else self._memory // 8

    def _publicly_kept(self, arm: Arm) -> int:
        """The same for a secret run: all or nothing, decided by public numbers. Whether an update
        is kept or computed again must not depend on the sizes of others."""
        likely = likely_count(arm.clients, arm.sampling_rate) // self.mesh.size + 1
        return 2**62 if 4 * self.model.size * likely <= self.keep_bytes else 0

    def fit(self, layout: Layout, cohorts: list[np.ndarray], class_of: np.ndarray) -> Layout:
        """The layout, widened if a cohort of the block needs it."""
        counts = [class_counts(cohort, class_of, len(layout)) for cohort in cohorts]
        return widen(layout, np.max(counts, axis=0).tolist(), self.mesh.size)

    def slots(self, cohorts: list[np.ndarray], class_of: np.ndarray, layout: Layout) -> np.ndarray:
        """The client in each slot of each round, -1 if empty. [rounds, devices, slots]"""
        return np.stack([pack(cohort, class_of, layout, self.mesh.size) for cohort in cohorts])

    def put_slots(self, slots: np.ndarray, rounds: int = ROUNDS_A_CALL) -> Array:
        """Slots as a compiled block takes them: padded to so many rounds and distributed over the
        devices. A sweep has a leading axis of settings."""
        room = np.full((*slots.shape[:-3], rounds, *slots.shape[-2:]), -1, np.int32)
        room[..., : slots.shape[-3], :, :] = slots
        spec = P(*[None] * (slots.ndim - 2), AXIS)
        return jax.device_put(room, NamedSharding(self.mesh, spec))

    def _records(self, population: Population) -> Records:
        return Records(
            features=self._replicate(population.features),
            labels=self._replicate(population.labels),
            starts=self._replicate(population.offsets[:-1].astype(np.int32)),
            sizes=self._replicate(population.sizes.astype(np.int32)),
            scale=self._replicate(np.float32(population.scale)),
        )

    def _test(self, population: Population) -> TestData:
        """Held-out records in batches, distributed over the devices."""
        shape, tests = population.test_features.shape[1:], len(population.test_labels)
        floats = TEST_FLOATS if self.on_cpu else self._memory // SHARE
        most = min(TEST_ROWS, records_at_once(self.model, shape, floats))
        rows = min(most, -(-tests // self.mesh.size))
        features, labels, *numbers = held_out(population, rows, self.mesh.size)
        split = NamedSharding(self.mesh, P(AXIS))
        placed = (jax.device_put(array, split) for array in (features, labels))
        return TestData(*placed, *(n if n is None else self._replicate(n) for n in numbers))

    def _replicate(self, array: np.ndarray | np.generic) -> Array:
        """One copy for all CPU devices (they share the host's memory), one on each GPU."""
        everywhere = NamedSharding(self.mesh, P())
        if self.on_cpu and isinstance(array, np.ndarray):
            array = aligned(array)
        copies = [jax.device_put(array, d, may_alias=True) for d in self.mesh.devices]
        return jax.make_array_from_single_device_arrays(np.shape(array), everywhere, copies)

    def replicate_tree(self, tree: Any) -> Any:
        """A tree of arrays on every device."""
        return jax.device_put(tree, NamedSharding(self.mesh, P()))


def _asked(log: RoundLog, kept: Filter) -> RoundLog:
    """The round with only the members that could pay, recorded in the host's filter. The host
    decides by the same integers as the device and raises an error if the device decided
    otherwise."""
    if log.cohort is None or log.uploaded is None:
        raise AssertionError("a budget needs known members")
    there = kept.can_pay(log.cohort)
    if log.uploaded[~there].any():
        raise AssertionError("a client that could not pay has uploaded")
    exhausted = kept.exhausted
    kept.enter(log.cohort[there], log.uploaded[there])
    return replace(
        log,
        cohort=log.cohort[there],
        uploaded=log.uploaded[there],
        norms=None if log.norms is None else log.norms[there],
        exhausted=exhausted,
    )


def controlled(log: RoundLog, control: RateControl) -> RoundLog:
    """The round with the cohort that it asked for; what it released decides the next one."""
    asked = control.arm.cohort
    if log.released_count is None:
        raise AssertionError("rate control needs a released count")
    control.enter(log.released_count)
    return replace(log, expected_cohort=asked)


def released_only(log: RoundLog, arm: Arm) -> RoundLog:
    """The round without what the block did not tell; a member that adds its own noise is known."""
    if arm.parts.trust.clients_add_noise:
        return replace(log, norms=None)
    return replace(log, cohort=None, uploaded=None, norms=None)


def finish(results: Any) -> Any:
    """Wait for a block. Ctrl-C takes effect when it ends, because a process must not exit during a
    block."""
    try:
        return jax.block_until_ready(results)
    except KeyboardInterrupt:
        jax.block_until_ready(results)
        raise


def read_log(first: int, slots: np.ndarray, log: Log) -> list[RoundLog]:
    """The log of the rounds for which there are slots, members in increasing order."""
    norms, uploaded = np.asarray(log.norms), np.asarray(log.uploaded)
    rounds = []
    for r, played in enumerate(read_numbers(first, len(slots), log)):
        there = slots[r] >= 0
        clients = slots[r][there]
        order = np.argsort(clients)
        members = (clients[order], uploaded[r][there][order], norms[r][there][order])
        rounds.append(replace(played, cohort=members[0], uploaded=members[1], norms=members[2]))
    return rounds


def read_numbers(first: int, rounds: int, log: Log) -> list[RoundLog]:
    """The log of so many rounds without their members."""
    names = [name for name in Log._fields if name not in ("norms", "uploaded")]
    columns = {name: np.asarray(getattr(log, name))[:rounds].tolist() for name in names}
    logs = []
    for r in range(rounds):
        row = {name: values[r] for name, values in columns.items()}
        for name in ("accuracy", "loss", "released_count"):  # not evaluated, not released
            row[name] = None if np.isnan(row[name]) else row[name]
        logs.append(RoundLog(first + r, **row))
    return logs
