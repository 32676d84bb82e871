"""The device's half of a round: parse, train, ask the guard, answer. No Flower and no JAX here.

Everything is caught: the text of an exception could tell the server something about the data, and
Flower would send it. What a server gets is a released value or the number of a refusal.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from locksfl.federation.device import Guard, Policy, Refusal, Refused, RoundTerms
from locksfl.federation.device.answers import answer_norm, answer_update, clipped_update
from locksfl.federation.device.noise import SYSTEM, Noise
from locksfl.federation.device.update import LocalUpdate
from locksfl.federation.wire import Answer, Question

log = logging.getLogger(__name__)
KEPT = "clipped"  # the clipped update, from the first stage of a round to its second
KEPT_ROUND = "round"


@dataclass(frozen=True)
class Device:
    """A device: its training code, its owner's policy, and the ledger on its disk."""

    update: LocalUpdate
    policy: Policy
    ledger: Path
    noise: Noise = SYSTEM

    def __call__(
        self, run: str, question: Question, kept: MutableMapping[str, np.ndarray]
    ) -> Answer:
        """Answer one question, whatever it is. `kept` lasts from one stage to the next."""
        try:
            return self._answer(run, question, kept)
        except Refused as refused:
            log.warning("%s refused: %s", question.stage, refused.code.name)
            return Answer(refusal=int(refused.code))
        except Exception:
            log.exception("%s failed", question.stage)
            return Answer(refusal=int(Refusal.LEDGER))

    def _answer(
        self, run: str, question: Question, kept: MutableMapping[str, np.ndarray]
    ) -> Answer:
        terms = RoundTerms.parse(run, question.terms)
        with Guard.open(self.policy, self.ledger, self.noise) as guard:
            if question.stage == "end":
                guard.end_round(run, terms.round)
                return Answer(released=np.zeros(0, np.float32))
            if question.stage == "norm":
                released, clipped = answer_norm(guard, terms, self.update, _model(question))
                kept[KEPT], kept[KEPT_ROUND] = clipped, np.array([terms.round])
                return Answer(released=np.array([released]))
            if question.estimator is None or question.probability is None or question.bound is None:
                raise Refused(Refusal.MALFORMED)
            if terms.asks_norms:
                clipped = _kept(kept, terms)
            else:
                clipped = clipped_update(guard, terms, "update", self.update, _model(question))
            sent = answer_update(
                guard, terms, clipped, question.estimator, question.probability, question.bound
            )
            kept.clear()
            return Answer(released=sent)


def _model(question: Question) -> np.ndarray:
    if question.weights is None:
        raise Refused(Refusal.MALFORMED)
    return question.weights


def _kept(kept: MutableMapping[str, np.ndarray], terms: RoundTerms) -> np.ndarray:
    """The clipped update of stage 1; after a restart it is gone, and the round goes on without this
    device."""
    if KEPT not in kept or int(kept[KEPT_ROUND][0]) != terms.round:
        raise Refused(Refusal.LOST)
    return kept[KEPT]
