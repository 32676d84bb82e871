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

from locksfl.device import Guard, Policy, Refusal, Refused, RoundTerms
from locksfl.device.noise import SYSTEM, Noise
from locksfl.device.update import LocalUpdate, clip, contribution, norm, safe_update
from locksfl.engines.flower.network import Answer, Question

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
                kept.clear()
                guard.end_round(run, terms.round)
                return Answer(released=np.zeros(0, np.float32))
            if question.stage == "norm":
                guard.check(terms, "norm")
                clipped = self._train(question, terms)
                kept[KEPT], kept[KEPT_ROUND] = clipped, np.array([terms.round])
                released = guard.release_norm(terms, norm(clipped))
                return Answer(released=np.array([released]))
            guard.check(terms, "update")
            clipped = self._kept(kept, terms) if terms.asks_norms else self._train(question, terms)
            kept.clear()
            if question.estimator is None or question.probability is None or question.bound is None:
                raise Refused(Refusal.MALFORMED)
            sent = contribution(question.estimator, clipped, question.probability, question.bound)
            return Answer(released=guard.release_update(terms, sent, question.bound))

    def _train(self, question: Question, terms: RoundTerms) -> np.ndarray:
        if question.weights is None:
            raise Refused(Refusal.MALFORMED)
        return clip(safe_update(self.update, question.weights, terms.round), terms.clip_norm)

    @staticmethod
    def _kept(kept: MutableMapping[str, np.ndarray], terms: RoundTerms) -> np.ndarray:
        """The clipped update of stage 1; after a restart it is gone, and the round goes on without
        this device."""
        if KEPT not in kept or int(kept[KEPT_ROUND][0]) != terms.round:
            raise Refused(Refusal.LOST)
        return kept[KEPT]
