"""What a device has spent and has left, for its owner: read from the ledger; nothing is written.

"Spent" is a share of the budget in mu^2, which adds up over runs; epsilons do not. The guarantee of
a device is its budget, not what was spent so far.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from locksfl.federation.device.ledger import DeviceLedger, RunTally
from locksfl.federation.device.policy import Policy
from locksfl.federation.device.terms import RoundTerms
from locksfl.methods.events import Event
from locksfl.privacy.budget import charges, mu_squared
from locksfl.privacy.gdp import epsilon_from_mu

SEARCH_LIMIT = 10**9  # rounds: a budget that pays for more does not bind


def ledger_view(path: Path, policy: Policy) -> dict[str, Any]:
    """The view of a file, all of which is verified."""
    with DeviceLedger.open(path, whole=True) as ledger:
        return view_of(ledger, policy)


def view_of(ledger: DeviceLedger, policy: Policy) -> dict[str, Any]:
    """A table for `locks federation ledger`: JSON without infinities (None stands for infinite).

    runs: each run and set of terms with its rounds, norms, updates, what is still open, and its
    share of the budget. `rounds_left`: rounds like the latest one; before the first, all that the
    policy allows. `exhausted`: one more would be refused; `message` says so in one line.
    """
    tallies, charged, rounds = ledger.tallies(), ledger.charges(), ledger.rounds()
    budget, spent = policy.budget, mu_squared(charged, policy.relation)
    latest = max(tallies, key=lambda tally: tally.latest).terms if tallies else None
    left = 0 if ledger.restored else rounds_left(charged, rounds, latest, policy)
    view: dict[str, Any] = {
        "ledger": str(ledger.path),
        "head": ledger.head,
        "trust": policy.trust,
        "relation": policy.relation,
        "budget": None if budget is None else asdict(budget),
        "spent_epsilon": None,
        "spent_share": None,
        "rounds": rounds,
        "max_rounds": policy.max_rounds,
        "rounds_left": left,
        "raw_releases": any(not t.terms.known_trust.guards_server for t in tallies),
        "exhausted": left == 0,
        "restored": ledger.restored,
        "runs": [_row(tally, policy) for tally in tallies],
    }
    if budget is not None and math.isfinite(spent):
        view["spent_epsilon"] = epsilon_from_mu(math.sqrt(spent), budget.delta)
        view["spent_share"] = spent / budget.mu_squared
    view["message"] = _message(view)
    return view


def rounds_left(
    charged: Counter[Event], rounds: int, latest: RoundTerms | None, policy: Policy
) -> int | None:
    """How many more rounds like the latest one the budget pays for."""
    budget, limits = policy.budget, [max(0, policy.max_rounds - rounds)]
    if budget is not None and latest is not None:
        low, high = 0, SEARCH_LIMIT
        while high > low:
            middle = (low + high + 1) // 2
            paid = budget.pays(charged + charges(latest.releases(), middle, middle))
            low, high = (middle, high) if paid else (low, middle - 1)
        limits.append(low)
    return min(limits)


def _row(tally: RunTally, policy: Policy) -> dict[str, Any]:
    charged = charges(tally.terms.releases(), tally.rounds, tally.uploads)
    budget, mine = policy.budget, mu_squared(charged, policy.relation)
    shared = budget is not None and math.isfinite(mine)
    return {
        "run": tally.terms.run,
        "trust": tally.terms.trust,
        "rounds": tally.rounds,
        "norms": tally.rounds if tally.terms.asks_norms else 0,
        "updates": tally.sent,
        "open": tally.uploads - tally.sent,
        "noise_multiplier": tally.terms.noise_multiplier,
        "norm_multiplier": tally.terms.norm_multiplier,
        "clip_norm": tally.terms.clip_norm,
        "share": mine / budget.mu_squared if shared and budget is not None else None,
        "latest": tally.latest,
    }


def _message(view: dict[str, Any]) -> str:
    path, budget = view["ledger"], view["budget"]
    if view["restored"]:
        return (
            f"{path}: restored from an older copy; its budget counts as spent until the device's "
            "owner opens a new one (locks federation ledger --new-budget); nothing is released"
        )
    if budget is None:
        told = f"{path}: {view['rounds']} of {view['max_rounds']} rounds; the server saw raw values"
        return f"{told}; no rounds are left" if view["exhausted"] else told
    if view["raw_releases"]:
        return f"{path}: raw values were sent, so no budget holds any more"
    told = f"{path}: epsilon {view['spent_epsilon']:.4g} of {budget['epsilon']:g} is spent"
    if view["rounds"] >= view["max_rounds"]:
        return f"{told} in all {view['max_rounds']} rounds that the policy allows"
    if not view["exhausted"]:
        return told
    return f"{told}, and what is left does not pay for another round; nothing is released"
