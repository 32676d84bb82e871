"""Theorem 1, printed and corrected: their terms, their conditions, and the advice of a refusal."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from locksfl.paper.theory.bound import (
    Constants,
    alpha_kappa,
    conditions,
    corrected,
    printed,
    require,
)

C = Constants(
    rounds=100, step=0.1, smoothness=2.0, gap=3.0, uploads=20.0, parameters=50, sample_spread=0.5,
    client_spread=0.8, dissimilarity=0.6, clip_bias=0.3, fewest_samples=4, most_samples=12,
    client_noise=0.2, server_noise=0.05, clip_norm=1.5, stretch=2.0,
)  # fmt: skip


def test_the_printed_bound_is_the_printed_formula():
    """Written out once more, from the theorem, with the noise of clients alone."""
    c = replace(C, server_noise=0.0)
    log, root = math.log(100), 10.0
    alpha = 0.1 * (root - 1) / root - 2 * 2 * 0.1**2 * log * (0.6**2 + 1) / (20 * root)
    assert alpha_kappa(c) == pytest.approx(alpha, rel=1e-12)
    local = 12 * (0.25 + 0.09) / 4
    phi = 2 * 0.1 * local / alpha
    phi += 2 * 0.1**2 / (20 * alpha * root) * (local + (0.64 + 50 * 0.04) / 2) * 2 * log
    bound = printed(c)
    assert bound.alpha_kappa == pytest.approx(alpha, rel=1e-12)
    assert bound.phi == pytest.approx(phi, rel=1e-12)
    assert bound.total == pytest.approx(3.0 / (root * alpha) + phi, rel=1e-12)
    # the server's noise counts as clients' noise of the same effect: b s_c^2 / V_0 = sigma_0^2
    alike = replace(C, client_noise=math.sqrt(0.04 + 0.05**2 * 20 / 2), server_noise=0.0)
    assert printed(C).total == pytest.approx(printed(alike).total, rel=1e-12)


def test_the_corrected_bound_is_its_formula():
    """By the clip norm and by dissimilarity, falling step and constant; the smaller is given."""
    shrink = math.sqrt(101) - 1
    spread = 2 / 20 * (1.5**2 + 50 * 0.04) + 50 * 0.05**2
    by_clip = (3 + 2 * 0.01 * (1 + math.log(100)) / 2 * spread) / (0.1 * shrink) + 0.09
    alone = replace(C, client_spread=None)
    assert corrected(alone).total == pytest.approx(by_clip, rel=1e-12)
    assert corrected(alone).form == "clip"
    spread = 2 / 20 * (0.25 / 4 + 0.8**2 + 50 * 0.04) + 50 * 0.05**2
    apart = (3 + 2 * 0.01 * (1 + math.log(100)) / 2 * spread) / (0.1 * shrink) + 0.09
    assert corrected(replace(C, clip_norm=None)).total == pytest.approx(2 * apart, rel=1e-12)
    assert corrected(C).total == pytest.approx(min(by_clip, 2 * apart), rel=1e-12)
    constant = 2 * 3 / (0.1 * 100) + 2 * 0.1 * (2 / 20 * (2.25 + 2) + 0.125) + 0.09
    assert corrected(alone, "constant").total == pytest.approx(constant, rel=1e-12)


def test_the_variance_along_a_path_takes_the_place_of_the_largest():
    """Without noise, clip norm or dissimilarity: v says it all, and L eta_b <= 1 is enough."""
    alone = replace(C, clip_norm=None, client_spread=None, path_variance=0.3)
    right = (3 + 2 * 0.01 * (1 + math.log(100)) / 2 * 0.3) / (0.1 * (math.sqrt(101) - 1)) + 0.09
    assert corrected(alone).total == pytest.approx(right, rel=1e-12)
    constant = 2 * 3 / (0.1 * 100) + 2 * 0.1 * 0.3 + 0.09
    assert corrected(alone, "constant").total == pytest.approx(constant, rel=1e-12)
    assert corrected(replace(C, path_variance=0.3)).form == "path"
    assert corrected(replace(C, path_variance=1e9)).total == corrected(C).total
    assert holds(replace(alone, step=0.5, uploads=0.01), printed=False)
    assert not holds(replace(alone, step=0.51), printed=False)


def test_updates_of_another_length_make_the_same_step():
    """eta Delta = (eta s) (Delta / s): the first term falls by s, the variance by s^2."""
    plain = replace(C, client_spread=None, sample_spread=0.0, path_variance=0.3)
    scaled = plain.in_gradients(4.0)
    assert (scaled.step, scaled.clip_norm, scaled.path_variance) == (0.4, 1.5 / 4, 0.3 / 16)
    assert scaled.in_gradients(0.25) == plain
    for form in ("path", "clip"):
        one, four = (
            corrected(replace(c, path_variance=c.path_variance if form == "path" else None))
            for c in (plain, scaled)
        )
        start, clipping = one.terms["start"], one.terms["clipping"]
        assert four.terms["start"] == pytest.approx(start / 4)
        rest = (one.total - start - clipping) / 4
        assert four.total == pytest.approx(start / 4 + rest + clipping)


def test_what_the_corrected_bound_has_lost_and_kept():
    """No sigma_L floor: with more rounds it falls to c_nu^2. The printed one never does."""
    many = replace(C, rounds=10**12)
    assert corrected(many).total == pytest.approx(0.09, abs=0.01)
    floor = 2 * 12 * (0.25 + 0.09) / 4
    assert printed(many).total == pytest.approx(floor, rel=1e-2)


def advice(message):
    step = float(re.search(r"eta_b at most (\S+) works", message)[1])
    uploads = re.search(r"b from (\S+) on", message)
    return step, None if uploads is None else float(uploads[1])


def holds(c, **forms):
    return all(condition.holds for condition in conditions(c, **forms))


@given(
    st.integers(2, 10**6), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0.5, 1e3),
    st.floats(0, 5), st.floats(1, 10), st.booleans(),
    st.sampled_from(["printed", "corrected", "both"]),
)  # fmt: skip
def test_a_refusal_says_what_works(rounds, step, smoothness, uploads, apart, stretch, clip, form):
    """The advised step and number of uploads work; 1% beyond they do not."""
    c = Constants(
        rounds=rounds, step=step, smoothness=smoothness, gap=1.0, uploads=uploads,
        client_spread=1.0, dissimilarity=apart, clip_norm=1.0 if clip else None, stretch=stretch,
    )  # fmt: skip
    forms = {"printed": form != "corrected", "corrected": form != "printed"}
    assume(not holds(c, **forms))
    with pytest.raises(ValueError, match="works") as caught:
        require(conditions(c, **forms))
    message = str(caught.value)
    assert "\n" not in message
    largest, least = advice(message)
    assert holds(replace(c, step=largest), **forms)
    assert not holds(replace(c, step=1.01 * largest), **forms)
    if least is None:
        assert "L eta_b = " in message
    else:
        assert holds(replace(c, uploads=least), **forms)
        assert not holds(replace(c, uploads=least / 1.01), **forms)


def test_which_condition_failed_is_named():
    with pytest.raises(ValueError, match=r"^alpha_kappa = -\S+, expected > 0: eta_b at most"):
        printed(replace(C, smoothness=100.0, step=0.09, uploads=3.0))
    steep = replace(C, smoothness=0.01, step=60.0, stretch=1.0)
    with pytest.raises(ValueError, match=r"^sum 1/p_i = 1 n, expected at most b n / \(L eta_b\^2"):
        printed(steep)
    with pytest.raises(
        ValueError, match=r"^L eta_b = 4, expected at most 1: eta_b at most 0\.4999"
    ):
        corrected(replace(C, step=2.0))
    with pytest.raises(ValueError, match="V_0 / b = "):
        corrected(replace(C, clip_norm=None, step=0.5, uploads=1.0))
    with pytest.raises(ValueError, match="rounds = 1: alpha_kappa is 0"):
        printed(replace(C, rounds=1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gap": -1.0}, "gap = -1.0: expected a number >= 0"),
        ({"rounds": 0}, "rounds = 0: expected a whole number >= 1"),
        ({"stretch": 0.5}, "stretch = 0.5: expected a number >= 1"),
        ({"most_samples": 2}, "most_samples = 2: expected at least fewest_samples = 4"),
        ({"client_noise": math.nan}, "client_noise = nan: expected a number >= 0"),
        ({"clip_norm": 0.0}, "clip_norm = 0.0: expected a number > 0"),
    ],
)
def test_bad_constants_are_refused_by_name(change, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        replace(C, **change)


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="sigma_G"):
        printed(replace(C, client_spread=None))
    with pytest.raises(ValueError, match="clip_norm"):
        corrected(replace(C, client_spread=None, clip_norm=None))
