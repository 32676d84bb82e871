"""A device's answer to one message: check, compute, clip, pay, add noise, send. No Flower, no JAX.

Every exception is caught: its text could tell the server something about the data, and Flower would
send it. A server gets a released value or the number of a refusal, nothing else.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from locksfl.federation.device.guard import Guard
from locksfl.federation.device.ledger import DeviceLedger
from locksfl.federation.device.policy import Policy
from locksfl.federation.device.terms import Refusal, Refused, RoundTerms, Stage
from locksfl.federation.device.update import (
    LocalUpdate,
    Vector,
    check_model,
    clip,
    contribution,
    flip,
    norm,
    safe_update,
    upload_probability,
)
from locksfl.federation.device.view import rounds_left
from locksfl.federation.device.witness import Witness
from locksfl.federation.wire import Answer, Kept, Later, Question
from locksfl.round.noise import SYSTEM, Entropy, NoiseSource

log = logging.getLogger(__name__)
KEPT, KEPT_ROUND = "clipped", "round"


def answer(
    guard: Guard,
    terms: RoundTerms,
    question: Question,
    update: LocalUpdate,
    kept: Kept,
    entropy: Entropy = os.urandom,
) -> np.ndarray:
    """Answer a question, in the order on which every guarantee of the guard depends.

    `update`: the device's training; `kept`: what it keeps until the next message of the round;
    `entropy`: of its own coin, where a rule leaves it to the device whether it uploads. Then an
    empty array is an answer too, paid for like any other: the ledger knows what was asked, not how
    the coin fell.
    Returns the released value, which may be sent; otherwise raises `Refused`.
    """

    def clipped_update(stage: Stage) -> Vector:
        guard.check(terms, stage)  # first, so that no device trains in vain
        found = safe_update(update, _weights(guard.policy, update, question), terms.round)
        return clip(found, terms.clip_norm, terms.lengths)

    if question.stage == "end":
        guard.end_round(terms.run, terms.round)
        return np.zeros(0, np.float32)
    if question.stage == "norm":
        clipped = clipped_update("norm")
        released = guard.release_norm(terms, norm(clipped))  # pays for the round, then adds noise
        kept[KEPT], kept[KEPT_ROUND] = clipped, np.array([terms.round])
        return np.array([released])
    if question.estimator is None or question.probability is None or question.bound is None:
        raise Refused(Refusal.MALFORMED)
    if not terms.asks_norms:
        clipped = clipped_update("update")
    elif KEPT in kept and int(kept[KEPT_ROUND][0]) == terms.round:
        clipped = kept[KEPT]
    else:
        guard.check(terms, "update")  # REPEATED, if it was sent: then something was released
        raise Refused(Refusal.LOST)  # a restart: the round continues without this device
    p = question.probability
    uploads = True
    if question.rule is not None:
        if (
            terms.asks_norms or terms.known_trust.guards_server
        ):  # it would show a norm to the server
            raise Refused(Refusal.MALFORMED)
        p = upload_probability(question.rule, clipped, terms.clip_norm, p)
        uploads = flip(p, entropy)
    sent = contribution(question.estimator, clipped, p if uploads else 1.0, question.bound)
    released_update = guard.release_update(terms, sent, question.bound)
    kept.clear()
    return released_update if uploads else np.zeros(0, np.float32)


def _weights(policy: Policy, update: LocalUpdate, question: Question) -> np.ndarray:
    """The server's model, got only if it is the device's and no larger than the policy allows."""
    asked = question.weights
    if asked is None:
        raise Refused(Refusal.MALFORMED)
    if asked.size > policy.max_parameters:
        log.error("the server's model has %d parameters, more than the policy allows", asked.size)
        raise Refused(Refusal.MODEL)
    check_model(update, asked.size, question.model)
    if not isinstance(asked, Later):
        return asked
    try:
        found = asked.fetch()
    except Exception as error:  # the connection, or the server; nothing was paid
        log.warning("the model was not received: %r", error)
        found = None
    if found is None:
        raise Refused(Refusal.MALFORMED)
    return found


@dataclass(frozen=True)
class Device:
    """A device: its training code, its owner's policy, and its ledger with a witness."""

    update: LocalUpdate
    policy: Policy
    ledger: Witness
    noise: NoiseSource = SYSTEM
    entropy: Entropy = os.urandom
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep

    def __call__(self, run: str, question: Question, kept: Kept) -> Answer:
        """Answer one question, whatever it is, after a multiple of the policy's `answer_seconds`:
        how long the training takes tells how many records there are."""
        began, step = self.clock(), self.policy.answer_seconds
        answered = self._answer(run, question, kept)
        if step and question.stage != "end":
            took = self.clock() - began
            if took > step:
                log.warning(
                    "%s took %.3g s; expected answer_seconds above that", question.stage, took
                )
            self.wait(-took % step)
        return answered

    def _told(self, ledger: DeviceLedger, terms: RoundTerms) -> int | None:
        """What the server is told of the budget: a function of the policy and the ledger."""
        if not self.policy.tell_rounds_left:
            return None
        return rounds_left(ledger.charges(), ledger.rounds(), terms, self.policy)

    def _answer(self, run: str, question: Question, kept: Kept) -> Answer:
        try:
            terms = RoundTerms.parse(run, question.terms)
            try:
                ledger = self.ledger.open()
            except ValueError as error:  # missing, altered, or an old copy
                log.error("%s refused: %s", question.stage, error)
                return Answer(refusal=int(Refusal.LEDGER))
            with Guard(self.policy, ledger, self.noise) as guard:
                released = answer(guard, terms, question, self.update, kept, self.entropy)
                left = None if question.stage == "end" else self._told(ledger, terms)
                return Answer(released, rounds_left=left)
        except Refused as refused:
            log.warning("%s refused: %s", question.stage, refused.code.name)
            return Answer(refusal=int(refused.code))
        except Exception:
            log.exception("%s failed", question.stage)
            return Answer(refusal=int(Refusal.LEDGER))
