"""Arms whose rule or estimator is code of the operator's own: "package.module:name".

It is never imported here (`experiment.own_code`). So what the code states (a largest probability,
whether norms are asked for) is taken from the terms, and a reader is told. All that the trust, the
settings and the stated noise fix by themselves must hold all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from locksfl._tables import Record
from locksfl.arm import Arm
from locksfl.experiment.config import Config
from locksfl.experiment.verify.epsilons import terms_in
from locksfl.methods import TRUSTS
from locksfl.methods.events import (
    Chosen,
    Correlated,
    Event,
    Exact,
    Filtered,
    Message,
    Sampled,
    SampledTwice,
    mechanism,
)
from locksfl.methods.releases import Observer, joint_multiplier

BUDGET = ("epsilon", "delta", "relation")


def own_term_faults(told: Record, arm: Arm, config: Config) -> Iterator[str]:
    """Terms of such an arm that its trust or the stated noise forbids; `arm` stands in."""
    trust = TRUSTS[config.privacy.trust]
    stated = terms_in(told)
    for who in trust.sees:
        kinds = [type(event) for event, _ in stated[who]]
        if kinds not in (allowed := _kinds(who, told, arm, config)):
            either = " or ".join(", ".join(map(mechanism, each)) for each in allowed)
            named = ", ".join(map(mechanism, kinds))
            yield f"terms {who}: {named}; trust {trust.name!r} leads to {either}"
            continue
        releases = [event.release for event, _ in stated[who] if isinstance(event, Message)]
        if len(set(releases)) < len(releases):
            yield f"terms {who}: a release stands there twice"
        for event, _ in stated[who]:
            for name, value in _stated(event, told, arm, config, who).items():
                if getattr(event, name) != value:
                    yield f"terms {who}: {name} {getattr(event, name)!r}; the arm's is {value!r}"


def _kinds(who: Observer, told: Record, arm: Arm, config: Config) -> list[list[type[Event]]]:
    """The lists of events that an observer may have before them."""
    norms, trust = told["norm_multiplier"] is not None, arm.parts[2]
    if trust.guards_server:
        return [[Filtered] if config.privacy.filter else [Message] * (1 + norms)]
    if not trust.private or who == "SERVER":
        return [[Exact]]
    if arm.scheme.group:
        return [[type(arm.event())]]
    if "ladder" in told:
        return [[Chosen]]
    if norms:
        return [[SampledTwice]]
    return [[Sampled]] if arm.clip_quantile is None else [[Sampled], [SampledTwice]]


def _stated(event: Event, told: Record, arm: Arm, config: Config, who: str) -> Record:
    """The fields that an event must have, given what the arm states of its noise (`Arm.event`)."""
    noise, norm = told["noise_multiplier"], told["norm_multiplier"]
    bits = told.get("clip_multiplier")
    match event:
        case Message():
            alone = who == "SERVER" or arm.dropouts or event.uploaders is None
            share = {"uploaders": None if alone else arm.clients}
            return {"noise_multiplier": noise if event.release == "update" else norm, **share}
        case Filtered():
            kept = {f"budget_{n}": getattr(config.privacy, n) for n in BUDGET}
            return {"update_multiplier": noise, "norm_multiplier": norm, **kept}
        case Sampled():
            return {"noise_multiplier": joint_multiplier(noise, bits) if bits else noise}
        case SampledTwice():
            before = [z for z in (norm, bits) if z]
            first = joint_multiplier(*before) if len(before) > 1 else before[0]
            return {"noise_multiplier": noise, "first_multiplier": first}
    if isinstance(event, Correlated):
        return structs.asdict(arm.event()) | {"strategy": event.strategy}
    return {}
