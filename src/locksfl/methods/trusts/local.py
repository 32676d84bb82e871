"""Each client adds noise to its own messages before they leave it.

Guarantee: a release is a Gaussian with the stated multiplier, and the upload probabilities are a
function of released norms only, so that the server learns nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from locksfl.methods.events import Filtered, Message, Rounds, Terms
from locksfl.methods.trusts import Most, Trust

if TYPE_CHECKING:
    from locksfl.arm import Arm


def noise_std(bounds: Any, bound: Any, uploaded: Any, dials: Any, total: Any, xp: Any) -> Any:
    """Each uploader's noise is in units of its own bound; variances add."""
    del bound
    return dials.noise_multiplier * xp.sqrt(total(xp.where(uploaded, bounds**2, 0.0)))


def terms(arm: Arm, most: Most) -> Terms:
    """One client's own messages, of the client that sends most, for both observers; PUBLIC may see
    an update only in a sum of so many noises."""
    update, norm = arm.messages()
    if arm.budget is not None:
        kept = arm.budget
        of_norm = None if norm is None else norm.noise_multiplier
        event = Filtered(update.noise_multiplier, kept.epsilon, kept.delta, kept.relation, of_norm)
        return dict.fromkeys(("SERVER", "PUBLIC"), (Rounds(event, arm.rounds),))
    norms, uploads = most or (arm.rounds, arm.rounds)
    beside = () if norm is None else (Rounds(norm, norms),)
    # others are sure to upload in the same rounds only if nothing limits how often a client does
    summed = arm.credited and arm.everyone_uploads and uploads == arm.rounds
    in_sums = Message("update", update.noise_multiplier, arm.clients) if summed else update
    return {
        "SERVER": (Rounds(update, uploads), *beside),
        "PUBLIC": (Rounds(in_sums, uploads), *beside),
    }


trust = Trust(
    name="local",
    about="noise by each client",
    statement="Each client adds its own noise before anything leaves it. The guarantee holds "
    "against the server (SERVER) and so against everyone else.",
    sees={
        "SERVER": "sees who takes part, and what each of them sends: an update and, where it is "
        "asked for, its size, to which the client itself has added noise",
        "PUBLIC": "sees the models, and is counted as if it saw all that the server sees",
    },
    terms=terms,
    server_adds_noise=False,
    clients_add_noise=True,
    noise_std=noise_std,
)
