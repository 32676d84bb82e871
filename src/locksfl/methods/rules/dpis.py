"""DPIS in its own form (Wei, Bao, Xiao and Yang, CCS 2022): everybody is scored in every round.

    K' = clip(sum of the norms of ALL n clients + noise, K_low, n C)
    p_i = b |g_i| / K'                     upload: g_i / p_i, always K'/b long; noise z K'/b
    update = (sum over the uploaders + noise) / n

There is no first sample (the cohort is all clients), so the norm sum is a Gaussian without
amplification, and the update is charged at the largest rate that any client can have, p_C = b C /
K_low: the pair of the rule norm at q = 1. The mean is exact with true norms. DPIS is for a trusted
server; where clients add the noise, it is the rule fedis with a cohort of all.

Left out: the noisy n (it is public here), noise that is chosen anew in each round for K' (it is
fixed for K_low, which costs no more than is charged), and the rejection form, which draws a first
sample at the rate p_C: that is the rule coin.
"""

from __future__ import annotations

from dataclasses import replace

from locksfl.methods.rules import fedis

rule = replace(
    fedis.rule,
    name="dpis",
    about="in proportion to the norm, all clients scored (DPIS)",
    all_clients=True,
    paper="Wei et al. 2022 (DPIS)",
)
