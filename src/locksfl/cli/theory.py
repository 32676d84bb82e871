"""`locks theory`: the paper's formulas, without JAX, and the theory measured on the real round."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

from locksfl._files import write_atomically
from locksfl._text import table_of
from locksfl._validate import count, naming, one_of
from locksfl.cli.console import Json, argument, check_picture, group, option, show, start_jax

if TYPE_CHECKING:
    from locksfl.experiment.config import Config

theory_app = group("theory", "The paper's theory: as printed, as it should be, and measured.")

FORMS = ("both", "printed", "corrected")
Rounds = Annotated[int, option("T.")]
Smoothness = Annotated[float, option("L.")]
Gap = Annotated[float, option("Delta F = F(w_0) - min F.")]
Uploads = Annotated[float, option("b, uploads of a round.")]
Parameters = Annotated[int, option("d.")]
SampleSpread = Annotated[float, option("sigma_L, of one sample's gradient.", "--sigma-l")]
ClientSpread = Annotated[float | None, option("sigma_G, how clients differ.", "--sigma-g")]
Dissimilarity = Annotated[float, option("A.")]
Delta = Annotated[float, option("Of the whole run.")]
Picture = Annotated[Path | None, option("Draw it into this SVG file.")]
PLAIN = ("rounds", "gap", "parameters", "server_noise", "clip_norm", "rate", "norms", "norms:",
         "path_variance")  # fmt: skip
LETTERS = {"step": "eta_b", "smoothness": "L", "uploads": "b", "dissimilarity": "A"}
FLAGS = {  # what refusals call the settings
    **{name: f"--{name.replace('_', '-')}" for name in PLAIN},
    **{name: f"--{name} ({letter})" for name, letter in LETTERS.items()},
    "sample_spread": "--sigma-l",
    "client_spread": "--sigma-g",
    "client_noise": "--sigma-0",
    "fewest_samples": "--k-min",
    "most_samples": "--k-max",
    "noise": "--sigma",
    "clip_bias": "--clip-bias (c_nu)",
    "stretch": "--stretch (V_0)",
}


@theory_app.command()
@naming(**FLAGS)
def bound(
    rounds: Rounds,
    step: Annotated[float, option("eta_b, the server's base step.")],
    smoothness: Smoothness,
    gap: Gap,
    uploads: Uploads,
    parameters: Parameters = 1,
    sample_spread: SampleSpread = 0.0,
    client_spread: ClientSpread = None,
    dissimilarity: Dissimilarity = 0.0,
    clip_bias: Annotated[float, option("c_nu, what clipping takes.")] = 0.0,
    fewest_samples: Annotated[int, option("K_min, fewest samples of a client.", "--k-min")] = 1,
    most_samples: Annotated[int | None, option("K_max. Default: K_min.", "--k-max")] = None,
    client_noise: Annotated[
        float, option("sigma_0, std of each uploader's noise.", "--sigma-0")
    ] = 0.0,
    server_noise: Annotated[float, option("s_c, std of the noise on the average.")] = 0.0,
    clip_norm: Annotated[float | None, option("C.")] = None,
    stretch: Annotated[float, option("V_0: rates are b / (n V_0) at least.")] = 1.0,
    path_variance: Annotated[
        float | None,
        option("v: the rounds' variances, noise included, in the mean by eta_t^2."),
    ] = None,
    schedule: Annotated[
        str, option("Of the corrected bound: inverse-sqrt or constant.")
    ] = "inverse-sqrt",
    form: Annotated[str, option("Which bound: printed, corrected or both.")] = "both",
    as_json: Json = False,
) -> None:
    """Theorem 1, every term: as printed and corrected."""
    most_samples = fewest_samples if most_samples is None else most_samples
    given = SimpleNamespace(**locals())
    from locksfl.paper.theory import bound as theorem

    one_of(FORMS, **{"--form": form})
    one_of(theorem.SCHEDULES, **{"--schedule": schedule})
    constants = theorem.Constants.of(given)
    wanted = {name: form in (name, "both") for name in FORMS[1:]}
    theorem.require(theorem.conditions(constants, **wanted))
    bounds = {}
    if wanted["printed"]:
        bounds["printed"] = theorem.printed(constants)
    if wanted["corrected"]:
        bounds["corrected"] = theorem.corrected(constants, schedule)
    parts: list[Any] = []
    for name, one in bounds.items():
        kind = "" if name == "printed" else f", by {one.form}"
        parts.append(f"{name}{kind}: min over t of E|grad F(w_t)|^2 <= {one.total:.6g}")
        if name == "printed":
            parts.append(f"  alpha_kappa {one.alpha_kappa:.6g}, Phi {one.phi:.6g}")
        parts += [f"  {term:<32}{value:>14.6g}" for term, value in one.terms.items()]
    _show(bounds, as_json, *parts)


@theory_app.command("rounds")
def how_many_rounds(
    parameters: Parameters,
    clients: Annotated[int, option("n.")] = 100,
    uploads: Uploads = 20.0,
    epsilon: Annotated[float, option("Of the whole run.")] = 10.0,
    delta: Delta = 1e-5,
    clip_norm: Annotated[float, option("C.")] = 1.0,
    smoothness: Smoothness = 1.0,
    gap: Gap = 2.3,
    rounds: Annotated[int | None, option("T. Left out: the fewest that nearly suffice.")] = None,
    as_json: Json = False,
) -> None:
    """How many rounds: T = d^2 log(T)^2, and the corrected bound at its best step."""
    settings = {n: value for n, value in locals().items() if n not in ("rounds", "as_json")}
    from locksfl.methods import PRIVATE
    from locksfl.paper.theory.round_count import MOST_ROUNDS, SHARE, Regime, advice, printed_rounds

    regime = Regime(**settings)
    by_trust = {trust: advice(regime, trust, rounds) for trust in PRIVATE}
    parts, least = [], 2 * regime.smoothness * regime.gap
    if (roots := printed_rounds(parameters)) is None:
        parts.append("as printed   T = d^2 log(T)^2 has no root above 1 for d = 1")
    else:
        parts.append(
            f"as printed   T = {roots[1]:.4g}, the larger root of T = d^2 log(T)^2 "
            f"(the other, {roots[0]:.6g}, is no number of rounds)"
        )
    rows = []
    for trust, best in by_trust.items():
        rows.append((
            f"{trust} ({best.relation})", str(best.rounds), f"{best.step:.4g}",
            f"{best.bound.total:.4g}", f"{best.limit:.4g}",
            f"{best.step_times_rounds_at_the_limit:.4g}",
            "says nothing" if best.bound.total >= least else "",
        ))  # fmt: skip
        if there := best.at_printed_rounds:
            parts.append(
                f"             {trust}, at that T and epsilon {epsilon:g}: printed bound "
                f"{_number(there['printed'])}, corrected {_number(there['corrected'])}"
            )
    heads = ("", "T", "step", "corrected bound", "its limit", "step x T there", "")
    fewest = f"the fewest, of {MOST_ROUNDS} at most, within {SHARE:.0%} of the limit"
    notes = (
        f"T: {'as given' if rounds else fewest}; more, with smaller steps, never hurt this bound",
        f"from 2 L Delta F = {least:.4g} on a bound says nothing; c_nu = 0 is assumed",
    )
    printed = roots and {"small_root": roots[0], "rounds": roots[1]}
    answer = {"printed": printed, "says_nothing_from": least, **by_trust}
    _show(answer, as_json, *parts, _table(heads, rows), *notes)


@theory_app.command()
@naming(**FLAGS)
def optimal(
    norms: Annotated[str, option("Norms of the clients' updates: 1,2,3,4,10")],
    uploads: Uploads,
    rate: Annotated[float, option("q, the most that a client's rate can be.")] = 1.0,
    parameters: Parameters = 1,
    client_noise: Annotated[
        float, option("std of noise that is divided by p too.", "--sigma")
    ] = 0.0,
    step: Annotated[float | None, option("eta_b: check the paper's constraint too.")] = None,
    smoothness: Smoothness = 1.0,
    dissimilarity: Dissimilarity = 0.0,
    rounds: Rounds = 100,
    sample_spread: SampleSpread = 0.0,
    client_spread: ClientSpread = None,
    as_json: Json = False,
) -> None:
    """The best upload rates: the paper's program, and min(q, c a_i) by water-filling."""
    given = SimpleNamespace(**locals())
    import numpy as np

    from locksfl.paper.theory import optimal as best
    from locksfl.paper.theory.bound import Constants

    try:
        lengths = [float(text) for text in norms.split(",")]
    except ValueError:
        raise ValueError(f"--norms {norms!r}: expected numbers with commas: 1,2,3") from None
    scores = best.importance(lengths, parameters, client_noise)
    rates = best.best_rates(scores, uploads, rate)
    everyone = np.full(len(lengths), uploads / len(lengths))
    spent, even = best.rate_variance(scores, rates), best.rate_variance(scores, everyone)
    printed = {"p": 1.0}
    parts = ["as printed   p_i = 1 for every client: uniform, whatever the norms"]
    if step is not None:
        solved = best.printed_optimum(Constants.of(given, gap=0.0), len(lengths))
        printed = {
            "p": solved.relative,
            "objective": solved.objective,
            "allowed_mean_of_1/p": solved.allowed,
            "C_1": solved.scale,
        }
        parts.append(
            f"             objective {solved.objective:.4g}; the mean of 1/p_i may be "
            f"{solved.allowed:.4g}"
        )
    answer = {
        "printed": printed,
        "rates": rates.tolist(),
        "variance": spent,
        "uniform_variance": even,
    }
    parts += [
        "corrected    rho_i = " + ", ".join(f"{value:.4g}" for value in rates),
        f"             sum a_i^2/rho_i is {spent / even:.4g} times that of uniform rates",
    ]
    _show(answer, as_json, *parts)


@theory_app.command("composition")
def show_composition(
    epsilon_step: Annotated[float, option("Of an update.")] = 0.1,
    epsilon_norm: Annotated[float, option("Of a norm.")] = 0.01,
    rounds: Rounds = 100,
    delta: Delta = 1e-5,
    cohort: Annotated[float, option("m.")] = 30.0,
    uploads: Uploads = 20.0,
    as_json: Json = False,
) -> None:
    """What T rounds cost, line by line: as printed and as it should be."""
    settings = {name: value for name, value in locals().items() if name != "as_json"}
    from locksfl.paper.theory.composition import composition

    answer = composition(**settings)
    std, strong, both = (
        answer.gaussian_mechanism, answer.strong_composition, answer.norms_and_updates
    )  # fmt: skip
    textbook = "none" if std["textbook"] is None else f"{std['textbook']:.4g}"
    lines = [
        ("std of one update, sensitivity 1", std["printed"], std["exact"],
         f"the textbook's {textbook} (epsilon < 1 only)"),
        ("  if it is a variance, as it says", std["printed_as_variance"], std["exact"],
         f"costs epsilon {std['epsilon_as_variance']:.4g}, not {epsilon_step:g}"),
        ("strong composition", strong["printed"], strong["mended"],
         "a factor epsilon_step was lost"),
        ("norms and updates", both["printed"], both["one_client_all_rounds"],
         f"one client: {both['one_client_one_round']:.4g} in each round, delta "
         f"{both['delta_of_each_release']:.2g} for each norm and update"),
    ]  # fmt: skip
    rows = ((name, f"{a:.4g}", f"{b:.4g}", note) for name, a, b, note in lines)
    _show(
        answer,
        as_json,
        _table(("", "as printed", "corrected", ""), rows),
        "\nthe paper's experiment, reconstructed (RDP, 20 of 100 clients, T 100, delta 1e-5)",
        *(
            f"  epsilon {row['claimed_epsilon']:g}: multiplier "
            f"{row['multiplier_for_the_claim']:.3f}; the printed {row['printed_multiplier']:g} "
            f"costs {row['epsilon_of_the_multiplier']:.2f}"
            for row in answer.reconstructed
        ),
        "  against whom, and what it honestly costs: locks privacy paper",
    )


@theory_app.command()
def lemmas(
    repetitions: Annotated[int, option("Rounds of each Monte Carlo.")] = 20_000,
    seed: Annotated[int, option("Of its coins.")] = 0,
    as_json: Json = False,
) -> None:
    """Lemmas 1 to 3 played by the real round: what the paper claims, and what one would want."""
    from locksfl.paper.theory.lemmas import findings

    tables = findings(repetitions, seed)
    parts: list[Any] = []
    for title, table in tables.items():
        rows: list[tuple[str, ...]] = []
        for f in table:
            measured = f"{f.measured:.4g} ± {f.standard_error:.1g}"
            exact = f"{f.exact:.4g} ({f.exact_claimed:.4g})"
            rows.append((str(f.lemma), f.claim, f"{f.claimed:.4g}", measured, exact, f.verdict))
            rows.append(("", f"  {f.why}"))
        heads = ("", "", "value", "measured", "6 clients, exact", "")
        parts += ["", title.capitalize(), _table(heads, rows)]
    _show(tables, as_json, *parts[1:])


@theory_app.command()
def check(
    seeds: Annotated[int, option("How many runs of each.")] = 64,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Both bounds against quadratic and logistic problems whose constants are known."""
    from locksfl.paper.theory.check import rows
    from locksfl.paper.theory.picture import known_figure

    check_picture("--picture", picture)
    measured = rows(seeds)
    if picture is not None:
        write_atomically(picture, known_figure(seeds).encode())
    heads = (
        "", "uploads", "before", "least", "weighted mean", "worst seed", "corrected", "", "v",
        "path rates", "printed", "",
    )  # fmt: skip
    table = _table(heads, (
        (r.case, f"{r.uploads:.3g}", f"{r.before:.4g}", f"{r.least:.3g}",
         f"{r.weighted:.4g} ± {r.standard_error:.1g}", f"{r.worst_seed:.4g}",
         _number(r.corrected), r.corrected_verdict, f"{r.path_variance:.3g}",
         _number(r.along_path), _number(r.printed), r.printed_verdict)
        for r in measured
    ))  # fmt: skip
    bounded = [(r, r.corrected) for r in measured if r.corrected is not None]
    held = sum(bool(r.corrected_holds) for r, _ in bounded)
    lower = sum(r.along_path is not None and r.below(r.along_path) for r in measured)
    below = sum(r.worst_seed <= limit for r, limit in bounded)
    last = (
        f"of {len(bounded)} cases where it applies, the corrected bound holds in expectation in "
        f"{held}, with the rates along the path in {lower}; in {below} no seed was above it, which "
        "nothing promises"
    )
    _show(measured, as_json, table, last)


@theory_app.command()
def estimate(
    source: Annotated[Path, argument("A run folder, or a TOML file.")],
    arm: Annotated[str | None, option("Which arm; left out: the first.")] = None,
    changes: Annotated[
        list[str] | None, option("For a TOML file.", "--set", metavar="KEY=VALUE")
    ] = None,
    seed: Annotated[int | None, option("For a TOML file; left out: 0.")] = None,
    seeds: Annotated[int, option("How many runs, from the seed on.")] = 1,
    looks: Annotated[int, option("Rounds at which L and sigma_L are taken.")] = 5,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Estimate L, sigma_L, sigma_G, A, c_nu, K and Delta F along a run. Reads private data."""
    count(**{"--seeds": seeds, "--looks": looks})
    check_picture("--picture", picture)
    config, drawn = _source(source, changes, seed)
    start_jax()
    from rich.console import Console

    from locksfl.paper.theory.estimate import NOTE, study
    from locksfl.paper.theory.picture import study_figure

    with Console(stderr=True).status("") as status:
        studied = study(config, arm, seeds, looks, say=status.update)
    target = picture or drawn
    if target is not None:
        write_atomically(target, study_figure(studied, config.name).encode())
    e = studied.estimates
    known = "a lower estimate" if e.smoothness_known is None else f"known {e.smoothness_known:.4g}"
    mean, total = studied.weighted().mean(axis=0)[-1], studied.gradient.shape[1]
    lines = [
        ("L", f"{e.smoothness:.4g}  ({known}; largest seen {e.smoothness_seen:.4g})"),
        ("Delta F", f"{e.gap:.4g}  (at most; seen {e.gap_seen:.4g})"),
        ("sigma_L", f"{e.sample_spread:.4g}"),
        ("A, sigma_G", f"{e.dissimilarity:.4g}, {e.client_spread:.4g}  (mean over clients; "
         f"worst client {e.worst_dissimilarity:.4g}, {e.worst_client_spread:.4g})"),
        ("c_nu", f"{e.clip_bias:.4g}  (of the mean; worst client {e.worst_clip_bias:.4g})"),
        ("K_min, K_max", f"{e.fewest_samples}, {e.most_samples}"),
        ("d", f"{e.parameters}"),
        ("scale", f"{e.scale:.4g}  (gradients in an update: eta_b is the server's step times it)"),
        ("|grad F|^2", f"{studied.gradient[:, 0].mean():.4g} before round 1; weighted mean of "
         f"{total} rounds {mean:.4g}"),
    ]  # fmt: skip
    for name, values in (("corrected", studied.corrected), ("printed", studied.printed)):
        last = f"{values[-1]:.4g}" if values else f"none: {studied.reasons[name]}"
        lines.append((f"{name} bound", last))
    shown = [f"{name:<17}{value}" for name, value in lines]
    if target is not None:
        shown.append(f"picture: {target}")
    # JSON has no NaN
    plain = json.loads(json.dumps(studied.as_dict()), parse_constant=lambda name: None)
    _show(plain, as_json, NOTE, *shown)


def _show(answer: Any, as_json: bool, *parts: Any) -> None:
    show(answer, as_json, lambda _: parts, wide=True)


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Any:
    return table_of(heads, rows, box=None, pad_edge=False, padding=(0, 2, 0, 0))


def _source(
    source: Path, changes: list[str] | None, seed: int | None
) -> tuple[Config, Path | None]:
    """The configuration to play, and where a run folder's picture goes."""
    import dataclasses

    from locksfl.experiment.config import read_config
    from locksfl.experiment.folder import RunFolder

    if not source.is_dir():
        config = read_config(source, changes or (), seed)
        return (config if config.seed is not None else dataclasses.replace(config, seed=0)), None
    if changes or seed is not None:
        raise ValueError(
            f"{source}: a finished run is replayed with its own settings; expected no --set or "
            "--seed"
        )
    folder = RunFolder.open(source)
    folder.run()  # refuses one that is not finished
    if folder.config.seed is None:
        raise ValueError(
            f"{source}: its randomness was secret and was not kept, so the run cannot be replayed; "
            f"another one can: locks theory estimate {source / 'config.toml'} --seed 0"
        )
    return folder.config, folder.path / "theory.svg"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
