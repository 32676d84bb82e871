"""A federation as an engine: the same interface as the simulator's, so that an experiment runs on
either, with one checkpoint per round.

Everything is paid for before it is asked. In local trust every client that will be asked is
recorded in `ledger.sqlite` before the first question leaves. A server that is killed and resumed
finds there which clients were asked in the interrupted round, and asks none of them twice: their
reservation remains charged in full, and no client is ever asked in more rounds than planned,
however often a server dies. In central trust the round is recorded for every client, and resumed
with none: its uploaders have seen the noisy sum of norms in their bounds, and a second draw for the
same cohort is not paid for.

Under local trust every update is scored (liars.py), and devices that no honest one resembles are
flagged in the records. If the operator says so, they are in no sum from then on, and are not asked
again: then who is in a sum depends on single releases, and PUBLIC gets no credit for the noise
of others. Nor does it over a network, where it depends on how fast devices are (patience.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from locksfl.arm import Arm
from locksfl.data.population import Population
from locksfl.experiment.config import PrivacyConfig
from locksfl.experiment.run import ledger_header
from locksfl.federation.server.ledger import ServerLedger
from locksfl.federation.server.liars import Scores
from locksfl.federation.server.rounds import (
    Draws,
    Played,
    draw_round,
    mask,
    play_round,
    round_terms,
)
from locksfl.federation.wire import Network, Question
from locksfl.models.build import Model
from locksfl.privacy.journal import EVERYBODY
from locksfl.privacy.ledger import LEDGER
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from locksfl.round.rates import RateControl
from locksfl.round.server import Server, ServerState
from locksfl.simulate.scoring import answers_of, evaluate, held_out
from locksfl.simulate.simulator import TEST_ROWS, BlockLog, RoundLog, controlled

DrawRound = Callable[[Arm, Randomness, int, int], Draws]


class Federation:
    """Devices behind a network. `population` has only held-out records: clients keep theirs."""

    simulates = False

    def __init__(
        self,
        population: Population,
        model: Model,
        network: Network,
        plans: Sequence[Arm],
        *,
        folder: Path,
        experiment: str,
        privacy: PrivacyConfig,
        seconds: float,
        exclude: bool = False,
        credits: bool = True,
        draw: DrawRound = draw_round,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.model, self.network = model, network
        self._exclude, self._excluded = exclude, np.zeros(plans[0].clients, bool)
        self._credits = credits and not exclude
        self._privacy, self._seconds, self._draw = privacy, seconds, draw
        self._ready = ready
        ends = np.cumsum([plan.rounds for plan in plans])
        self._first = {p.name: int(e) - p.rounds for p, e in zip(plans, ends, strict=True)}
        self._score = jax.jit(_scorer(model, population))
        path = folder / LEDGER
        self.journal = (
            ServerLedger.open_for(path, experiment)
            if path.exists()
            else ServerLedger.create(path, ledger_header(experiment, plans, privacy))
        )

    def play(
        self,
        plan: Arm,
        work: LocalWork,
        server: Server,
        randomness: Randomness,
        *,
        evaluate_every: int = 1,
        state: ServerState | None = None,
        first_round: int = 0,
        counts: Sequence[float] = (),
        **_: object,
    ) -> Iterator[BlockLog]:
        """Play an arm's rounds, one per block. The devices know their own work, and the ledger what
        was released."""
        del work
        if state is None:
            state = server.init(self.model.init(randomness.model_key()))
        waiting = np.zeros(plan.clients, bool)
        control = RateControl(plan, counts) if plan.controlled else None
        scores = None
        if self.journal.charges_each(plan.name):  # released values; raw ones are never scored
            scores = Scores(plan.clients, self.model.size, plan.rounds, self._exclude)
        for t in range(first_round, server.rounds):
            self._ready()  # before anything of the round is drawn, recorded or asked
            began = time.perf_counter()
            now = control.arm if control else plan  # the arm of this round
            draws = self._draw(now, randomness, t, self.model.size)
            number = self._first[plan.name] + t + 1
            interrupted, exhausted = self._interrupted(plan, t), self.journal.exhausted(plan.name)
            played = play_round(
                now,
                self.network,
                np.asarray(state.weights, np.float32),
                draws,
                terms=round_terms(now, self.network.run, number, self._privacy.relation),
                seconds=self._seconds,
                model=self.model.name,
                reserve=lambda cohort, t=t, before=interrupted: self._reserve(  # type: ignore[misc]
                    plan, t, cohort, before
                ),
                scores=scores,
            )
            if self._exclude and scores is not None:
                self._excluded |= scores.flagged
            self._settle(plan, t, played)
            state = server.step(state, played.result.update, jnp.float32(plan.step), jnp.int32(t))
            waiting = (waiting | played.asked) & ~played.uploaded
            if t + 1 == server.rounds:
                self._end(plan, number, waiting)
            due = (t + 1) % evaluate_every == 0 or t + 1 == server.rounds
            accuracy, loss = None, None
            if due:
                accuracy, loss = (float(x) for x in self._score(server.model(state, t + 1)))
            charged = interrupted & self.journal.charges_each(plan.name)  # else: rounds are counted
            log = _log(t, played, charged, accuracy, loss, exhausted)
            if control is not None:
                log = controlled(log, control)
            yield BlockLog([log], state, time.perf_counter() - began, 0.0)

    def _interrupted(self, plan: Arm, t: int) -> np.ndarray:
        """The clients that were asked in this round before the server was killed."""
        before = self.journal.reserved(plan.name, t + 1)
        if EVERYBODY[0] in before:
            return np.ones(plan.clients, bool)
        return mask(before, plan.clients)

    def _reserve(self, plan: Arm, t: int, cohort: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Record the round for all clients that will be asked; those that cannot pay are not."""
        asked = cohort[~before[cohort] & ~self._excluded[cohort]]
        if self.journal.charges_each(plan.name):
            return self.journal.reserve(plan.name, t + 1, asked)
        if not before.any():
            self.journal.reserve_round(plan.name, t + 1)
        return asked

    def _settle(self, plan: Arm, t: int, played: Played) -> None:
        """Resolve the reservations: an update that was drawn and not refused may have been sent and
        is charged; only clients in the sum are credited with each other's noise, and none if what
        they released, or how fast, decides who else takes part."""
        if not self.journal.charges_each(plan.name):
            return
        asked = np.flatnonzero(played.asked)
        uploaded, received = played.uploaded[asked], played.received[asked] & self._credits
        self.journal.settle(plan.name, t + 1, asked, uploaded, received)

    def _end(self, plan: Arm, number: int, waiting: np.ndarray) -> None:
        """Tell the clients that were asked last but not drawn that the round is over: a device
        keeps an upload reserved until a later round, or this message, releases it."""
        terms = round_terms(plan, self.network.run, number, self._privacy.relation).as_dict()
        questions = {int(i): Question("end", terms) for i in np.flatnonzero(waiting)}
        if questions:
            self.network.ask(questions, self._seconds, number)


def _log(
    t: int,
    played: Played,
    interrupted: np.ndarray,
    accuracy: float | None,
    loss: float | None,
    exhausted: int | None,
) -> RoundLog:
    """What the server may log. Clients asked before an interruption are charged in full."""
    cohort = np.flatnonzero(played.asked | interrupted)
    result, count = played.result, float(played.result.released_count)
    return RoundLog(
        round=t,
        cohort=cohort,
        uploaded=(played.uploaded | interrupted)[cohort],
        released_norm_sum=float(result.released_norm_sum),
        used_norm_sum=float(result.used_norm_sum),
        noise=float(result.noise),
        accuracy=accuracy,
        loss=loss,
        exhausted=exhausted,
        received=played.received[cohort],
        stages={name: tally.as_dict() for name, tally in played.tallies.items()},
        released_count=None if np.isnan(count) else count,
    )


def _scorer(
    model: Model, population: Population
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Score and mean loss on the held-out records, as the simulator computes them."""
    rows = min(TEST_ROWS, len(population.test_labels))
    test = jax.tree.map(jnp.asarray, held_out(population, rows))
    answers, tests = answers_of(population.task, test.labels, jnp.sum)

    def score(weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        points, losses = evaluate(model, weights, test)
        return points / answers, losses / tests

    return score
