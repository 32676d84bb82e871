"""The bytes of runs without a seed: no stream is made twice, and no bytes are ever drawn twice.

What is recorded is what `Stream` hands out, in each engine. Equal bytes would show whatever shared
them: a key, a request number, a purpose, a round or an arm. Two equal words of 64 bits among the
200,000 recorded would come by chance once in 10^9 runs.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from unittest import mock

import jax
import numpy as np
import pytest

from checks import ragged
from locksfl.arm import Arm
from locksfl.audit.evidence import Evidence, lagged, mean_square, views
from locksfl.federation.server.rounds import draw_round
from locksfl.models.build import softmax
from locksfl.round import noise
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Purpose, Randomness, Stream
from locksfl.round.server import Server
from locksfl.simulate.simulator import Simulator

CLIENTS, ROUNDS = 24, 5


class Recorder:
    """What was asked for, and the words that came."""

    def __init__(self):
        self.names, self.words = Counter(), []

    def stream(self, real):
        def recording(source, *name):
            self.names[source.entropy, *name] += 1
            return real(source, *name)

        return recording

    def call(self, real):
        def recording(stream, size):
            found = real(stream, size)
            self.words.append(np.frombuffer(found[: size // 8 * 8], np.uint64))
            return found

        return recording

    def check(self, purposes, sources):
        """Each purpose of each round once, and all words apart."""
        assert max(self.names.values()) == 1, "a stream is asked for twice"
        every = Counter(name[-1] for name in self.names)
        assert every == dict.fromkeys(purposes, sources * ROUNDS), "a draw has no stream"
        words = np.concatenate(self.words)
        assert len(words) > 1000
        assert len(np.unique(words)) == len(words), "the same bytes are drawn twice"


@contextmanager
def recorded():
    recorder = Recorder()
    with (
        mock.patch.object(Randomness, "stream", recorder.stream(Randomness.stream)),
        mock.patch.object(Stream, "__call__", recorder.call(Stream.__call__)),
    ):
        yield recorder


def arm(name, trust):
    adaptive = {"clip_quantile": 0.5, "clip_multiplier": 5.0} if trust == "central" else {}
    return Arm.of(
        name, CLIENTS, ROUNDS, "norm", trust=trust, cohort=12.0, uploads=6.0,
        noise_multiplier=1.0, norm_multiplier=1.0, **adaptive,
    )  # fmt: skip


OWN = {"central": {Purpose.SERVER_NORM_NOISE, Purpose.CLIP_NOISE}, "local": {Purpose.NORM_NOISE}}


def streams_of(trust):
    return {Purpose.COHORT, Purpose.UPLOAD_COIN, Purpose.UPDATE_NOISE} | OWN[trust]


@pytest.mark.parametrize("trust", OWN)
def test_a_run_draws_no_bytes_twice(trust):
    """Two arms, two runs, blocks of one and two rounds."""
    simulator = Simulator(ragged(np.tile([3, 9], CLIENTS // 2)), softmax(6, 3))
    sources = [Randomness.from_system() for _ in range(2)]
    with recorded() as recorder:
        for source in sources:
            for name in ("a", "b"):
                rounds = Server(rounds=ROUNDS)
                list(simulator.play(arm(name, trust), LocalWork(), rounds, source, pause_every=2))
    recorder.check(streams_of(trust), sources=4)


def test_a_federation_draws_no_bytes_twice():
    """The server's coins; its noise comes from the operating system itself."""
    with recorded() as recorder:
        for source in (Randomness.from_system(), Randomness.from_system()):
            for name in ("a", "b"):
                for t in range(ROUNDS):
                    drawn = draw_round(arm(name, "central"), source, t, 21)
                    assert drawn.server is None
    assert max(recorder.names.values()) == 1
    words = np.concatenate(recorder.words)
    assert len(words) >= 4 * ROUNDS
    assert len(np.unique(words)) == len(words)


def test_the_samplers_of_jax_decide_nothing(monkeypatch):
    """Their key has 64 bits. Another key gives the same model: nobody shuffles here."""
    simulator = Simulator(ragged(np.tile([3, 9], CLIENTS // 2)), softmax(6, 3))
    source = Randomness.from_system()

    def model():
        blocks = simulator.play(arm("a", "central"), LocalWork(), Server(rounds=ROUNDS), source)
        return np.asarray(list(blocks)[-1].state.weights)

    first = model()
    monkeypatch.setattr(Randomness, "arm_key", lambda self, name: jax.random.key(0))
    np.testing.assert_array_equal(model(), first)


def test_secret_noise_is_as_charged_and_long():
    """The sampler on a stream: a hundred thousand numbers, their spread and no distance at which
    any view of them repeats, at 1e-6. A spread 2% off is rejected."""
    stream = Randomness.from_system().stream("a", 3, Purpose.UPDATE_NOISE)
    spread = 2.0**20
    drawn = noise.SystemNoise(stream).steps(1.0, 1 / spread, 100_000) / spread
    evidence = Evidence()
    evidence.add("spread", mean_square(drawn))
    for view in views(drawn[None]):
        evidence.add("distances", lagged(view)[:50_000])
    holds, told = evidence.verdict()
    assert holds, told
    evidence.add("spread", mean_square(1.02 * drawn))
    assert not evidence.verdict()[0]
