"""DPIS in its own form (Wei, Bao, Xiao and Yang, CCS 2022): everybody is scored in every round.

    K' = clip(sum of the norms of ALL n clients + noise, K_low, n C)
    p_i = b |g_i| / K'                     upload: g_i / p_i, always K'/b long; noise z K'/b
    update = (sum over the uploaders + noise) / n

There is no first sample (the cohort is all clients), so the norm sum is a Gaussian without
amplification. Once K' is released, the update is a Poisson-sampled Gaussian of the largest rate
that any client can have, p_C = b C / K', and z is chosen for it so that every round costs the same
at one Renyi order, fixed beforehand:

    z = z_k,  k the highest rung of a public ladder K_0 = K_low < ... < n C that is not above K'

K_k is 1.1 times K_{k-1}, or less, and z_k is what b C / K_k >= p_C costs; p_i never exceeds
b C / K_k. With a noise_multiplier in place of an epsilon z is the same in all rounds, which are
then charged as if K' were K_low. The mean is exact with true norms.

K_low is b C, as in the paper: the least at which every p_i <= 1. A lower K_low costs nothing here,
as all rungs cost the same, and the noise on the mean, z C / (n p_C), falls with K' all the way.

DPIS is for a trusted server; where clients add the noise, nothing is amplified: it is the rule
fedis with a cohort of all, z the same in all rounds. Left out: the noisy n (it is public here), and
the rejection form, which draws a first sample at the rate p_C: that is the rule coin.
"""

from __future__ import annotations

from locksfl.methods.rules import NORM, shared

rule = shared.by_sum(
    name="dpis",
    about="in proportion to the norm, all clients scored (DPIS)",
    all_clients=True,
    asks=NORM,
    noise_follows=True,
    takes=("norm_low",),  # no floor: lambda is 0
    paper="Wei et al. 2022 (DPIS)",
)
