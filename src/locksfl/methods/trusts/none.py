"""Nobody adds noise: a separate setting, never a noise of zero by accident."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locksfl.methods.events import EXACT, Terms
from locksfl.methods.trusts import Most, Trust

if TYPE_CHECKING:
    from locksfl.arm import Arm


def noise_std(bounds: Any, bound: Any, uploaded: Any, dials: Any, total: Any, xp: Any) -> Any:
    """Zero."""
    del bounds, uploaded, dials, total
    return xp.zeros_like(bound)


def terms(arm: Arm, most: Most) -> Terms:
    """Everything, as it is."""
    del arm, most
    return {"SERVER": (EXACT,), "PUBLIC": (EXACT,)}


trust = Trust(
    name="none",
    about="no noise",
    statement="Nobody added noise. There is no privacy guarantee against anyone.",
    sees={
        "SERVER": "sees every update as it is, and whose it is",
        "PUBLIC": "sees the models, which were made without any noise",
    },
    terms=terms,
    server_adds_noise=False,
    clients_add_noise=False,
    noise_std=noise_std,
)
