"""Devices that send what no honest device sends, under local trust: a limit, and a score.

An honest update is y = c + z S N(0, I_d), |c| <= S. In any one direction it moves the sum by at
most S, and by noise of z S; its length is about z S sqrt(d). A liar can put all of that length into
one direction, and there has the leverage of z sqrt(d) honest devices.

**The limit** (`length_limit`). |y|^2 / (z S)^2 is noncentral chi-squared with d degrees of freedom
and noncentrality l <= 1/z^2. By Birgé (2001, lemma 8.1) it exceeds d + l + 2 sqrt((d + 2 l) x) + 2x
with probability at most exp(-x), x = 50 here.

**The score** (`Scores`). References are sums of all updates but the device's own of this round: one
with sign + for everybody, which is the running mean, and some with secret random signs, because the
models tell the running mean to a liar, who could send what is orthogonal to it. A unit reference r
does not depend on the noise in y, so that <y, r> = <c, r> + z S N(0, 1), and |<c, r>| <= S. Hence

    (<y, r> - S) / (z S)    and    (-<y, r> - S) / (z S)

are each at most a standard normal variable, whatever the data and the past are, and so are their
sums over t rounds, divided by sqrt(t). A device is flagged when one of these, the latest or the
sum, passes the threshold at which at most a share of `RATE` of all honest devices is ever flagged
in an arm: Bonferroni over references, signs, rounds and both statistics.

Scores are functions of what was released and of the server's own coins: post-processing. Under
central trust there are none: a liar can add at most S, like everybody, and scores of raw updates
that decide who is in a sum would have to be paid for.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy import special

# Of honest updates that are longer than the limit. Who is in a sum then depends on an update, and
# whoever shares a sum is credited with its noise: at 1e-9, a run's worth of such rejections would
# be a part of delta that nobody books.
TAIL = math.exp(-50)
RATE = 1e-6  # of honest devices that are flagged in an arm, at most
REFERENCES = 4  # the running mean and three with secret signs
NOTHING = 1e-9  # a squared length below this, relative to its parts, is rounding
ROUNDING = 1 + 2e-6  # the noise's grid and float32


def length_limit(noise_multiplier: float, size: int) -> float:
    """The largest length of an honest update, over its bound S, but for a share of e^-50."""
    x, shift = math.log(1 / TAIL), noise_multiplier**-2
    squared = size + shift + 2 * math.sqrt((size + 2 * shift) * x) + 2 * x
    return ROUNDING * noise_multiplier * math.sqrt(squared)


def threshold(rounds: int, rate: float = RATE) -> float:
    """Above this a score is flagged: honest devices with probability at most `rate` in an arm."""
    return float(-special.ndtri(rate / (4 * REFERENCES * rounds)))


def secret_signs(clients: int) -> np.ndarray:
    """A row of signs for each reference, from the operating system; the first has + only."""
    bits = np.frombuffer(secrets.token_bytes(REFERENCES * clients), np.uint8) & 1
    signs = np.where(bits, 1.0, -1.0).reshape(REFERENCES, clients)
    signs[0] = 1.0
    return signs


@dataclass
class Scores:
    """The references of an arm, and what each device's updates had in common with them."""

    clients: int
    size: int
    rounds: int
    exclude: bool = False  # flagged devices are in no sum
    rate: float = RATE
    signs: Callable[[int], np.ndarray] = secret_signs
    flagged: np.ndarray = field(init=False)  # a mask over the clients
    worst: np.ndarray = field(init=False)  # the largest score of each client so far

    def __post_init__(self) -> None:
        self._signs = self.signs(self.clients)
        self._sums = np.zeros((len(self._signs), self.size))
        self._totals = np.zeros((2, len(self._signs), self.clients))  # of scores, by sign
        self._seen = np.zeros((len(self._signs), self.clients), int)
        self.flagged = np.zeros(self.clients, bool)
        self.worst = np.full(self.clients, -np.inf)

    def judge(
        self, updates: Mapping[int, np.ndarray], bounds: np.ndarray, multiplier: float
    ) -> list[int]:
        """Take the updates of a round, with the bounds S of all clients, and z. Returns who is
        flagged now and was not before."""
        for i, update in updates.items():
            self._add(update, self._signs[:, i])
        squares = np.einsum("rd,rd->r", self._sums, self._sums)
        for i, update in updates.items():
            exact = update.astype(np.float64)
            own = float(exact @ exact)
            common = self._signs[:, i] * (self._sums @ exact)  # with its own part, which is `own`
            others = squares - 2 * common + own
            known = others > NOTHING * (squares + own)
            along = (common - own)[known] / np.sqrt(others[known]) / (multiplier * bounds[i])
            self._enter(i, known, np.stack([along, -along]) - 1 / multiplier)
        new = (self.worst > threshold(self.rounds, self.rate)) & ~self.flagged
        self.flagged |= new
        found = [int(i) for i in np.flatnonzero(new)]
        if self.exclude:
            for i in found:
                self._add(updates[i], -self._signs[:, i])
        return found

    def _add(self, update: np.ndarray, signs: np.ndarray) -> None:
        """To every reference, without copies: a round has many updates."""
        for reference, sign in zip(self._sums, signs, strict=True):
            (np.add if sign > 0 else np.subtract)(reference, update, out=reference)

    def _enter(self, i: int, known: np.ndarray, latest: np.ndarray) -> None:
        """The scores of a client by the references that there are, by sign: the latest, and the sum
        of all so far."""
        self._totals[:, known, i] += latest
        self._seen[known, i] += 1
        summed = self._totals[:, known, i] / np.sqrt(self._seen[known, i])
        self.worst[i] = max(self.worst[i], latest.max(initial=-np.inf), summed.max(initial=-np.inf))
