"""The guard: what it refuses, what it charges, and that both hold whatever a server sends."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from checks import charged_arm, client_cost, filter_of, std_is
from locksfl.federation.device import DeviceLedger, Guard, Policy, Refusal, Refused, RoundTerms
from locksfl.federation.device.view import ledger_view
from locksfl.federation.server.ledger import ServerLedger
from locksfl.privacy import Budget, epsilon_from_mu
from locksfl.privacy.budget import mu_squared
from locksfl.privacy.journal import Header
from locksfl.round.noise import SystemNoise

POLICY = Policy(
    epsilon=2.0,
    delta=1e-5,
    max_clip_norm=1.0,
    min_noise_multiplier=4.0,
    min_norm_multiplier=8.0,
    max_rounds=1000,
)  # mu^2 = 0.252: three whole rounds of 1/16 + 1/64
CENTRAL = Policy(
    trust="central",
    max_clip_norm=1.0,
    min_noise_multiplier=1.0,
    min_norm_multiplier=1.0,
    max_rounds=3,
)


class Counted:
    """Repeatable noise that counts its draws."""

    def __init__(self, seed=0):
        self.inner, self.draws = SystemNoise(np.random.default_rng(seed).bytes), 0

    def steps(self, std, grid, size):
        self.draws += 1
        return self.inner.steps(std, grid, size)


def asks(number, run="one", **changes):
    """Rule norm, as the policy just allows."""
    terms = RoundTerms(run, number, True, 1.0, 4.0, 8.0)
    return replace(terms, **changes)


def plain(number, run="one", **changes):
    """A rule that asks for no norm."""
    return replace(RoundTerms(run, number, False, 1.0, 4.0), **changes)


@pytest.fixture
def path(tmp_path):
    DeviceLedger.create(tmp_path / "ledger.db").close()
    return tmp_path / "ledger.db"


@pytest.fixture
def guard(path):
    with Guard.open(POLICY, path, Counted()) as found:
        yield found


def refuses(code, call, *values):
    with pytest.raises(Refused) as caught:
        call(*values)
    assert caught.value.code is code
    assert caught.value.args == (int(code),)  # a number, no text


def spent(guard):
    return mu_squared(guard.ledger.charges(), guard.policy.relation)


def test_a_round_is_reserved_whole_then_committed_or_refunded(guard):
    norm, update = 1 / 8**2, 1 / 4**2
    assert 0 <= guard.release_norm(asks(1), 0.4) <= 1
    assert spent(guard) == norm + update
    guard.release_update(asks(1), np.ones(5), 1.0)
    assert spent(guard) == norm + update
    guard.release_norm(asks(2), 0.4)
    assert spent(guard) == 2 * (norm + update)
    guard.end_round("one", 2)
    assert spent(guard) == 2 * norm + update
    guard.release_norm(asks(3), 0.4)
    guard.release_norm(asks(4), 0.4)  # the run went on: round 3 is over, its upload refunded
    assert spent(guard) == 4 * norm + 2 * update
    refuses(Refusal.REPEATED, guard.release_update, asks(3), np.ones(5), 1.0)


@pytest.mark.parametrize("uploads", [[True] * 40, [False] * 40, [True, False, False] * 14])
def test_it_stops_at_the_same_round_as_the_simulators_filter(tmp_path, uploads):
    """A client of the simulator and a device with the same budget are asked the same rounds."""
    terms = charged_arm("local", "norm", 1, 40, 1.0, 1.0, noise_multiplier=4.0, norm_multiplier=8.0)
    simulated = filter_of(terms, Budget(2.0, 1e-5))
    DeviceLedger.create(tmp_path / "l.db").close()
    with Guard.open(POLICY, tmp_path / "l.db", Counted()) as guard:
        for number, drawn in enumerate(uploads[:40], 1):
            could = bool(simulated.can_pay()[0])
            if not could:
                refuses(Refusal.BUDGET, guard.release_norm, asks(number), 0.5)
                continue
            simulated.enter(np.array([0]), np.array([drawn]))
            guard.release_norm(asks(number), 0.5)
            if drawn:
                guard.release_update(asks(number), np.ones(3), 1.0)
        guard.end_round("one", 40)
        last = client_cost(terms, int(simulated.uploads[0]), int(simulated.norms[0]))
        assert spent(guard) == pytest.approx(last, rel=1e-15)


def test_the_budget_spans_runs_and_restarts(path):
    for number in range(1, 9):
        with Guard.open(POLICY, path, Counted()) as guard:
            terms = plain(1, run=f"run {number}")
            if number > 4:  # 4/16 <= 0.252 < 5/16
                refuses(Refusal.BUDGET, guard.release_update, terms, np.ones(4), 1.0)
            else:
                guard.release_update(terms, np.ones(4), 1.0)


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        (asks(1, noise_multiplier=3.999), Refusal.NOISE),
        (asks(1, norm_multiplier=7.999), Refusal.NOISE),
        (asks(1, clip_norm=1.001), Refusal.CLIP),
        (asks(1, relation="replace"), Refusal.RELATION),
        (asks(1, trust="central"), Refusal.TRUST),
        (plain(1), Refusal.MALFORMED),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_and_nothing_is_written(guard, terms, code):
    before = guard.ledger.head
    refuses(code, guard.check, terms, "norm")
    refuses(code, guard.release_norm, terms, 0.5)
    if terms.asks_norms:
        refuses(code, guard.release_update, terms, np.ones(3), 1.0)
    assert guard.ledger.head == before
    assert guard._noise.draws == 0


def test_a_device_without_a_norm_multiplier_sends_no_norm(path):
    with Guard.open(replace(POLICY, min_norm_multiplier=None), path, Counted()) as guard:
        refuses(Refusal.NOISE, guard.release_norm, asks(1), 0.5)
        guard.release_update(plain(1), np.ones(3), 1.0)


GARBAGE = {
    "clip_norm": [math.nan, math.inf, 0.0, -1.0, 1e300, "1", None, True, 1e-30, [1.0]],
    "noise_multiplier": [math.nan, -math.inf, 0.0, -4.0, 1e-9, 1e9, "x", None, np.ones(2)],
    "norm_multiplier": [math.nan, 0.0, None, "8"],
    "round": [0, -1, 1.0, True, "1", 2**63, None, math.nan],
    "asks_norms": [1, "yes", None],
    "trust": ["none", "", None, 3, ["local"], np.array(["local", "local"])],
    "relation": ["zero", None, 1, np.array(["zero-out"] * 2)],
    "unknown": [1],
    "run": ["another"],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, vs in GARBAGE.items() for v in vs])
def test_garbage_is_malformed(key, value):
    refuses(Refusal.MALFORMED, RoundTerms.parse, "one", {**asks(1).as_dict(), key: value})
    missing = {k: v for k, v in asks(1).as_dict().items() if k != key}
    if key in ("clip_norm", "noise_multiplier", "norm_multiplier", "round", "asks_norms"):
        refuses(Refusal.MALFORMED, RoundTerms.parse, "one", missing)


@pytest.mark.parametrize("run", ["", "x" * 65, 7, None, "a\nb", "\u00e9"])
def test_a_run_has_a_plain_name(run):
    refuses(Refusal.MALFORMED, RoundTerms.parse, run, asks(1).as_dict())


def test_terms_survive_a_message():
    assert RoundTerms.parse("one", json.loads(json.dumps(asks(3).as_dict()))) == asks(3)
    whole = RoundTerms.parse("one", {**asks(3).as_dict(), "clip_norm": 1})
    assert whole == asks(3)
    assert isinstance(whole.clip_norm, float)


@pytest.mark.parametrize("bound", [math.nan, math.inf, 0.0, -1.0, 2e6, "1", None, 1e-13])
def test_an_absurd_bound_is_malformed_and_the_round_stays_open(guard, bound):
    guard.release_norm(asks(1), 0.5)
    refuses(Refusal.MALFORMED, guard.release_update, asks(1), np.ones(3), bound)
    guard.release_update(asks(1), np.ones(3), 2.0)


def test_nothing_is_drawn_twice(guard):
    """Replays, in any order and after a restart, get none: two draws in all."""
    guard.release_norm(asks(1), 0.5)
    refuses(Refusal.REPEATED, guard.release_norm, asks(1), 0.5)
    guard.release_update(asks(1), np.ones(3), 1.0)
    refuses(Refusal.REPEATED, guard.release_update, asks(1), np.ones(3), 1.0)
    refuses(Refusal.REPEATED, guard.release_norm, asks(1), 0.5)
    refuses(Refusal.REPEATED, guard.release_norm, asks(1, noise_multiplier=5.0), 0.5)
    refuses(Refusal.REPEATED, guard.release_update, plain(1), np.ones(3), 1.0)
    assert guard._noise.draws == 2
    with Guard.open(POLICY, guard.ledger.path, Counted()) as again:
        refuses(Refusal.REPEATED, again.release_norm, asks(1), 0.5)
        refuses(Refusal.REPEATED, again.release_update, asks(1), np.ones(3), 1.0)
        assert again._noise.draws == 0


def test_out_of_order_is_refused(guard):
    refuses(Refusal.ORDER, guard.release_update, asks(2), np.ones(3), 1.0)
    guard.release_norm(asks(2), 0.5)
    refuses(Refusal.ORDER, guard.release_norm, asks(1), 0.5)
    refuses(Refusal.ORDER, guard.release_update, plain(1), np.ones(3), 1.0)
    guard.release_norm(asks(1, run="two"), 0.5)  # another run has its own order
    guard.release_update(asks(2), np.ones(3), 1.0)


@pytest.mark.parametrize(
    "changes", [{"noise_multiplier": 8.0}, {"norm_multiplier": 9.0}, {"clip_norm": 0.5}]
)
def test_an_update_keeps_the_terms_of_its_norm(guard, changes):
    """Or a server would reserve a cheap round and take a dear one."""
    guard.release_norm(asks(1, **changes), 0.5)
    refuses(Refusal.TERMS, guard.release_update, asks(1), np.ones(3), 1.0)


def test_a_faked_refund_closes_the_round(guard):
    """Whoever says "not drawn" gets no update, before and after; and nothing is charged less."""
    guard.release_norm(asks(1), 0.5)
    guard.end_round("one", 1)
    guard.end_round("one", 1)
    refuses(Refusal.REPEATED, guard.release_update, asks(1), np.ones(3), 1.0)
    refuses(Refusal.REPEATED, guard.release_norm, asks(1), 0.5)
    guard.release_norm(asks(2), 0.5)
    guard.release_update(asks(2), np.ones(3), 1.0)
    guard.end_round("one", 99)
    assert spent(guard) == 2 / 8**2 + 1 / 4**2
    for run, number in (("one", math.nan), ("one", "1"), (3, 1), ("one", 10**30)):
        refuses(Refusal.MALFORMED, guard.end_round, run, number)


def test_a_budget_that_was_lowered_holds_for_open_rounds_too(path):
    with Guard.open(POLICY, path, Counted()) as guard:
        guard.release_norm(asks(1), 0.5)
    with Guard.open(replace(POLICY, epsilon=0.5), path, Counted()) as guard:
        refuses(Refusal.BUDGET, guard.release_update, asks(1), np.ones(3), 1.0)


def test_replace_is_charged_four_times_for_an_update(path):
    with Guard.open(replace(POLICY, relation="replace"), path, Counted()) as guard:
        guard.release_update(plain(1, relation="replace"), np.ones(3), 1.0)
        refuses(Refusal.BUDGET, guard.release_update, plain(2, relation="replace"), [1.0], 1.0)


def test_most_rounds_of_all_runs(path):
    with Guard.open(replace(POLICY, max_rounds=2), path, Counted()) as guard:
        guard.release_norm(asks(1), 0.5)
        guard.release_norm(asks(1, run="two"), 0.5)
        guard.release_update(asks(1), np.ones(3), 1.0)  # the rounds that began may end
        refuses(Refusal.BUDGET, guard.release_norm, asks(2), 0.5)


def test_the_release_has_the_noise_that_was_asked_for_and_the_bound(path):
    """std = multiplier * bound on a contribution cut to the bound; a wrong std is rejected."""
    with Guard.open(POLICY, path, Counted(3)) as guard:
        released = guard.release_update(plain(1), np.full(400_000, 1e6), 2.5)
    assert released.dtype == np.float32
    inside = 2.5 / math.sqrt(400_000)
    assert std_is(released - inside, 10.0)
    assert not std_is(released - inside, 10.1)
    assert not std_is(released - 1e3, 10.0)  # it was cut


def test_norms_lie_in_their_interval_and_are_noised(tmp_path):
    values = []
    for i in range(60):
        DeviceLedger.create(tmp_path / f"{i}.db").close()
        with Guard.open(POLICY, tmp_path / f"{i}.db", Counted(i)) as guard:
            values.append(guard.release_norm(asks(1), 0.5))
    assert min(values) == 0.0  # std is 8: clipped at both ends, and not constant between
    assert max(values) == 1.0
    assert len(set(values)) > 3


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_zero_silently(path, tmp_path, broken):
    """The very bytes that zero would give, from the same draws."""
    shutil.copyfile(path, tmp_path / "same.db")
    with (
        Guard.open(POLICY, path, Counted()) as guard,
        Guard.open(POLICY, tmp_path / "same.db", Counted()) as zero,
    ):
        assert guard.release_norm(asks(1), broken) == zero.release_norm(asks(1), 0.0)
        sent = guard.release_update(asks(1), [1.0, broken, 1.0], 1.0)
        assert sent.tolist() == zero.release_update(asks(1), np.zeros(3), 1.0).tolist()


def test_central_trust_is_raw_recorded_once_and_ends_every_budget(path):
    raw = {"trust": "central", "noise_multiplier": 1.0}
    with Guard.open(CENTRAL, path, Counted()) as guard:
        terms = asks(1, **raw)
        assert guard.release_norm(terms, 0.25) == 0.25
        assert guard.release_update(terms, [0.5, 0.0], 1.0).tolist() == [0.5, 0.0]
        refuses(Refusal.REPEATED, guard.release_update, terms, [0.5, 0.0], 1.0)
        refuses(Refusal.TRUST, guard.release_update, plain(2), [0.5, 0.0], 1.0)
        for number in (2, 3):
            guard.release_update(plain(number, **raw), [0.5, 0.0], 1.0)
        refuses(Refusal.BUDGET, guard.release_update, plain(4, **raw), [0.5, 0.0], 1.0)
        assert guard._noise.draws == 0
        assert [(t.rounds, t.sent) for t in guard.ledger.tallies()] == [(1, 1), (2, 2)]
        assert spent(guard) == math.inf
    view = ledger_view(path, CENTRAL)
    assert view["raw_releases"]
    assert view["exhausted"]
    with Guard.open(POLICY, path, Counted()) as guard:  # a finite budget would be a lie
        refuses(Refusal.BUDGET, guard.release_norm, asks(1, run="two"), 0.5)
    assert "no budget holds" in ledger_view(path, POLICY)["message"]


def test_a_ledger_that_cannot_be_written_releases_nothing(guard, monkeypatch):
    def full(*_):
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(guard.ledger, "append", full)
        refuses(Refusal.LEDGER, guard.release_norm, asks(1), 0.5)
        refuses(Refusal.LEDGER, guard.release_update, plain(1), np.ones(3), 1.0)
    assert guard._noise.draws == 0
    guard.release_norm(asks(1), 0.5)


def test_a_missing_or_foreign_ledger_is_no_new_budget(tmp_path, path):
    with pytest.raises(ValueError, match="no such ledger"):
        Guard.open(POLICY, tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()
    with pytest.raises(ValueError, match="already exists"):
        DeviceLedger.create(path)
    terms = charged_arm("local", "norm", 3, 8, 2.0, 2.0, 0.0, 1.0, 4.0, 8.0)
    arms = [(terms, None)]
    first = Header.of("e", arms, delta=1e-5, relation="zero-out", accountant="pld")
    ServerLedger.create(tmp_path / "s.db", first).close()
    with pytest.raises(ValueError, match="not the ledger of a device"):
        Guard.open(POLICY, tmp_path / "s.db")
    with pytest.raises(ValueError, match="not the ledger of a federation"):
        ServerLedger.open_for(path, "e")


def test_an_altered_ledger_is_refused(path):
    with Guard.open(POLICY, path, Counted()) as guard:
        guard.release_norm(asks(1), 0.5)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE entries SET terms = replace(terms, '4.0', '400.0')")
    db.close()
    with pytest.raises(ValueError, match="damaged or was altered"):
        Guard.open(POLICY, path)


def test_the_owner_sees_what_was_spent_by_run_and_what_is_left(path):
    fresh = ledger_view(path, POLICY)
    assert (fresh["spent_epsilon"], fresh["rounds_left"], fresh["runs"]) == (0.0, 1000, [])
    with Guard.open(POLICY, path, Counted()) as guard:
        guard.release_norm(asks(1), 0.5)
        guard.release_update(asks(1), np.ones(3), 1.0)
        guard.release_norm(asks(1, run="two"), 0.5)
    view = ledger_view(path, POLICY)
    mu = math.sqrt(2 / 8**2 + 2 / 4**2)
    assert view["spent_epsilon"] == epsilon_from_mu(mu, 1e-5)
    rows = [(r["run"], r["rounds"], r["norms"], r["updates"], r["open"]) for r in view["runs"]]
    assert rows == [("one", 1, 1, 1, 0), ("two", 1, 1, 0, 1)]
    assert sum(row["share"] for row in view["runs"]) == pytest.approx(view["spent_share"])
    assert view["rounds_left"] == 1
    assert not view["exhausted"]
    json.dumps(view, allow_nan=False)
    with Guard.open(POLICY, path, Counted()) as guard:
        guard.release_norm(asks(1, run="three"), 0.5)
        refuses(Refusal.BUDGET, guard.release_norm, asks(1, run="four"), 0.5)
    spent_view = ledger_view(path, POLICY)
    assert spent_view["exhausted"]
    assert "does not pay for another round" in spent_view["message"]


def test_a_device_starts_without_jax_and_without_flower():
    code = (
        "import sys\nfrom locksfl.federation.device import answering, view\n"
        "heavy = {'jax', 'flwr', 'dp_accounting', 'jax_privacy', 'matplotlib', 'typer', 'mpmath'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


HARSH = Path(__file__).with_name("crash_everywhere.py")


def run_harsh(*words):
    done = subprocess.run(
        [sys.executable, str(HARSH), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("scenario", ["norm", "update", "only", "next", "end"])
def test_killed_at_any_line_it_pays_first_and_draws_once(scenario, tmp_path):
    """kill -9 before every single line of guard, ledger, witness and noise, each time in a new
    process. Nobody is locked out, and once noise was drawn no older ledger is accepted."""
    told = run_harsh("kill", scenario, "sound", str(tmp_path))
    assert told["kills"] > 30
    assert told["violations"] == []


def test_killed_while_the_first_ledger_is_made_it_can_be_made_again(tmp_path):
    told = run_harsh("create", str(tmp_path))
    assert told["kills"] > 30
    assert told["violations"] == []


def test_a_guard_that_notes_afterwards_does_not_survive_the_kills(tmp_path):
    told = run_harsh("kill", "norm", "notes-afterwards", str(tmp_path))["violations"]
    assert [what for _, what in told] == ["noise was drawn and an old copy is accepted"]


@pytest.mark.parametrize("scenario", ["norm", "update"])
def test_a_guard_that_pays_afterwards_does_not_survive_the_kills(scenario, tmp_path):
    assert run_harsh("kill", scenario, "pays-afterwards", str(tmp_path))["violations"]


def test_many_processes_cannot_spend_the_same_money(tmp_path):
    """Eight at once: the budget pays for three rounds; one round of one run is answered once; and
    of a reserved round there is one entry more, the update's or the refund's, never both."""
    told = run_harsh("race", str(tmp_path))
    assert told.pop("codes") == [int(Refusal.BUDGET), int(Refusal.REPEATED)]
    assert told == {"different rounds": 3, "the same round": 1, "update or refund": 2}
