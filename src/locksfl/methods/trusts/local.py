"""Each client adds noise to its own messages before they leave it.

Guarantee: a release is a Gaussian with the stated multiplier, and the upload probabilities are a
function of released norms only, so that the server learns nothing else.
"""

from __future__ import annotations

from typing import Any

from locksfl.methods.trusts import Trust, View, exact_sum


def release_norms(
    norms: Any, members: Any, server_noise: Any, dials: Any, total: Any, xp: Any
) -> tuple[Any, Any]:
    """Each client sends its noisy norm; clipping to [0, C] afterwards costs nothing."""
    del server_noise
    noise = dials.norm_multiplier * dials.clip_norm * members.norm_noise
    released = xp.clip(norms + noise, 0.0, dials.clip_norm)
    return released, exact_sum(released, members, total, xp)


def noise_std(bounds: Any, bound: Any, uploaded: Any, dials: Any, total: Any, xp: Any) -> Any:
    """Each uploader's noise is in units of its own bound; variances add."""
    del bound
    return dials.noise_multiplier * xp.sqrt(total(xp.where(uploaded, bounds**2, 0.0)))


trust = Trust(
    name="local",
    about="noise by each client",
    statement="Each client adds its own noise before anything leaves it. The guarantee holds "
    "against the server (SERVER) and so against everyone else.",
    server=View.NOISED,
    public=View.NOISED,
    server_adds_noise=False,
    clients_add_noise=True,
    release_norms=release_norms,
    noise_std=noise_std,
)
