"""What an attack cannot see: properties that must hold, checked on the simulator that trains.

The simulator plays an arm on clients whose updates are known (engine.py), under several names and
clip norms: `mixed` (short, long, absurd and broken updates), `loud` (all of them clipped, so that
the norm sum passes its upper limit), `quiet` (all far below C, so that it passes the lower one) and
`silent` (hardly any noise); if the clip norm adapts, it does so in a play of its own, `adapted`. Of
each, who was drawn, the released numbers and the model are compared with what the arm states.

* cohort coins: independent, with probability q; other ones in every round and every arm; or, if
  clients take turns, one turn in every cycle;
* upload coins: the same with p_i, given everything that was released before;
* noise as charged: all noises are normal, with the standard deviation that is charged;
* no noise twice: rounds, purposes, arms and coordinates share no noise, in any of three views, each
  noise compared with every other;
* contributions: the sum is that of the clipped updates of who uploaded, times their weights, over a
  public divisor; a broken client counts as zero;
* public number: K' is what the rule derives from the released sum, within its limits;
* statements: rule and estimator keep what they state even without the round's clamps;
* accountant: a simulation of the charged rounds does not exceed the claim (claims.py);
* replay: on neighbouring data no release moves by more than is charged (replay.py);
* filter (budgets of clients, and norms that clients release): what each released stays within it.

Each check calls a sound implementation broken with a probability below FALSE_ALARM.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special, stats

from locksfl._arrays import Floats
from locksfl.arm import Arm
from locksfl.audit.claims import accountant
from locksfl.audit.evidence import (
    Evidence,
    chi_square,
    fixed_views,
    lagged,
    mean_square,
    products,
    standard,
    views,
)
from locksfl.audit.replay import replayed
from locksfl.audit.statements import broken_statements
from locksfl.audit.transcript import (
    Engine,
    Expected,
    Transcript,
    asked_values,
    compares_released,
    expected_of,
    refining,
    residual,
)
from locksfl.experiment.config import PrivacyConfig
from locksfl.privacy import epsilon_from_mu
from locksfl.privacy.budget import Budget
from locksfl.round.randomness import Purpose, Randomness

ROUNDS = {  # of each play; fewer where each client draws all of its own noise
    False: {"mixed": 288, "loud": 288, "quiet": 288, "silent": 288, "adapted": 288},
    True: {"mixed": 160, "loud": 64, "quiet": 64, "silent": 96},
}
SIZE = 5000  # parameters: noise that repeats within so many is seen
LAGGED = 64  # rounds whose coordinates are compared at every distance: the costly part
ALONE_ROUNDS, ALONE_SIZE, ALONE_NOISE = 3000, 40, 0.5
SILENT, SILENT_NORMS = 1e-3, 1e-4  # noise multipliers of what would hide something else
FIXED = {"clip_quantile": None, "clip_multiplier": 0.0}  # a clip norm that does not adapt
BINS = 64
BUDGET_ROUNDS, BUDGET_CLIENTS = 24, 8
DELTA = 1e-5  # of a budget: any would do
FEW_COINS = 25  # variance of a number of heads that is compared with a normal
SHOWS = 0.5  # std of a noise on a count, in uploads, that rounding does not hide
SLACK = 2e-3  # of a contribution's bound: float32, and norms with that little noise

Result = tuple[bool, str]  # whether a property holds, and what was measured


@dataclass(frozen=True)
class Check:
    """One property of one arm."""

    arm: str
    name: str  # of the property
    holds: bool  # whether it does
    measured: str  # the test that came closest to its limit


@dataclass(frozen=True)
class Play:
    """A transcript beside what its arm states."""

    played: Transcript  # what the simulator did
    expected: Expected  # what the arm states of it

    @functools.cached_property
    def noise(self) -> Floats:
        """[B, d - n] what the coordinates of no client show, in charged standard deviations."""
        return np.delete(residual(self.played, self.expected), self.played.own, axis=1)

    @property
    def norm_noise(self) -> Floats:
        """[T] what the released norm sum shows, in charged standard deviations."""
        std = self.played.arm.sum_multiplier * self.played.clips[:-1]
        return (self.played.released - self.expected.norm_sum) / std

    @property
    def count_noise(self) -> Floats:
        """[T] what the released count shows, in charged standard deviations: together with those
        of the coins of whom it is not known whether they uploaded. Whole numbers hide a noise that
        is small beside them."""
        noise = np.ravel(self.played.dials().count_noise)
        if noise.min() < SHOWS:
            return np.zeros(0)
        p = np.where(self.played.member, self.expected.probability, 0.0)
        known = np.where(self.played.seen & (p > 0), self.played.uploaded, p)
        off = self.played.counts - known.sum(axis=1)
        coins = np.sum(np.where(self.played.seen, 0.0, p * (1 - p)), axis=1)
        return off / np.sqrt(np.square(noise) + coins)

    @property
    def refine_noise(self) -> Floats:
        """[T, 2 refinements] what the sums that refine K' show, in charged standard deviations."""
        off = (self.played.refined - refining(self.played)) / self.played.arm.sum_multiplier
        return off.reshape(len(off), -1)

    @property
    def within(self) -> Floats:
        """[T] the sum over the cohort of b_i - 1/2, b_i = 1 if the update is within C."""
        lengths, clips = np.nan_to_num(self.played.lengths, nan=0.0), self.played.clips[:-1, None]
        bits = np.where(lengths <= clips, 0.5, -0.5)
        return np.sum(np.where(self.played.member, bits, 0.0), axis=1)

    @property
    def clip_noise(self) -> Floats:
        """[T] what the moves of the clip norm show of the noise on that sum, in charged standard
        deviations; empty if it does not adapt."""
        arm, clips = self.played.arm, self.played.clips
        if arm.clip_quantile is None:
            return np.zeros(0)
        share = arm.clip_quantile - np.diff(np.log(clips)) / arm.clip_rate
        released = arm.cohort * (share - 0.5)
        return (released - self.within) / (arm.clip_multiplier / 2)

    @functools.cached_property
    def numbers(self) -> dict[str, Floats]:
        """[T, 1] each: every noise of which a round shows one number, by its name."""
        noises = {"count": self.count_noise, "clip": self.clip_noise}
        if _norms_seen(self):
            refine = enumerate(self.refine_noise.T)
            noises |= {"norm": self.norm_noise, **{f"refining {k}": one for k, one in refine}}
        return {name: noise[:, None] for name, noise in noises.items() if noise.size}

    @property
    def by_round(self) -> bool:
        """Whether the model was seen after every round, each with noise."""
        return len(self.noise) == len(self.played.member)

    @property
    def members(self) -> Floats:
        """[T, n] the first coins, standardised; zero if they are certain."""
        q = self.rate[:, None]
        spread = np.sqrt(np.maximum(q * (1 - q), 1e-12))
        return (self.played.member - q) / spread

    @property
    def rate(self) -> Floats:
        """[T] the probability of the first coins."""
        return self.played.asked / self.played.member.shape[1]

    @property
    def uploads(self) -> Floats:
        """[T, n] the second coins of the members, standardised; zero where they are certain."""
        p = self.expected.probability
        fair = self.played.member & self.played.seen & (p > 0.02) & (p < 0.98)
        spread = np.sqrt(np.where(fair, p * (1 - p), 1.0))
        return np.where(fair, (self.played.uploaded - p) / spread, 0.0)


@dataclass(frozen=True)
class Plays:
    """All plays of an arm; `alone` is that of one client, where only so its norm noise is seen."""

    each: dict[str, Play]  # by the name of its setting
    alone: Play | None

    @property
    def all(self) -> dict[str, Play]:
        """With the one of a client alone."""
        return self.each | ({"alone": self.alone} if self.alone else {})


def check_arm(arm: Arm, privacy: PrivacyConfig, randomness: Randomness) -> list[Check]:
    """Every property of an arm that adds noise."""
    plays = play_all(arm, randomness)
    rng = randomness.host(f"checks-{arm.name}", 0, Purpose.MODEL)
    broken = broken_statements(arm)
    results = {name: holds(plays) for name, holds in OF_PLAYS.items()}
    results["statements"] = (not broken, "; ".join(broken) or "none broken")
    results["accountant"] = accountant([arm], arm.rounds, privacy, rng)
    results["replay"] = replayed(arm, randomness)
    if arm.parts[2].guards_server and (arm.releases_norms or arm.budget is not None):
        results["filter"] = within_budget(arm, randomness)
    return [Check(arm.name, name, *result) for name, result in results.items()]


def play_all(arm: Arm, randomness: Randomness) -> Plays:
    """The four plays, a fifth if the clip norm adapts, and that of a client alone where each client
    adds noise to its norm."""
    each = arm.parts[2].clients_add_noise and arm.releases_norms
    hides = arm.releases_norms and not compares_released(arm)
    quiet_norms: dict[str, Any] = {"norm_multiplier": SILENT_NORMS} if each and hides else {}
    silent: dict[str, Any] = {"noise_multiplier": SILENT, "ladder": (SILENT,) * len(arm.ladder)}
    if hides:
        silent["norm_multiplier"] = SILENT_NORMS
    settings: dict[str, dict[str, Any]] = {
        "mixed": {"clip_norm": 1.0, **quiet_norms},
        "loud": {"clip_norm": 1e-3, **quiet_norms},
        # blocks of several rounds, unless the noise of each must be seen
        "quiet": {"clip_norm": 1e9, "every": 1 if arm.strategy else 8, **quiet_norms},
        "silent": {"clip_norm": 1.0, **silent},
    }
    if arm.clip_quantile is not None:  # else it would move from where these plays put it
        settings = {name: {**dials, **FIXED} for name, dials in settings.items()}
        settings["adapted"] = {"clip_norm": 0.03}  # far from where it will be
    engine, plays = Engine(arm, SIZE), {}
    for name, dials in settings.items():
        rounds = ROUNDS[arm.parts[2].clients_add_noise][name]
        played = engine.play(f"checks-{name}-{arm.name}", rounds, randomness, **dials)
        plays[name] = Play(played, expected_of(played))
    if not each:
        return Plays(plays, None)
    one = Engine(arm, ALONE_SIZE, clients=1).play(
        f"checks-alone-{arm.name}",
        ALONE_ROUNDS,
        randomness,
        every=32,
        clip_norm=0.6,  # the client's update is half as long
        norm_multiplier=ALONE_NOISE,
    )
    return Plays(plays, Play(one, expected_of(one, one.released[:, None])))


def cohort_coins(plays: Plays) -> Result:
    """Rates, sizes, and products over rounds, clients and arms; with a public schedule, whether
    the chances of a client are as far apart as is charged, and whether it takes enough of them."""
    evidence, crowds = Evidence(), list(plays.each.values())
    if crowds[0].played.arm.scheme.group:
        return _scheduled([play.played for play in crowds])
    for play in crowds:
        member, rates = play.played.member, play.rate
        if not member[rates >= 1].all():
            evidence.fail("a client is missing from a cohort of all")
        for q in np.unique(rates[rates < 1]):
            drawn = member[rates == q].sum(axis=0)
            evidence.add_p("rate of a client", _binomial(drawn, int(np.sum(rates == q)), q))
        clients, q = member.shape[1], np.min(rates)
        if clients * q * (1 - q) >= 2:
            spread = np.mean(np.square(play.members[rates < 1].sum(axis=1))) / clients
            evidence.add("spread of the sizes", chi_square(spread, int(np.sum(rates < 1))))
        if member.size * (q * (1 - q)) ** 2 < 100:
            continue  # too few to multiply
        _independent(evidence, [one.members for one in crowds[: crowds.index(play) + 1]])
    everyone = np.concatenate([play.played.member for play in crowds])
    rates = np.concatenate([play.rate for play in crowds])
    for q in np.unique(rates):
        tossed = everyone[rates == q]
        evidence.add_p("rate", _binomial(tossed.sum(), tossed.size, q))
    holds, nearest = evidence.verdict()
    return holds, f"{everyone.mean():.3f} joined, charged {rates.mean():.3f}; {nearest}"


def _scheduled(transcripts: list[Transcript]) -> Result:
    """Every client has one chance in each cycle, always in the same round of it."""
    evidence, arm = Evidence(), transcripts[0].arm
    apart, rate = arm.scheme.apart(arm), arm.scheme.rate(arm)
    for played in transcripts:
        rounds, clients = played.member.shape
        cycles = played.member[: rounds // apart * apart].reshape(-1, apart, clients)
        if (cycles.any(axis=0).sum(axis=0) > 1).any():
            return False, "a client's turns are not as far apart as is charged"
        joined = cycles.sum(axis=1)
        if rate == 1 and not joined.all():
            return False, "a client has missed its turn"
        if rate < 1:
            evidence.add_p("rate", _binomial(joined.sum(), joined.size, rate))
    return evidence.verdict()[0], f"every client has one turn in {apart} rounds"


def upload_coins(plays: Plays) -> Result:
    """Given what was released, each is a coin of p_i, and nothing else tells how it falls."""
    evidence, total, variance = Evidence(), 0.0, 0.0
    crowds, alone = list(plays.each.values()), plays.alone
    for play in plays.all.values():
        uploaded, p = play.played.uploaded, play.expected.probability
        member = play.played.member & play.played.seen
        if uploaded[p <= 0].any() or not uploaded[member & (p >= 1)].all():
            evidence.fail("a coin that is certain fell otherwise")
        heads = np.where(member, uploaded - p, 0.0)
        spread = np.where(member, p * (1 - p), 0.0)
        total, variance = total + heads.sum(), variance + spread.sum()
        if spread.sum() < FEW_COINS:
            continue
        often = spread.sum(axis=0) >= FEW_COINS
        by_client = heads.sum(axis=0)[often] / np.sqrt(spread.sum(axis=0)[often])
        evidence.add("rate of a client", by_client)
        if play is alone:
            evidence.add("rounds", lagged(play.uploads.T)[: len(member) // 2])
            for view in _of_score(play):
                evidence.add("given its norm", products(view, play.uploads))
            continue
        _independent(evidence, [one.uploads for one in crowds[: crowds.index(play) + 1]])
        if _norms_seen(play):
            for view in views(play.norm_noise[:, None]):
                evidence.add("given the norm noise", products(view, _sums(play.uploads)))
    if variance < FEW_COINS:
        return evidence.verdict()
    evidence.add("rate", total / math.sqrt(variance))
    holds, nearest = evidence.verdict()
    return holds, f"{total:+.0f} uploads beyond those expected; {nearest}"


def _independent(evidence: Evidence, coins: list[Floats]) -> None:
    """Products of the last arm's coins over rounds and clients, and with those of the others."""
    *others, mine = coins
    rounds, clients = mine.shape
    evidence.add("rounds", lagged(mine.T)[: rounds // 2])
    evidence.add("clients", lagged(mine)[: clients // 2])
    for other in others:
        evidence.add("arms", lagged(mine.T, other.T))


def noise_as_charged(plays: Plays) -> Result:
    """Normal and of the charged size: over all, for each block and for each coordinate."""
    evidence = Evidence()
    ratio = []
    for play in plays.all.values():
        noise = play.noise
        if not noise.size:  # without a floor nobody uploads where all norms are far below C
            continue
        if not np.isfinite(noise).all():
            evidence.fail("the model is not finite")
            continue
        ratio.append(np.sqrt(np.mean(np.square(noise))))
        evidence.add("update noise", mean_square(noise))
        evidence.add("update noise of a round", mean_square(noise, axis=1))
        if len(noise) >= BINS:
            evidence.add("update noise of a coordinate", mean_square(noise, axis=0))
        counts = np.bincount((special.ndtr(noise.ravel()) * BINS).astype(int).clip(0, BINS - 1))
        mean = noise.size / BINS
        if mean >= 100:
            off = np.sum(np.square(counts - mean)) / mean / (BINS - 1)
            evidence.add("shape of the update noise", chi_square(off, BINS - 1))
        for far in (3.0, 4.0):
            rare = noise.size * stats.norm.sf(far)
            for side in (noise, -noise):
                beyond = int(np.sum(side > far))
                tails = stats.poisson.cdf(beyond, rare), stats.poisson.sf(beyond - 1, rare)
                evidence.add_p("tail of the update noise", min(1.0, 2 * min(tails)))
    if plays.alone:
        evidence.add_p("norm noise", _clipped_normal(plays.alone))
    for what, (_, noise) in _numbers(dict(enumerate(plays.each.values()))).items():
        evidence.add(f"{what} noise", mean_square(noise))
        evidence.add(f"mean of the {what} noise", np.sum(noise) / np.sqrt(noise.size))
    for play in plays.each.values():
        if (clipping := play.clip_noise).size:
            bits = play.within[:, None] / np.sqrt(np.mean(np.square(play.within)))
            evidence.add("clip noise beside the bits", products(bits, clipping[:, None]))
    holds, nearest = evidence.verdict()
    worst = max(ratio, key=lambda r: abs(np.log(max(r, 1e-9))), default=1.0)
    return holds, f"update noise {worst:.3f} of the charged std; {nearest}"


def no_noise_twice(plays: Plays) -> Result:
    """Products of three views of the noise: over coordinates and rounds at any distance, over all
    pairs of blocks of all arms, and with the coins; and of every noise of a round with every other,
    in all rounds of all arms."""
    evidence, crowds = Evidence(), plays.each
    rows = np.concatenate([play.noise for play in crowds.values()])
    if not np.isfinite(rows).all():
        return False, "the model is not finite"
    size, upper = np.sqrt(rows.shape[1]), np.triu_indices(len(rows), 1)
    of_play = np.repeat(np.arange(len(crowds)), [len(play.noise) for play in crowds.values()])
    rounds = {at: play for at, play in enumerate(crowds.values()) if play.by_round}
    coins = {at: np.hstack([play.members, play.uploads]) for at, play in rounds.items()}
    numbers = _numbers(rounds)
    for view in views(rows):
        evidence.add("coordinates", lagged(view[:LAGGED]))
        evidence.add("coordinates of the next round", lagged(view[1:LAGGED], view[: LAGGED - 1]))
        evidence.add("rounds and arms", (view @ view.T)[upper] / size)
        if rounds:
            update = view[np.isin(of_play, list(rounds))]
            both = np.concatenate(list(coins.values()))
            evidence.add("coins with update noise", products(both, update))
        for what, (at, single) in numbers.items():
            update = view[np.isin(of_play, at)]
            for other in views(single):
                evidence.add(f"{what} with update noise", products(other, update))
                evidence.add(f"{what} with a round's update noise", products(other, _sums(update)))
    for what, (at, single) in numbers.items():
        for other in views(single):
            both = np.concatenate([coins[play] for play in at])
            evidence.add(f"coins with {what} noise", products(both, other))
    every = [
        (play, what, fixed_views(noise.T))
        for play in crowds.values()
        for what, noise in play.numbers.items()
    ]
    for (play, what, one), (near, beside, two) in itertools.combinations_with_replacement(every, 2):
        for first, second in zip(one, two, strict=True):
            if one is two:
                evidence.add(f"{what} noise of rounds", lagged(first)[: first.size // 2])
            else:
                where = "a round" if play is near else "arms"
                evidence.add(f"{what} with {beside} noise of {where}", lagged(first, second))
    if plays.alone:
        for view in _of_score(plays.alone):
            evidence.add("norm noise of rounds", lagged(view.T)[: view.size // 2])
    return evidence.verdict()


def _numbers(plays: dict[int, Play]) -> dict[str, tuple[list[int], Floats]]:
    """Every noise of `Play.numbers`: which plays show it, and the values of all of them."""
    numbers = {}
    for what in dict.fromkeys(itertools.chain(*(play.numbers for play in plays.values()))):
        at = [number for number, play in plays.items() if what in play.numbers]
        numbers[what] = at, np.concatenate([plays[number].numbers[what] for number in at])
    return numbers


def contributions(plays: Plays) -> Result:
    """Along the clients' own coordinates: exactly without noise, else in deviations."""
    evidence = Evidence()
    worst = 0.0
    for name, play in plays.all.items():
        own = residual(play.played, play.expected)[:, play.played.own]
        if not np.isfinite(own).all():
            return False, "the model is not finite"
        if name == "silent":  # also where nothing but the model shows who uploaded
            excess = np.maximum(0.0, np.abs(own) * SILENT - SLACK) / SILENT
            evidence.add("without noise", excess)
            worst = np.max(np.abs(own)) * SILENT
        elif own.size and play.played.seen.all():
            evidence.add(f"{name}, squares", mean_square(own))
            evidence.add(f"{name}, mean", np.sum(own) / np.sqrt(own.size))
    holds, nearest = evidence.verdict()
    return holds, f"within {worst:.4f} of the bound; {nearest}"


def public_number(plays: Plays) -> Result:
    """K' follows from K~ and lies within its limits; both limits are met."""
    crowds = list(plays.each.values())
    rule = crowds[0].played.arm.parts[0]
    if not rule.released:
        return True, "the rule has none"
    if not rule.from_one_sum:
        return True, "not of one sum: contributions and coins are checked by what it was"
    worst = 0.0
    limits = "norm_low" in rule.takes
    for play in crowds:
        dials, actual = play.played.dials(), play.played.used[:, None]
        low, high = dials.least_norm_sum, dials.cohort * dials.clip_norm
        used = rule.settle(play.played.released[:, None], dials, np)
        off = np.abs(actual - used)
        if limits:
            off = np.maximum(off, np.maximum(low - actual, actual - high))
        worst = max(worst, float(np.max(np.where(np.isfinite(off), off, np.inf) / high)))
    return worst <= 1e-5, f"off by {worst:.1e} of its upper limit"


OF_PLAYS: dict[str, Callable[[Plays], Result]] = {
    "cohort coins": cohort_coins,
    "upload coins": upload_coins,
    "noise as charged": noise_as_charged,
    "no noise twice": no_noise_twice,
    "contributions": contributions,
    "public number": public_number,
}


def within_budget(arm: Arm, randomness: Randomness) -> Result:
    """Clients with a budget for a fraction of the rounds: what each released stays within it."""

    def cost(norms: Any, uploads: Any) -> Any:
        norm = 1 / arm.norm_multiplier**2 if arm.releases_norms else 0.0
        return norms * norm + uploads / arm.noise_multiplier**2

    most = BUDGET_ROUNDS * arm.sampling_rate * cost(1.0, 1.0)
    budget = Budget(epsilon_from_mu(math.sqrt(most), DELTA), DELTA)
    try:
        played = Engine(arm, BUDGET_CLIENTS, clients=BUDGET_CLIENTS).play(
            f"checks-budget-{arm.name}", 4 * BUDGET_ROUNDS, randomness, every=8, budget=budget
        )
    except AssertionError as error:  # the host and the device disagree on who can pay
        return False, str(error)
    spent = cost(played.member.sum(axis=0), played.uploaded.sum(axis=0)) / most
    return bool(np.max(spent) <= 1 + 1e-6), f"{np.max(spent):.3f} of the budget at most"


def all_arms_claim(
    arms: Sequence[tuple[Arm, PrivacyConfig]], rounds: int, randomness: Randomness
) -> list[Check]:
    """The claim for all arms of a trust, composed."""
    checks = []
    for trust in sorted({arm.trust for arm, _ in arms}):
        these = [(arm, privacy) for arm, privacy in arms if arm.trust == trust]
        if len(these) > 1:
            rng = randomness.host(f"checks-{trust}", 1, Purpose.MODEL)
            result = accountant([arm for arm, _ in these], rounds, these[0][1], rng)
            checks.append(Check(f"all arms, {trust}", "accountant", *result))
    return checks


def _norms_seen(play: Play) -> bool:
    """Whether the released norm sum shows one noise: the server's, at its charged size."""
    arm = play.played.arm
    adds = arm.parts[2].server_adds_noise and arm.releases_norms
    return adds and arm.norm_multiplier > SILENT_NORMS


def _of_score(play: Play) -> list[Floats]:
    """[T, 1] of the one client's released norm: its value, and how far it is from the true one."""
    score = play.played.released[:, None] / play.played.arm.clip_norm
    return [standard(value) for value in (score, np.abs(score - 0.5))]


def _sums(rows: Floats) -> Floats:
    """The mean of each row, as a standardised column."""
    return standard(rows.mean(axis=1, keepdims=True))


def _binomial(heads: Any, tosses: int, rate: float) -> Any:
    """Two-sided p-values."""
    law = stats.binom(tosses, rate)
    return np.minimum(1.0, 2 * np.minimum(law.cdf(heads), law.sf(np.asarray(heads) - 1)))


def _clipped_normal(alone: Play) -> float:
    """p-value of the norms or scores that a client sent: normal, gathered at 0 and at C."""
    arm, there = alone.played.arm, alone.played.member[:, 0]
    sent = (alone.played.released / arm.clip_norm)[there]
    true = asked_values(alone.played)[there] / arm.clip_norm  # a norm is C/2 in every round
    edges = np.linspace(0, 1, 11)[1:-1]
    cells = np.concatenate([[1e-7], edges, [1 - 1e-7]])
    below = stats.norm.cdf(np.concatenate([[0.0], edges, [1.0]]), true, arm.norm_multiplier)
    mass = np.diff(np.concatenate([[0.0], below.mean(axis=0), [1.0]]))
    counts = np.bincount(np.searchsorted(cells, sent), minlength=len(mass))
    return float(stats.chisquare(counts, mass * sent.size).pvalue)
