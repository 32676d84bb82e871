"""What the releases cost: accountants, calibration, statements, ledgers and budgets.

In: events, which describe what an observer saw, and the noise of an arm.
Out: what they cost together (`epsilon_of`), the noise that an epsilon needs (`calibrate_central`,
    `calibrate_local`), and what was spent. Every epsilon is an upper bound.
May not import: data, or anything that draws randomness; nor JAX, since devices read this room.
"""

from __future__ import annotations

from locksfl.methods.events import Message, Rounds, Sampled, SampledTwice, Turns
from locksfl.methods.releases import (
    ACCOUNTANTS,
    OBSERVERS,
    RELATIONS,
    Accountant,
    Relation,
)
from locksfl.privacy.accountant import epsilon_of, epsilons_after
from locksfl.privacy.budget import Budget
from locksfl.privacy.calibration import calibrate, calibrate_central, calibrate_local
from locksfl.privacy.gdp import delta_from_mu, epsilon_from_mu, mu_from_epsilon
from locksfl.privacy.guarantees import (
    Cost,
    Counts,
    account,
    delta_warning,
    guarantee,
    most_rounds,
    spent,
)
from locksfl.privacy.meter import Meter

__all__ = [
    "ACCOUNTANTS",
    "OBSERVERS",
    "RELATIONS",
    "Accountant",
    "Budget",
    "Cost",
    "Counts",
    "Message",
    "Meter",
    "Relation",
    "Rounds",
    "Sampled",
    "SampledTwice",
    "Turns",
    "account",
    "calibrate",
    "calibrate_central",
    "calibrate_local",
    "delta_from_mu",
    "delta_warning",
    "epsilon_from_mu",
    "epsilon_of",
    "epsilons_after",
    "guarantee",
    "most_rounds",
    "mu_from_epsilon",
    "spent",
]
