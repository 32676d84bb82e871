"""`locks privacy`: what a plan or a run costs, and the noise that an epsilon needs. No JAX here."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locksfl._text import epsilon_text
from locksfl.cli.console import RELATION_HELP, Json, one_line_errors, show, typed_flags

if TYPE_CHECKING:
    from locksfl.arm import Arm

privacy_app = typer.Typer(
    help="What a plan or a run costs each observer, and the noise that an epsilon needs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Trust(StrEnum):
    """Who adds the noise."""

    central = "central"
    local = "local"
    none = "none"


class RuleName(StrEnum):
    """How uploaders are drawn."""

    uniform = "uniform"
    norm = "norm"


class RelationName(StrEnum):
    """Which data sets are neighbours."""

    zero_out = "zero-out"
    replaced = "replace"


class AccountantName(StrEnum):
    """How rounds of central trust are composed."""

    rdp = "rdp"
    pld = "pld"


Epsilon = Annotated[float, typer.Option(help="The total epsilon.")]
Delta = Annotated[float, typer.Option(help="Far below 1 / clients.")]
Rounds = Annotated[int | None, typer.Option(help="T, the number of rounds.")]
Clients = Annotated[int | None, typer.Option(help="n, the number of clients.")]
Cohort = Annotated[float | None, typer.Option(help="m, the clients asked per round, on average.")]
TrustFlag = Annotated[Trust, typer.Option(help="Who adds the noise.")]
RuleFlag = Annotated[RuleName, typer.Option(help="norm: LOCKS, with its norm release.")]
RelationFlag = Annotated[RelationName, typer.Option(help=RELATION_HELP)]
AccountantFlag = Annotated[AccountantName, typer.Option(help="For trust central.")]
Uploads = Annotated[float | None, typer.Option(help="b, uploads wanted. Without it: the cohort.")]
Floor = Annotated[float | None, typer.Option(help="lambda, with --rule norm. Without it: 0.1.")]
NormLow = Annotated[
    float | None, typer.Option(help="K_low as a share of m C, from b/m (default) to 1.")
]
NormMultiplier = Annotated[
    float | None, typer.Option(help="z_K or z_s, the noise multiplier of the norms.")
]
NormQueries = Annotated[
    int | None,
    typer.Option(help="Norms of one client (trust local). Without it: one per round."),
]
UpdateReleases = Annotated[
    int | None, typer.Option(help="Uploads of one client (trust local). Without it: one per round.")
]


def arm_from_flags(
    *,
    rounds: int | None,
    clients: int | None,
    cohort: float | None,
    delta: float,
    **settings: Any,
) -> Arm:
    """The arm of the flags; warns of a delta that is too large."""
    from locksfl import _validate
    from locksfl.arm import Arm
    from locksfl.methods import RULES, find_rule
    from locksfl.privacy import delta_warning

    if rounds is None or clients is None or cohort is None:
        missing = {"--rounds": rounds, "--clients": clients, "--cohort": cohort}
        names = ", ".join(name for name, value in missing.items() if value is None)
        raise ValueError(f"{names}: missing; expected a number")
    rule = find_rule(settings["rule"])
    for name in ("floor", "norm_low", "norm_multiplier"):
        if settings.get(name) is not None and not rule.accepts(name):
            flag = f"--{name.replace('_', '-')}"
            others = " or ".join(other for other in RULES if RULES[other].accepts(name))
            raise ValueError(f"{flag} = {settings[name]!r}: only with --rule {others}")
    for name in ("noise_multiplier", "norm_multiplier"):
        if (value := settings.get(name)) is None:
            settings[name] = 0.0
        else:
            _validate.positive(**{name: value})
    _validate.probability(delta=delta)
    arm = Arm("", clients, rounds, cohort=cohort, **settings)
    if warning := delta_warning(delta, clients):
        print(f"locks: {warning}", file=sys.stderr)
    return arm


@privacy_app.command()
def calibrate(
    epsilon: Epsilon,
    rounds: Rounds = None,
    clients: Clients = None,
    cohort: Cohort = None,
    delta: Delta = 1e-5,
    trust: TrustFlag = Trust.central,
    rule: RuleFlag = RuleName.uniform,
    relation: RelationFlag = RelationName.zero_out,
    accountant: AccountantFlag = AccountantName.pld,
    uploads: Uploads = None,
    floor: Floor = None,
    norm_low: NormLow = None,
    norm_multiplier: NormMultiplier = None,
    norm_queries: NormQueries = None,
    update_releases: UpdateReleases = None,
    as_json: Json = False,
) -> None:
    """The least noise that costs no more than an epsilon, norm releases included."""
    with one_line_errors():
        from locksfl import _validate, privacy

        _validate.positive(epsilon=epsilon)
        arm = arm_from_flags(
            rounds=rounds, clients=clients, cohort=cohort, delta=delta, trust=trust.value,
            rule=rule.value, uploads=uploads, floor=floor, norm_low=norm_low,
            norm_multiplier=norm_multiplier,
        )  # fmt: skip
        if not arm.private:
            raise ValueError(f"--trust {trust.value} adds no noise: expected another")
        found = privacy.calibrate(
            arm,
            epsilon,
            delta,
            relation=relation.value,
            accountant=accountant.value,
            most=_client_counts(arm, norm_queries, update_releases),
        )
        amplified = arm.parts[2].amplified
        answer = {
            "noise_multiplier": found.noise_multiplier,
            "norm_multiplier": found.norm_multiplier or None,
            "epsilon": epsilon,
            "delta": delta,
            "relation": relation.value,
            "accountant": accountant.value if amplified else "gdp",
            "protects_from": "PUBLIC" if amplified else "SERVER and PUBLIC",
        }
        if as_json:
            print(json.dumps(answer))
            return
        print(f"noise_multiplier  {found.noise_multiplier:.6g}")
        if found.norm_multiplier:
            print(f"norm_multiplier   {found.norm_multiplier:.6g}")
        print(
            f"epsilon {epsilon:g}, delta {delta:g} against {answer['protects_from']} "
            f"({relation.value}, {answer['accountant']}); the unit of privacy is one client"
        )


@privacy_app.command()
def account(
    context: typer.Context,
    run: Annotated[
        Path | None, typer.Argument(help="A run folder: its ledger is read instead of flags.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise std over the zero-out sensitivity.")
    ] = None,
    rounds: Rounds = None,
    clients: Clients = None,
    cohort: Cohort = None,
    delta: Delta = 1e-5,
    trust: TrustFlag = Trust.central,
    rule: RuleFlag = RuleName.uniform,
    relation: RelationFlag = RelationName.zero_out,
    accountant: AccountantFlag = AccountantName.pld,
    uploads: Uploads = None,
    floor: Floor = None,
    norm_low: NormLow = None,
    norm_multiplier: NormMultiplier = None,
    norm_queries: NormQueries = None,
    update_releases: UpdateReleases = None,
    as_json: Json = False,
) -> None:
    """What rounds cost each observer: from flags, or from the ledger of a run."""
    with one_line_errors():
        if run is not None:
            if typed := typed_flags(context):
                raise ValueError(f"{run}: a ledger says it all; expected no {', '.join(typed)}")
            _account_run(run, as_json)
            return
        from locksfl.privacy import guarantee
        from locksfl.privacy.ledger import by_observer

        arm = arm_from_flags(
            rounds=rounds, clients=clients, cohort=cohort, delta=delta, trust=trust.value,
            rule=rule.value, uploads=uploads, floor=floor, norm_low=norm_low,
            noise_multiplier=noise_multiplier, norm_multiplier=norm_multiplier,
        )  # fmt: skip
        if not arm.private and (noise_multiplier or norm_multiplier):
            raise ValueError(f"--trust {trust.value} adds no noise: expected no multiplier")
        if arm.private and noise_multiplier is None:
            raise ValueError("--noise-multiplier: missing; expected a number > 0")
        if arm.private and arm.releases_norms and norm_multiplier is None:
            raise ValueError(f"--norm-multiplier: missing; --rule {rule.value} releases norms")
        counts = _client_counts(arm, norm_queries, update_releases)
        costs = guarantee([arm], delta, accountant.value, counts)
        answer = by_observer(costs, relation.value)
        if as_json:
            print(json.dumps(answer))
            return
        for observer, cost in answer.items():
            both = ", ".join(f"{k} {_text(v)}" for k, v in cost["relations"].items())
            print(f"{observer.upper():<7} {both}   (delta {delta:g}, {cost['accountant']})")


@privacy_app.command()
def paper(as_json: Json = False) -> None:
    """The paper's claimed epsilons beside the honest ones, by observer and relation."""
    from locksfl.paper.as_printed import CLIENTS, DELTA, ROUNDS, honest_table

    def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
        yield f"reconstructed: {CLIENTS} clients, {ROUNDS} rounds, delta {DELTA:g}"
        yield f"{'claimed':>7} {'noise':>6} {'SERVER':>17} {'PUBLIC':>17}  reading"
        yield f"{'':14} {'zero-out / replace':>35}"
        for row in rows:
            server, public = (
                " / ".join(f"{epsilon_text(e, 1, 'inf'):>7}" for e in row[observer].values())
                for observer in ("server", "public")
            )
            yield (
                f"{row['claimed_epsilon']:>7g} {row['noise_multiplier']:>6g} {server:>17} "
                f"{public:>17}  {row['reading']}"
            )

    show([row.as_dict() for row in honest_table()], as_json, lines)


def _client_counts(
    arm: Arm, norm_queries: int | None, update_releases: int | None
) -> tuple[int, int]:
    """(norms, uploads) of one client that adds its own noise: all rounds by default."""
    from locksfl import _validate

    for name, value in (("--norm-queries", norm_queries), ("--update-releases", update_releases)):
        if value is None:
            continue
        _validate.count(**{name: value})
        if not arm.parts[2].clients_add_noise:
            raise ValueError(f"{name} = {value}: only with --trust local")
        if value > arm.rounds:
            raise ValueError(f"{name} = {value}: expected at most --rounds {arm.rounds}")
    if norm_queries is not None and not arm.releases_norms:
        raise ValueError(f"--norm-queries = {norm_queries}: only with --rule norm")
    sent = arm.rounds if update_releases is None else update_releases
    norms = arm.rounds if norm_queries is None else norm_queries
    if arm.releases_norms and norms < sent:
        raise ValueError(
            f"--norm-queries = {norms}: expected at least --update-releases {sent}; "
            "a client that uploads has sent its norm first"
        )
    return norms if arm.releases_norms else 0, sent


def _account_run(run: Path, as_json: bool) -> None:
    from locksfl.privacy.ledger import account_ledger, read_run

    answer = account_ledger(read_run(run))
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    print(f"{run}: experiment {answer['experiment'][:16]}, trust {answer['trust']}")
    if answer["accounting"] == "as-printed":
        print("NO GUARANTEE for the claimed epsilon: accounting as printed in the paper")
    rows = [*answer["arms"], {"name": "all arms", **answer["all_arms_composed"]}]
    for arm in rows:
        played = f", {arm['rounds_played']} of {arm['rounds']} rounds" if "rounds" in arm else ""
        print(f"{arm['name']}{played}")
        for title in ("guarantee", "spent_so_far"):
            for observer, cost in arm[title].items():
                both = ", ".join(f"{k} {_text(v)}" for k, v in cost["relations"].items())
                by = f"(delta {cost['delta']:g}, {cost['accountant']})"
                print(f"  {title.replace('_', ' '):<13} {observer.upper():<7} {both}   {by}")


def _text(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon:.4f}"
