"""Replay on a device: what enters the noise of its releases, whatever its data are.

A real guard answers what a server asks of each rule, estimator and trust; its noise is replaced by
zeros, and the size noted that it should have had. All earlier releases are held: they are in the
question. Between any two updates a release then differs by at most what the ledger was charged or,
where the server adds the noise, what the accountant is told. Nothing depends on luck: no false
alarms.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from locksfl.audit.replay import charged
from locksfl.federation.device import DeviceLedger, Guard, Policy, answering
from locksfl.federation.server.rounds import round_terms, server_dials
from locksfl.federation.wire import Question
from locksfl.methods.releases import RELATIONS
from locksfl.privacy.budget import message_mu_squared
from locksfl.round.algorithm import contribution_bounds, upload_probability
from replay_cases import arm_of, cases, rows

SIZE, SLACK = 5, 1e-6  # a message is float32
CASES = cases(dropouts=True)
LIMITS = {"max_clip_norm": 10.0, "min_noise_multiplier": 1e-5, "max_rounds": 10_000}
POLICIES = {
    True: Policy(**LIMITS, min_norm_multiplier=1e-5, epsilon=1e5, delta=1e-5),
    False: Policy(**LIMITS, min_norm_multiplier=1e-5, trust="central"),
}


class Silent:
    """No noise: its standard deviations are kept."""

    def __init__(self):
        self.stds = []

    def steps(self, std, grid, size):
        del grid
        self.stds.append(std)
        return np.zeros(size, np.int64)


def updates(clip):
    """No update first; directions and their opposites, lengths 5% apart; broken ones."""
    rng = np.random.default_rng(2)
    lengths = [1e-30, 0.5, 1.0, 1 + 1e-12, *1.05 ** np.arange(1, 60), 1e30, 1e300, np.inf, np.nan]
    ways = rng.normal(size=(len(lengths) + 1, SIZE))[: len(lengths)]
    ways[1::2] = -ways[:-1:2]
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    return [np.zeros(SIZE), *(np.array(lengths) * clip)[:, None] * ways, np.full(3, clip)]


def shifts(arm, path, own, public):
    """For each relation, how far the norm and the update that a device sends are from their limits
    at most, if these values were released before."""
    rule, _, trust = arm.parts
    decides = rule.asks is not None and not rule.released
    dials = server_dials(arm).at_public(public, np)
    p = np.float32(arm.largest_probability)
    if not decides:
        p = np.float32(upload_probability(arm.method, own, public, np.float32(1), dials))
    bound = float(contribution_bounds(arm.method, p, public, dials))
    more = {"estimator": arm.estimator, "probability": float(p), "bound": bound}
    model, noise, norms, sent = np.zeros(SIZE, np.float32), Silent(), [], []
    DeviceLedger.create(path).close()
    with Guard.open(POLICIES[trust.guards_server], path, noise) as guard:
        for number, one in enumerate(updates(arm.clip_norm), 1):
            terms, kept = round_terms(arm, "run", number, "zero-out"), {}

            def ask(stage, terms=terms, kept=kept, one=one, **more):
                question = Question(stage, terms.as_dict(), model, **more)
                return answering.answer(guard, terms, question, lambda *_: one, kept, bytes)

            if terms.asks_norms:
                norms.append(ask("norm"))
            update = ask("update", **more, rule=arm.rule if decides else None)
            sent.append(update if update.size else np.zeros(SIZE))
        ledger = guard.ledger.charges()
    found = {}
    for relation in RELATIONS:
        now = arm.at_public(float(public))
        stds = {now.sum_multiplier * arm.clip_norm}, {now.update_multiplier * bound}
        charge = charged(now, relation)
        first, second = charge.first, charge.second
        if trust.clients_add_noise:
            each = {one.release: message_mu_squared(one, relation) for one in ledger}
            first, second = each.get("norm", 0.0), each["update"]
            stages = 1 + bool(norms)
            stds = {*noise.stds[::stages]}, {*noise.stds[stages - 1 :: stages]}
        (norm_std,), (std,) = stds  # the same whatever the data are
        found[relation] = (
            furthest(norms, relation) / norm_std / math.sqrt(first) if norms else 0.0,
            furthest(sent, relation) / std / math.sqrt(second),
        )
    return found


def furthest(values, relation):
    """From no update or, under replace, from any other."""
    values = np.array(values, float)
    off = np.linalg.norm(values[:, None] - values[None], axis=2)
    return off[0].max() if relation == "zero-out" else off.max()


@pytest.mark.parametrize(("arm", "_"), rows(CASES))
def test_no_message_moves_by_more_than_is_charged(arm, _, tmp_path):
    for number, (told, share) in enumerate([(0.5, 0.9), (1.0, 0.8), (0.9, 1.0)]):
        if arm.parts[0].jointly:  # a probability is what it has released
            own = public = np.float32(told * arm.largest_probability)
        else:
            own, public = np.float32([told * arm.clip_norm, share * arm.cohort * arm.clip_norm])
        for relation, (norm, update) in shifts(arm, tmp_path / f"{number}", own, public).items():
            assert norm <= 1 + SLACK, relation
            assert update <= 1 + SLACK, relation


@pytest.mark.parametrize("trust", ["central", "local"])
def test_a_clip_that_is_skipped_for_one_length_is_found(monkeypatch, tmp_path, trust):
    real = answering.clip

    def clip(vector, bound, lengths="clipped"):
        length = np.linalg.norm(vector)
        return np.asarray(vector) if 2.5 < length < 2.7 else real(vector, bound, lengths)

    arm = arm_of("uniform", "literal", trust, "poisson", dropouts=True)
    public = np.float32(0)
    monkeypatch.setattr(answering, "clip", clip)
    monkeypatch.setattr("locksfl.federation.device.guard.clip", clip)
    assert shifts(arm, tmp_path / "ledger", public, public)["zero-out"][1] > 2.4
