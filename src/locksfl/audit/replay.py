"""Replay: every release of a round, played on two neighbouring data sets (dp-recorder, PETS 2026).

Attacks and statistics see what is likely. A replay needs no luck: one client has the data of either
world, and everything else is the same in both: the other clients, all coins, and all that was
released earlier, because the second world gets the noise with which it releases the same values. By
what that noise, or the sum that is noised, differs between the worlds,

    first   the released norm sum or scores, the sums that refine it, and the bits
    second  the sum of the updates and the number of uploads

move by at most what the accountant, or a client's ledger, reads (`charged`), in standard
deviations of the noise that is added; no client uploads with more than the charged probability or,
where the server sees only noised values, with another one in the second world; and what all others
upload, with what weight and probability, does not change.

The client has every number of records up to ROWS, and updates from none over the clip norm to
infinite ones; beyond C, lengths are 26% apart for each number of records and 2% apart over all. The
round is that of the simulator: client work, size classes, sums and releases, with floats or,
without a seed, whole numbers; rounds whose noise is correlated are replayed as a sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from locksfl._arrays import Floats
from locksfl.arm import Arm
from locksfl.audit.transcript import known_gradients, smaller
from locksfl.methods.cyclic import decorrelated
from locksfl.methods.events import Chosen, Rounds
from locksfl.methods.releases import RELATIONS, UPDATE, Relation
from locksfl.privacy.accountant import as_coins, mu_squared
from locksfl.privacy.rdp import PlanePair
from locksfl.round.algorithm import Arithmetic, RoundResult, Uploads, play
from locksfl.round.client import LocalWork, Records
from locksfl.round.control import first_state
from locksfl.round.draws import Members, ServerDraws, grid_of, halves
from locksfl.round.exact import ExactSums, NoiseSteps
from locksfl.round.floats import FloatSums
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server
from locksfl.simulate.block import AXIS, ChunkedClients, Program
from locksfl.simulate.layout import Bucket, pack, public_classes, size_classes

CLIENTS, ROWS, LENGTHS = 8, 10, 40  # clients in a round, most records, lengths beyond the clip norm
WORK = LocalWork(min_samples=2, max_samples=ROWS - 2, weight="size")
OTHERS = (0.3, 1.0, 2.0, 0.8, 0.0, 0.97, 40.0)  # lengths of the other clients' updates
RELEASED = (0.0, 0.43, 1.5)  # norm sums that are released, over m C: beyond both limits, and within
SLACK = 2e-5  # float32
BITS = 17  # of a probability: as many as there is slack for


class Charge(NamedTuple):
    """What one client's part in a round may do, as its accountant or its ledger reads it: squared
    shifts, in standard deviations."""

    first: float | None  # None: `second` is for both
    second: float  # of the sum of the updates, and of the number of uploads
    probability: float  # of an upload, at most
    times: int  # rounds in which a client takes part


class World(NamedTuple):
    """The data of the client in many replays, an entry each."""

    sizes: Any  # its records; 0: it is not there
    labels: Any  # 1: it has nothing to learn, and its update is zero
    values: Any  # [W, ROWS] its records: the gradient of each, along its coordinate


Pair = tuple[World, World]


class Drawn(NamedTuple):
    """The noise of the replays, in the units of the engine (floats or steps), and coins."""

    norm: Any  # [W] on the norm sum or, where clients add it, on the client's own value
    refine: Any  # [W, refinements, 2]
    update: Any  # [W] on every coordinate
    coins: Any  # [W, CLIENTS], or [W, CLIENTS, 2]


def charged(arm: Arm, relation: Relation, rounds: int = 1) -> Charge:
    """What an accountant reads of an arm, or the ledgers of clients that add their own noise."""
    if not arm.parts[2].amplified:
        update, norm = arm.messages()
        first = 0.0 if norm is None else mu_squared(Rounds(norm, 1), relation)
        return Charge(first, mu_squared(Rounds(update, 1), relation), 1.0, rounds)
    ((event, times),) = as_coins([Rounds(arm.event(), rounds)], relation)
    if isinstance(event, Chosen):
        (event,) = event.choices
    pair = PlanePair.of(event)
    steps = UPDATE.sensitivity(relation)  # replacing is leaving and joining: for all releases
    return Charge(
        (steps * pair.a) ** 2 if pair.a else None,
        (steps * pair.c) ** 2,
        min(1.0, pair.q * pair.p / arm.scheme.rate(arm)),
        times,
    )


def worlds(arm: Arm) -> World:
    """Every number of records with every length, sign by turns; a broken record; no update."""
    sizes, labels, values = [], [], []
    for size in range(1, ROWS + 1):
        share = np.clip(size, WORK.min_samples, WORK.max_samples) / (WORK.max_samples or 1)
        apart = 10.0 ** (4 * (np.arange(LENGTHS) + size / (ROWS + 1)) / LENGTHS) * (1 - 1e-3)
        lengths = np.array([0.0, 0.4, 1.0, *apart, 1e30, np.inf, np.nan]) * arm.clip_norm / share
        lengths[::2] *= -1
        alike = np.repeat(lengths[:, None], ROWS, axis=1)
        one_broken = np.where(np.arange(ROWS) == size - 1, np.nan, arm.clip_norm)
        values += [*alike, one_broken, alike[2]]
        labels += [0] * (len(alike) + 1) + [1]
        sizes += [size] * (len(alike) + 2)
    return World(np.array(sizes), np.array(labels), np.array(values, np.float32))


class Replay:
    """The round of an arm on a few clients, of whom the last one has the data of many worlds."""

    def __init__(self, arm: Arm, randomness: Randomness) -> None:
        self.exact = not randomness.simulated
        clients = CLIENTS
        self.arm = arm = smaller(arm, clients, **arm.scheme.shortened(arm, clients))
        self.rounds, group = arm.rounds, arm.scheme.group
        everybody = np.arange(clients, dtype=np.int32)  # the worst that coins can do
        every = range(self.rounds + arm.scheme.apart(arm))
        each = [everybody if group is None else group(arm, t) for t in every]
        first = next(t for t, cohort in enumerate(each) if clients - 1 in cohort)
        self.cohorts = each[first : first + self.rounds]
        sizes = np.arange(1, ROWS + 1)
        shapes, self._class_of = (
            public_classes(sizes, WORK, False) if self.exact else size_classes(sizes, WORK, 2)
        )
        layout = tuple(Bucket(shape, clients, 1) for shape in shapes)
        model, server = known_gradients(clients + 1), Server(rounds=self.rounds)
        self.program = Program(
            arm.method, model, WORK, server, layout, 1, exact=self.exact, keep_bytes=2**62
        )
        self._others = np.resize(OTHERS, clients - 1) * arm.clip_norm
        self._sizes = np.resize([4, 8, 9, 2], clients - 1)
        state = first_state(server, jnp.zeros(model.size), arm, WORK)
        if state.last is not None:
            state = state._replace(last=jnp.cos(jnp.arange(model.size) * 1.0) * arm.clip_norm)
        numbers = state, grid_of(arm), arm.dials()
        self._state, self._grid, self._dials = jax.tree.map(jnp.asarray, numbers)
        mesh = Mesh(np.array(jax.devices()[:1]), (AXIS,))
        played = jax.shard_map(
            lambda *each: jax.lax.map(lambda one: self._play(*one), each),
            mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False,
        )  # fmt: skip
        self._played = jax.jit(played)

    def __call__(self, t: int, world: World, drawn: Drawn) -> tuple[RoundResult, Uploads]:
        """Play round t of every replay; uploads by client, and the sum in place of the update."""
        layout, cohort = self.program.layout, self.cohorts[t]
        last = self._sizes.size
        slots = []
        for size in range(ROWS + 1):
            there = cohort if size else cohort[cohort != last]
            class_of = self._class_of[np.append(self._sizes, max(size, 1)) - 1]
            slots.append(pack(there, class_of, layout, 1)[0])
        given = (np.stack(slots)[world.sizes], world, drawn, np.full(len(world.sizes), t))
        result, uploads = jax.tree.map(lambda a: np.asarray(a, np.float64), self._played(*given))
        return result, uploads

    def _play(self, slots: Array, world: World, drawn: Drawn, t: Array) -> Any:
        arm, method, clients = self.arm, self.arm.method, self._sizes.size + 1
        values = jnp.concatenate([jnp.repeat(jnp.asarray(self._others), ROWS), world.values])
        places = jnp.repeat(jnp.arange(clients), ROWS)
        used = jnp.append(jnp.asarray(self._sizes), world.sizes)
        records = Records(
            jnp.stack([places, values], axis=1).astype(jnp.float32),
            jnp.where(places == clients - 1, world.labels, 0),
            jnp.arange(clients) * ROWS,
            used,
            jnp.float32(1),
        )
        there, mine = slots >= 0, jnp.broadcast_to(jnp.asarray(arm.scaled_weights()), clients)
        own = jnp.zeros(clients, drawn.norm.dtype).at[-1].set(drawn.norm)[slots]
        members = Members(slots, there, mine[slots], drawn.coins[slots], own)
        keys = jax.random.split(jax.random.key(0), clients)[slots]
        cohort = ChunkedClients(self.program, self._state, records, members, keys, t)
        arithmetic: Arithmetic
        noise, adapts = jnp.full(clients + 1, drawn.update), arm.clip_quantile is not None
        if self.exact:
            each, zero = arm.parts[2].clients_add_noise, jnp.int32(0)
            numbers = own if each else drawn.norm, jnp.zeros((slots.size, clients + 1), jnp.int32)
            steps = NoiseSteps(numbers[0], numbers[1] if each else noise, zero, zero, drawn.refine)
            arithmetic = ExactSums(steps, self._grid)
        else:
            arithmetic = FloatSums(ServerDraws(drawn.norm, noise, refine_noise=drawn.refine))
        result, uploads, _ = play(method, cohort, members, arithmetic, self._dials, adapts=adapts)
        summed = result.update * arm.parts[1].divisor(self._dials)
        nobody, where = jnp.zeros(clients), jnp.where(there, slots, clients)  # beyond: dropped
        by_client = (nobody.at[where].set(each.astype(nobody.dtype)) for each in uploads)
        return result._replace(update=summed), Uploads(*by_client)

    def hold(self, t: int, pair: Pair, rng: np.random.Generator) -> tuple[list[Drawn], Any]:
        """The noise with which both worlds release the same before the uploads, and by how much it
        differs between them: squared, in charged standard deviations."""
        arm, size = self.arm, len(pair[0].sizes)
        refinements = arm.parts[0].refined(arm.parts[2].server_adds_noise)
        kind = np.int32 if self.exact else np.float32
        coins: Any = np.zeros((size, len(self._sizes) + 1), np.float32)
        if self.exact:
            coins = halves(coins.astype(np.uint64))
        none = np.zeros(size, kind), np.zeros((size, refinements, 2), kind), np.zeros(size, kind)
        drawn, moved = [Drawn(*none, coins)] * 2, np.zeros(size)
        if not arm.releases_norms:
            return drawn, moved
        std = arm.sum_multiplier  # in units of C, and of 1 for what refines
        unit = 1 / float(self._grid.norm) if self.exact else std

        def steps(values: Floats) -> Any:
            return (np.rint(values / unit) if self.exact else values / unit).astype(kind)

        share = rng.choice(RELEASED, size)
        nobody = World(0 * pair[0].sizes, pair[0].labels, 0 * np.nan_to_num(pair[0].values))
        target = share * arm.cohort * arm.clip_norm
        if arm.parts[2].clients_add_noise:  # its own value is released, from 0 to C
            target = np.clip(share, 0.1, 0.9) * arm.clip_norm
            target += self(t, nobody, drawn[0])[0].released_norm_sum
        released = [self(t, *one)[0].released_norm_sum for one in zip(pair, drawn, strict=True)]
        moved += ((released[0] - released[1]) / (std * arm.clip_norm)) ** 2
        each = zip(drawn, released, strict=True)
        drawn = [d._replace(norm=steps((target - r) / arm.clip_norm)) for d, r in each]
        for k in range(refinements):
            a, b = (self(t, *one)[0].refined[:, k] for one in zip(pair, drawn, strict=True))
            moved += np.sum(((a - b) / std) ** 2, axis=1)
            noise = drawn[1].refine.copy()
            noise[:, k] = steps(a - b)
            drawn[1] = drawn[1]._replace(refine=noise)
        return drawn, moved

    def uploads(self, t: int, world: World, drawn: Drawn, coins: Floats) -> Any:
        """[W, CLIENTS] who uploads at these coins, whole numbers of 2^-BITS."""
        shares: Any = coins.astype(np.float32) / 2**BITS
        if self.exact:
            shares = halves(coins.astype(np.uint64) << np.uint64(64 - BITS))
        return self(t, world, drawn._replace(coins=shares))[1].uploaded > 0

    def largest_coins(self, t: int, world: World, drawn: Drawn) -> Any:
        """[W, CLIENTS] the largest coin at which each client uploads: its probability, rounded
        down, by bisection and without a look at it; 0 if there is none."""
        largest = np.zeros(drawn.coins.shape[:2], np.int64)
        for bit in reversed(range(BITS)):
            higher = largest + 2**bit
            largest = np.where(self.uploads(t, world, drawn, higher), higher, largest)
        return largest

    @property
    def one_std(self) -> Any:
        """The noise on a coordinate of the sum, if it is one standard deviation."""
        steps = np.ravel(self._grid.update)[-1]
        return np.int32(self.arm.update_multiplier * steps) if self.exact else np.float32(1)


def neighbours(arm: Arm, relation: Relation, rng: np.random.Generator) -> Pair:
    """The two worlds: under zero-out the client is not in a secret cohort, or sends zero; under
    replace it has the data of another, which point the other way."""
    here = worlds(arm)
    if relation == "replace":
        order = rng.permutation(len(here.sizes))
        return here, World(here.sizes[order], here.labels[order], -here.values[order])
    sizes = here.sizes * (not arm.parts[2].amplified)
    return here, World(sizes, np.ones_like(here.labels), np.zeros_like(here.values))


def compare(replay: Replay, relation: Relation) -> dict[str, Floats]:
    """How far each replay comes to the limit of each promise: at most 1 where it is kept."""
    arm, trust, rng = replay.arm, replay.arm.parts[2], np.random.default_rng(0)
    pair = neighbours(arm, relation, rng)
    before, after = np.zeros((2, len(pair[0].sizes)))
    moves, shares = [], dict.fromkeys(("held", "its probability", "other clients"), 0 * before)

    def see(name: str, excess: Any) -> None:
        size = np.where(np.isnan(excess), np.inf, np.abs(excess))
        shares[name] = np.maximum(shares[name], size)

    for t in range(replay.rounds):
        drawn, moved = replay.hold(t, pair, rng)
        before += moved
        (a, mine), (b, theirs) = (replay(t, *one) for one in zip(pair, drawn, strict=True))
        top = arm.cohort * arm.clip_norm
        see("held", (a.released_norm_sum - b.released_norm_sum) / top / SLACK)
        if trust.clients_add_noise:
            std = arm.noise_multiplier * mine.scale[:, -1]
        else:  # as it is added; no client moves the last coordinate
            noised = drawn[0]._replace(update=np.full_like(drawn[0].update, replay.one_std))
            std = (replay(t, pair[0], noised)[0].update - a.update)[:, -1]
        apart: Any = a.update - b.update  # where the client cannot upload, there is no noise either
        moves.append(np.divide(apart, std[:, None], out=0 * apart, where=apart != 0))
        if arm.count_noise:
            after += ((a.released_count - b.released_count) / arm.count_noise) ** 2
        if arm.clip_quantile is not None:
            before += (2 * (a.released_bits - b.released_bits) / arm.clip_multiplier) ** 2
        public = {k: charged(arm.at_public(k), relation, replay.rounds) for k in {*a.used_norm_sum}}
        charge = [public[k] for k in a.used_norm_sum]
        most = np.array([one.probability for one in charge])
        coins = replay.largest_coins(t, pair[0], drawn[0])
        see("its probability", coins[:, -1] / 2**BITS / most)
        for near in (np.maximum(coins - 1, 0), np.minimum(coins + 2, 2**BITS - 1)):
            each = zip(pair, drawn, strict=True)
            here, there = (replay.uploads(t, *one, near) for one in each)
            differs = np.where(here != there, np.inf, 0.0)
            see("other clients", np.max(differs[:, :-1], axis=1))
            if trust.guards_server:  # it has released what its own follows from
                see("its probability", differs[:, -1])
        for x, y in zip(mine, theirs, strict=True):
            off = np.abs(x - y) / np.maximum(np.maximum(np.abs(x), np.abs(y)), 1e-30)
            see("other clients", np.max(off[:, :-1], axis=1) / SLACK)
    shifts = np.array(moves)  # [rounds, W, d]
    if arm.strategy:  # as the noise that the rounds share has to move
        shifts = np.moveaxis(decorrelated(np.moveaxis(shifts, 0, -1), arm.strategy, np), -1, 0)
    after += np.sum(np.square(shifts), axis=(0, 2))
    if charge[0].first is None:
        before, after = 0 * before, before + after
    for name, moved, limit in (
        ("before the uploads", before, [one.times * (one.first or 0.0) for one in charge]),
        ("the sum", after, [one.times * one.second for one in charge]),
    ):  # what is not charged must not move
        share = np.divide(moved, limit, out=np.where(moved == 0, 0.0, np.inf), where=moved > 0)
        shares[name] = np.where(np.isnan(moved), np.inf, np.sqrt(share))
    return shares


def replayed(arm: Arm, randomness: Randomness) -> tuple[bool, str]:
    """Whether an arm passes its replay, and the release that comes closest to its limit. Under rate
    control it is replayed at the largest rate."""
    if arm.controlled:
        arm = arm.at_rung(-1)
    replay, worst, at, count = Replay(arm, randomness), -1.0, "", 0
    for relation in RELATIONS:
        here, _ = neighbours(replay.arm, relation, np.random.default_rng(0))
        count += len(here.sizes)
        for name, shares in compare(replay, relation).items():
            case = int(np.argmax(shares))
            if shares[case] > worst:
                worst = float(shares[case])
                length = here.values[case, here.sizes[case] - 1]
                at = f"{name}, {relation}, records: {here.sizes[case]} of {length:.4g}"
    return worst <= 1 + SLACK, f"{count} replays, at most {worst:.6f} of what is charged: {at}"
