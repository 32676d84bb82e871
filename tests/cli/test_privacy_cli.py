"""`locks privacy`: answers without JAX, in time, that agree with the accountants and with a run."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

import pytest

from cli_results import answer
from locksfl.arm import Arm
from locksfl.experiment.config import parse_config
from locksfl.experiment.coverage import covered_text
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import Cost, Covers
from locksfl.experiment.report import notes, summary_table
from locksfl.privacy import epsilon_from_mu
from locksfl.privacy.population import PlannedArm, PopulationJournal, Run
from small_runs import CENTRAL, QUICK, costs, finished, lines, new_path, play, story, summary

UNIFORM = ("--rounds", 100, "--clients", 100, "--cohort", 20)
NORM = (
    *("--rounds", 100, "--clients", 100, "--cohort", 30, "--uploads", 20),
    *("--rule", "norm", "--floor", 0.1, "--norm-low", 0.9),
)


@pytest.fixture
def privacy(locks):
    """`locks privacy ...` in this process."""
    return partial(locks, "privacy")


@pytest.mark.parametrize("flags", [UNIFORM, NORM], ids=["uniform", "norm"])
@pytest.mark.parametrize("relation", ["zero-out", "replace"])
@pytest.mark.parametrize("trust", ["central", "local"])
def test_accounting_a_calibrated_multiplier_gives_the_epsilon_back(privacy, flags, relation, trust):
    more = (*flags, "--trust", trust, "--relation", relation, "--accountant", "rdp", "--json")
    found = answer(privacy("calibrate", "--epsilon", 6, *more))
    noise = ["--noise-multiplier", found["noise_multiplier"]]
    if flags is NORM:
        noise += ["--norm-multiplier", found["norm_multiplier"]]
    else:
        assert found["norm_multiplier"] is None
    told = answer(privacy("account", *noise, *more))
    assert told["public"]["epsilon"] == pytest.approx(6, rel=1e-3)
    assert told["public"]["relations"][relation] == told["public"]["epsilon"] <= 6
    other = told["public"]["relations"]
    assert other["zero-out"] < other["replace"]
    server = told["server"]
    assert server["epsilon"] == (told["public"]["epsilon"] if trust == "local" else None)
    assert (server["relation"], server["delta"]) == (relation, 1e-5)
    assert told["public"]["accountant"] == ("gdp" if trust == "local" else "rdp")


@pytest.mark.parametrize("flags", [UNIFORM, NORM], ids=["uniform", "norm"])
def test_a_clip_norm_that_adapts_is_calibrated_and_accounted(privacy, flags):
    """Its count has a multiplier of its own, which is part of the charge."""
    more = (*flags, "--accountant", "rdp", "--clip-quantile", 0.5)
    found = answer(privacy("calibrate", "--epsilon", 6, *more, "--json"))
    said = privacy("calibrate", "--epsilon", 6, *more).out
    assert f"clip_multiplier   {found['clip_multiplier']:.6g}\n" in said
    noise = ["--noise-multiplier", found["noise_multiplier"]]
    if flags is NORM:
        noise += ["--norm-multiplier", found["norm_multiplier"]]
    missing = privacy("account", *noise, *more)
    assert missing.code == 2
    assert "--clip-multiplier: missing; the clip norm adapts to a released count" in missing.err

    def epsilon(*clip):
        told = answer(privacy("account", *noise, *more, *clip, "--json"))
        return told["public"]["epsilon"]

    charged = epsilon("--clip-multiplier", found["clip_multiplier"])
    assert charged == pytest.approx(6, rel=1e-3)
    assert charged <= 6
    assert epsilon("--clip-multiplier", found["clip_multiplier"] / 2) > 6.01


def test_the_figures_of_the_design(privacy):
    """Central uniform by both accountants; local with a client's own numbers of releases."""
    for accountant, figure in (("rdp", 10.072), ("pld", 9.18)):
        told = answer(
            privacy("account", "--noise-multiplier", 1.32, *UNIFORM, "--accountant", accountant,
                    "--json")
        )  # fmt: skip
        assert told["public"]["epsilon"] == pytest.approx(figure, abs=5e-3)
    told = answer(
        privacy(
            "account", *NORM, "--trust", "local", "--noise-multiplier", 1.32, "--norm-multiplier",
            1.32, "--norm-queries", 30, "--update-releases", 20, "--json",
        )
    )  # fmt: skip
    found = [round(v, 1) for v in told["server"]["relations"].values()]
    assert found == [36.5, 64.7]


def test_every_client_in_every_round_earns_the_aggregation_credit(privacy):
    """|Z| = n by rule: PUBLIC's mu^2 is SERVER's over n. With a coin less it is not."""
    flags = ("--trust", "local", "--noise-multiplier", 4, "--rounds", 10, "--json")
    whole = answer(privacy("account", *flags, "--clients", 50, "--cohort", 50))
    assert whole["server"]["epsilon"] == pytest.approx(epsilon_from_mu((10 / 16) ** 0.5, 1e-5))
    assert whole["public"]["epsilon"] == pytest.approx(epsilon_from_mu((0.2 / 16) ** 0.5, 1e-5))
    part = answer(privacy("account", *flags, "--clients", 50, "--cohort", 49))
    assert part["public"] == part["server"]
    capped = answer(
        privacy("account", *flags, "--clients", 50, "--cohort", 50, "--update-releases", 2)
    )
    assert capped["public"] == capped["server"]  # they may take turns: nobody else's noise is sure


BAD = [
    (("calibrate", "--epsilon", 0, *UNIFORM), "epsilon = 0.0: expected a number > 0"),
    (("calibrate", "--epsilon", "-1", *UNIFORM), "epsilon = -1.0: expected a number > 0"),
    (("calibrate", "--epsilon", 1, "--delta", 0, *UNIFORM), "delta = 0.0: expected a number in"),
    (("calibrate", "--epsilon", 1, "--delta", 1, *UNIFORM), "delta = 1.0: expected a number in"),
    (("calibrate", "--epsilon", 1, *UNIFORM[:4]), "--cohort: missing"),
    (("calibrate", "--epsilon", 1, *UNIFORM, "--trust", "none"), "--trust none adds no noise"),
    (("calibrate", "--epsilon", 1, *UNIFORM, "--norm-low", 0.5), "--rule uniform takes none"),
    (("calibrate", "--epsilon", 1, *UNIFORM, "--norm-queries", 5), "only with --trust local"),
    (("calibrate", "--epsilon", 1, *NORM, "--norm-multiplier", 0.1), "norm releases alone cost"),
    (("calibrate", "--epsilon", 1, *NORM, "--norm-low", 0.5), "expected at least uploads / cohort"),
    (("account", "--noise-multiplier", 0, *UNIFORM), "noise_multiplier = 0.0: expected a number"),
    (("account", *UNIFORM), "--noise-multiplier: missing"),
    (("account", "--noise-multiplier", 1, *NORM), "--norm-multiplier: missing"),
    (
        ("account", "--noise-multiplier", 1, *UNIFORM, "--uploads", 21),
        "expected at most the cohort",
    ),
    (("account", "{run}", "--rounds", 5), "its ledger holds all settings"),
    (("account", "{run}", "--delta", 1e-6), "its ledger holds all settings; expected no --delta"),
    (("account", "{missing}"), "not a run folder"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=[told for _, told in BAD])
def test_bad_input_is_one_line(privacy, tmp_path, arguments, told):
    places = {"run": finished(), "missing": tmp_path / "no"}
    result = privacy(*(str(a).format(**places) for a in arguments))
    assert result.code == 2
    assert result.err.startswith("locks: ")
    assert result.err.count("\n") == 1
    assert told in result.err


def test_a_delta_of_one_over_n_is_warned_of(privacy):
    flags = ("account", "--noise-multiplier", 2, *UNIFORM, "--accountant", "rdp", "--json")
    warned = privacy(*flags, "--delta", 0.01)
    assert answer(warned)["public"]["epsilon"] > 0
    assert "publishing one client in full, drawn at random, would satisfy it" in warned.err
    assert privacy(*flags, "--delta", 0.0099).err == ""


@pytest.mark.parametrize("trust", ["central", "local", "none"])
def test_a_run_is_accounted_from_its_ledger(privacy, trust):
    told = answer(privacy("account", finished(trust), "--json"))
    for arm, mine in zip(summary(finished(trust))["arms"], told["arms"], strict=True):
        for (observer, relation), epsilon in costs(arm["privacy"]).items():
            assert mine["guarantee"][observer.lower()]["relations"][relation] == epsilon
        assert mine["rounds"] == mine["rounds_played"] == 4
    text = privacy("account", finished(trust)).out
    assert text.count("guarantee") == text.count("spent so far") == 6


def test_accounting_needs_no_jax():
    """Which would take longer to import than the accounting takes."""
    code = (
        "import sys\nfrom locksfl.cli.main import main\ntry: main()\n"
        "finally: print('jax' in sys.modules, file=sys.stderr)"
    )
    for arguments in (
        ("calibrate", "--epsilon", 10, *UNIFORM, "--accountant", "rdp"),
        ("calibrate", "--epsilon", 10, *NORM),
        ("account", finished("local")),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code, "privacy", *map(str, arguments)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stderr.strip() == "False"


def test_the_paper_beside_the_truth(privacy):
    rows = answer(privacy("paper", "--json"))
    assert {row["claimed_epsilon"] for row in rows} == {10, 50}
    assert rows[0]["server"]["zero-out"] == pytest.approx(19.5, abs=0.05)
    assert "claimed" in privacy("paper").out


AS_PRINTED = ("privacy.trust=local", "privacy.accounting=as-printed")


def test_as_printed_repeats_the_mistake_and_says_so():
    config = parse_config(CENTRAL, AS_PRINTED, 3)
    sound = {p.name: p for p in plan_arms(parse_config(CENTRAL, ("privacy.trust=local",)))}
    central = plan_arms(parse_config(CENTRAL))[0]
    for arm in plan_arms(config):
        assert arm.noise_multiplier == pytest.approx(central.noise_multiplier, rel=1e-9)
        assert arm.noise_multiplier < sound[arm.name].noise_multiplier
        assert arm.norm_multiplier == (arm.noise_multiplier if arm.releases_norms else 0)
    run = play(config)
    told = summary(run)
    assert told["no_guarantee"] is True
    for arm in told["arms"]:
        assert arm["claimed_epsilon"] == pytest.approx(8.0, rel=1e-3)
        assert costs(arm["privacy"])["SERVER", "zero-out"] > 1.5 * arm["claimed_epsilon"]
    assert "NO GUARANTEE" in summary_table(story(run)).title
    assert any("no guarantee" in note for note in notes(story(run)))
    assert "NO GUARANTEE" in (run / "figure.svg").read_text("utf-8")
    bundle = new_path()
    publish_folder(run, bundle)
    assert "NO GUARANTEE" in (bundle / "STATEMENT.md").read_text("utf-8")
    stated = json.loads((bundle / "statement.json").read_text("utf-8"))["arms"]
    assert all(arm["claimed_epsilon"] for arm in stated)
    other = summary(finished("local"))
    assert not other["no_guarantee"]
    assert "GUARANTEE" not in summary_table(story(finished("local"))).title


def test_a_central_run_stops_before_its_budget_is_passed():
    """The accountant alone decides: the arm is charged for the rounds it played, and one more
    round would have passed the limit."""
    noise = ("arm.locks.noise_multiplier=1.0", "arm.locks.norm_multiplier=4.0")
    run = play(parse_config(QUICK, (*noise, "privacy.max_epsilon=7.0", "train.rounds=9"), 3))
    (arm,) = summary(run)["arms"]
    played = arm["rounds"]
    assert 1 <= played < arm["asked_rounds"] == 9
    assert len(lines(run)) == played
    assert costs(arm["privacy"])["PUBLIC", "zero-out"] <= 7.0
    longer = (*noise, f"train.rounds={played + 1}")
    (more,) = plan_arms(parse_config(QUICK, longer))
    (plain,) = summary(play(parse_config(QUICK, longer, 3)))["arms"]
    assert more.rounds == played + 1
    assert costs(plain["privacy"])["PUBLIC", "zero-out"] > 7.0
    assert any("by the accountant alone" in note for note in notes(story(run)))
    with pytest.raises(ValueError, match=r"max_epsilon = 0\.1: less than the cost of one round"):
        plan_arms(parse_config(QUICK, (*noise, "privacy.max_epsilon=0.1")))


@pytest.fixture
def populations(monkeypatch, tmp_path):
    monkeypatch.setenv("LOCKS_POPULATIONS", str(tmp_path))
    return tmp_path


MADE = ("population", "patients", "--total")


def test_a_population_is_made_debited_and_shown(privacy, locks, populations):
    made = privacy(*MADE, 10, "--order", 2.4)
    assert made.code == 0
    assert made.out.startswith(f"wrote {populations / 'patients.sqlite'}: total epsilon 10, delta ")
    assert "against PUBLIC (zero-out, filter at order 2.4)" in made.out
    experiment = populations / "experiment.toml"
    experiment.write_text(QUICK)
    less = ("--set", "train.rounds=2", "--set", "arm.locks.noise_multiplier=3.0")
    debits = (*less, "--set", "privacy.population=patients")
    for name in ("first", "second"):
        folder = populations / name
        told = locks("run", experiment, *debits, "--set", f"name={name}", "--out", folder)
        assert told.code == 0, told.err
    refused = locks("run", experiment, *debits, "--set", "train.rounds=9", "--out", folder / "no")
    assert refused.code == 2
    assert "locks: privacy.population = 'patients': the run 'quick' would use" in refused.err
    assert not (folder / "no").exists()
    told = answer(privacy("spent", "patients", "--json"))
    assert [run["run"].split()[0] for run in told["runs"]] == ["first", "second"]
    assert [run["arms"] for run in told["runs"]] == [["locks"], ["locks"]]
    both, alone = costs(told["composed"]), costs(summary(folder)["all_arms_composed"])
    assert both["SERVER", "zero-out"] is None
    assert alone["PUBLIC", "zero-out"] < both["PUBLIC", "zero-out"] < told["spent_so_far"] < 10
    shown = privacy("spent", "patients").out
    assert shown.count("locks") == 2
    assert "spent so far  PUBLIC" in shown
    assert "never cost more than the total" in shown
    assert f"PUBLIC  zero-out {both['PUBLIC', 'zero-out']:.4f}" in shown


@pytest.mark.usefixtures("populations")
def test_a_copy_that_played_on_above_the_total_is_said(privacy):
    """The fault: 161% of a total is spent, and the journal and a statement say that it holds."""

    def run(name, rounds):
        arm = Arm.of("a", 100, rounds, trust="local", cohort=20, noise_multiplier=11.0)
        return Run(name, name, (PlannedArm.of(arm),))

    def said():
        with PopulationJournal.find("patients") as journal:
            account = journal.account()
            kept = {"share": account["share"], "spent_so_far": account["spent_so_far"], "runs": ()}
            costs = tuple(Cost(**cost) for cost in account["composed"])
            label = Run("first", "first", ()).label
            named = {"run": label, "population": "patients", "total": journal.total}
            covers = Covers(**named, **kept, composed=costs)
        return covered_text(covers), " ".join(privacy("spent", "patients").out.split()), covers

    assert privacy(*MADE, 4, "--trust", "local").code == 0
    with PopulationJournal.find("patients") as journal:
        limit = journal.total.limit / journal.total.charge(run("first", 1).arms)  # rounds
        whole, most = int(0.97 * limit), int(0.64 * limit)
        journal.debit(run("first", whole))  # and so was a copy of its folder, which is playing
        journal.settle(run("first", whole // 4))
        journal.debit(run("other", most))
    exception = "if a copy of a run that ended early is still playing, what it releases is charged"
    for text in said()[:2]:
        assert f"never cost more than the total, with one exception: {exception}" in text
    with PopulationJournal.find("patients") as journal:
        journal.settle(run("first", whole))  # the copy has ended
    *texts, covers = said()
    assert 1.5 < covers.share < 1.62
    for text in texts:
        assert f"{covers.share:.1%}" in text
        assert "none any more, because the runs have cost more than the total: a copy" in text
        assert "never cost more" not in text


@pytest.mark.usefixtures("populations")
def test_a_population_without_runs_has_spent_nothing(privacy):
    assert privacy(*MADE, 3, "--trust", "local").code == 0
    told = answer(privacy("spent", "patients", "--json"))
    assert (told["runs"], told["spent_so_far"]) == ([], 0)
    assert {cost["epsilon"] for cost in told["composed"]} == {0}
    assert "SERVER" in privacy("spent", "patients").out


@pytest.mark.usefixtures("populations")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("spent", "nobody"), "population 'nobody': no journal"),
        (("population", "a/b", "--total", 3), "population = 'a/b': expected up to 100 letters"),
        ((*MADE, -1), "--total = -1.0: expected a number > 0"),
        ((*MADE, 3, "--delta", 2), "--delta = 2.0"),
        ((*MADE, 3, "--trust", "none"), "--trust = 'none': expected one of"),
        ((*MADE, 3, "--trust", "local", "--order", 3), "--order = 3: only for runs of any trust"),
        ((*MADE, 3, "--order", 1.1), "order = 1.1: nothing is left of the total 3"),
    ],
)
def test_a_population_that_cannot_be_is_refused_in_one_line(privacy, arguments, expected):
    told = privacy(*arguments)
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith("locks: ")
    assert told.err.count("\n") == 1
    assert expected in told.err
