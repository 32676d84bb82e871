"""FedIS: importance sampling by norm, without a floor (Rizk, Vlaski and Sayed 2022).

    p_i = b z_i / K',   K' = clip(released sum of norms, K_low, m C)

the probabilities of the least variance (the rule norm adds a floor). z_i is the norm as the server
knows it. Weights by the number of records are those of local.weight = "size", which multiplies the
update before its norm is taken. Left out: importance sampling of a client's own
records. Coins replace the paper's draw without replacement.

With true norms every upload g_i / p_i is K'/b long and the mean is exact. With noised norms a
client whose z_i came out as 0 cannot upload: the capped estimator is biased, and horvitz-thompson,
which divides by p_i, is refused.
"""

from __future__ import annotations

from locksfl.methods.rules import NORM, shared

rule = shared.by_sum(
    name="fedis",
    about="in proportion to the norm, without a floor (FedIS)",
    asks=NORM,
    takes=("norm_low",),  # no floor: lambda is 0
    paper="Rizk et al. 2022 (FedIS)",
)
