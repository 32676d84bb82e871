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
    from locksfl.privacy import Terms

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


def terms_from_flags(
    *,
    rounds: int | None,
    clients: int | None,
    cohort: float | None,
    trust: str,
    rule: str,
    uploads: float | None = None,
    floor: float | None = None,
    norm_low: float | None = None,
    noise_multiplier: float | None = None,
    norm_multiplier: float | None = None,
    delta: float | None = None,
) -> Terms:
    """What the accountants have to know, from the flags; warns of a delta that is too large."""
    from locksfl import _validate
    from locksfl.privacy import Terms, delta_warning

    if rounds is None or clients is None or cohort is None:
        missing = {"--rounds": rounds, "--clients": clients, "--cohort": cohort}
        names = ", ".join(name for name, value in missing.items() if value is None)
        raise ValueError(f"{names}: missing; expected a number")
    by_norm = rule == "norm"
    for name, value in (
        ("--floor", floor),
        ("--norm-low", norm_low),
        ("--norm-multiplier", norm_multiplier),
    ):
        if value is not None and not by_norm:
            raise ValueError(f"{name} = {value!r}: only with --rule norm")
    _validate.positive(cohort=cohort)
    if delta is not None:
        _validate.probability(delta=delta)
    wanted = cohort if uploads is None else uploads
    terms = Terms(
        trust=trust,
        rule=rule,
        clients=clients,
        rounds=rounds,
        cohort=float(cohort),
        uploads=float(wanted),
        floor=(0.1 if floor is None else floor) if by_norm else 0.0,
        norm_low=(wanted / cohort if norm_low is None else norm_low) if by_norm else 1.0,
        noise_multiplier=noise_multiplier,
        norm_multiplier=norm_multiplier,
    )
    if delta is not None and (warning := delta_warning(delta, clients)):
        print(f"locks: {warning}", file=sys.stderr)
    return terms


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
        from locksfl import _validate
        from locksfl.privacy.calibrate import calibrate_central, calibrate_local

        _validate.positive(epsilon=epsilon)
        if trust == Trust.none:
            raise ValueError("--trust none adds no noise: expected central or local")
        terms = terms_from_flags(
            rounds=rounds, clients=clients, cohort=cohort, trust=trust.value, rule=rule.value,
            uploads=uploads, floor=floor, norm_low=norm_low, norm_multiplier=norm_multiplier,
            delta=delta,
        )  # fmt: skip
        norms, sent = _client_counts(terms, norm_queries, update_releases)
        found: Any
        if terms.trust == "local":
            found = calibrate_local(
                epsilon, delta, uploads=sent, norms=norms, relation=relation.value,
                norm_multiplier=norm_multiplier,
            )  # fmt: skip
        else:
            joint = terms.asks_norms
            p = terms.largest_probability
            found = calibrate_central(
                epsilon,
                delta,
                terms.rounds,
                terms.sampling_rate * (1.0 if joint else p),
                relation=relation.value,
                accountant=accountant.value,
                upload_probability=p if joint else 1.0,
                norm_release=joint,
                norm_multiplier=norm_multiplier,
                cohort=terms.cohort if joint else None,
                norm_share=terms.norm_low,
            )
        answer = {
            "noise_multiplier": found.noise_multiplier,
            "norm_multiplier": found.norm_multiplier,
            "epsilon": epsilon,
            "delta": delta,
            "relation": relation.value,
            "accountant": "gdp" if terms.trust == "local" else accountant.value,
            "protects_from": "SERVER and PUBLIC" if terms.trust == "local" else "PUBLIC",
        }
        if as_json:
            print(json.dumps(answer))
            return
        print(f"noise_multiplier  {found.noise_multiplier:.6g}")
        if found.norm_multiplier is not None:
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
        from locksfl import _validate
        from locksfl.privacy import guarantee
        from locksfl.privacy.ledger import by_observer

        if trust == Trust.none:
            if noise_multiplier or norm_multiplier:
                raise ValueError("--trust none adds no noise: expected no multiplier")
        elif noise_multiplier is None:
            raise ValueError("--noise-multiplier: missing; expected a number > 0")
        else:
            _validate.positive(noise_multiplier=noise_multiplier)
            if rule == RuleName.norm and norm_multiplier is None:
                raise ValueError("--norm-multiplier: missing; --rule norm releases norms")
        terms = terms_from_flags(
            rounds=rounds, clients=clients, cohort=cohort, trust=trust.value, rule=rule.value,
            uploads=uploads, floor=floor, norm_low=norm_low, noise_multiplier=noise_multiplier,
            norm_multiplier=norm_multiplier, delta=delta,
        )  # fmt: skip
        counts = _client_counts(terms, norm_queries, update_releases)
        costs = guarantee([(terms, None)], delta, accountant.value, counts)
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
    terms: Terms, norm_queries: int | None, update_releases: int | None
) -> tuple[int, int]:
    """(norms, uploads) of one client in local trust: every round, unless said otherwise."""
    from locksfl import _validate

    for name, value in (("--norm-queries", norm_queries), ("--update-releases", update_releases)):
        if value is None:
            continue
        _validate.count(**{name: value})
        if terms.trust != "local":
            raise ValueError(f"{name} = {value}: only with --trust local")
        if value > terms.rounds:
            raise ValueError(f"{name} = {value}: expected at most --rounds {terms.rounds}")
    if norm_queries is not None and not terms.asks_norms:
        raise ValueError(f"--norm-queries = {norm_queries}: only with --rule norm")
    sent = terms.rounds if update_releases is None else update_releases
    norms = terms.rounds if norm_queries is None else norm_queries
    if terms.asks_norms and norms < sent:
        raise ValueError(
            f"--norm-queries = {norms}: expected at least --update-releases {sent}; "
            "every upload is preceded by a norm"
        )
    return norms if terms.asks_norms else 0, sent


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
