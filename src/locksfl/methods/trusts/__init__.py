"""Trusts: who adds the noise, and what each observer sees.

| trust   | norm release                        | update release     | epsilon SERVER, PUBLIC |
|---------|-------------------------------------|--------------------|------------------------|
| local   | each client: |g_i| + z_s C N(0,1)   | each: + z S N(0,I) | finite, finite         |
| central | server: sum of |g_i| + z_K C N(0,1) | sum: + z S N(0,I)  | infinite, finite       |
| none    | exact                               | exact              | infinite, infinite     |

Noise is always a multiplier times a derived bound, so nobody enters a sensitivity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from locksfl.methods.events import Terms
from locksfl.methods.releases import Observer

if TYPE_CHECKING:
    from locksfl.arm import Arm

Most = tuple[int, int] | None


@dataclass(frozen=True)
class Trust:
    """One answer to "who is protected from whom".

    terms(arm, most): what all rounds of an arm release, by observer; noise that is not known yet is
        an error. The accountants read this and nothing else. `most`: the most (norms, uploads) of
        one client, if clients add the noise and a cap enforces it; None: one of each per round.
    sees: what each observer sees, in words for the privacy statement.
    server_adds_noise, clients_add_noise: who has to add noise; at most one of them.
    noise_std(bounds, bound, uploaded, dials, total, xp): std of the noise on the summed updates;
        the independent noise of many uploaders is drawn once, with the sum of their variances.
        `bounds` are the clients' own bounds, `bound` the public one.
    statement: who is protected, in a sentence for the privacy statement.
    """

    name: str
    about: str
    statement: str
    sees: Mapping[Observer, str] = field(hash=False)
    terms: Callable[[Arm, Most], Terms]
    server_adds_noise: bool
    clients_add_noise: bool
    noise_std: Callable[[Any, Any, Any, Any, Any, Any], Any]

    def __post_init__(self) -> None:
        if self.server_adds_noise and self.clients_add_noise:
            raise ValueError(f"trust {self.name!r}: expected noise by the server or by clients")

    @property
    def private(self) -> bool:
        """Whether anybody adds noise."""
        return self.server_adds_noise or self.clients_add_noise

    @property
    def amplified(self) -> bool:
        """Whether PUBLIC sees only sums over a cohort that may be secret: every client is charged
        for every round, drawn or not, and the size of the cohort must not be shown."""
        return self.server_adds_noise

    @property
    def guards_server(self) -> bool:
        """Whether the server sees only noisy messages: a client's own budget can hold, and the
        upload probabilities are functions of released values."""
        return self.clients_add_noise
