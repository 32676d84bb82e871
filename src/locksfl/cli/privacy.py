"""`locks privacy`: what a plan or a run costs, and the noise that an epsilon needs. No JAX here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locksfl._text import epsilon_text, table_of
from locksfl.cli.console import RELATION_HELP, Json, group, option, show, typed_flags, warn

if TYPE_CHECKING:
    from locksfl.arm import Arm

privacy_app = group(
    "privacy", "What a plan or a run costs each observer, and the noise that an epsilon needs."
)

Epsilon = Annotated[float, option("The total epsilon.")]
Delta = Annotated[float, option("Far below 1 / clients.")]
Rounds = Annotated[int | None, option("T, the number of rounds.")]
Clients = Annotated[int | None, option("n, the number of clients.")]
Cohort = Annotated[float | None, option("m, the clients asked per round, on average.")]
Trust = Annotated[str, option("Who adds the noise: central, local or none.")]
Rule = Annotated[str, option("How uploaders are drawn; norm: LOCKS, with its norm release.")]
Relation = Annotated[str, option(RELATION_HELP)]
Accountant = Annotated[str, option("pld or rdp, for trust central.")]
Uploads = Annotated[float | None, option("b, uploads wanted. Default: the cohort.")]
Floor = Annotated[float | None, option("lambda, with --rule norm. Default: 0.1.")]
NormLow = Annotated[float | None, option("K_low as a share of m C, from b/m (default) to 1.")]
NormMultiplier = Annotated[float | None, option("z_K or z_s, the noise multiplier of the norms.")]
ClipQuantile = Annotated[
    float | None, option("The clip norm adapts to this quantile, by a count that is charged.")
]
ClipMultiplier = Annotated[float | None, option("The noise multiplier of that count.")]
Separation = Annotated[
    int | None, option("Clients take turns, one round in so many, in public; no --cohort then.")
]
NormQueries = Annotated[
    int | None, option("Norms of one client (trust local). Default: one per round.")
]
UpdateReleases = Annotated[
    int | None, option("Uploads of one client (trust local). Default: one per round.")
]
ARM = (
    "rounds", "clients", "cohort", "trust", "rule", "uploads", "floor", "norm_low", "clip_quantile",
)  # fmt: skip


def arm_from_flags(flags: dict[str, Any]) -> Arm:
    """The arm of the flags."""
    from locksfl import _validate
    from locksfl.arm import MULTIPLIERS, Arm
    from locksfl.methods import TRUSTS, find_rule
    from locksfl.privacy import ACCOUNTANTS, RELATIONS

    rule = find_rule(flags["rule"], "--rule")
    everyone = rule.all_clients
    needed = ARM[:2] if everyone or flags["separation"] is not None else ARM[:3]
    if missing := [f"--{name}" for name in needed if flags[name] is None]:
        raise ValueError(f"{', '.join(missing)}: missing; expected a number")
    known = {"trust": TRUSTS, "relation": RELATIONS, "accountant": ACCOUNTANTS}
    for name, choices in known.items():
        _validate.one_of(choices, **{f"--{name}": flags[name]})
    for name in ("floor", "norm_low", "norm_multiplier"):
        if flags[name] is not None and not rule.accepts(name):
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} = {flags[name]!r}: --rule {flags['rule']} takes none")
    typed = {name: flags[name] for name in MULTIPLIERS if flags.get(name) is not None}
    _validate.positive(**typed)
    _validate.probability(delta=flags["delta"])
    if flags["separation"] is not None:
        _validate.count(separation=flags["separation"])
        typed["separation"] = flags["separation"]
    return Arm("", **{name: flags[name] for name in ARM}, **typed)


@privacy_app.command()
def calibrate(
    epsilon: Epsilon,
    rounds: Rounds = None,
    clients: Clients = None,
    cohort: Cohort = None,
    delta: Delta = 1e-5,
    trust: Trust = "central",
    rule: Rule = "uniform",
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
    uploads: Uploads = None,
    floor: Floor = None,
    norm_low: NormLow = None,
    norm_multiplier: NormMultiplier = None,
    clip_quantile: ClipQuantile = None,
    clip_multiplier: ClipMultiplier = None,
    separation: Separation = None,
    norm_queries: NormQueries = None,
    update_releases: UpdateReleases = None,
    as_json: Json = False,
) -> None:
    """The least noise that costs no more than an epsilon, all releases included."""
    flags = dict(locals())
    from locksfl import _validate, privacy
    from locksfl.arm import MULTIPLIERS

    _validate.positive(epsilon=epsilon)
    arm = arm_from_flags(flags)
    if not arm.private:
        raise ValueError(f"--trust {trust} adds no noise: expected another")
    kinds = {name: flags[name] for name in ("relation", "accountant")}
    most = _client_counts(arm, norm_queries, update_releases)
    found = privacy.calibrate(arm, epsilon, delta, most=most, **kinds)
    amplified = arm.parts[2].amplified
    coins = amplified and not arm.separation
    answer: dict[str, Any] = {
        **{name: getattr(found, name) or None for name in MULTIPLIERS},
        "epsilon": epsilon,
        "delta": delta,
        "relation": relation,
        "accountant": "rdp" if found.ladder else accountant if coins else "gdp",
        "protects_from": "PUBLIC" if amplified else "SERVER and PUBLIC",
    }
    lines = [f"{name:<18}{answer[name]:.6g}" for name in MULTIPLIERS if answer[name]]
    if found.ladder:
        answer["rates"] = [
            {
                **({"cohort": one.cohort} if arm.controlled else {"norm_sum": one.norm_low}),
                "noise_multiplier": one.noise_multiplier,
                "at_this_rate_alone": _alone(one, epsilon, delta, kinds),
            }
            for one in (found.at_rung(k) for k in (0, len(found.ladder) // 2, -1))
        ]
        named = "cohort" if arm.controlled else "norm_sum"
        lines = [line for line in lines if not line.startswith("noise_multiplier")] + [
            f"{named} {rate[named]:.4g}: noise_multiplier {rate['noise_multiplier']:.6g} "
            f"({rate['at_this_rate_alone']:.6g} in a run of this rate alone, {accountant})"
            for rate in answer["rates"]
        ]
    if arm.separation:
        lines.append(
            f"clients take turns, {arm.separation} rounds apart, in public: nothing is amplified; "
            f"the noise may be correlated over up to {arm.separation} rounds (bands)"
        )
    last = (
        f"epsilon {epsilon:g}, delta {delta:g} against {answer['protects_from']} "
        f"({relation}, {answer['accountant']}); the unit of privacy is one client"
    )
    warn(privacy.delta_warning(delta, arm.clients))
    show(answer, as_json, lambda _: [*lines, last])


def _alone(arm: Arm, epsilon: float, delta: float, kinds: dict[str, Any]) -> float:
    """The noise of a rung if all rounds were to be of it."""
    from locksfl.privacy import calibrate_central

    event: Any = arm.sampled_round()
    pair = {name: getattr(event, name) for name in ("norm_multiplier", "upload_probability")}
    found = calibrate_central(epsilon, delta, arm.rounds, event.sampling_rate, **pair, **kinds)
    return found.noise_multiplier


@privacy_app.command()
def account(
    context: typer.Context,
    run: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder: everything is read from its ledger, and no other option applies."
        ),
    ] = None,
    noise_multiplier: Annotated[
        float | None, option("Noise std over the zero-out sensitivity.")
    ] = None,
    rounds: Rounds = None,
    clients: Clients = None,
    cohort: Cohort = None,
    delta: Delta = 1e-5,
    trust: Trust = "central",
    rule: Rule = "uniform",
    relation: Relation = "zero-out",
    accountant: Accountant = "pld",
    uploads: Uploads = None,
    floor: Floor = None,
    norm_low: NormLow = None,
    norm_multiplier: NormMultiplier = None,
    clip_quantile: ClipQuantile = None,
    clip_multiplier: ClipMultiplier = None,
    separation: Separation = None,
    norm_queries: NormQueries = None,
    update_releases: UpdateReleases = None,
    as_json: Json = False,
) -> None:
    """What rounds cost each observer: from flags, or from the ledger of a run."""
    flags = dict(locals())
    from locksfl.privacy import delta_warning, guarantee
    from locksfl.privacy.ledger import account_ledger, by_observer, read_run

    if run is not None:
        if typed := typed_flags(context):
            raise ValueError(
                f"{run}: its ledger holds all settings; expected no {', '.join(typed)}"
            )
        show(account_ledger(read_run(run)), as_json, lambda answer: _run_lines(run, answer))
        return
    arm = arm_from_flags(flags)
    if not arm.private and (noise_multiplier or norm_multiplier or clip_multiplier):
        raise ValueError(f"--trust {trust} adds no noise: expected no multiplier")
    if arm.private and noise_multiplier is None:
        raise ValueError("--noise-multiplier: missing; expected a number > 0")
    if arm.private and arm.releases_norms and norm_multiplier is None:
        raise ValueError(f"--norm-multiplier: missing; --rule {rule} releases norms")
    if arm.private and clip_quantile is not None and clip_multiplier is None:
        raise ValueError("--clip-multiplier: missing; the clip norm adapts to a released count")
    counts = _client_counts(arm, norm_queries, update_releases)
    costs = guarantee([arm], delta, flags["accountant"], counts)
    warn(delta_warning(delta, arm.clients))
    show(by_observer(costs, relation), as_json, _cost_lines)


PopulationId = Annotated[str, typer.Argument(help="The id that the owner of the data gave.")]


@privacy_app.command()
def population(
    population: PopulationId,
    total: Annotated[float, option("The most that all runs together may cost.")],
    delta: Delta = 1e-5,
    relation: Relation = "zero-out",
    trust: Annotated[
        str,
        option(
            "central: against PUBLIC, at one Renyi order, for runs of any trust; "
            "local: against SERVER, one mu, for runs in which clients add the noise."
        ),
    ] = "central",
    order: Annotated[
        float | None, option("The Renyi order. Default: the best for noise without sampling.")
    ] = None,
) -> None:
    """Make the journal of a population, once: every run without a seed debits it."""
    kinds: dict[str, Any] = {"relation": relation}
    from locksfl import _validate
    from locksfl.methods import TRUSTS
    from locksfl.privacy import RELATIONS
    from locksfl.privacy.population import PopulationJournal, Total, best_order

    _validate.positive(**{"--total": total})
    _validate.probability(**{"--delta": delta})
    _validate.one_of(RELATIONS, **{"--relation": relation})
    _validate.one_of([name for name, t in TRUSTS.items() if t.private], **{"--trust": trust})
    if TRUSTS[trust].amplified:
        order = order or best_order(total, delta, **kinds)
    elif order is not None:
        raise ValueError(f"--order = {order:g}: only for runs of any trust, not --trust {trust}")
    fixed = Total(total, delta, order=order, **kinds)
    with PopulationJournal.make(population, fixed) as journal:
        print(f"wrote {journal.path}: {_total_line(fixed)}")


@privacy_app.command("spent")
def spent_by(population: PopulationId, as_json: Json = False) -> None:
    """What all runs on a population have cost each observer together."""
    from locksfl.privacy.population import PopulationJournal

    with PopulationJournal.find(population) as journal:
        show(journal.account(), as_json, _spent_lines, wide=True)


@privacy_app.command()
def paper(as_json: Json = False) -> None:
    """Compare the epsilons that the paper claims with honest ones, by observer and relation."""
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
    from locksfl.methods import TRUSTS

    for name, value in (("--norm-queries", norm_queries), ("--update-releases", update_releases)):
        if value is None:
            continue
        _validate.count(**{name: value})
        if not arm.parts[2].clients_add_noise:
            trusts = " or ".join(name for name, t in TRUSTS.items() if t.clients_add_noise)
            raise ValueError(f"{name} = {value}: only with --trust {trusts}")
        if value > arm.rounds:
            raise ValueError(f"{name} = {value}: expected at most --rounds {arm.rounds}")
    if norm_queries is not None and not arm.releases_norms:
        raise ValueError(f"--norm-queries = {norm_queries}: --rule {arm.rule} releases no norms")
    sent = arm.rounds if update_releases is None else update_releases
    norms = arm.rounds if norm_queries is None else norm_queries
    if arm.releases_norms and norms < sent:
        raise ValueError(
            f"--norm-queries = {norms}: expected at least --update-releases {sent}; "
            "a client that uploads has first released a norm"
        )
    return norms if arm.releases_norms else 0, sent


def _run_lines(run: Path, answer: dict[str, Any]) -> Iterator[str]:
    """What a ledger says, for a person."""
    yield f"{run}: experiment {answer['experiment'][:16]}, trust {answer['trust']}"
    if answer["accounting"] == "as-printed":
        yield "NO GUARANTEE for the claimed epsilon: accounting as printed in the paper"
    for arm in [*answer["arms"], {"name": "all arms", **answer["all_arms_composed"]}]:
        played = f", {arm['rounds_played']} of {arm['rounds']} rounds" if "rounds" in arm else ""
        yield f"{arm['name']}{played}"
        for title in ("guarantee", "spent_so_far"):
            for line in _cost_lines(arm[title]):
                yield f"  {title.replace('_', ' '):<13} {line}"


def _total_line(total: Any) -> str:
    return (
        f"total epsilon {total.epsilon:g}, delta {total.delta:g} against {total.observer} "
        f"({total.relation}, {total.filter})"
    )


def _spent_lines(answer: dict[str, Any]) -> Iterator[Any]:
    """The journal of a population for a person."""
    from datetime import UTC, datetime

    from rich.box import SIMPLE

    from locksfl.privacy import Cost, delta_warning
    from locksfl.privacy.ledger import by_observer

    total, runs = answer["total"], answer["runs"]
    rows = (
        (
            run["run"],
            datetime.fromtimestamp(run["time"], UTC).strftime("%Y-%m-%d %H:%M"),
            ", ".join(run["arms"]),
            epsilon_text(run["epsilon"], 4),
            f"{run['share']:.1%}",
        )
        for run in runs
    )
    heads = ("run", "debited (UTC)", "arms", "epsilon alone", "of the total")
    yield table_of(heads, rows, left=3, box=SIMPLE, padding=0)
    told = f"delta {total['delta']:g}, {total['relation']}"
    yield (
        f"spent so far  {total['observer']}  {answer['share']:.1%} of the total: epsilon "
        f"{answer['spent_so_far']:.4f} of {total['epsilon']:g} ({told}, {total['filter']})"
    )
    yield (
        "guarantee     all runs together, each chosen in view of what earlier ones released, never "
        "cost more than the total"
    )
    yield "if all runs so far were fixed beforehand, they cost together"
    costs = [Cost.from_dict(cost) for cost in answer["composed"]]
    yield from (f"  {line}" for line in _cost_lines(by_observer(costs, total["relation"])))
    if runs and (warning := delta_warning(total["delta"], min(run["clients"] for run in runs))):
        yield warning


def _cost_lines(costs: dict[str, Any]) -> Iterator[str]:
    """One line per observer."""
    for observer, cost in costs.items():
        told = ((k, "infinite" if e is None else f"{e:.4f}") for k, e in cost["relations"].items())
        both = ", ".join(f"{relation} {epsilon}" for relation, epsilon in told)
        yield f"{observer.upper():<7} {both}   (delta {cost['delta']:g}, {cost['accountant']})"
