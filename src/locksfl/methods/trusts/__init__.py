"""Trusts: who adds the noise, and what each observer sees.

| trust   | norm release                        | update release     | epsilon SERVER, PUBLIC |
|---------|-------------------------------------|--------------------|------------------------|
| local   | each client: |g_i| + z_s C N(0,1)   | each: + z S N(0,I) | finite, finite         |
| central | server: sum of |g_i| + z_K C N(0,1) | sum: + z S N(0,I)  | infinite, finite       |
| none    | exact                               | exact              | infinite, infinite     |

Noise is always a multiplier times a derived bound, so nobody enters a sensitivity.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from locksfl.methods.releases import UPDATE, Domain, Observer, Release


class View(enum.Enum):
    """What an observer sees of the clients' messages."""

    RAW = enum.auto()  # as they are, or sums without noise
    NOISED = enum.auto()  # with noise; the participants are known, so sampling gains nothing
    AMPLIFIED = enum.auto()  # sums with noise, over a cohort that remains secret


@dataclass(frozen=True)
class Trust:
    """One answer to "who is protected from whom".

    server, public: what each observer sees. The accountants read this and nothing else.
    server_adds_noise, clients_add_noise: who has to add noise.
    release_norms(norms, members, server_noise, dials, total, xp): what the rule may use of each
        client, and the released sum. `total` sums over every client of the round.
    noise_std(bounds, bound, uploaded, dials, total, xp): std of the noise on the summed updates;
        the independent noise of many uploaders is drawn once, with the sum of their variances.
        `bounds` are the clients' own bounds, `bound` the public one.
    statement: who is protected, in a sentence for the privacy statement.
    """

    name: str
    about: str
    statement: str
    server: View
    public: View
    server_adds_noise: bool
    clients_add_noise: bool
    release_norms: Callable[[Any, Any, Any, Any, Any, Any], tuple[Any, Any]]
    noise_std: Callable[[Any, Any, Any, Any, Any, Any], Any]

    def __post_init__(self) -> None:
        """Refuse combinations that no accountant knows."""
        known = {
            (View.RAW, View.RAW): (False, False),
            (View.RAW, View.AMPLIFIED): (True, False),
            (View.NOISED, View.NOISED): (False, True),
        }
        adds = (self.server_adds_noise, self.clients_add_noise)
        if known.get((self.server, self.public)) != adds:
            raise ValueError(f"trust {self.name!r}: who adds the noise does not fit who sees what")

    @property
    def private(self) -> bool:
        """Whether anybody adds noise."""
        return self.server_adds_noise or self.clients_add_noise

    @property
    def amplified(self) -> bool:
        """Whether PUBLIC sees only sums over a secret cohort: every client is charged for every
        round, drawn or not, and the size of the cohort must not be shown."""
        return self.public is View.AMPLIFIED

    @property
    def guards_server(self) -> bool:
        """Whether the server sees only noisy messages: a client's own budget can hold, and the
        upload probabilities are functions of released values."""
        return self.server is View.NOISED

    def releases(
        self,
        noise_multiplier: float | None,
        norm_multiplier: float | None,
        asks: Domain | None,
        *more: tuple[Domain, float | None],
    ) -> tuple[Release, ...]:
        """What one round releases, to whom, in which domain (hence with which sensitivity) and with
        how much noise. `asks` is the value that the rule releases first, or None; `more` is what
        the round releases besides."""
        kinds = [(UPDATE, noise_multiplier), *more]
        if asks is not None:
            kinds.insert(0, (asks, norm_multiplier))
        views: dict[Observer, View] = {"SERVER": self.server, "PUBLIC": self.public}
        return tuple(
            Release(
                observer,
                domain,
                None if view is View.RAW else noise,
                summed=view is View.AMPLIFIED,
            )
            for observer, view in views.items()
            for domain, noise in kinds
        )


def exact_sum(norms: Any, members: Any, total: Any, xp: Any) -> Any:
    """The sum over the members that are present."""
    return total(xp.where(members.present, norms, 0.0))
