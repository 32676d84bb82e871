"""`locks theory`: every command, its JSON, its figures and its refusals of one line."""

from __future__ import annotations

import re
from functools import partial

import pytest

import cli_results
from cli_results import answer
from locksfl.experiment.publish import publish_folder
from locksfl.paper.as_printed import composed, composed_as_printed
from locksfl.paper.theory import estimate
from locksfl.privacy import delta_from_mu
from small_runs import copied, new_path, quick

BOUND = ("bound", "--rounds", 100, "--smoothness", 2, "--gap", 3, "--sigma-g", 0.5)


@pytest.fixture
def theory(locks):
    """`locks theory ...` in this process."""
    return partial(locks, "theory")


def refused(result):
    assert result.out == ""
    return cli_results.refused(result)


def test_the_papers_multipliers_come_out_of_the_reconstructed_settings(theory):
    """z(10) = 1.326 and z(50) = .556; 1.32 costs 10.07 and 0.5 costs 62.6, by RDP."""
    ten, fifty = answer(theory("composition", "--json"))["reconstructed"]
    assert ten["multiplier_for_the_claim"] == pytest.approx(1.326, abs=5e-4)
    assert fifty["multiplier_for_the_claim"] == pytest.approx(0.556, abs=5e-4)
    assert ten["epsilon_of_the_multiplier"] == pytest.approx(10.07, abs=5e-3)
    assert fifty["epsilon_of_the_multiplier"] == pytest.approx(62.6, abs=5e-2)
    assert "1.326" in theory("composition").out


def test_composition_shows_the_functions_of_the_accounting(theory):
    told = answer(theory("composition", "--epsilon-step", 0.2, "--rounds", 50, "--json"))
    strong = told["strong_composition"]
    assert strong["printed"] == composed_as_printed(0.2, 50, 1e-5 / 51)
    assert strong["mended"] == composed(0.2, 50, 5e-6)
    mechanism = told["gaussian_mechanism"]
    assert mechanism["exact"] < mechanism["textbook"] < mechanism["printed"]
    # as the variance that the paper calls it, the same figure is far too little noise
    assert mechanism["printed_as_variance"] == mechanism["printed"] ** 0.5
    assert delta_from_mu(0.2, 1 / mechanism["exact"]) == pytest.approx(1e-7)
    assert delta_from_mu(0.2, 1 / mechanism["printed_as_variance"]) > 1e-3
    spent = mechanism["epsilon_as_variance"]
    assert delta_from_mu(spent, 1 / mechanism["printed_as_variance"]) == pytest.approx(1e-7)
    both = told["norms_and_updates"]
    assert both["printed"] == pytest.approx(30 * 0.01 + 20 * 0.2)
    assert both["one_client_one_round"] == pytest.approx(0.21)
    assert both["one_client_all_rounds"] == pytest.approx(composed(0.21, 50, 5e-6))
    assert 2 * 50 * both["delta_of_each_release"] + 5e-6 == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("uploads", "rates"), [(2, [0.1, 0.2, 0.3, 0.4, 1.0]), (3, [0.2, 0.4, 0.6, 0.8, 1.0])]
)
def test_the_best_rates(theory, uploads, rates):
    told = answer(theory("optimal", "--norms", "1,2,3,4,10", "--uploads", uploads, "--json"))
    assert told["rates"] == pytest.approx(rates)
    assert told["variance"] < told["uniform_variance"]
    assert told["printed"] == {"p": 1.0}


def test_every_term_of_the_bound(theory):
    told = answer(theory(*BOUND, "--step", 0.1, "--uploads", 20, "--clip-norm", 1, "--json"))
    for form in ("printed", "corrected"):
        assert told[form]["total"] == pytest.approx(sum(told[form]["terms"].values()))
    assert told["printed"]["phi"] + told["printed"]["terms"]["start"] == pytest.approx(
        told["printed"]["total"]
    )
    text = theory(*BOUND, "--step", 0.1, "--uploads", 20, "--clip-norm", 1).out
    assert "alpha_kappa" in text
    assert "Phi" in text


def test_the_bound_along_a_path(theory):
    """A variance of 0 leaves the start; the flag is named when it is refused."""
    given = (*BOUND, "--step", 0.1, "--uploads", 20, "--form", "corrected", "--path-variance")
    told = answer(theory(*given, 0, "--json"))["corrected"]
    assert told["form"] == "path"
    assert told["total"] == told["terms"]["start"] > 0
    assert "on the path" in theory(*given, 0.5).out
    assert "--path-variance = -1.0: expected a number >= 0" in refused(theory(*given, -1))


def test_a_refused_bound_says_which_step_and_which_b_work(theory):
    """The printed step works as typed, and 1% more does not; so do the uploads."""
    line = refused(theory(*BOUND, "--step", 0.4, "--uploads", 0.3))
    assert "alpha_kappa = -" in line
    step = float(re.search(r"eta_b at most (\S+) works", line)[1])
    uploads = float(re.search(r"or b from (\S+) on", line)[1])
    assert theory(*BOUND, "--step", step, "--uploads", 0.3).code == 0
    assert theory(*BOUND, "--step", 1.01 * step, "--uploads", 0.3).code == 2
    assert theory(*BOUND, "--step", 0.4, "--uploads", uploads).code == 0
    assert theory(*BOUND, "--step", 0.4, "--uploads", uploads / 1.01).code == 2


def test_an_infeasible_program_says_so(theory):
    wanted = ("optimal", "--norms", "1,2,3", "--uploads", 2, "--smoothness", 0.5)
    line = refused(theory(*wanted, "--step", 3))
    assert "sum 1/p_i = 1 n, expected at most b n" in line
    step = float(re.search(r"eta_b at most (\S+) works", line)[1])
    assert answer(theory(*wanted, "--step", step, "--json"))["printed"]["p"] == 1.0
    assert theory(*wanted, "--step", 1.01 * step).code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*BOUND, "--step", -1, "--uploads", 3), "--step (eta_b) = -1.0: expected a number > 0"),
        ((*BOUND[:-2], "--step", 0.1, "--uploads", 3), "sigma_G"),
        (("optimal", "--norms", "1,x", "--uploads", 1), "--norms '1,x'"),
        (("optimal", "--norms", "1,2", "--uploads", 3), "--uploads (b) = 3.0: expected at most 2"),
        (("rounds", "--parameters", 0), "parameters = 0"),
        (("rounds", "--parameters", 5, "--rounds", 0), "rounds = 0"),
        (("composition", "--delta", 2), "delta = 2.0"),
        (("composition", "--epsilon-step", 0), "epsilon_step = 0.0"),
        ((*BOUND, "--step", 0.1, "--uploads", 3, "--sigma-l", 1e200), "--sigma-l = 1e+200"),
        ((*BOUND, "--step", 0.1, "--uploads", 3, "--stretch", 1e200), "--stretch (V_0) = 1e+200"),
        (("lemmas", "--seed", -1), "seed = -1: expected a number >= 0"),
        (("check", "--picture", "."), "--picture .: expected a file in a"),
        (("lemmas", "--repetitions", 3), "repetitions = 3"),
        (("check", "--seeds", 1), "seeds = 1"),
        (("check", "--picture", "nowhere/x.svg"), "--picture nowhere/x.svg: expected a file in a"),
        (("check", "--picture", "x.png"), "--picture x.png: expected a file that ends in .svg"),
        (("estimate", "nowhere.toml"), "nowhere.toml"),
        (("estimate", "nowhere.toml", "--seeds", 0), "--seeds = 0"),
    ],
)
def test_bad_input_is_one_line(theory, arguments, said):
    assert said in refused(theory(*arguments))


def test_rounds_as_printed_and_for_both_trusts(theory):
    wanted = ("rounds", "--parameters", 7850)
    told = answer(theory(*wanted, "--json"))
    assert told["printed"]["small_root"] < 2 < told["printed"]["rounds"]
    assert told["says_nothing_from"] == pytest.approx(4.6)
    assert told["central"]["rounds"] > told["local"]["rounds"] >= 1
    assert told["central"]["bound"]["total"] < 4.6 < told["local"]["bound"]["total"]
    text = theory(*wanted).out
    assert "larger root" in text
    assert "c_nu = 0 is assumed" in text
    assert [line.split()[0] for line in text.splitlines() if "  says nothing" in line] == ["local"]
    given = answer(theory(*wanted, "--rounds", 7, "--json"))
    assert {given[trust]["rounds"] for trust in ("central", "local")} == {7}
    one = theory("rounds", "--parameters", 1).out
    assert "no root" in one
    assert "at that T" not in one


def test_lemmas_print_what_the_paper_claims_and_what_one_would_want(theory):
    told = answer(theory("lemmas", "--repetitions", 2000, "--json"))
    assert list(told) == ["what the paper claims", "what one would want"]
    for rows in told.values():
        assert {row["verdict"] for row in rows} == {"holds", "fails"}
        assert all({"claim", "claimed", "measured", "standard_error"} <= row.keys() for row in rows)
    shown = theory("lemmas", "--repetitions", 2000).out
    assert shown.index("What the paper claims") < shown.index("What one would want")
    assert "b/n, because sum p_i = 1" in shown


def test_a_run_folder_is_estimated_and_its_picture_stays_private(theory, monkeypatch):
    """theory.svg goes into the run folder, which is the server's; no bundle takes it along."""
    run, studied, real = copied(quick()), [], estimate.study

    def study(*given, **options):
        """Once, for the text and for JSON."""
        studied[:] = studied or [real(*given, **options)]
        return studied[0]

    monkeypatch.setattr("locksfl.paper.theory.estimate.study", study)
    result = theory("estimate", run, "--looks", 1)
    assert result.code == 0, result.err
    assert "released to nobody" in result.out
    for name in ("L", "Delta F", "sigma_L", "A, sigma_G", "c_nu", "K_min, K_max"):
        assert re.search(rf"^{re.escape(name)} ", result.out, re.M), name
    assert (run / "theory.svg").read_text("utf-8").startswith("<svg")
    told = answer(theory("estimate", run, "--looks", 1, "--json"))
    assert "released to nobody" in told["note"]
    assert len(told["gradient_squared"][0]) == 4
    bundle = new_path()
    publish_folder(run, bundle)
    assert "theory.svg" not in {path.name for path in bundle.rglob("*")}
    assert "no --set or --seed" in refused(theory("estimate", run, "--seed", 3))


def test_a_run_of_secret_randomness_cannot_be_played_again(theory):
    line = refused(theory("estimate", quick(seed=None)))
    assert "the run cannot be replayed" in line
    assert "--seed 0" in line
