"""The server is trusted with raw updates and adds noise to the sums.

Guarantee: all sums of a round come from one cohort, which was chosen as the arm's sampling states,
and only the noisy sums leave the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locksfl.methods.events import EXACT, Rounds, Terms
from locksfl.methods.trusts import Most, Trust

if TYPE_CHECKING:
    from locksfl.arm import Arm


def noise_std(bounds: Any, bound: Any, uploaded: Any, dials: Any, total: Any, xp: Any) -> Any:
    """Added once to the sum, in units of the public bound of one contribution: it does not depend
    on which clients took part."""
    del bounds, uploaded, total, xp
    return dials.noise_multiplier * bound


def terms(arm: Arm, most: Most) -> Terms:
    """Sums with noise for PUBLIC; whatever the clients send for the server."""
    del most
    return {"SERVER": (EXACT,), "PUBLIC": (Rounds(arm.event(), arm.rounds),)}


trust = Trust(
    name="central",
    about="noise by the server",
    statement="The server adds the noise and is trusted with raw updates. The guarantee holds "
    "against everybody else (PUBLIC), who sees the models and the public bundle.",
    sees={
        "SERVER": "sees every update as it is, and whose it is",
        "PUBLIC": "sees the models, which are made of sums with noise; not who took part, nor how "
        "many",
    },
    terms=terms,
    server_adds_noise=True,
    clients_add_noise=False,
    noise_std=noise_std,
)
