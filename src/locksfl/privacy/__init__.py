"""What the releases cost: records of what was released, accountants, and calibration.

Events describe what an observer saw; `central_epsilon` (PUBLIC, central trust) and `local_epsilon`
(SERVER, local trust) convert them to epsilon; `calibrate_central` and `calibrate_local` go the
other way. Nothing here touches data or draws randomness, and every epsilon is an upper bound.
"""

from __future__ import annotations

from locksfl.methods.releases import (
    ACCOUNTANTS,
    OBSERVERS,
    RELATIONS,
    Accountant,
    ClientReleases,
    Relation,
    Release,
    SampledRound,
)
from locksfl.privacy.accountant import central_epsilon, central_epsilons, local_epsilon
from locksfl.privacy.budget import Budget
from locksfl.privacy.calibration import calibrate, calibrate_central, calibrate_local
from locksfl.privacy.gdp import delta_from_mu, epsilon_from_mu, mu_from_epsilon
from locksfl.privacy.meter import Meter
from locksfl.privacy.statement import (
    Cost,
    Counts,
    account,
    delta_warning,
    guarantee,
    most_rounds,
    spent,
)

__all__ = [
    "ACCOUNTANTS",
    "OBSERVERS",
    "RELATIONS",
    "Accountant",
    "Budget",
    "ClientReleases",
    "Cost",
    "Counts",
    "Meter",
    "Relation",
    "Release",
    "SampledRound",
    "account",
    "calibrate",
    "calibrate_central",
    "calibrate_local",
    "central_epsilon",
    "central_epsilons",
    "delta_from_mu",
    "delta_warning",
    "epsilon_from_mu",
    "guarantee",
    "local_epsilon",
    "most_rounds",
    "mu_from_epsilon",
    "spent",
]
