"""The paper's own privacy formulas, as printed and as they should be, and its honest epsilons.

For comparison only: nothing here accounts a run. Its theorem takes a step of epsilon_step, composes
T of them, and adds norms and updates in expectation. Three things go wrong:

* The composition has lost a factor epsilon_step in its second term (Kairouz, Oh and Viswanath 2015,
  Theorem 3.4; 3.3 is the exact optimum). Up to epsilon_step = 1 that only makes it too large; above
  1 it is no bound if T is large: from 1.65 on at T = 100, from 1.1 on at T = 1000 (delta = 1e-5).
* m epsilon_s + b epsilon_0 adds up over different clients, whose data are disjoint; a client pays
  epsilon_s + epsilon_0 in a round at most, but in every round: there is no T in the formula, and an
  expectation over the sampling guarantees nothing to the client that was drawn most.
* Its noise multiplier is that of a trusted server's sum over a secret cohort, but each client adds
  it to its own update, in front of a server that knows whom it asked: no amplification.

T = 100, delta = 1e-5 and the cohorts below are reconstructed: they give the paper's multipliers
(1.326 and 0.556 by RDP for epsilon 10 and 50, uniform, 20 of 100), and are not in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from locksfl import _validate
from locksfl.methods.events import Message, Rounds, Sampled
from locksfl.methods.releases import RELATIONS, Relation
from locksfl.privacy.accountant import epsilon_of
from locksfl.privacy.calibration import calibrate_central

CLIENTS, COHORT, ROUNDS, DELTA = 100, 20, 100, 1e-5
BUSIEST = 30  # uploads of the busiest client of a run, about
MULTIPLIERS = {10.0: 1.32, 50.0: 0.5}  # by claimed epsilon


def composed_as_printed(epsilon_step: float, rounds: int, delta: float) -> float:
    """eps_step sqrt(2 T ln(1/delta)) + T (e^eps_step - 1)/(e^eps_step + 1), for a total
    delta of (T + 1) delta. Not a bound."""
    _checked(epsilon_step, rounds, delta)
    return epsilon_step * math.sqrt(2 * rounds * math.log(1 / delta)) + rounds * math.tanh(
        epsilon_step / 2
    )


def composed(epsilon_step: float, rounds: int, slack: float) -> float:
    """The same as it should be: T releases of (epsilon_step, delta_step) together are
    (epsilon, T delta_step + slack)-DP with the smaller of T eps_step and

        eps_step sqrt(2 T ln(1/slack)) + T eps_step (e^eps_step - 1)/(e^eps_step + 1).
    """
    _checked(epsilon_step, rounds, slack)
    strong = epsilon_step * (
        math.sqrt(2 * rounds * math.log(1 / slack)) + rounds * math.tanh(epsilon_step / 2)
    )
    return min(rounds * epsilon_step, strong)


def reconstructed() -> list[dict[str, float]]:
    """The paper's two multipliers and epsilons, each from the other, by RDP at the settings above:
    what shows that T, delta and the cohort are about those that it used."""
    rate, rows = COHORT / CLIENTS, []
    for claimed, z in MULTIPLIERS.items():
        calibrated = calibrate_central(claimed, DELTA, ROUNDS, rate, accountant="rdp")
        played = [Rounds(Sampled(rate, z), ROUNDS)]
        cost = epsilon_of(played, DELTA, accountant="rdp").epsilon
        rows.append(
            {
                "claimed_epsilon": claimed,
                "printed_multiplier": z,
                "multiplier_for_the_claim": calibrated.known(),
                "epsilon_of_the_multiplier": cost,
            }
        )
    return rows


@dataclass(frozen=True)
class HonestRow:
    """One reading of the paper's experiment: epsilons by relation; None is infinite."""

    claimed_epsilon: float  # by the paper
    noise_multiplier: float  # as the paper prints it
    reading: str
    server: dict[Relation, float | None]  # against SERVER
    public: dict[Relation, float | None]  # against PUBLIC


def honest_table() -> list[HonestRow]:
    """What the multipliers of the paper's experiment cost, by who is meant and what is released.

    Local trust, no filter: PUBLIC is charged like SERVER, because nothing better can be promised
    while the number of uploaders varies.
    """
    rows = []
    for claimed, z in MULTIPLIERS.items():
        for reading, uploads, norms in (
            (f"clients add it, {COHORT} uploads (expected)", COHORT, 0),
            (f"clients add it, {BUSIEST} uploads (the busiest)", BUSIEST, 0),
            (f"and {BUSIEST} norms beside {COHORT} uploads", COHORT, BUSIEST),
            (f"clients add it, {ROUNDS} uploads (no cap: the guarantee)", ROUNDS, 0),
        ):
            sent = [Rounds(Message("update", z), uploads), Rounds(Message("norm", z), norms)]
            costs: dict[Relation, float | None]
            costs = {relation: epsilon_of(sent, DELTA, relation).epsilon for relation in RELATIONS}
            rows.append(HonestRow(claimed, z, reading, costs, costs))
        played = [Rounds(Sampled(COHORT / CLIENTS, z), ROUNDS)]
        public: dict[Relation, float | None]
        public = {r: epsilon_of(played, DELTA, r, "rdp").epsilon for r in RELATIONS}
        reading = "a trusted server adds it once (not what is printed)"
        rows.append(HonestRow(claimed, z, reading, dict.fromkeys(RELATIONS), public))
    return rows


def _checked(epsilon_step: float, rounds: int, delta: float) -> None:
    _validate.positive(epsilon_step=epsilon_step)
    _validate.count(rounds=rounds)
    _validate.probability(delta=delta)
