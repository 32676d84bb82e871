"""A block of rounds as one compiled program.

Everything after the draw of the cohort runs here, on the device, with no Python in between. On a
CPU each core is a separate device (if the program has configured XLA that way) and works through
its clients chunk by chunk; on a GPU a chunk is many clients at once. Memory is bounded by the size
of a chunk, however large the cohort.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from locksfl.methods import Method
from locksfl.methods.dials import Dials
from locksfl.models.build import Model
from locksfl.round.algorithm import (
    Arithmetic,
    Choose,
    Measured,
    Uploads,
    WeightedSum,
    adapted_clip,
    play,
)
from locksfl.round.client import (
    NO_LIMIT,
    PRECISIONS,
    Asked,
    LocalWork,
    Records,
    Visit,
    choose_rows,
    combine_parts,
    flat,
    measure,
)
from locksfl.round.control import control_of
from locksfl.round.draws import Grid, Members, correlate, draw_members, draw_server
from locksfl.round.exact import ExactSums, NoiseSteps, Words, carried, safe_norms
from locksfl.round.facts import Visited, measure_facts
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Purpose, client_keys, draw_key
from locksfl.round.server import Server, ServerState
from locksfl.simulate.layout import Layout
from locksfl.simulate.scoring import TestData, answers_of, evaluate

AXIS = "devices"
SETTINGS = "settings"  # the axis of a sweep (sweep.py)
ROUNDS_A_CALL = 64  # the most rounds per call; how many actually run is an argument


@dataclass(frozen=True)
class Program:
    """The settings that a compiled block depends on; arms with equal settings share the program."""

    method: Method  # rule, estimator and trust
    model: Model
    work: LocalWork  # of a client
    server: Server  # its optimiser
    layout: Layout  # the slots for a cohort
    evaluate_every: int  # rounds from one evaluation to the next
    exact: bool = False  # a secret run: integers, and nothing leaves that is not released
    filtered: bool = False  # clients have a budget; without one nothing is carried for it
    strategy: tuple[float, ...] = ()  # correlates the noise of rounds (methods/cyclic.py)
    at_once: int = 1  # settings of a sweep that are played at once
    keep_bytes: int = 0  # most bytes that stage 1 keeps per device; beyond, stage 2 recomputes


class Secrets(NamedTuple):
    """The draws of a secret run, made on the host: a row for each round (`draws.SecretDraws`), with
    members in the slots that they have on each device. All is whole numbers."""

    coins: Array  # [rounds, devices, slots, 2]
    noise: NoiseSteps  # [rounds, ...] each; of members, [rounds, devices, slots, ...]
    grid: Grid


class Log(NamedTuple):
    """The log of a block, one row per round. A secret run fills in released numbers only."""

    norms: Array  # true norms, a secret; NaN for a client whose update was not finite
    uploaded: Array  # whether each member uploaded
    released_norm_sum: Array  # K~
    used_norm_sum: Array  # K'
    signal: Array  # the norm of the update without noise, which only a simulation can know
    noise: Array  # the expected norm of the noise on it
    released_count: Array  # NaN if the rule releases none
    expected_weight: Array  # of a cohort member, on average
    accuracy: Array  # or the task's other score; NaN where the model was not evaluated
    loss: Array  # on the held-out records
    clip_norm: Array  # C of the round
    refined: Array  # [rounds, refinements, 2] the sums by which the rule refined its public number


class ChunkedClients:
    """The members on one device, asked chunk by chunk (the Clients of `algorithm.play`)."""

    def __init__(
        self,
        program: Program,
        state: ServerState,
        records: Records,
        members: Members,
        keys: Array,
        t: Array,
    ) -> None:
        self.program, self.records, self.members, self.keys = program, records, members, keys
        self.weights, self.last = state.weights, state.last
        control = control_of(program.work)
        self._corrected: Any = None
        # (u_i, whether it was uploaded and is finite) of every member, if clients keep such vectors
        self.sent: Any = None
        if control is not None:
            asked = Asked(program.work, t, program.model, self.weights, records)
            self._corrected = functools.partial(control.updates, asked, state.control)
            if control.keeps:
                none = members.present & False
                self.sent = (jnp.zeros((*none.shape, program.model.size)), none)

    def measure(self, facts: tuple[str, ...] = ()) -> Measured:
        """The norms and facts of all members and, if memory allows, the trace of each chunk."""
        shapes_of = [self._visit_shapes(number) for number in range(len(self.program.layout))]
        size = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(shapes_of))
        keeps = size * self.program.at_once <= self.program.keep_bytes
        norms, kept = jnp.zeros(self.members.present.shape), []
        seen = (norms, dict.fromkeys(facts, norms))
        for number, shapes in enumerate(shapes_of):

            def step(k: Array, start: Array, carry: Any, number: int = number) -> Any:
                seen, mine = carry
                visit = self._visit(number, start)
                if keeps:
                    mine = jax.tree.map(lambda whole, part: whole.at[k].set(part), mine, visit)
                return _put(seen, (visit.norms, visit.facts or {}), start), mine

            seen, mine = self._sweep(number, step, (seen, _zeros(shapes) if keeps else None))
            kept.append(mine)
        return Measured(*seen, kept if keeps else None)

    def weighted_sum(
        self, choose: Choose, each: Any, kept: Any, arithmetic: Arithmetic
    ) -> WeightedSum:
        """Sum of the contributions on all devices, and what was chosen for each member here."""
        program, nothing = self.program, jnp.zeros(self.members.present.shape)
        chosen = Uploads(nothing, nothing > 1, nothing, nothing, nothing > 1)
        norms = None if program.exact else nothing
        summed = arithmetic.zero(program.method, program.model.size)
        for number, bucket in enumerate(program.layout):

            def contribute(
                k: Array, start: Array, number: int = number, size: int = bucket.chunk
            ) -> tuple[Visit, Uploads, Any]:
                visit = self._recall(number, k, start, kept)
                now = choose(visit.norms, _slice(each, start, size))
                return visit, now, arithmetic.contributions(visit.trace, now)

            def step(
                k: Array, start: Array, carry: Any, contribute: Callable[..., Any] = contribute
            ) -> Any:
                parts, chosen, norms, sent = carry
                visit, now, more = self._rounded_alike(contribute, k, start)
                parts = arithmetic.add(program.method, parts, more, now, start)
                if norms is not None:
                    norms = _put(norms, jnp.where(visit.finite, visit.norms, jnp.nan), start)
                return parts, _put(chosen, now, start), norms, _keep(sent, visit, now, start)

            # floats: the parts of a class are added up, and made one vector once
            parts = summed if program.exact else _zeros(self._sum_shapes(number))
            carry = (parts, chosen, norms, self.sent)
            parts, chosen, norms, self.sent = self._sweep(number, step, carry)
            summed = parts if program.exact else summed + flat(parts)
        return WeightedSum(arithmetic.everyone(summed), chosen, norms)

    def _rounded_alike(self, function: Callable[..., Any], *places: Array) -> Any:
        """function(*places); in a secret run, what it rounds is rounded alike in every program."""
        return _compiled_apart(function, *places) if self.program.exact else function(*places)

    def _recall(self, number: int, k: Array, start: Array, kept: Any) -> Visit:
        """What stage 1 kept of a chunk, or the same computed again."""
        if kept is None:
            return self._visit(number, start)
        return jax.tree.map(lambda whole: whole[k], kept[number])

    def _visit(self, number: int, start: Array) -> Visit:
        """Ask one chunk of clients for their updates."""
        return self._rounded_alike(lambda start: self._ask(number, start), start)

    def _ask(self, number: int, start: Array) -> Visit:
        program, bucket = self.program, self.program.layout[number]
        clients, keys = _slice((self.members.clients, self.keys), start, bucket.chunk)
        chunk = choose_rows(self.records, clients, keys, bucket.shape, program.work)
        norms_of = safe_norms if program.exact else None
        updates_of = self._corrected and (lambda: self._corrected(chunk, clients))
        asked = (program.model, self.weights, self.records, chunk, program.work)
        visit = measure(*asked, norms_of, updates_of)
        names = program.method.parts.rule.facts
        if not names:
            return visit
        last = jnp.zeros_like(self.weights) if self.last is None else self.last
        return visit._replace(facts=measure_facts(names, Visited(*asked, visit, last)))

    def _visit_shapes(self, number: int) -> Any:
        """The shapes of the results of all chunks of a size class."""
        chunks = self.program.layout[number].chunks
        visit = jax.eval_shape(lambda start: self._visit(number, start), jnp.int32(0))
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct((chunks, *a.shape), a.dtype), visit)

    def _sum_shapes(self, number: int) -> Any:
        """The shapes of the parts of a size class's weighted sum."""

        def one(start: Array) -> list[Array]:
            visit = self._visit(number, start)
            return combine_parts(visit.trace, visit.norms)

        return jax.eval_shape(one, jnp.int32(0))

    def _sweep(self, number: int, step: Callable[[Array, Array, Any], Any], carry: Any) -> Any:
        """Run step(chunk number, first slot, carry) for every chunk of a size class that has a
        client."""
        bucket = self.program.layout[number]
        first = sum(before.slots for before in self.program.layout[:number])
        present = self.members.present[first : first + bucket.slots]
        # up to the last chunk with a client; a filter can leave empty ones before it
        used = jnp.any(present.reshape(bucket.chunks, bucket.chunk), axis=1)
        live = jnp.max(jnp.where(used, jnp.arange(1, bucket.chunks + 1), 0))
        if self.program.at_once > 1:
            live = jax.lax.pmax(live, SETTINGS)  # one loop for all settings
        return jax.lax.fori_loop(
            0, live, lambda k, carry: step(k, first + k * bucket.chunk, carry), carry
        )


def everyone(sums: Any) -> Any:
    """The sum of the sums of all devices."""
    summed = jax.lax.psum(sums, AXIS)
    return carried(*summed) if isinstance(sums, Words) else summed


def _slice(tree: Any, start: Array, length: int) -> Any:
    return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, length), tree)


def _put(tree: Any, part: Any, start: Array) -> Any:
    return jax.tree.map(
        lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, start, 0), tree, part
    )


def _keep(sent: Any, visit: Visit, uploads: Uploads, start: Array) -> Any:
    there = uploads.uploaded & visit.finite
    return None if sent is None else _put(sent, (visit.trace, there), start)


def sent_by(members: Members, sent: Any) -> Any:
    """Client numbers and updates of those who uploaded, on all devices; who did not has a number
    beyond all clients."""
    if sent is None:
        return None
    updates, there = sent
    clients = jnp.where(there, members.clients, NO_LIMIT)
    return jax.lax.all_gather((clients, updates), AXIS, tiled=True)


def _compiled_apart(function: Callable[..., Any], *places: Array) -> Any:
    """function(*places), of places >= 0, compiled by itself: what a client contributes is rounded
    alike whatever else the program does. (XLA turns a product and a sum into one operation, rounded
    once, where it likes, and its barriers do not prevent that. But it fuses nothing across the edge
    of a loop; that this one turns once, and that no number is the same in every turn, it cannot
    know.)"""
    inside, numbers = jax.closure_convert(function, *places)

    def turn(k: Array, _: Any) -> Any:
        here = places[0] + k >= 0
        held = [one if one.ndim else jnp.where(here, one, 0) for one in numbers]
        return inside(*(place + k for place in places), *held)

    nothing = _zeros(jax.eval_shape(function, *places))
    return jax.lax.fori_loop(0, (places[0] >= 0).astype(jnp.int32), turn, nothing)


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)


class Spending(NamedTuple):
    """What a filter needs on the device: integers, the same on every device."""

    counts: Array  # [2, n] norms and uploads released by each client
    most_uploads: Array  # [k] uploads that can be paid with k norms (`Budget.most_uploads`)


def can_pay(spending: Spending, clients: Array, asks_norms: bool) -> Array:
    """Whether each of these clients can pay for a whole round (as `privacy.budget.Filter`)."""
    norms, uploads = spending.counts[:, clients]
    norms = norms + int(asks_norms)
    last = spending.most_uploads.shape[0] - 1
    paid = spending.most_uploads[jnp.minimum(norms, last)]
    return (norms <= last) & (uploads + 1 <= paid)


def charge(spending: Spending, members: Members, uploaded: Array, asks_norms: bool) -> Spending:
    """The counts after a round, on every device; an upload that was not drawn is not counted."""
    nobody = spending.counts.shape[1]  # out of range: dropped
    clients = jnp.where(members.present, members.clients, nobody)
    released = jnp.stack([members.present & asks_norms, members.present & uploaded], axis=-1)
    # the members of all devices, not the counts of all clients: work for the cohort only
    clients, released = jax.lax.all_gather((clients, released), AXIS, tiled=True)
    counts = spending.counts.at[:, clients].add(released.T.astype(jnp.int32), mode="drop")
    return spending._replace(counts=counts)


def play_block(
    program: Program,
    state: ServerState,
    records: Records,
    test: TestData,
    weights: Array,
    dials: Dials,
    arm_key: Array,
    seats: Array,
    first_round: Array,
    rounds: Array,
    spending: Spending | None,
    secrets: Secrets | None,
) -> tuple[ServerState, Log]:
    """Play `rounds` rounds from `first_round` on, on one device of the mesh.

    seats [most rounds, 1, slots]: the client in each slot of this device, -1 if empty.
    weights [n]: the public weights of the clients, or one number for all.
    spending: with a filter, what was spent before. A client that cannot pay for a whole round is
        not asked; this is decided in every round, so results do not depend on the block length.
    secrets: the draws of a secret run; without them, a simulation draws from `arm_key`.
    """
    seats = seats[:, 0]

    def total(values: Array) -> Array:
        return everyone(jnp.sum(values))

    def together(function: Callable[..., Array], *entries: Array) -> Array:
        size = entries[0].shape[0]
        everyone = function(*jax.lax.all_gather(entries, AXIS, tiled=True))
        return jax.lax.dynamic_slice_in_dim(everyone, jax.lax.axis_index(AXIS) * size, size)

    answers, tests = answers_of(program.model.task, test.labels, total)
    asks_norms = program.method.parts.rule.released
    each_noises = program.method.parts.trust.clients_add_noise
    shown = each_noises or not program.exact  # else a secret of the server, which stays here

    def _mean(uploads: Uploads, members: Members) -> Array:
        """The expected weight of a member."""
        expected = total(jnp.where(members.present, uploads.expected_weight, 0.0))
        return expected / jnp.maximum(1, total(members.present))

    adapts = state.clip_norm is not None
    sums = (program.method.parts.rule.refined(program.method.parts.trust.server_adds_noise), 2)
    control = control_of(program.work)
    fixed = dials

    def one_round(r: Array, carry: Any) -> Any:
        state, log, spending = carry
        dials = fixed.at_clip(state.clip_norm, jnp) if adapts else fixed
        t = first_round + r
        if control is not None:
            dials = control.dials_of(program.work, dials, t)
        clients = seats[r]
        if program.filtered:
            clients = jnp.where(can_pay(spending, clients, asks_norms), clients, -1)
        mine = weights[clients] if weights.ndim else jnp.broadcast_to(weights, clients.shape)
        keys = client_keys(draw_key(arm_key, t, Purpose.LOCAL), clients)
        arithmetic: Arithmetic
        if secrets is None:
            members = draw_members(arm_key, t, clients, mine)
            refinements = program.method.parts.rule.refinements
            server_draws = draw_server(arm_key, t, program.model.size, refinements)
            server_draws, recent = correlate(server_draws, state.recent_noise, program.strategy)
            state = state._replace(recent_noise=recent)
            arithmetic = FloatSums(server_draws, everyone)
        else:
            drawn = (secrets.coins[r, 0], jnp.zeros(clients.shape))
            members = Members(clients, clients >= 0, mine, *drawn)
            noise = jax.tree.map(lambda rounds: rounds[r], secrets.noise)
            if each_noises:  # this device's
                noise = noise._replace(norm=noise.norm[0], update=noise.update[0])
            arithmetic = ExactSums(noise, secrets.grid, everyone)
        cohort = ChunkedClients(program, state, records, members, keys, t)
        result, uploads, norms = play(
            program.method, cohort, members, arithmetic, dials, together, adapts
        )
        if secrets is None and program.strategy:  # its size differs from round to round
            size = jnp.sqrt(jnp.mean(jnp.square(server_draws.update_noise)))
            result = result._replace(noise=result.noise * size)
        update = result.update
        if control is not None:
            given = (t, state.weights, update, dials, sent_by(members, cohort.sent))
            update, following = control.after(program.work, state.control, *given)
            state = state._replace(control=following)
        state = program.server.step(state, update, dials.step, t)
        if adapts:
            following = adapted_clip(dials.clip_norm, result.released_bits, dials)
            state = state._replace(clip_norm=following)

        def score() -> tuple[Array, Array]:
            with jax.default_matmul_precision(PRECISIONS["full"]):  # reports are always exact
                points, lost = evaluate(program.model, program.server.model(state, t + 1), test)
            return total(points) / answers, total(lost) / tests

        due = ((t + 1) % program.evaluate_every == 0) | (t + 1 == program.server.rounds)
        accuracy, loss = jax.lax.cond(due, score, lambda: (jnp.full((), jnp.nan),) * 2)
        row = Log(
            norms=jnp.full((1, *clients.shape), jnp.nan) if norms is None else norms[None],
            uploaded=uploads.uploaded[None] & shown,
            released_norm_sum=result.released_norm_sum,
            used_norm_sum=result.used_norm_sum,
            signal=result.signal,
            noise=result.noise,
            released_count=result.released_count,
            expected_weight=jnp.full((), jnp.nan) if program.exact else _mean(uploads, members),
            accuracy=accuracy,
            loss=loss,
            clip_norm=dials.clip_norm,
            refined=jnp.zeros(sums) if result.refined is None else result.refined,
        )
        if program.filtered:
            spending = charge(spending, members, uploads.uploaded, asks_norms)
        return state, jax.tree.map(lambda whole, now: whole.at[r].set(now), log, row), spending

    most, slots = seats.shape
    per_slot = jnp.zeros((most, 1, slots))
    a_round = jnp.zeros(most)
    log = Log(per_slot, per_slot > 1, *[*[a_round] * 9, jnp.zeros((most, *sums))])
    state, log, _ = jax.lax.fori_loop(0, rounds, one_round, (state, log, spending))
    return state, log
