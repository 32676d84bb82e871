"""`locks theory bound | rounds | optimal | composition`: the paper's formulas, without JAX."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from locksfl.cli.console import Json, one_line_errors

theory_app = typer.Typer(
    help="The paper's theory: as printed, as it should be, and measured.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Form(StrEnum):
    """Which of the two bounds."""

    both = "both"
    printed = "printed"
    corrected = "corrected"


class Schedule(StrEnum):
    """The server's step by round."""

    inverse_sqrt = "inverse-sqrt"
    constant = "constant"


Rounds = Annotated[int, typer.Option(help="T.")]
Step = Annotated[float, typer.Option(help="eta_b, the server's base step.")]
Smoothness = Annotated[float, typer.Option(help="L.")]
Gap = Annotated[float, typer.Option(help="Delta F = F(w_0) - min F.")]
Uploads = Annotated[float, typer.Option(help="b, uploads of a round.")]
Parameters = Annotated[int, typer.Option(help="d.")]
SigmaL = Annotated[float, typer.Option(help="sigma_L, of one sample's gradient.")]
SigmaG = Annotated[float | None, typer.Option(help="sigma_G, how clients differ.")]
Dissimilarity = Annotated[float, typer.Option(help="A.")]
ClipBias = Annotated[float, typer.Option(help="c_nu, what clipping takes.")]
KMin = Annotated[int, typer.Option(help="K_min, fewest samples of a client.")]
KMax = Annotated[int | None, typer.Option(help="K_max; left out: K_min.")]
Sigma0 = Annotated[float, typer.Option(help="sigma_0, std of each uploader's noise.")]
Clients = Annotated[int, typer.Option(help="n.")]
Delta = Annotated[float, typer.Option(help="Of the whole run.")]


@theory_app.callback()
def _theory() -> None:
    pass


@theory_app.command()
def bound(
    rounds: Rounds,
    step: Step,
    smoothness: Smoothness,
    gap: Gap,
    uploads: Uploads,
    parameters: Parameters = 1,
    sigma_l: SigmaL = 0.0,
    sigma_g: SigmaG = None,
    dissimilarity: Dissimilarity = 0.0,
    clip_bias: ClipBias = 0.0,
    k_min: KMin = 1,
    k_max: KMax = None,
    sigma_0: Sigma0 = 0.0,
    server_noise: Annotated[
        float, typer.Option(help="s_c, std of the noise on the average.")
    ] = 0.0,
    clip_norm: Annotated[float | None, typer.Option(help="C.")] = None,
    stretch: Annotated[float, typer.Option(help="V_0: rates are b / (n V_0) at least.")] = 1.0,
    schedule: Annotated[
        Schedule, typer.Option(help="Of the mended bound.")
    ] = Schedule.inverse_sqrt,
    form: Annotated[Form, typer.Option(help="Which bound.")] = Form.both,
    as_json: Json = False,
) -> None:
    """Theorem 1, every term: as printed and mended."""
    with one_line_errors(), _naming():
        from locksfl.paper.theory.bound import Constants, conditions, corrected, printed, require

        constants = Constants(
            rounds=rounds, step=step, smoothness=smoothness, gap=gap, uploads=uploads,
            parameters=parameters, sample_spread=sigma_l, client_spread=sigma_g,
            dissimilarity=dissimilarity, clip_bias=clip_bias, fewest_samples=k_min,
            most_samples=k_min if k_max is None else k_max, client_noise=sigma_0,
            server_noise=server_noise, clip_norm=clip_norm, stretch=stretch,
        )  # fmt: skip
        wanted = {"printed": form != Form.corrected, "corrected": form != Form.printed}
        require(conditions(constants, **wanted))
        answer: dict[str, Any] = {}
        if wanted["printed"]:
            answer["printed"] = printed(constants).as_dict()
        if wanted["corrected"]:
            answer["corrected"] = corrected(constants, schedule.value).as_dict()
        if as_json:
            print(json.dumps(answer, indent=2))
            return
        for name, told in answer.items():
            kind = "" if name == "printed" else f", by {told['form']}"
            print(f"{name}{kind}: min over t of E|grad F(w_t)|^2 <= {told['total']:.6g}")
            if name == "printed":
                print(f"  alpha_kappa {told['alpha_kappa']:.6g}, Phi {told['phi']:.6g}")
            for term, value in told["terms"].items():
                print(f"  {term:<32}{value:>14.6g}")


@theory_app.command("rounds")
def how_many_rounds(
    parameters: Parameters,
    clients: Clients = 100,
    uploads: Uploads = 20.0,
    epsilon: Annotated[float, typer.Option(help="Of the whole run.")] = 10.0,
    delta: Delta = 1e-5,
    clip_norm: Annotated[float, typer.Option(help="C.")] = 1.0,
    smoothness: Smoothness = 1.0,
    gap: Gap = 2.3,
    as_json: Json = False,
) -> None:
    """How many rounds: T = d^2 log(T)^2, and the T that minimises the mended bound."""
    with one_line_errors():
        from locksfl.paper.theory.rounds import TRUSTS, Setting, answer

        setting = Setting(clients, uploads, parameters, epsilon, delta, clip_norm, smoothness, gap)
        told = answer(setting)
        if as_json:
            print(json.dumps(told, indent=2))
            return
        roots = told["printed"]
        if roots is None:
            print("as printed   T = d^2 log(T)^2 has no root above 1 for d = 1")
        else:
            print(
                f"as printed   T = {roots['rounds']:.4g}, the larger root of T = d^2 log(T)^2 "
                f"(the other, {roots['small_root']:.6g}, is no number of rounds)"
            )
        for trust in TRUSTS:
            row = told[trust]
            print(
                f"{trust:<12} T = {row['rounds']}, mended bound {row['bound']['total']:.4g} at "
                f"epsilon {epsilon:g} ({row['relation']}), step 1/L; by the formula T = "
                f"{row['approximate_rounds']:.4g}, noise and start {row['approximate_error']:.4g}"
            )


@theory_app.command()
def optimal(
    norms: Annotated[str, typer.Option(help="Norms of the clients' updates: 1,2,3,4,10")],
    uploads: Uploads,
    rate: Annotated[float, typer.Option(help="q, the most that a client's rate can be.")] = 1.0,
    parameters: Parameters = 1,
    sigma: Annotated[float, typer.Option(help="std of noise that is divided by p too.")] = 0.0,
    step: Annotated[
        float | None, typer.Option(help="eta_b: check the paper's constraint too.")
    ] = None,
    smoothness: Smoothness = 1.0,
    dissimilarity: Dissimilarity = 0.0,
    rounds: Rounds = 100,
    sigma_l: SigmaL = 0.0,
    sigma_g: SigmaG = None,
    as_json: Json = False,
) -> None:
    """The best upload rates: the paper's program, and min(q, c a_i) by water-filling."""
    with one_line_errors(), _naming():
        import numpy as np

        from locksfl.paper.theory import optimal as best
        from locksfl.paper.theory.bound import Constants

        try:
            lengths = [float(text) for text in norms.split(",")]
        except ValueError:
            raise ValueError(f"--norms {norms!r}: expected numbers with commas: 1,2,3") from None
        scores = best.importance(lengths, parameters, sigma)
        rates = best.best_rates(scores, uploads, rate)
        everyone = np.full(len(lengths), uploads / len(lengths))
        spent, even = best.rate_variance(scores, rates), best.rate_variance(scores, everyone)
        solved: dict[str, float] = {"p": 1.0}
        if step is not None:
            constants = Constants(
                rounds=rounds, step=step, smoothness=smoothness, gap=0.0, uploads=uploads,
                parameters=parameters, sample_spread=sigma_l, client_spread=sigma_g,
                dissimilarity=dissimilarity, client_noise=sigma,
            )  # fmt: skip
            solved = best.printed_optimum(constants, len(lengths)).as_dict()
        answer = {
            "printed": solved,
            "rates": rates.tolist(),
            "variance": spent,
            "uniform_variance": even,
        }
        if as_json:
            print(json.dumps(answer, indent=2))
            return
        print("as printed   p_i = 1 for every client: uniform, whatever the norms")
        if step is not None:
            print(
                f"             objective {solved['objective']:.4g}; the mean of 1/p_i may be "
                f"{solved['allowed_mean_of_1/p']:.4g}"
            )
        print("mended       pi_i = " + ", ".join(f"{value:.4g}" for value in rates))
        print(f"             sum a_i^2/pi_i is {spent / even:.4g} times that of uniform rates")


@theory_app.command()
def composition(
    epsilon_step: Annotated[float, typer.Option(help="Of an update.")] = 0.1,
    epsilon_norm: Annotated[float, typer.Option(help="Of a norm.")] = 0.01,
    rounds: Rounds = 100,
    delta: Delta = 1e-5,
    cohort: Annotated[float, typer.Option(help="m.")] = 30.0,
    uploads: Uploads = 20.0,
    order: Annotated[float, typer.Option(help="alpha of one RDP conversion.")] = 8.0,
    as_json: Json = False,
) -> None:
    """What T rounds cost, line by line: as printed and as it should be."""
    with one_line_errors():
        from locksfl.paper.theory.composition import answer

        told = answer(
            epsilon_step=epsilon_step, epsilon_norm=epsilon_norm, rounds=rounds, delta=delta,
            cohort=cohort, uploads=uploads, order=order,
        )  # fmt: skip
        if as_json:
            print(json.dumps(told, indent=2))
            return
        std, rdp = told["gaussian_mechanism"], told["rdp_conversion"]
        strong, both = told["strong_composition"], told["norms_and_updates"]
        textbook = "none" if std["textbook"] is None else f"{std['textbook']:.4g}"
        lines = [
            ("std of one update, sensitivity 1", std["printed"], std["exact"],
             f"the textbook's {textbook} (epsilon < 1 only)"),
            (f"RDP to epsilon, order {order:g}", rdp["printed"], rdp["minimised"],
             "right as printed, once minimised over the order"),
            ("strong composition", strong["printed"], strong["mended"],
             "a factor epsilon_step was lost"),
            ("norms and updates", both["printed"], both["one_client_all_rounds"],
             f"one client: {both['one_client_one_round']:.4g} a round"),
        ]  # fmt: skip
        print(f"{'':<34}{'as printed':>12}{'mended':>12}")
        for name, printed, mended, note in lines:
            print(f"{name:<34}{printed:>12.4g}{mended:>12.4g}  {note}")
        print("\nthe paper's experiment, reconstructed (RDP, 20 of 100 clients, T 100, delta 1e-5)")
        for row in told["reconstructed"]:
            print(
                f"  epsilon {row['claimed_epsilon']:g}: multiplier "
                f"{row['multiplier_for_the_claim']:.3f}; the printed {row['printed_multiplier']:g} "
                f"costs {row['epsilon_of_the_multiplier']:.2f}"
            )
        print("  against whom, and what it honestly costs: locks privacy paper")


def _naming() -> Any:
    """Refusals name the flags."""
    from locksfl._validate import naming

    names = {
        "rounds": "--rounds", "step": "--step (eta_b)", "smoothness": "--smoothness (L)",
        "gap": "--gap", "uploads": "--uploads (b)", "parameters": "--parameters",
        "sample_spread": "--sigma-l", "client_spread": "--sigma-g",
        "dissimilarity": "--dissimilarity (A)", "clip_bias": "--clip-bias (c_nu)",
        "fewest_samples": "--k-min", "most_samples": "--k-max", "client_noise": "--sigma-0",
        "server_noise": "--server-noise", "clip_norm": "--clip-norm", "stretch": "--stretch (V_0)",
        "rate": "--rate", "noise": "--sigma", "norms": "--norms", "norms:": "--norms:",
    }  # fmt: skip
    return naming(**names)
