"""Nobody adds noise: a separate setting, never a noise of zero by accident."""

from __future__ import annotations

from typing import Any

from locksfl.methods.trusts import Trust, View, exact_sum


def release_norms(
    norms: Any, members: Any, server_noise: Any, dials: Any, total: Any, xp: Any
) -> tuple[Any, Any]:
    """The true norms, and their sum."""
    del server_noise, dials
    return norms, exact_sum(norms, members, total, xp)


def noise_std(bounds: Any, bound: Any, uploaded: Any, dials: Any, total: Any, xp: Any) -> Any:
    """Zero."""
    del bounds, uploaded, dials, total
    return xp.zeros_like(bound)


trust = Trust(
    name="none",
    about="no noise",
    statement="Nobody added noise. There is no privacy guarantee against anyone.",
    server=View.RAW,
    public=View.RAW,
    server_adds_noise=False,
    clients_add_noise=False,
    release_norms=release_norms,
    noise_std=noise_std,
)
