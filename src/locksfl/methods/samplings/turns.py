"""Clients take turns by a public schedule, and the noise of rounds may be correlated.

A public shuffle puts the n clients into k groups; group t mod k is asked in round t, all of it, and
all of it uploads. k is the `separation`: a client takes part every k rounds, T/k times (rounded
up). Everybody may know when, so nothing is amplified. What the noise is, and what that costs:
`methods.cyclic`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from locksfl.methods import cyclic
from locksfl.methods.events import Turns
from locksfl.methods.samplings import Clients, Sampling, Settings

if TYPE_CHECKING:
    from locksfl.arm import Arm
    from locksfl.methods.sound import Problem

MOST_APART = 3  # rounds, of a client's turns in a replay


@lru_cache(maxsize=8)
def shuffled(clients: int) -> npt.NDArray[np.int64]:
    """The clients in an order that is public, the same for everybody, and free of data."""
    return np.argsort(np.random.Philox(0).random_raw(clients), kind="stable")


def group_of(clients: int, separation: int, round_index: int) -> Clients:
    """The clients whose turn it is: sorted numbers."""
    return np.sort(shuffled(clients)[round_index % separation :: separation]).astype(np.int32)


def event(arm: Arm) -> Turns:
    """Nothing is secret but the noise; its matrix, which takes seconds to find, costs nothing."""
    return Turns(arm.separation, arm.noise.known(), arm.bands)


def strategy(arm: Arm) -> tuple[float, ...]:
    """The best matrix of so many bands."""
    return cyclic.strategy(arm.rounds, arm.bands) if min(arm.bands, arm.rounds) > 1 else ()


def derived(where: str, cohort: float | None, clients: int) -> Mapping[str, int]:
    """The separation, from a cohort that divides the clients."""
    if not clients or not cohort or cohort < 0 or clients % cohort:
        raise ValueError(
            f"{where}.separation is missing: sampling 'cyclic' needs the number of rounds from a "
            f"client's turn to its next, or a cohort that divides the {clients} clients"
        )
    return {"separation": int(clients // cohort)}


def defaults(arm: Arm) -> Settings:
    """A whole group is asked; the noise is correlated from one turn of a client to its next."""
    return {
        "cohort": arm.clients / arm.separation,
        "bands": arm.separation if arm.private else 1,
    }


def unsound(arm: Arm) -> Iterator[Problem]:
    """What needs coins, or would cost more than turns are charged."""
    rule, _, trust = arm.parts
    if arm.separation > arm.clients:
        problem = f"expected at most the {arm.clients} clients, so that no group is empty"
        yield "separation", str(arm.separation), problem
    if arm.bands > arm.separation:
        problem = (
            f"expected at most the separation, {arm.separation}: with more, a client's rounds "
            "overlap in the noise and cost more than is charged"
        )
        yield "bands", str(arm.bands), problem
    turns = "where clients take turns"
    if trust.clients_add_noise:
        problem = (
            f"not {turns}: a client's own noise is independent in each message, and the server "
            "knows whom it asks anyway; expected a trust whose server adds noise to sums"
        )
        yield "trust", repr(arm.trust), problem
    if not trust.private and arm.bands > 1:
        yield "bands", str(arm.bands), f"trust {arm.trust!r} adds no noise; leave it out"
    plain = rule.asks is None and not rule.takes and not rule.count_share
    if not plain or rule.everyone:
        problem = f"not {turns}: everybody whose turn it is uploads; expected rule 'uniform'"
        yield "rule", repr(arm.rule), problem
    size = arm.clients / arm.separation
    for name in ("cohort", "uploads"):
        if abs(getattr(arm, name) - size) > 1e-9 * size:
            problem = f"{turns}, it is clients / separation = {size:g}; leave it out"
            yield name, f"{getattr(arm, name):g}", problem
    if arm.largest_probability < 1:
        problem = f"not {turns}: it keeps some of them from uploading; expected rule 'uniform'"
        yield "rule", repr(arm.rule), problem
    if arm.clip_quantile is not None:
        problem = (
            f"not {turns}: the noise of several rounds is one release, in units of one clip norm; "
            "expected a fixed clip norm"
        )
        yield "clip_quantile", repr(arm.clip_quantile), problem
    if arm.budget is not None:
        problem = f"not {turns}: each takes part equally often; expected privacy.epsilon alone"
        yield "budget", repr(arm.budget), problem
    if arm.dropouts:
        problem = "not in a federation: devices cannot be relied upon to come when it is their turn"
        yield "separation", str(arm.separation), problem


def shortened(arm: Arm, clients: int) -> Settings:
    """Two turns of each client, and as many rounds after each as the noise lasts."""
    apart = min(arm.separation, MOST_APART)
    group = clients / apart
    few = {"rounds": 2 * apart, "separation": apart, "bands": min(arm.bands, apart)}
    return {**few, "cohort": group, "uploads": group}


def story(arm: Arm) -> str:
    """How often they were asked."""
    noise = f"; noise correlated over {arm.bands} rounds" if arm.bands > 1 else ""
    return (
        f"clients took turns, every {arm.separation} rounds, in public; nothing is "
        f"amplified{noise}."
    )


sampling = Sampling(
    name="cyclic",
    about="'cyclic' with a separation",
    event=event,
    unsound=unsound,
    secret=False,
    group=lambda arm, t: group_of(arm.clients, arm.separation, t),
    apart=lambda arm: arm.separation,
    strategy=strategy,
    takes={
        "separation": "only with sampling 'cyclic'; independent coins keep no distance between a "
        "client's rounds",
        "bands": "not with sampling {word!r}: correlated noise is charged for rounds of a client "
        "that lie `separation` apart; expected sampling 'cyclic'",
    },
    derived=derived,
    defaults=defaults,
    shortened=shortened,
    tells=("separation", "bands"),
    asked="a public schedule decided which clients were asked",
    known="a public schedule of who is asked",
    counts="Where clients take turns, a public schedule decides who is asked: these are the "
    "numbers of a whole group, on average.",
    reservation="turns: clients of an arm were asked by a public schedule, a fixed number of "
    "rounds (separation) from one turn to the next. So nothing is gained by a secret sample, and "
    "the epsilons assume that the schedule was kept. The noise of a round may take back part of "
    "that of earlier rounds (bands): all rounds together are then charged as one release, and only "
    "simulations can be played so.",
    noise="clients take turns, {arm.separation} rounds apart, in public: nothing is amplified; the "
    "noise may be correlated over up to {arm.separation} rounds (bands)",
    story=story,
)
