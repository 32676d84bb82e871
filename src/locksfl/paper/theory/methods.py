"""Which methods the corrected bound covers, and what it takes from their arms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from locksfl.arm import Arm
from locksfl.paper.theory.bound import Constants
from locksfl.round.server import Server


def not_covered(arm: Arm, server: Server) -> str | None:
    """Why the corrected bound says nothing about an arm; None where it does."""
    rule, estimator, trust = arm.parts
    if server.optimizer != "sgd":
        return f"the server's optimizer is {server.optimizer!r}: the bound is for sgd"
    if rule.score is not None:
        return f"rule {arm.rule!r} does not sample by norm"
    if not rule.from_one_sum:
        return f"rule {arm.rule!r} samples by more than a norm and a clamped norm sum"
    if not estimator.unbiased:
        return f"estimator {arm.estimator!r} does not average to the mean update"
    if trust.clients_add_noise and rule.released and not estimator.own_bound:
        noised = f"when norms are noised (trust {arm.trust!r})"
        return f"estimator {arm.estimator!r} shrinks the mean {noised}"
    if arm.budget is not None:
        return "a filter leaves exhausted clients out of the mean"
    return None


def with_method(source: Any, arm: Arm, **given: Any) -> Constants:
    """The constants of a problem or of a run under an arm's sampling and noise.

    * central: noise of std z S on the sum, S = C / p_C <= C m / b, over m: s_c = z C / b at most.
    * local: each upload's noise is z C before its weight 1/p (horvitz-thompson), or z C m / b after
      it at equal p: sigma_0 = z C either way.
    * V_0 = 1 where |g_i| / p_i <= S: then (1/n^2) sum |g_i|^2 / (q p_i) <= C S / m <= C^2 / b. With
      noised norms only the floor bounds it: p_i >= lambda b / m, V_0 = 1 / lambda. (Without a
      floor no covered method has noised norms.)
    * By norm, rates follow the norms, and an average dissimilarity says nothing about that sum:
      only the clip norm does. Nor does it of updates that are scaled to one length.

    Args:
        source: has constants under the names of `Constants`.
        arm: the method and its numbers.
        given: constants that replace those of the source.

    Returns:
        What both bounds take.
    """
    noise = arm.update_multiplier * arm.clip_norm
    rule, _, trust = arm.parts
    if (by_norm := rule.asks is not None) or arm.lengths != "clipped":
        given["client_spread"] = None
    noised_norms = by_norm and trust.clients_add_noise and arm.floor > 0
    return Constants.of(
        source,
        rounds=arm.rounds,
        step=arm.step,
        uploads=arm.uploads,
        clip_norm=arm.clip_norm,
        server_noise=noise / arm.uploads if trust.server_adds_noise else 0.0,
        client_noise=noise if trust.clients_add_noise else 0.0,
        stretch=1 / arm.floor if noised_norms else 1.0,
        **given,
    )


def with_worst_client(c: Constants, source: Any) -> Constants:
    """The same for the printed bound, whose assumptions 3 and 4 are about every client: sigma_G, A
    and c_nu of the worst one. It has sigma_L even where clients use all their records."""
    return replace(
        c,
        sample_spread=source.sample_spread,
        client_spread=source.worst_client_spread,
        dissimilarity=source.worst_dissimilarity,
        clip_bias=source.worst_clip_bias,
    )
