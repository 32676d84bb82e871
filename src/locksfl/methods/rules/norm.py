"""LOCKS: in proportion to the norm of the clipped update, with a floor.

    K' = clip(released sum of norms, K_low, m C)          b C <= K_low <= m C, fixed beforehand
    p_i = (1 - lambda) b z_i / K' + lambda b / m          at most 1, because K' >= K_low >= b C

z_i is the norm as the server knows it: with the client's own noise, or exact if it is trusted.
"""

from __future__ import annotations

from locksfl.methods.rules import NORM, shared

rule = shared.by_sum(
    name="norm",
    about="in proportion to the norm (LOCKS)",
    asks=NORM,
    planned=True,
    paper="the LOCKS paper, corrected",
)
