"""Theorem 1: how small the gradient gets, as printed and corrected.

Both bound min over t < T of E|grad F(w_t)|^2 for w <- w - eta_t Delta, eta_t = eta_b / sqrt(t + 1).

Printed, with V_0 log T / b for the sampling and alpha_kappa = eta_b (sqrt(T) - 1) / sqrt(T)
- V_0 L eta_b^2 log(T) (A^2 + 1) / (b sqrt(T)):

    Delta F / (sqrt(T) alpha_kappa) + Phi,
    Phi = 2 eta_b K_max (sigma_L^2 + c_nu^2) / (K_min alpha_kappa)
        + L eta_b^2 V_0 log(T) / (b alpha_kappa sqrt(T))
          (K_max (sigma_L^2 + c_nu^2) / K_min + (sigma_G^2 + d sigma_0^2) / 2).

Corrected, for an unbiased average, L eta_b <= 1 and rates rho_i of at least b / (n V_0):

    (Delta F + L eta_b^2 (1 + ln T) / 2 V) / (eta_b (sqrt(T + 1) - 1)) + c_nu^2,
    V = V_0/b (C^2 + d sigma_0^2) + d s_c^2.

It bounds more: the mean over t of E|grad F(w_t)|^2 weighted by eta_t. With a constant step:
2 Delta F / (eta T) + L eta V + c_nu^2. Without a clip norm C^2 becomes sigma_G^2 +
sigma_L^2 / K_min, everything doubles, and 2 L eta_b (A^2 + 1) V_0/b <= 1 is needed too. The
assumptions are in docs/theory.md, the proof at `corrected`.

V is the most that the variance of a round can be, and by it no sampling is better than uniform.
Along a path it is known what the variance was with the rates that were used:

    v = mean over t, weighted by eta_t^2, of E|xi_t|^2 = E[
        (1/n^2) sum ((1/rho_i - 1) |g_i|^2 + Var g_i + d sigma_0^2 / rho_i) + d s_c^2].

Given as `path_variance` it takes the place of V. (Var g_i: of the client's samples.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, TypeVar

from locksfl import _validate
from locksfl._tables import Count, Positive, Settings

SCHEDULES = ("inverse-sqrt", "constant")

Result = TypeVar("Result")
NonNegative = Annotated[float, _validate.non_negative]


@dataclass(frozen=True)
class Constants(Settings):
    """What the bounds take. The paper's letters stand beside each."""

    rounds: Count  # T
    step: Positive  # eta_b
    smoothness: Positive  # L
    gap: NonNegative  # Delta F = F(w_0) - min F
    uploads: Positive  # b
    parameters: Count = 1  # d
    sample_spread: NonNegative = 0.0  # sigma_L, of one sample's gradient within a client
    # sigma_G: mean |grad f_i|^2 <= (A^2 + 1) |grad F|^2 + sigma_G^2
    client_spread: NonNegative | None = None
    dissimilarity: NonNegative = 0.0  # A
    clip_bias: NonNegative = 0.0  # c_nu: what clipping takes from the mean gradient
    fewest_samples: Count = 1  # K_min
    most_samples: Count = 1  # K_max
    client_noise: NonNegative = 0.0  # sigma_0, std of each uploader's noise in a coordinate
    server_noise: NonNegative = 0.0  # s_c, std of the noise on the average in a coordinate
    clip_norm: Positive | None = None  # C
    stretch: Positive = 1.0  # V_0: every client's rate is at least b / (n V_0)
    path_variance: NonNegative | None = None  # v, with the rates along a path

    def check(self) -> None:
        """Refuse a stretch below 1, and K_max below K_min."""
        if self.stretch < 1:
            raise ValueError(f"stretch = {self.stretch!r}: expected a number >= 1")
        _validate.in_order(fewest_samples=self.fewest_samples, most_samples=self.most_samples)

    @classmethod
    def of(cls, source: Any, **given: Any) -> Constants:
        """Returns those that the source has under the same names, and those that are given."""
        names = {field.name for field in fields(cls)} - given.keys()
        return cls(**{n: getattr(source, n) for n in names if hasattr(source, n)}, **given)

    def in_gradients(self, scale: float) -> Constants:
        """The constants of Delta / scale and eta_b scale, which make the same step: for updates
        that are so many gradients long."""
        clip, seen = self.clip_norm, self.path_variance
        return replace(
            self,
            step=self.step * scale,
            clip_norm=None if clip is None else clip / scale,
            path_variance=None if seen is None else seen / scale**2,
            client_noise=self.client_noise / scale,
            server_noise=self.server_noise / scale,
        )

    @property
    def sampling(self) -> float:
        """V_0 / b."""
        return self.stretch / self.uploads

    @property
    def local_spread(self) -> float:
        """K_max (sigma_L^2 + c_nu^2) / K_min, as printed."""
        return self.most_samples * (self.sample_spread**2 + self.clip_bias**2) / self.fewest_samples


@dataclass(frozen=True)
class Bound:
    """The right-hand side, term by term."""

    form: str  # "printed", or "path", "clip" or "dissimilarity" for the corrected one
    terms: dict[str, float]  # by their meaning
    alpha_kappa: float | None = None  # printed only
    phi: float | None = None  # printed only: everything but the first term

    @property
    def total(self) -> float:
        """What the gradient is claimed to be below."""
        return math.fsum(self.terms.values())


@dataclass(frozen=True)
class Condition:
    """Something that must hold, and the step or the uploads at which it begins to."""

    name: str  # with its value, for a refusal
    holds: bool  # for the given constants
    largest_step: float  # at which it holds
    least_uploads: float | None  # None: uploads have no part in it


def printed_conditions(c: Constants) -> list[Condition]:
    """What the printed theorem needs: alpha_kappa > 0, and its constraint on sum 1/p_i at
    p_i = 1/V_0, sum 1/p_i <= b n / (L eta_b^2 (A^2 + 1))."""
    if c.rounds < 2:
        raise ValueError("rounds = 1: alpha_kappa is 0 at T = 1 whatever the step; expected >= 2")
    alpha = alpha_kappa(c)
    slope = c.stretch * c.smoothness * (c.dissimilarity**2 + 1)
    growth = slope * math.log(c.rounds) / (math.sqrt(c.rounds) - 1)
    name = f"alpha_kappa = {alpha:.4g}, expected > 0"
    positive = Condition(name, alpha > 0, c.uploads / growth, growth * c.step)
    return [positive, sum_constraint(c.stretch, c)]


def sum_constraint(inverse: float, c: Constants) -> Condition:
    """The paper's constraint on the mean of 1/p_i: inverse <= b / (L eta_b^2 (A^2 + 1))."""
    slope = inverse * c.smoothness * (c.dissimilarity**2 + 1)
    allowed = c.uploads * inverse / (slope * c.step**2)
    limit = f"b n / (L eta_b^2 (A^2 + 1)) = {allowed:.4g} n"
    name = f"sum 1/p_i = {inverse:.4g} n, expected at most {limit}"
    return Condition(name, inverse <= allowed, math.sqrt(c.uploads / slope), slope * c.step**2)


def corrected_conditions(c: Constants, form: str) -> list[Condition]:
    """What the corrected bound needs: L eta_b <= 1; without a clip norm half of it for sampling."""
    share = c.smoothness * c.step
    name = f"L eta_b = {share:.4g}, expected at most 1"
    needed = [Condition(name, share <= 1, 1 / c.smoothness, None)]
    if form == "dissimilarity":
        slope = 2 * c.stretch * c.smoothness * (c.dissimilarity**2 + 1)
        share = slope * c.step / c.uploads
        name = f"2 L eta_b (A^2 + 1) V_0 / b = {share:.4g}, expected at most 1"
        needed.append(Condition(name, share <= 1, c.uploads / slope, slope * c.step))
    return needed


def conditions(c: Constants, *, printed: bool = True, corrected: bool = True) -> list[Condition]:
    """Everything that the bounds asked for need, so that one piece of advice suits them all."""
    needed = printed_conditions(c) if printed else []
    if corrected:
        without = c.clip_norm is None and c.path_variance is None
        needed += corrected_conditions(c, "dissimilarity" if without else "clip")
    return needed


def require(conditions: Sequence[Condition]) -> None:
    """Refuse constants outside the conditions: which one, and what works for all of them."""
    failed = [condition for condition in conditions if not condition.holds]
    if not failed:
        return
    largest = min(c.largest_step for c in conditions)
    advice = f"eta_b at most {_rounded(largest * (1 - 1e-9), math.floor)} works"
    if all(c.least_uploads is not None for c in failed):
        least = max(c.least_uploads for c in conditions if c.least_uploads is not None)
        advice += f", or b from {_rounded(least * (1 + 1e-9), math.ceil)} on"
    raise ValueError(f"{'; '.join(c.name for c in failed)}: {advice}")


def _rounded(value: float, rounding: Callable[[float], int]) -> str:
    """The value rounded down or up to 4 digits: so it can be typed, and works."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{rounding(value / unit) * unit:.4g}"


def alpha_kappa(c: Constants) -> float:
    """eta_b (sqrt(T) - 1)/sqrt(T) - V_0 L eta_b^2 log(T) (A^2 + 1) / (b sqrt(T)), as printed."""
    root = math.sqrt(c.rounds)
    lost = c.stretch * c.smoothness * c.step**2 * math.log(c.rounds) * (c.dissimilarity**2 + 1)
    return c.step * (root - 1) / root - lost / (c.uploads * root)


def printed(c: Constants) -> Bound:
    """Theorem 1 as printed. Not a bound: docs/theory.md shows where it fails and where it says
    nothing. Noise of the server counts as clients' noise with the same effect on the average."""
    if c.client_spread is None:
        raise ValueError("client_spread (sigma_G) is missing: Theorem 1 as printed assumes it")
    require(printed_conditions(c))
    alpha, root = alpha_kappa(c), math.sqrt(c.rounds)
    local = c.local_spread
    noise = c.client_noise**2 + c.server_noise**2 * c.uploads / c.stretch
    scale = c.smoothness * c.step**2 * c.stretch * math.log(c.rounds) / (c.uploads * alpha * root)
    terms = {
        "start": c.gap / (root * alpha),
        "samples and clipping, for ever": 2 * c.step * local / alpha,
        "samples and clipping": scale * local,
        "clients differ": scale * c.client_spread**2 / 2,
        "noise": scale * c.parameters * noise / 2,
    }
    return Bound("printed", terms, alpha, math.fsum(terms.values()) - terms["start"])


def corrected(c: Constants, schedule: str = "inverse-sqrt") -> Bound:
    """The corrected bound: the smallest of its forms, among those whose conditions hold.

    Proof, with a = grad F(w_t), beta = a - E Delta and xi = Delta - E Delta. Smoothness says
    F(w_(t+1)) <= F(w_t) - eta <a, Delta> + L eta^2/2 |Delta|^2. Put Delta = a - beta + xi and use
    -<a, a - beta> = -|a|^2/2 - |a - beta|^2/2 + |beta|^2/2. The terms in |a - beta|^2 make
    -eta/2 (1 - L eta) |a - beta|^2 <= 0. What remains is

        eta/2 |a|^2 <= F(w_t) - F(w_(t+1)) + eta/2 |beta|^2 + L eta^2/2 |xi|^2
                       - eta <a, xi> + L eta^2 <a - beta, xi>

    on every path, and the last two terms have mean zero. E|xi|^2 by the law of total variance:
    given samples and cohort, second coins have sum (1/p_i - 1) |g_i|^2 / (n q)^2, and noise adds
    d sigma_0^2 / (p_i (n q)^2) for each member; the cohort's coins have (1/q - 1) |g_i|^2 / n^2:

        Var(Delta | samples) = (1/n^2) sum ((1/rho_i - 1) |g_i|^2 + d sigma_0^2/rho_i) + d s_c^2

    Given the samples, E Delta is the mean of the g_i. Its variance over independent samples is
    (1/n^2) sum Var g_i <= (1/n^2) sum E|g_i|^2, which the -1 above makes up for. As |g_i| <= C, all
    of it is at most V. Sum over t: sum eta_t/2 >= eta_b (sqrt(T + 1) - 1), sum eta_t^2 <= eta_b^2
    (1 + ln T).
    """
    _validate.one_of(SCHEDULES, schedule=schedule)
    spreads = {"path": c.path_variance, "clip": c.clip_norm, "dissimilarity": c.client_spread}
    forms = [form for form, spread in spreads.items() if spread is not None]
    if not forms:
        missing = "clip_norm (C), client_spread (sigma_G) and path_variance are missing"
        raise ValueError(f"{missing}: expected at least one of them")
    sound = [f for f in forms if all(x.holds for x in corrected_conditions(c, f))]
    if not sound:
        require(corrected_conditions(c, forms[0]))
    return min((_corrected(c, form, schedule) for form in sound), key=lambda bound: bound.total)


def _corrected(c: Constants, form: str, schedule: str) -> Bound:
    if schedule == "constant":
        start = 2 / (c.step * c.rounds)
        variance = c.smoothness * c.step
    else:
        start = 1 / (c.step * (math.sqrt(c.rounds + 1) - 1))
        variance = start * c.smoothness * c.step**2 * (1 + math.log(c.rounds)) / 2
    if form == "path":
        on_path = {"sampling and noise on the path": variance * (c.path_variance or 0.0)}
        return Bound(form, {"start": start * c.gap, **on_path, "clipping": c.clip_bias**2})
    # a clipped update is no longer than C, whatever the samples: their spread is part of C^2
    clipped = form == "clip"
    spread, samples = (c.clip_norm, 0.0) if clipped else (c.client_spread, c.sample_spread)
    factor = 1.0 if clipped else 2.0
    terms = {
        "start": start * c.gap,
        "samples": variance * c.sampling * samples**2 / c.fewest_samples,
        "clients sampled": variance * c.sampling * (spread or 0.0) ** 2,
        "clients' noise": variance * c.sampling * c.parameters * c.client_noise**2,
        "server's noise": variance * c.parameters * c.server_noise**2,
        "clipping": c.clip_bias**2,
    }
    return Bound(form, {name: factor * value for name, value in terms.items()})


def attempt(call: Callable[[], Result]) -> tuple[Result | None, str]:
    """Returns what the call returns, or None and why it refused."""
    try:
        return call(), ""
    except ValueError as error:
        return None, str(error)


def by_round(bound: Callable[[Constants], Bound], c: Constants) -> list[float]:
    """Returns the bound after 1, 2, ..., T rounds; NaN in the first ones, where alpha_kappa may not
    be positive yet. What is refused after T rounds is refused."""
    bound(c)
    each = (attempt(partial(bound, replace(c, rounds=t))) for t in range(1, c.rounds + 1))
    return [math.nan if result is None else result.total for result, _ in each]


def each_bound(**bounds: Callable[[], Result]) -> tuple[dict[str, Result | None], dict[str, str]]:
    """Returns what each bound gives, None where there is none, and then why."""
    tried = {name: attempt(bound) for name, bound in bounds.items()}
    values = {name: value for name, (value, _) in tried.items()}
    return values, {name: why for name, (_, why) in tried.items() if why}
