"""What the parts of a document say of each other: settings, terms, rounds and arms.

The arms are planned anew from the public settings, with the noise that the statement names, and
must have the terms of the statement. Of arms with code of the operator's own, which is never
imported here, `own_code` checks what can be known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from locksfl._tables import Record, or_infinite
from locksfl.arm import MULTIPLIERS, Arm
from locksfl.experiment.arm_config import ArmConfig
from locksfl.experiment.config import Config, to_table
from locksfl.experiment.documents import Document
from locksfl.experiment.own_code import described, is_own
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.record import NumberMetrics, PublicArm, PublicRound, PublicRun, plain
from locksfl.experiment.records import traffic
from locksfl.experiment.statement import unit_text
from locksfl.experiment.verify.covers import cover_faults
from locksfl.experiment.verify.epsilons import terms_in
from locksfl.experiment.verify.own_code import own_term_faults
from locksfl.methods import TRUSTS
from locksfl.methods.cyclic import check_secret
from locksfl.methods.events import (
    Correlated,
    Exact,
    Rounds,
    Sampled,
    Sent,
    Sum,
    mechanism,
    terms_to_json,
    with_matrix,
)
from locksfl.privacy.recompute import recomputed
from locksfl.privacy.terms import terms_of

TOGETHER = (Exact, Sum, Sent)  # what an observer may have before them in one trust


def claim_faults(run: PublicRun) -> Iterator[str]:
    """Settings that no arm could have, and a claim without a number."""
    try:
        described(run).check_arms()
    except ValueError as error:
        yield f"configuration: {error}"
    printed = run.settings.privacy.accounting != "sound"
    if printed and any(arm.claimed_epsilon is None for arm in run.arms):
        yield "claimed_epsilon: missing, and no_guarantee is said of it"


def setting_faults(run: PublicRun, document: Document) -> Iterator[str]:
    """Settings that do not lead to the statement and its terms."""
    statement, config = document["statement"], described(run)
    try:
        arms = _planned(run, document, config)
        if not run.simulated:
            _check_secret(config, arms)
    except ValueError as error:
        yield f"configuration: {error}"
        return
    tables = run.settings.arm
    known = () if any(map(is_own, tables)) else arms
    yield from (f"covers: {fault}" for fault in cover_faults(document, config, known))
    for told, arm, table in zip(statement["arms"], arms, tables, strict=True):
        lines = [line for line in document["rounds"] if line["arm"] == arm.name]
        for fault in (
            *_arm_faults(told, arm, config, table),
            *(own_term_faults if is_own(table) else _term_faults)(told, arm, config),
            *_claim_faults(told, arm, config),
            *_count_faults(lines, arm, is_own(table)),
        ):
            yield f"arm {arm.name}: {fault}"


def _check_secret(config: Config, arms: list[Arm]) -> None:
    """Refuse, as a run does, what only a simulation may have."""
    check_secret(arms)
    if config.engine is None:
        config.data.check_unit(simulated=False)
    if config.engine is None and config.diagnostics.every and arms[0].private:
        raise ValueError(f"diagnostics.every = {config.diagnostics.every}: only of a simulation")


def _planned(run: PublicRun, document: Document, config: Config) -> list[Arm]:
    """The arms with the noise that is stated; of own code, what stands in, which has no ladder."""
    del document
    noises = {arm.name: arm.noise for arm in run.arms}
    arms = {
        arm.name: arm.changed(noise_multiplier=noises[arm.name].noise_multiplier)
        for arm, table in zip(config.arms, run.settings.arm, strict=True)
        if is_own(table)
    }
    if ours := [table for table in config.arm if table.name not in arms]:
        known = [noises[table.name] for table in ours]
        arms |= {arm.name: arm for arm in plan_arms(replace(config, arm=ours), known)}
    return [arms[table.name] for table in run.settings.arm]


def _arm_faults(told: Record, arm: Arm, config: Config, table: ArmConfig) -> Iterator[str]:
    """Numbers of an arm that are not those of its table and the experiment."""
    names = ["rule", "estimator", "trust", "rounds", "clip_norm", "step"]
    expected = {name: getattr(arm, name) for name in names}
    expected["asked_rounds"] = config.train.rounds
    noised = dict(
        zip(
            MULTIPLIERS,
            (arm.private, arm.releases_norms, arm.clip_quantile is not None),
            strict=True,
        )
    )
    if is_own(table):  # what stands in has another rule, and is not limited
        for name in ("rule", "estimator"):
            expected[name] = getattr(table, name) or told[name]
        if config.privacy.max_epsilon is not None:
            del expected["rounds"]
        noised["norm_multiplier"] = told["norm_multiplier"] is not None
    given = table.given()
    expected |= {name: given[name] for name in MULTIPLIERS if name in given}
    expected |= {name: getattr(arm, name) for name in arm.scheme.tells}
    for name, value in expected.items():
        if told.get(name) != value:
            yield f"{name} = {told.get(name)!r}: the configuration says {value!r}"
    for name, released in noised.items():
        if (told.get(name) is not None) != (arm.private and released):
            yield f"{name} = {told.get(name)!r}: not what the settings release"


def _term_faults(told: Record, arm: Arm, config: Config) -> Iterator[str]:
    """Terms that are not those of the planned arm."""
    del config
    if arm.ladder and told["noise_multiplier"] != arm.ladder[-1]:
        yield f"noise_multiplier = {told['noise_multiplier']!r}: the last of the ladder is another"
    stated = terms_in(told)
    for who, seen in terms_of(arm).items():
        # whether the matrix is sound is checked by itself: it costs nothing
        if [with_matrix(one, ()) for one in stated[who]] != list(seen):
            yield f"terms {who}: not those of the configuration and the stated noise"


def _claim_faults(told: Record, arm: Arm, config: Config) -> Iterator[str]:
    """A total that was asked for and is exceeded; an epsilon claimed without a guarantee."""
    privacy, claimed = config.privacy, told["claimed_epsilon"]
    if privacy.accounting == "sound":
        if claimed is not None:
            yield f"claimed_epsilon = {claimed!r}: nothing was claimed"
        who = "SERVER" if arm.parts[2].guards_server else "PUBLIC"
        limit = privacy.epsilon or privacy.max_epsilon
        for cost in told["privacy"]:
            if (cost["observer"], cost["relation"]) != (who, privacy.relation) or limit is None:
                continue
            if cost["epsilon"] is not None and cost["epsilon"] > limit * (1 + 1e-6):
                yield f"epsilon {cost['epsilon']:.6g}: more than the {limit:g} that was asked for"
        return
    event = Sampled(arm.uploads / arm.clients, arm.noise_multiplier)
    given = or_infinite(claimed)
    if privacy.epsilon is not None and given > privacy.epsilon * (1 + 1e-6):
        yield f"claimed_epsilon = {claimed!r}: more than the {privacy.epsilon:g} asked for"
    found = recomputed(
        [Rounds(event, arm.rounds)], privacy.delta, "zero-out", privacy.accountant, given
    )
    if problem := found.problem(given):
        yield f"claimed_epsilon = {claimed!r}: {problem}"


def _count_faults(lines: list[Record], arm: Arm, own: bool) -> Iterator[str]:
    """Counts of rounds that the settings fix, or that fit no number of parameters. How many upload
    by an own rule is not known."""
    rule = arm.parts[0]
    for line in lines:
        where = f"round {line['round']}"
        if arm.controlled:
            known = any(math.isclose(line["expected_cohort"], rung) for rung in arm.rungs)
        else:
            known = line["expected_cohort"] == arm.cohort
        if not known:
            yield f"{where}: expected_cohort {line['expected_cohort']:g}: not that of the settings"
        fixed = not arm.counts and (rule.estimated_uploads is None or not arm.releases_norms)
        if fixed and not own and line["upload_estimate"] != arm.uploads:
            yield f"{where}: upload_estimate {line['upload_estimate']:g}; it is {arm.uploads:g}"
        if (line.get("clip_norm") is not None) != (arm.clip_quantile is not None):
            yield f"{where}: clip_norm: expected only if it adapts"
        if ("cohort" in line) != arm.parts[2].guards_server:
            yield f"{where}: counts: expected only where every message carries its own noise"
        if "cohort" not in line or not arm.parts[2].guards_server:
            continue
        cohort, uploads = line["cohort"], line["uploads"]
        if not uploads <= cohort <= arm.clients:
            yield f"{where}: {uploads} uploads of {cohort} of {arm.clients} clients"


def term_faults(document: Document) -> Iterator[str]:
    """Terms that are not those of the rounds that the arm states, or that no formula covers."""
    for arm in document["statement"]["arms"]:
        for who, seen in terms_in(arm).items():
            where = f"arm {arm['name']}: terms {who}"
            for event, rounds in seen:
                if not isinstance(event, Exact) and rounds != arm["rounds"]:
                    yield f"{where}: {rounds} rounds; the arm has {arm['rounds']}"
                if isinstance(event, Correlated):
                    yield from (f"{where}: {fault}" for fault in _strategy_faults(event, arm))
    arms = document["statement"]["arms"]
    for who in sorted({who for arm in arms for who in arm["terms"]}):
        events = [event for arm in arms for event, _ in terms_in(arm)[who]]
        if not any(all(isinstance(event, group) for event in events) for group in TOGETHER):
            named = ", ".join(sorted({mechanism(type(event)) for event in events}))
            yield f"terms {who}: {named}: not of one trust"


def _strategy_faults(event: Correlated, arm: Record) -> Iterator[str]:
    """What the cost of correlated noise rests on: docs/accounting.md."""
    strategy = event.strategy
    if math.fsum(c * c for c in strategy) > 1 + 1e-9:
        yield "the squares of the strategy sum to more than 1"
    if not len(strategy) <= event.bands <= event.separation:
        yield "the strategy has more coefficients than bands, or more bands than the separation"
    if (event.bands, list(strategy)) != (arm.get("bands"), arm.get("strategy")):
        yield "another strategy than the arm's"


def round_faults(run: PublicRun, document: Document) -> Iterator[str]:
    """Rounds that are missing, and what is told of them and should not be."""
    train = run.settings.train
    for arm, told in zip(run.arms, document["statement"]["arms"], strict=True):
        where, early = f"arm {arm.name}", train.stop_after is not None
        if (arm.played != arm.planned and not early) or not (
            arm.played <= arm.planned <= train.rounds
        ):
            yield f"{where}: {arm.played} of {arm.planned} of {train.rounds} rounds"
        if (arm.spent_so_far is not None) != early:
            yield f"{where}: spent_so_far: expected only with train.stop_after"
        kinds = {type(one.metrics) for one in run.arms}
        if (arm.metrics is not None) != run.evaluated or len(kinds) > 1:
            yield f"{where}: metrics: not those of public records, all of one task"
        if not run.evaluated and any(one.scores for one in arm.rounds):
            yield f"{where}: scores on records that are not public"
        if arm.spent_so_far is not None:
            yield from (f"{where}: {fault}" for fault in _spent_faults(told))


def _spent_faults(arm: Record) -> Iterator[str]:
    """No client has spent more than is guaranteed."""
    for spent, most in zip(arm["spent_so_far"], arm["privacy"], strict=True):
        known = spent["epsilon"] is not None and most["epsilon"] is not None
        if known and spent["epsilon"] > most["epsilon"] * (1 + 1e-9):
            yield f"spent {spent['epsilon']:.6g} of {most['epsilon']:.6g}"


def as_document(run: PublicRun) -> Document:
    """A public run as tables: {"statement", "config", "rounds"}."""
    config = described(run)
    privacy, metrics = config.privacy, [arm.metrics for arm in run.arms if arm.metrics]
    name = "r2" if any(isinstance(one, NumberMetrics) for one in metrics) else "accuracy"
    statement: Document = {
        "name": config.name,
        "simulated": run.simulated,
        "tuned_without_privacy": privacy.tuned_without_privacy,
        "accounting": privacy.accounting,
        "no_guarantee": privacy.accounting != "sound",
        "filter": privacy.filter,
        "all_arms_composed": list(map(plain, run.all_arms)),
        "unit": unit_text(config),
        "held_out": {"public": run.held_out.public, "clients": run.held_out.clients},
        "classes_public": run.classes_public,
        "released_statistics": list(run.released_statistics),
        "covers": None if run.covers is None else plain(run.covers),
        "arms": [],
        "models": {arm.file: arm.model for arm in run.arms},
    }
    rounds: list[Document] = []
    for arm, table, plan in zip(run.arms, run.settings.arm, config.arms, strict=True):
        lines = [_line(run, arm, number, plan, name) for number in range(1, arm.played + 1)]
        statement["arms"].append(_arm(run, arm, table, plan, name) | _sums(lines))
        rounds += lines
    if run.covers:
        total = run.covers.total
        statement["covers"]["total"] |= {"observer": total.observer, "filter": total.filter}
    return {"statement": statement, "config": to_table(run.settings), "rounds": rounds}


def _arm(run: PublicRun, arm: PublicArm, table: ArmConfig, plan: Arm, name: str) -> Record:
    told: Record = {
        "name": arm.name,
        "trust": plan.trust,
        "clip_norm": plan.clip_norm,
        "step": plan.step,
    }
    told |= {part: getattr(table, part) or getattr(plan, part) for part in ("rule", "estimator")}
    told |= {"rounds": arm.planned, "asked_rounds": run.settings.train.rounds}
    told |= {k: getattr(arm.noise, k) for k in ("noise_multiplier", "norm_multiplier")}
    told["claimed_epsilon"] = arm.claimed_epsilon
    last = arm.rounds[-1]
    if run.evaluated:
        told |= _scores(last, name)
        told["metrics"] = {} if arm.metrics is None else plain(arm.metrics)
        told["metrics"].pop("task", None)
    if (bits := arm.noise.clip_multiplier) is not None or last.clip_norm is not None:
        told |= {"clip_multiplier": bits, "last_clip_norm": last.clip_norm}
    if arm.spent_so_far is not None:
        told |= {"played_rounds": arm.played, "spent_so_far": list(map(plain, arm.spent_so_far))}
    if arm.noise.ladder:
        told["ladder"] = list(arm.noise.ladder)
    for event, _ in arm.terms["PUBLIC"]:
        if isinstance(event, Correlated):
            told |= {k: getattr(event, k) for k in ("separation", "bands")}
            told["strategy"] = list(event.strategy)
    told["privacy"] = list(map(plain, arm.privacy))
    told["terms"] = terms_to_json(arm.terms)
    return told


def _sums(lines: list[Record]) -> Record:
    return {
        "expected_cohort": sum(line["expected_cohort"] for line in lines) / len(lines),
        "upload_estimate": max(0, sum(line["upload_estimate"] for line in lines)),
    }


def _scores(one: PublicRound, name: str) -> Record:
    return {name: one.scores and one.scores.score, "loss": one.scores and one.scores.loss}


def _line(run: PublicRun, arm: PublicArm, number: int, plan: Arm, name: str) -> Record:
    one = arm.rounds[number - 1]
    told: Record = {"arm": arm.name, "round": number, "epsilon": one.epsilon}
    told |= _scores(one, name) if run.evaluated else {}
    told |= {"expected_cohort": one.expected_cohort, "upload_estimate": one.upload_estimate}
    if one.clip_norm is not None:
        told["clip_norm"] = one.clip_norm
    norms = arm.noise.norm_multiplier is not None
    if one.counts is not None:
        counts = one.counts
        told |= {"cohort": counts.cohort, "uploads": counts.uploads, "exhausted": counts.exhausted}
        told |= traffic(counts.cohort, counts.uploads, norms, run.parameters)._asdict()
    elif TRUSTS[plan.trust].private:
        sent = traffic(one.expected_cohort, one.upload_estimate, norms, run.parameters)
        told["bytes_up_estimate"] = sent.bytes_up
    return told
