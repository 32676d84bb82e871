"""Every key that is really drawn, in each engine: no two draws share one.

The samplers of JAX and the generator of the cohorts are wrapped, so that what is recorded is what a
compiled round draws from, and not what it should. Two draws of the same thing (a client's shuffle,
computed again in stage 2; the server's noise, on every device) are one; draws of different things
are told apart by where in the program they are made.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

import locksfl.round
from checks import ragged
from locksfl.arm import Arm
from locksfl.federation.server.rounds import draw_round
from locksfl.models.build import softmax
from locksfl.round import draws, randomness
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Purpose, Randomness
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator
from locksfl.simulate.sweep import Setting, play_sweep

ROUND = str(Path(locksfl.round.__file__).parent)
SAMPLERS = (
    "bits", "uniform", "normal", "bernoulli", "permutation", "choice", "randint", "exponential",
    "gumbel", "laplace", "truncated_normal", "rademacher", "categorical", "gamma", "beta",
)  # fmt: skip
CLIENTS, ROUNDS = 24, 5
WORK = LocalWork("epochs", epochs=2, batch=4, max_samples=6)


class Recorder:
    """Keys by the place in the program that draws from them: "host", or function names."""

    def __init__(self):
        self.keys = defaultdict(set)
        self.parents = set()  # keys that others are derived from

    def sampler(self, real):
        return self._wrapped(real, lambda: self.keys[self._place()])

    def parent(self, real):
        return self._wrapped(real, lambda: self.parents)

    def _wrapped(self, real, where):
        def recording(key, *args, **options):
            pile = where()
            words = jax.random.key_data(key)
            jax.debug.callback(lambda words: pile.add(tuple(np.ravel(words).tolist())), words)
            return real(key, *args, **options)

        return recording

    def philox(self, real):
        def recording(words):
            self.keys["host"].add(tuple(words.generate_state(4).tolist()))
            return real(words)

        return recording

    def _place(self):
        """Functions and positions of the frames of the round; others would tell devices apart."""
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(ROUND):
                frames.append((frame.f_code.co_name, frame.f_lasti))
            frame = frame.f_back
        return tuple(frames) or ("elsewhere",)

    def of(self, function):
        """The keys of each place inside a function."""
        return [keys for place, keys in self.keys.items() if any(f[0] == function for f in place)]


@contextmanager
def recorded():
    recorder = Recorder()
    with mock.patch.object(np.random, "Philox", recorder.philox(np.random.Philox)):
        patches = [
            mock.patch.object(jax.random, name, recorder.sampler(getattr(jax.random, name)))
            for name in SAMPLERS
        ] + [
            mock.patch.object(jax.random, name, recorder.parent(getattr(jax.random, name)))
            for name in ("fold_in", "split")
        ]
        for patch in patches:
            patch.start()
        try:
            yield recorder
            jax.effects_barrier()
        finally:
            for patch in patches:
                patch.stop()


def arm(name, trust="central"):
    return Arm.of(
        name, CLIENTS, ROUNDS, "norm", trust=trust, cohort=12.0, uploads=6.0,
        noise_multiplier=1.0, norm_multiplier=1.0,
    )  # fmt: skip


def distinct(recorder, cohorts, sources, local=True):
    """No key at two places; the server draws four in every round of each source, and each member
    two of its own (and one slot may be empty)."""
    places = list(recorder.keys.values())
    everything = set().union(*places)
    assert sum(map(len, places)) == len(everything), "one key for two purposes"
    # JAX hashes a derived key like the bits that are drawn
    assert not everything & recorder.parents, "a key is drawn from, and others derive from it"
    rounds = sources * ROUNDS
    assert len(recorder.keys["host"]) == rounds, "a cohort's generator is used twice"
    assert [len(keys) for keys in recorder.of("draw_server")] == [rounds] * 5
    members = recorder.of("draw_members")
    assert len(members) == 2
    for keys in members:
        assert cohorts <= len(keys) <= cohorts + rounds, "two clients or rounds share a key"
    if local:  # shuffles of each epoch, in each size class; one class leaves samples out
        shuffles = set().union(*recorder.of("epochs_update"))
        assert WORK.epochs * cohorts <= len(shuffles) <= WORK.epochs * (cohorts + rounds)
        assert recorder.of("choose_rows")


def simulated():
    """Two arms and two seeds, in blocks of one and two rounds, on two devices."""
    simulator = Simulator(ragged(np.tile([3, 9], CLIENTS // 2)), softmax(6, 3))
    assert simulator.mesh.size == 2
    with recorded() as recorder:
        cohorts = 0
        for seed in (1, 2):
            for name in ("a", "b"):
                options = {"pause_every": 2, "evaluate_every": ROUNDS}
                played = simulator.play(
                    arm(name), WORK, Server(rounds=ROUNDS), Randomness.seeded(seed), **options
                )
                cohorts += sum(log.cohort.size for block in played for log in block.rounds)
    distinct(recorder, cohorts, sources=4)


def swept():
    """Settings that one program plays together: two arms, two seeds."""
    simulator = Simulator(ragged(np.tile([3, 9], CLIENTS // 2)), softmax(6, 3))
    settings = [Setting(arm(n), Randomness.seeded(s)) for n in ("a", "b") for s in (1, 2)]
    with recorded() as recorder:
        played = play_sweep(simulator, settings, WORK, Server(rounds=ROUNDS), at_once=4)
    distinct(recorder, sum(log.cohort.size for p in played for log in p.rounds), sources=4)


def served():
    """The server of a federation, which draws the coins of all clients."""
    with recorded() as recorder:
        for seed in (1, 2):
            for name in ("a", "b"):
                for t in range(ROUNDS):
                    draw_round(arm(name), Randomness.seeded(seed), t, 21)
    distinct(recorder, 4 * ROUNDS * CLIENTS, sources=4, local=False)


@contextmanager
def streams():
    """The keys of all streams that are made."""
    made, real = [], randomness.Stream.__init__

    def init(self, key):
        made.append(key)
        real(self, key)

    with mock.patch.object(randomness.Stream, "__init__", init):
        yield made


def secret():
    """Runs without a seed draw from streams: two arms and two sources in the simulator, in a sweep
    and on the server of a federation. A draw is made once, or is the same draw of another engine;
    what JAX draws is the clients' own shuffles."""
    simulator = Simulator(ragged(np.tile([3, 9], CLIENTS // 2)), softmax(6, 3))
    keys: dict = {}
    engines = ("simulator", "sweep", "federation")
    for engine in engines:
        with streams() as made, recorded() as recorder:
            for source in (Randomness(1, simulated=False), Randomness(2, simulated=False)):
                arms = [arm("a"), arm("b"), arm("c", "local")]
                if engine == "sweep":
                    settings = [Setting(one, source) for one in arms]
                    play_sweep(simulator, settings, WORK, Server(rounds=ROUNDS), at_once=4)
                for one in arms:
                    if engine == "simulator":
                        list(simulator.play(one, WORK, Server(rounds=ROUNDS), source))
                    for t in range(ROUNDS if engine == "federation" else 0):
                        draw_round(one, source, t, 21)
        # cohort, coin, norm noise, update noise; a federation's devices draw their own noise
        each = 2 if engine == "federation" else 4
        assert len(made) == 2 * 3 * ROUNDS * each, "a stream is missing, or drawn twice"
        assert len(set(made)) == len(made), "two draws share a stream"
        keys[engine] = set(made)
        assert not recorder.keys["host"]
        assert not recorder.of("draw_server")
        assert not recorder.of("draw_members")
    assert keys["simulator"] == keys["sweep"] > keys["federation"]


ENGINES = {"simulator": simulated, "sweep": swept, "federation": served, "secret": secret}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_key_is_drawn_once(engine):
    ENGINES[engine]()


@pytest.mark.parametrize(
    ("purpose", "instead", "said"),
    [
        (Purpose.UPLOAD_COIN, Purpose.NORM_NOISE, "one key for two purposes"),
        (Purpose.UPDATE_NOISE, Purpose.SERVER_NORM_NOISE, "one key for two purposes"),
        (Purpose.NORM_NOISE, Purpose.SERVER_NORM_NOISE, "others derive from it"),
    ],
)
def test_a_shared_key_is_seen(purpose, instead, said, monkeypatch):
    """A purpose that takes another's key: of the clients, of the server, of one and the other."""
    real = draws.draw_key
    shared = {purpose: instead}
    monkeypatch.setattr(draws, "draw_key", lambda k, t, p: real(k, t, shared.get(p, p)))
    with pytest.raises(AssertionError, match=said):
        served()
