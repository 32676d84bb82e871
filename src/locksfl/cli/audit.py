"""`locks privacy audit`: attack the implementation that trains, and say what was proved."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from locksfl.cli.console import one_line_errors

DEFAULT_EPSILON, DEFAULT_DELTA, DEFAULT_ROUNDS = 3.0, 1e-3, 4

NOTE = (
    "A lower bound above the claim refutes it. One below does not prove it: the attack may be weak,"
    " and no test of this size can show more than the last column."
)


def add_commands(app: typer.Typer) -> None:
    """Register the command."""
    app.command("audit")(audit)


def audit(
    file: Annotated[
        Path | None, typer.Argument(help="An experiment. Without it: four arms that claim 3.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Rounds of a repetition; the claim is for as many.")
    ] = DEFAULT_ROUNDS,
    repetitions: Annotated[int, typer.Option(help="Of each world, in every attack.")] = 50_000,
    canaries: Annotated[int, typer.Option(help="In the one run; 0 leaves it out.")] = 10_000,
    delta: Annotated[
        float | None, typer.Option(help="Where the claim is tested. Without it: the experiment's.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="That all bounds together hold.")] = 0.99,
    seed: Annotated[int | None, typer.Option(help="Repeat an audit exactly.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, not a table.")] = False,
) -> None:
    """Attack the implementation, and give a lower bound on epsilon beside the claimed one.

    Exit code 1 when a claim is refuted or a property fails.
    """
    with one_line_errors():
        report = run_audit(
            file,
            changes or [],
            rounds=rounds,
            repetitions=repetitions,
            canaries=canaries,
            delta=delta,
            confidence=confidence,
            seed=seed,
        )
        if as_json:
            print(json.dumps(report, indent=2))
        else:
            _print(report)
    if not report["sound"]:
        raise typer.Exit(1)


def run_audit(
    file: Path | None = None,
    changes: list[str] | None = None,
    *,
    rounds: int = DEFAULT_ROUNDS,
    repetitions: int = 50_000,
    canaries: int = 10_000,
    delta: float | None = None,
    confidence: float = 0.99,
    seed: int | None = None,
) -> dict[str, Any]:
    """Every attack and every check, as plain tables."""
    from locksfl import _validate
    from locksfl.audit.attacks import audit_arm, planned_attacks
    from locksfl.audit.properties import check_arm
    from locksfl.round.randomness import Randomness

    _validate.count(rounds=rounds)
    _validate.probability(confidence=confidence)
    for name, value, least in (("repetitions", repetitions, 1000), ("canaries", canaries, 100)):
        if value < least and (name, value) != ("canaries", 0):
            raise ValueError(f"{name} = {value}: expected at least {least}")
    arms = default_arms(rounds) if file is None else _configured(file, changes or [], rounds)
    if delta is not None:
        _validate.probability(delta=delta)
        arms = [(plan, dataclasses.replace(privacy, delta=delta)) for plan, privacy in arms]
    attacks = sum(planned_attacks(plan, canaries) for plan, _ in arms)
    source = Randomness.from_system() if seed is None else Randomness.seeded(seed)
    findings, checks = [], []
    for plan, privacy in arms:
        findings += audit_arm(
            plan,
            privacy,
            rounds=min(rounds, plan.rounds),
            repetitions=repetitions,
            canaries=canaries,
            significance=(1 - confidence) / attacks,
            randomness=source,
        )
        checks += check_arm(plan, source)
    return {
        "sound": not any(f.refuted for f in findings) and all(c.holds for c in checks),
        "confidence": confidence,
        "seed": seed,
        "attacks": [f.as_dict() for f in findings],
        "checks": [c.as_dict() for c in checks],
        "not_attacked": sorted({_untouched(plan) for plan, _ in arms} - {""}),
        "note": NOTE,
    }


def default_arms(rounds: int = DEFAULT_ROUNDS) -> list[tuple[Any, Any]]:
    """Uniform and LOCKS under both trusts, calibrated to claim 3 for these rounds.

    Delta is large: at a small one most of epsilon lies in tails that no repetition ever reaches.
    """
    from locksfl.arm import Arm
    from locksfl.experiment.config import PrivacyConfig
    from locksfl.experiment.plan import calibrated

    arms = []
    for trust in ("central", "local"):
        privacy = PrivacyConfig(trust=trust, epsilon=DEFAULT_EPSILON, delta=DEFAULT_DELTA)
        for rule, more in (
            ("uniform", {"cohort": 50.0}),
            ("norm", {"cohort": 60.0, "floor": 0.1, "norm_low": 0.9}),
        ):
            plan = Arm(
                name=f"{trust}-{rule}",
                rule=rule,
                trust=trust,
                clients=100,
                rounds=rounds,
                uploads=50.0,
                clip_norm=1.0,
                step=1.0,
                **more,  # type: ignore[arg-type]
            )
            arms.append((calibrated(plan, privacy), privacy))
    return arms


def _configured(file: Path, changes: list[str], rounds: int) -> list[tuple[Any, Any]]:
    """The arms of an experiment, with the multipliers of its whole run."""
    from locksfl.experiment.config import read_config
    from locksfl.experiment.plan import plan_arms
    from locksfl.methods import TRUSTS

    config = read_config(file, changes)
    trust = config.privacy.trust
    if not TRUSTS[trust].private:
        raise ValueError(
            f"privacy.trust = {trust!r}: it claims nothing, so there is nothing to attack"
        )
    del rounds
    return [(plan, config.privacy) for plan in plan_arms(config)]


def _untouched(plan: Any) -> str:
    if plan.parts[2].amplified:
        return f"SERVER under trust {plan.trust}: it sees raw updates, its epsilon is infinite"
    return ""


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(
        title="epsilon: claimed, proved at least, and the most that the test could prove",
        title_justify="left",
        box=None,
    )
    for name in ("arm", "observer", "relation", "attack", "rounds", "delta"):
        table.add_column(name)
    for name in ("claimed", "at least", "largest"):
        table.add_column(name, justify="right")
    for f in report["attacks"]:
        style = "bold red" if f["refuted"] else None
        head = (f["arm"], f["observer"], f["relation"], f"{f['attack']}, {f['samples']:,}")
        numbers = (f"{f['claimed']:.2f}", f"{f['lower']:.2f}", f"{f['largest']:.2f}")
        table.add_row(*head, str(f["rounds"]), f"{f['delta']:.0e}", *numbers, style=style)
    console.print(table)
    for check in report["checks"]:
        said = "holds" if check["holds"] else "FAILS"
        text = f"{said}  {check['arm']}: {check['name']} ({check['found']})"
        console.print(text, highlight=False, style=None if check["holds"] else "bold red")
    for text in report["not_attacked"]:
        console.print(f"not attacked: {text}", highlight=False)
    console.print(report["note"], highlight=False)
    if report["sound"]:
        said = f"no claim is refuted (all bounds hold together with {report['confidence']:.0%})"
    else:
        said = "THE CLAIMS ARE FALSE: something above is red"
    console.print(said, highlight=False)
