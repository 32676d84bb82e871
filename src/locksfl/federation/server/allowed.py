"""What an experiment asks of a device's policy, and the policy that allows just that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tomli_w

from locksfl.arm import Arm
from locksfl.experiment.config import Config
from locksfl.methods import TRUSTS
from locksfl.methods.events import Rounds
from locksfl.privacy import epsilon_of

HEADROOM = 1.001  # a device's budget above what the run needs: epsilons are found by search


def policy_for(config: Config, plans: Sequence[Arm]) -> dict[str, object]:
    """A policy that allows these arms once, and no more."""
    privacy = config.privacy
    norms = [plan.norm_multiplier for plan in plans if plan.releases_norms]
    policy: dict[str, object] = {
        "trust": privacy.trust,
        "relation": privacy.relation,
        "max_clip_norm": max(plan.clip_norm for plan in plans),
        "min_noise_multiplier": min(z for p in plans for z in p.ladder or (p.noise_multiplier,)),
        "max_rounds": sum(plan.rounds for plan in plans),
    }
    if norms:
        policy["min_norm_multiplier"] = min(norms)
    if TRUSTS[privacy.trust].guards_server:
        sent = [Rounds(one, p.rounds) for p in plans for one in p.messages() if one is not None]
        epsilon = epsilon_of(sent, privacy.delta, privacy.relation).epsilon
        policy |= {"epsilon": epsilon * HEADROOM, "delta": privacy.delta}
    return policy


def policy_text(config: Config, plans: Sequence[Arm]) -> str:
    """The same as a file, with what the owner of a device should know."""
    policy = policy_for(config, plans)
    lines = [
        f"# Allows the experiment {config.name!r} once, from first round to last, and no more.",
        "# It is what the server asks for. What this device gives is its owner's decision.",
    ]
    if "epsilon" in policy:
        lines.append("# epsilon and delta are the budget of this device for all runs and servers;")
        lines.append("# this epsilon pays for all arms of the experiment together.")
    else:
        lines.append("# The server sees raw updates: no budget of this device can hold.")
    return "\n".join(lines) + "\n" + tomli_w.dumps(policy)


def terms_line(policy: Mapping[str, object]) -> str:
    """What a policy must allow, in one line, for the server to print."""
    signs = {"max_": ">=", "min_": "<=", "epsilon": ">="}

    def told(name: str, value: object) -> str:
        sign = next((sign for start, sign in signs.items() if name.startswith(start)), "=")
        return f"{name} {sign} {value}"  # in full: a rounded number would not be allowed

    return "a policy must allow: " + ", ".join(told(*item) for item in policy.items())
