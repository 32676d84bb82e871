"""`locks privacy`: what a plan or a run costs, and the noise that an epsilon needs. No JAX here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locksfl._tables import Record
from locksfl._text import epsilon_text
from locksfl.cli.console import (
    RELATION_HELP,
    Json,
    argument,
    group,
    option,
    plain_table,
    show,
    typed_flags,
    warn,
    with_flags,
)

if TYPE_CHECKING:
    from locksfl.arm import Arm
    from locksfl.privacy.ledger import ByObserver, Composed, RunAccount
    from locksfl.privacy.population import Total

privacy_app = group(
    "privacy", "What a plan or a run costs each observer, and the noise that an epsilon needs."
)

Delta = Annotated[float, option("Far below 1 / clients.")]
Trust = Annotated[str, option("Who adds the noise: central, local or none.")]
Relation = Annotated[str, option(RELATION_HELP)]


@dataclass(frozen=True)
class Flags:
    """The options that describe an arm to `calibrate` and `account`."""

    rounds: Annotated[int | None, option("T, the number of rounds.")] = None
    clients: Annotated[int | None, option("n, the number of clients.")] = None
    cohort: Annotated[float | None, option("m, the clients asked per round, on average.")] = None
    delta: Delta = 1e-5
    trust: Trust = "central"
    rule: Annotated[str, option("How uploaders are drawn; norm: LOCKS, with its norm release.")] = (
        "uniform"
    )
    relation: Relation = "zero-out"
    accountant: Annotated[str, option("pld or rdp, for trust central.")] = "pld"
    uploads: Annotated[float | None, option("b, uploads wanted. Default: the cohort.")] = None
    floor: Annotated[float | None, option("lambda, with --rule norm. Default: 0.1.")] = None
    norm_low: Annotated[
        float | None, option("K_low as a share of m C, from b/m (default) to 1.")
    ] = None
    norm_multiplier: Annotated[
        float | None, option("z_K or z_s, the noise multiplier of the norms.")
    ] = None
    clip_quantile: Annotated[
        float | None, option("The clip norm adapts to this quantile, by a count that is charged.")
    ] = None
    clip_multiplier: Annotated[float | None, option("The noise multiplier of that count.")] = None
    separation: Annotated[
        int | None, option("Clients take turns, one round in so many, in public; no --cohort then.")
    ] = None
    norm_queries: Annotated[
        int | None, option("Norms of one client (trust local). Default: one per round.")
    ] = None
    update_releases: Annotated[
        int | None, option("Uploads of one client (trust local). Default: one per round.")
    ] = None

    def arm(self, noise_multiplier: float | None = None) -> Arm:
        """The arm that they describe."""
        from locksfl import _validate
        from locksfl.arm import MULTIPLIERS, Arm
        from locksfl.methods import TRUSTS, find_rule
        from locksfl.privacy import ACCOUNTANTS, RELATIONS

        rule = find_rule(self.rule, "--rule")
        needed = ["rounds", "clients"]
        if not rule.all_clients and self.separation is None:
            needed.append("cohort")
        if missing := [f"--{name}" for name in needed if getattr(self, name) is None]:
            raise ValueError(f"{', '.join(missing)}: missing; expected a number")
        _validate.one_of(TRUSTS, **{"--trust": self.trust})
        _validate.one_of(RELATIONS, **{"--relation": self.relation})
        _validate.one_of(ACCOUNTANTS, **{"--accountant": self.accountant})
        typed: dict[str, Any] = {"noise_multiplier": noise_multiplier, **vars(self)}
        known = {*MULTIPLIERS, *(field.name for field in fields(Arm))}
        given = {n: value for n, value in typed.items() if n in known and value is not None}
        for name in ("floor", "norm_low", "norm_multiplier"):
            if name in given and not rule.accepts(name):
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag} = {given[name]!r}: --rule {self.rule} takes none")
        _validate.positive(**{name: given[name] for name in MULTIPLIERS if name in given})
        _validate.probability(delta=self.delta)
        if self.separation is not None:
            _validate.count(separation=self.separation)
        return Arm.of("", **given)


@privacy_app.command()
@with_flags
def calibrate(
    epsilon: Annotated[float, option("The total epsilon.")], flags: Flags, as_json: Json = False
) -> None:
    """The least noise that costs no more than an epsilon, all releases included."""
    from locksfl import _validate, privacy
    from locksfl.arm import MULTIPLIERS

    _validate.positive(epsilon=epsilon)
    arm, delta = flags.arm(), flags.delta
    if not arm.private:
        raise ValueError(f"--trust {flags.trust} adds no noise: expected another")
    kinds: dict[str, Any] = {"relation": flags.relation, "accountant": flags.accountant}
    most = _client_counts(arm, flags.norm_queries, flags.update_releases)
    noisy = privacy.calibrate(arm, epsilon, delta, most=most, **kinds)
    amplified = arm.parts.trust.amplified
    coins = amplified and arm.scheme.secret
    answer: Record = {
        **{name: getattr(noisy.noise, name) for name in MULTIPLIERS},
        "epsilon": epsilon,
        "delta": delta,
        "relation": flags.relation,
        "accountant": "rdp" if noisy.ladder else flags.accountant if coins else "gdp",
        "protects_from": "PUBLIC" if amplified else "SERVER and PUBLIC",
    }
    lines = [f"{name:<18}{answer[name]:.6g}" for name in MULTIPLIERS if answer[name]]
    if noisy.ladder:
        named = "cohort" if arm.controlled else "norm_sum"
        answer["rates"] = [
            {
                named: one.cohort if arm.controlled else one.norm_low,
                "noise_multiplier": one.noise_multiplier,
                "at_this_rate_alone": _noise_of_rate(one, epsilon, delta, kinds),
            }
            for one in (noisy.at_rung(k) for k in (0, len(noisy.ladder) // 2, -1))
        ]
        lines = [line for line in lines if not line.startswith("noise_multiplier")] + [
            f"{named} {rate[named]:.4g}: noise_multiplier {rate['noise_multiplier']:.6g} "
            f"({rate['at_this_rate_alone']:.6g} in a run of this rate alone, {flags.accountant})"
            for rate in answer["rates"]
        ]
    if arm.scheme.noise:
        lines.append(arm.scheme.noise.format(arm=arm))
    last = (
        f"epsilon {epsilon:g}, delta {delta:g} against {answer['protects_from']} "
        f"({flags.relation}, {answer['accountant']}); the unit of privacy is one client"
    )
    warn(privacy.delta_warning(delta, arm.clients))
    show(answer, as_json, lambda _: [*lines, last])


def _noise_of_rate(arm: Arm, epsilon: float, delta: float, kinds: dict[str, Any]) -> float:
    """The noise of a rung if all rounds were to be of it."""
    from locksfl.methods.events import SampledTwice
    from locksfl.privacy import calibrate_central

    event: Any = arm.event()
    if isinstance(event, SampledTwice):
        kinds = {
            "norm_multiplier": event.first_multiplier,
            "upload_probability": event.second_rate,
            **kinds,
        }
    noise = calibrate_central(epsilon, delta, arm.rounds, event.sampling_rate, **kinds)
    return noise.known()


@privacy_app.command()
@with_flags
def account(
    context: typer.Context,
    run: Annotated[
        Path | None,
        argument("A run folder: everything is read from its ledger, and no other option applies."),
    ] = None,
    noise_multiplier: Annotated[
        float | None, option("Noise std over the zero-out sensitivity.")
    ] = None,
    *,
    flags: Flags,
    as_json: Json = False,
) -> None:
    """What rounds cost each observer: from flags, or from the ledger of a run."""
    from locksfl.privacy import delta_warning, guarantee
    from locksfl.privacy.ledger import account_ledger, by_observer, read_run

    if run is not None:
        if typed := typed_flags(context):
            raise ValueError(
                f"{run}: its ledger holds all settings; expected no {', '.join(typed)}"
            )
        show(account_ledger(read_run(run)), as_json, lambda answer: _run_lines(run, answer))
        return
    arm = flags.arm(noise_multiplier)
    if not arm.private and (noise_multiplier or flags.norm_multiplier or flags.clip_multiplier):
        raise ValueError(f"--trust {arm.trust} adds no noise: expected no multiplier")
    if arm.private and noise_multiplier is None:
        raise ValueError("--noise-multiplier: missing; expected a number > 0")
    if arm.private and arm.releases_norms and flags.norm_multiplier is None:
        raise ValueError(f"--norm-multiplier: missing; --rule {arm.rule} releases norms")
    if arm.private and arm.clip_quantile is not None and flags.clip_multiplier is None:
        raise ValueError("--clip-multiplier: missing; the clip norm adapts to a released count")
    counts = _client_counts(arm, flags.norm_queries, flags.update_releases)
    accountant: Any = flags.accountant
    costs = guarantee([arm], flags.delta, accountant, counts)
    warn(delta_warning(flags.delta, arm.clients))
    show(by_observer(costs, flags.relation), as_json, _cost_lines)


PopulationId = Annotated[str, argument("The id that the owner of the data gave.")]


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
    from locksfl.methods import PRIVATE, TRUSTS
    from locksfl.privacy import RELATIONS
    from locksfl.privacy.population import PopulationJournal, Total, best_order

    _validate.positive(**{"--total": total})
    _validate.probability(**{"--delta": delta})
    _validate.one_of(RELATIONS, **{"--relation": relation})
    _validate.one_of(PRIVATE, **{"--trust": trust})
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
    from locksfl.paper.as_printed import CLIENTS, DELTA, ROUNDS, HonestRow, honest_table

    def lines(rows: list[HonestRow]) -> Iterator[str]:
        yield f"reconstructed: {CLIENTS} clients, {ROUNDS} rounds, delta {DELTA:g}"
        yield f"{'claimed':>7} {'noise':>6} {'SERVER':>17} {'PUBLIC':>17}  reading"
        yield f"{'':14} {'zero-out / replace':>35}"
        for row in rows:
            server, public = (
                " / ".join(f"{epsilon_text(e, 1, 'inf'):>7}" for e in epsilons.values())
                for epsilons in (row.server, row.public)
            )
            yield (
                f"{row.claimed_epsilon:>7g} {row.noise_multiplier:>6g} {server:>17} "
                f"{public:>17}  {row.reading}"
            )

    show(honest_table(), as_json, lines)


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
        if not arm.parts.trust.clients_add_noise:
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


def _run_lines(run: Path, answer: RunAccount) -> Iterator[str]:
    """What a ledger says, for a person."""
    yield f"{run}: experiment {str(answer.experiment)[:16]}, trust {answer.trust}"
    if answer.accounting == "as-printed":
        yield "NO GUARANTEE for the claimed epsilon: accounting as printed in the paper"
    parts: list[tuple[str, Composed]] = [
        (f"{arm.name}, {arm.rounds_played} of {arm.rounds} rounds", arm) for arm in answer.arms
    ]
    for name, costs in [*parts, ("all arms", answer.all_arms_composed)]:
        yield name
        yield from (f"  {'guarantee':<13} {line}" for line in _cost_lines(costs.guarantee))
        yield from (f"  {'spent so far':<13} {line}" for line in _cost_lines(costs.spent_so_far))


def _total_line(total: Total) -> str:
    return (
        f"total epsilon {total.epsilon:g}, delta {total.delta:g} against {total.observer} "
        f"({total.relation}, {total.filter})"
    )


def _spent_lines(answer: Record) -> Iterator[Any]:
    """The journal of a population for a person."""
    from datetime import UTC, datetime

    from locksfl.privacy import Cost, delta_warning
    from locksfl.privacy.ledger import by_observer
    from locksfl.privacy.population import promise

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
    yield plain_table(heads, rows, left=3)
    kind = f"delta {total['delta']:g}, {total['relation']}"
    yield (
        f"spent so far  {total['observer']}  {answer['share']:.1%} of the total: epsilon "
        f"{answer['spent_so_far']:.4f} of {total['epsilon']:g} ({kind}, {total['filter']})"
    )
    yield f"guarantee     {promise(answer['share'])}"
    yield "if all runs so far were fixed beforehand, they cost together"
    costs = [Cost.from_dict(cost) for cost in answer["composed"]]
    yield from (f"  {line}" for line in _cost_lines(by_observer(costs, total["relation"])))
    if runs and (warning := delta_warning(total["delta"], min(run["clients"] for run in runs))):
        yield warning


def _cost_lines(costs: ByObserver) -> Iterator[str]:
    """One line per observer."""
    for observer, cost in costs.items():
        each = ((k, "infinite" if e is None else f"{e:.4f}") for k, e in cost.relations.items())
        both = ", ".join(f"{relation} {epsilon}" for relation, epsilon in each)
        yield f"{observer.upper():<7} {both}   (delta {cost.delta:g}, {cost.accountant})"
