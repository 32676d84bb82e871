"""What the owner of a device allows, in a file on the device:

    epsilon = 8.0               # the budget of this device, for all runs and all servers together
    delta = 1e-5
    relation = "zero-out"       # or "replace"
    max_clip_norm = 1.0
    min_noise_multiplier = 4.0  # of an update: noise std over the norm bound of what is sent
    min_norm_multiplier = 8.0   # of a norm; without this line the device never sends one
    max_rounds = 200            # rounds of all runs together
    max_parameters = 1_000_000  # optional: the largest model, refused before it is sent
    answer_seconds = 5.0        # optional: answers leave after a multiple of this time
    tell_rounds_left = true     # optional: with a release, tell how many more the budget pays for

Trust is local unless the file says `trust = "central"`. Then the server sees raw values and no
budget of the device can hold, so `epsilon` and `delta` must be absent.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from locksfl._tables import Count, Positive, Settings, build_table
from locksfl._validate import non_negative, one_of
from locksfl.federation.device.terms import Refusal, RoundTerms
from locksfl.methods import PRIVATE, TRUSTS
from locksfl.methods.releases import RELATIONS, Relation
from locksfl.privacy.budget import Budget


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The table of a TOML file; `what`: the kind of file, for the error message."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such {what} file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None


@dataclass(frozen=True)
class Policy(Settings):
    """The limits of one device."""

    max_clip_norm: Positive
    min_noise_multiplier: Positive
    max_rounds: Count
    epsilon: float | None = None
    delta: float | None = None
    relation: Relation = "zero-out"
    trust: str = "local"
    min_norm_multiplier: Positive | None = None
    max_parameters: Count = 10**8  # 400 MB
    answer_seconds: Annotated[float, non_negative] = 0.0  # an answer is padded to a multiple of it
    tell_rounds_left: bool = False

    def check(self) -> None:
        """Refuse a trust that adds no noise, and a budget where none can hold."""
        one_of(PRIVATE, trust=self.trust)
        if not TRUSTS[self.trust].guards_server:
            for name in ("epsilon", "delta"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} = {getattr(self, name)!r}: expected none with trust "
                        f"{self.trust!r}: the server sees raw values, and no budget of the device "
                        "can hold"
                    )
            one_of(RELATIONS, relation=self.relation)
            return
        for name in ("epsilon", "delta"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is missing")
        _ = self.budget  # refuses what is out of range

    @classmethod
    def read(cls, path: Path) -> Policy:
        """Read the policy from a file; every error is one line that names the file."""
        table = read_toml(path, "policy")
        if "max_rounds" not in table:
            raise ValueError(
                f"{path}: max_rounds is missing; expected a line such as max_rounds = 200, the "
                "number of rounds in which this device takes part, over all runs and servers"
            )
        try:
            policy: Policy = build_table(cls, table, "")
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        return policy

    @property
    def budget(self) -> Budget | None:
        """What the device may spend in total; None in central trust, where nothing bounds it."""
        if self.epsilon is None or self.delta is None:
            return None
        return Budget(self.epsilon, self.delta, self.relation)

    def refusal(self, terms: RoundTerms) -> Refusal | None:
        """Why these terms are not allowed, or None. What was spent does not matter here."""
        if terms.trust != self.trust:
            return Refusal.TRUST
        if terms.relation != self.relation:
            return Refusal.RELATION
        if terms.clip_norm > self.max_clip_norm:
            return Refusal.CLIP
        if terms.noise_multiplier < self.min_noise_multiplier:
            return Refusal.NOISE
        if terms.norm_multiplier is not None and (
            self.min_norm_multiplier is None or terms.norm_multiplier < self.min_norm_multiplier
        ):
            return Refusal.NOISE
        return None
