"""The server is trusted with raw updates and adds noise to the sums.

Guarantee: both sums come from one secret Poisson cohort, or from clients that take turns in public
(methods/cyclic.py), and only the noisy sums leave the server.
"""

from __future__ import annotations

from typing import Any

from locksfl.methods.trusts import Trust, View, exact_sum


def release_norms(
    norms: Any, members: Any, server_noise: Any, dials: Any, total: Any, xp: Any
) -> tuple[Any, Any]:
    """The server keeps the true norms to itself and releases their noisy sum."""
    noise = dials.norm_multiplier * dials.clip_norm * server_noise
    return norms, exact_sum(norms, members, total, xp) + noise


def noise_std(bounds: Any, bound: Any, uploaded: Any, dials: Any, total: Any, xp: Any) -> Any:
    """Added once to the sum, in units of the public bound of one contribution: it does not depend
    on which clients took part."""
    del bounds, uploaded, total, xp
    return dials.noise_multiplier * bound


trust = Trust(
    name="central",
    about="noise by the server",
    statement="The server adds the noise and is trusted with raw updates. The guarantee holds "
    "against everybody else (PUBLIC), who sees the models and the public bundle.",
    server=View.RAW,
    public=View.AMPLIFIED,
    server_adds_noise=True,
    clients_add_noise=False,
    release_norms=release_norms,
    noise_std=noise_std,
)
