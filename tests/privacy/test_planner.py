"""The planner: its criterion by hand, its limits, its choices, and the noise of a run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from scripts.check_planner import ALLOWED, RESULTS, SETTINGS, TABLES, at, judged, misled, read
from typer.testing import CliRunner

from locksfl.arm import Arm
from locksfl.cli.main import app
from locksfl.cli.plan import words
from locksfl.privacy import calibrate
from locksfl.privacy.advice import Advice, advise, gains
from locksfl.privacy.forecast import Expected, expected_round
from locksfl.privacy.planner import (
    FULL,
    MEASURED,
    NEAR,
    PROGRESS,
    Question,
    choose,
    predicted_error,
)

MNIST = Question(1000, 7850, 8.0)  # softmax regression on the pixels
MANY = Question(60_000, 39_700, 8.0, 1e-6)


# --- The criterion ------------------------------------------------


def test_the_criterion_by_hand():
    """(A / T)^2 + ((noise^2 + sampling^2) / T)^(2/3): (3 / 25)^2 + (200 / 25)^(2/3), and four times
    the variance where half of the mean is kept."""
    expected = Expected(10.0, 10.0, 1.0, 10.0)
    assert predicted_error(expected, 25, 3.0) == pytest.approx(0.0144 + 4.0)
    assert predicted_error(replace(expected, kept=0.5), 25, 5.0) == pytest.approx(
        0.04 + 4 * 4 ** (2 / 3)
    )


def test_a_larger_clip_norm_needs_fewer_rounds():
    """A is counted in clip norms: with the clip norm eight times the mean norm it is a quarter."""
    q = replace(MNIST, progress=4.0)
    whole, eighth = (q.rough_plan(q.arm("uniform", 10, 50.0, r), r) for r in (1.0, 0.125))
    assert whole.error == predicted_error(whole.expected, 10, 4.0)
    assert eighth.error == pytest.approx(predicted_error(eighth.expected, 10, 1.0), rel=1e-12)


def test_the_criterion_bounds_the_loss_of_sgd():
    """On a quadratic with known L, u, C and variance: the last model's loss is at most
    .49 (|u| C^2)^(2/3) times the criterion with A = .38 L (|u| / C)^(2/3), where the noise rules
    and where the curvature does, and more than a thirtieth of it."""
    rng = np.random.default_rng(0)
    curvature, clip = np.linspace(0.02, 1.0, 30), 0.5
    u = np.full(30, 0.4)
    length = np.linalg.norm(u)
    for variance, rounds in ((0.01, 40), (20.0, 40), (5.0, 400)):
        free = (2 * length**2 / (math.e * rounds * clip) ** 2 / variance) ** (1 / 3)
        step = min(1.0, free)
        w = np.tile(np.sqrt(curvature) * u, (400, 1))  # 400 runs at once
        for _ in range(rounds):
            noise = clip * math.sqrt(variance / 30) * rng.standard_normal(w.shape)
            w = w - step * (curvature * w + noise)
        loss = np.mean(np.sum(curvature * w**2, axis=1) / 2)
        expected = Expected(math.sqrt(variance / 2), math.sqrt(variance / 2), 1.0, 1.0)
        error = predicted_error(expected, rounds, 0.38 * (length / clip) ** (2 / 3))
        bound = 0.49 * (length * clip**2) ** (2 / 3) * error
        assert bound / 30 < loss < bound


def test_the_constant_was_chosen_on_mnist_and_holds_elsewhere():
    """docs/results/rounds.json, played on a GPU: all lines hold; a fifth of the constant or four
    times as much would not do."""
    rows = read(TABLES[0])
    lines = judged(rows)
    assert len(lines) == 15
    assert all(one["holds"] for one in lines)
    assert max(one["behind"] for one in lines if one["data"] in ALLOWED) < 0.0065
    for progress in (PROGRESS / 5, PROGRESS * 4):
        assert sum(not one["holds"] for one in judged(rows, progress)) >= 5


def test_twelve_cells_that_had_no_say():
    """docs/results/rounds-digits.json, fixed before they were played: the planned number of rounds
    is within 1 point of the best in 10 of 12; the two misses, as docs/program.md and the command
    have them, are clients with two classes each. Only this finds a criterion that asks for too many
    rounds where noise rules, or where clients have one or two records."""
    lines = judged(read(TABLES[1]))
    assert len(lines) == 12
    missed = {one["data"]: one["behind"] for one in lines if one["behind"] > 0.01}
    assert sum(one["behind"] <= 0.01 for one in lines) == 10
    assert missed == {"200 clients, two classes": pytest.approx(0.0105, abs=5e-5)}
    assert f"{max(one['behind'] for one in lines):.3f}" == "0.022"


def test_no_public_number_would_have_told_the_two_worst_cells_apart():
    """200 clients at epsilon 3: what is best for two classes each and what is best for iid records
    lie 8 times apart, and no number of rounds is within 1.2 points for both."""
    accuracy = {
        kind: {
            row["rounds"]: row["accuracy"]
            for row in read(TABLES[1])
            if (row["data"], row["epsilon"]) == (f"200 clients, {kind}", 3.0)
        }
        for kind in ("two classes", "iid")
    }
    assert [max(line, key=line.__getitem__) for line in accuracy.values()] == [5, 40]
    for rounds in range(5, 161):
        behind = (max(line.values()) - at(rounds, line) for line in accuracy.values())
        assert max(behind) > 0.012


@pytest.mark.parametrize(
    ("clients", "total", "rounds"),
    [(1000, 500, 20), (1000, 1000, 30), (1000, 5000, 60), (539, 1000, 20)],
)
def test_the_rounds_of_a_total(clients, total, rounds):
    plan = choose(replace(MNIST, clients=clients, uploads_in_all=total), "uniform", 1.0)
    assert plan.arm.rounds == rounds
    assert plan.arm.rounds * plan.expected.uploads == pytest.approx(total)


def test_more_is_never_worse():
    """The predicted error falls with uploads, clients and epsilon, and grows with the model; a
    larger constant asks for more rounds."""

    def error_of(**changes):
        changes = {"uploads_in_all": 1000.0} | changes
        return choose(replace(MNIST, **changes), "uniform", 1.0).error

    usual = error_of()
    better = ({"uploads_in_all": 2000.0}, {"clients": 2000}, {"epsilon": 10.0}, {"parameters": 785})
    for changes in better:
        assert error_of(**changes) < usual
    slow = choose(replace(MNIST, uploads_in_all=1000.0, progress=15.0), "uniform", 1.0)
    assert slow.arm.rounds > 40


def test_a_number_of_rounds_that_is_far_behind_is_seen():
    """The check of a played comparison: within 1 point on MNIST, within 2 elsewhere."""
    played = {10: 0.80, 30: 0.81, 40: 0.825, 60: 0.80}
    rows = [
        {
            "data": label,
            "epsilon": 8.0,
            "rounds": rounds,
            "uploads": 1000 / rounds,
            "accuracy": accuracy,
        }
        for label in ("MNIST", "Fashion-MNIST")
        for rounds, accuracy in played.items()
    ]
    mnist, fashion = judged(rows)
    assert (mnist["planned"], mnist["best"], mnist["holds"]) == (30, 40, False)
    assert fashion["behind"] == pytest.approx(0.015)
    assert fashion["holds"]


# --- Limits ------------------------------------------------


LIMITS = [
    {"uploads": 30.0},
    {"uploads_in_all": 700.0},
    {"downloads": 40.0},
    {"downloads_in_all": 900.0},
    {"rounds": 7},
    {"uploads": 30.0, "downloads_in_all": 900.0, "rounds": 33},
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_limits_are_respected(limits):
    q = replace(MNIST, **limits)
    for rule in q.rules():
        for share in (0.2, 1.0):
            plan = choose(q, rule, share)
            arm, uploads = plan.arm, plan.expected.uploads
            most = {
                "uploads": uploads,
                "uploads_in_all": arm.rounds * uploads,
                "downloads": arm.cohort,
                "downloads_in_all": arm.rounds * arm.cohort,
                "rounds": arm.rounds,
            }
            for name, limit in limits.items():
                assert most[name] <= limit * (1 + 1e-6), (rule, share, name)


def test_without_a_total_the_cheapest_of_the_good_plans_is_taken():
    plan = choose(MNIST, "uniform", 1.0)
    every = MNIST.rough_plan(MNIST.arm(FULL, 1000, 1000, 1.0), 1.0)
    assert every.error < plan.error <= NEAR * every.error
    assert plan.arm.rounds * plan.expected.uploads < 1000 * 1000 / 5


# --- The noise is that of a run ------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("uniform", {"cohort": 50.0}),
        ("coin", {"cohort": 100.0}),
        ("norm", {"cohort": 100.0, "uploads": 50.0, "floor": 0.0}),
    ],
)
def test_a_plan_has_the_noise_of_the_calibrated_arm(rule, settings):
    """Exactly, and the rough plans of a search within 2% of the RDP accountant's; a plan of
    another number of rounds is told apart."""
    q = replace(MNIST, accountant="rdp")
    plan = q.plan(q.arm(rule, 20, 50.0, 0.5), 0.5)
    arm = calibrate(Arm.of("mine", 1000, 20, rule, **settings), 8.0, 1e-5, accountant="rdp")
    assert plan.arm.noise_multiplier == pytest.approx(arm.noise_multiplier, rel=1e-9)
    assert plan.arm.norm_multiplier == pytest.approx(arm.norm_multiplier, rel=1e-9)
    assert plan.expected == expected_round(arm, 7850, 0.5)
    rough = q.rough_plan(q.arm(rule, 20, 50.0, 0.5), 0.5)
    assert rough.expected.noise == pytest.approx(plan.expected.noise, rel=0.02)
    other = q.rough_plan(q.arm(rule, 25, 50.0, 0.5), 0.5)
    assert other.expected.noise != pytest.approx(plan.expected.noise, rel=0.02)


def test_the_coin_by_hand():
    """n q r uploads; noise z(q)/q over n; coin minus uniform is (r^2 - mean of r_i^2)/(n q r)."""
    from locksfl.privacy.forecast import norm_points

    n, share, asked = 1000, 0.3, 100.0
    plan = MNIST.rough_plan(MNIST.arm("coin", 20, share * asked, share), share)
    uniform = MNIST.rough_plan(MNIST.arm("uniform", 20, share * asked, share), share)
    assert plan.arm.cohort == pytest.approx(asked)
    assert plan.expected.uploads == pytest.approx(share * asked)
    wanted = plan.arm.dials(float).noise_multiplier * math.sqrt(7850) / asked
    assert plan.expected.noise == pytest.approx(wanted)
    points = norm_points(share)
    mean = sum(points) / len(points)
    squares = sum(r**2 for r in points) / len(points)
    less = (mean**2 - squares) / (n * asked / n * mean)
    apart = plan.expected.sampling**2 - uniform.expected.sampling**2
    assert apart == pytest.approx(less, rel=1e-6)
    assert less < 0


# --- Which rule ------------------------------------------------


def test_the_coin_is_never_behind_uniform_and_pays_where_norms_are_small():
    """Its gain grows as norms fall and is none where all pass the clip; the norm rule is a little
    behind it."""
    by_share = {share: gains(MANY, 200, 60.0, share) for share in (0.1, 0.3, 1.0)}
    for ratio in ("noise", "sampling_variance", "error"):
        values = [getattr(each["coin"], ratio) for each in by_share.values()]
        assert values == sorted(values), ratio
        assert values[-1] == pytest.approx(1.0, rel=0.01)
    for share in (0.1, 0.3):
        assert by_share[share]["coin"].error < by_share[share]["norm"].error < 1


def test_the_assumed_r_is_the_median_of_what_was_measured():
    """Uploads over the cohort of the coin, in the private cells of docs/results; at 1,000 clients
    and fewer it is about 1, which is assumed wherever nothing else was measured."""
    measured = {}
    for row in (row for name in ("frontier", "clients") for row in read(RESULTS / f"{name}.json")):
        if row["method"] == "coin" and row["epsilon"]:
            clients = int(row["data"].split(" clients")[0].replace(",", ""))
            share = row["uploads_measured"] / row["cohort"]
            measured.setdefault(clients, []).append(share)
    medians = {clients: float(np.median(shares)) for clients, shares in measured.items()}
    assert set(medians) == {100, 1000, 10_000, 60_000}
    for clients, median in medians.items():
        assert replace(MNIST, clients=clients).share == pytest.approx(median, abs=0.05)
    assert replace(MNIST, clients=MEASURED[-1][0] - 1).share == 1.0
    assert replace(MNIST, norm_share=0.4).share == 0.4


@pytest.mark.parametrize(
    ("clients", "parameters", "epsilon", "rule", "why"),
    [
        (490, 30, 4.0, "uniform", "with fewer than 10,000 clients private training clips"),
        (1000, 7850, 8.0, "uniform", "with fewer than 10,000 clients private training clips"),
        (10_000, 7850, 8.0, "coin", "where the mean norm is 0.7 clip norms, as measured in"),
        (60_000, 7850, 8.0, "coin", "where the mean norm is 0.2 clip norms, as measured in"),
    ],
)
def test_the_answer_is_the_readmes_and_says_why(clients, parameters, epsilon, rule, why):
    """Without r: uniform at a thousand clients or fewer, the coin at 60,000, as README and
    docs/results.md have it."""
    advice = advise(Question(clients, parameters, epsilon, accountant="rdp"))
    assert advice.rule == rule
    assert advice.reason.startswith(why)
    lines = [line for line in words(advice) if line.startswith("Take rule ")]
    assert len(lines) == 1
    assert lines[0].startswith(f"Take rule {rule}: ")
    assert lines[0].endswith(f"{advice.reason}.")


def test_no_rule_that_predicts_more_error_is_recommended():
    """With all norms at the clip uniform sampling is the answer: in each of a few settings here,
    and in all 60 in `python -m scripts.check_planner --rules`. Only this finds slacks that add up
    over different numbers of rounds."""
    few = tuple(one for one in SETTINGS if one[2] == 4.0 and one[1] == 30)
    assert len(SETTINGS) == 60
    assert misled(few) == [("uniform", 1.0)] * 5


def test_the_reason_names_what_is_gained():
    """A total: less error. None: fewer uploads, in as many rounds, for no more error."""
    q = replace(MNIST, norm_share=0.3, accountant="rdp")
    advice = advise(q)
    coin, uniform = (advice.plans[name] for name in ("coin", "uniform"))
    assert (advice.rule, coin.rounds) == ("coin", uniform.rounds)
    assert 0.98 * uniform.error < coin.error <= uniform.error
    saved = 1 - coin.uploads_in_all / uniform.uploads_in_all
    assert 0.6 < saved < 0.7
    where = "where the mean norm is 0.3 clip norms, it "
    assert advice.reason == (
        where + f"needs {saved:.0%} fewer uploads than uniform for the same predicted error"
    )
    advice = advise(replace(q, uploads_in_all=1000.0))
    less = 1 - advice.plans["coin"].error / advice.plans["uniform"].error
    assert advice.rule == "coin"
    assert advice.reason == where + f"predicts {less:.0%} less error than uniform"
    advice = advise(replace(q, norm_share=0.95))
    assert advice.rule == "uniform"
    assert advice.reason.endswith("choosing by norm saves too little")


def test_local_trust_is_planned_too():
    """The coin is not sound there; 100 clients at epsilon 10 are hopeless, as measured."""
    q = Question(100, 7850, 10.0, trust="local")
    assert q.rules() == ["uniform", "norm"]
    advice = advise(q)
    assert advice.verdict == "hopeless"
    assert advice.rule == "uniform"
    assert 300 < advice.smallest_clients < 1000


# --- The command ------------------------------------------------


def command(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


USUAL = ("--clients", 1000, "--parameters", 7850, "--epsilon", 8, "--uploads-in-all", 1000)


def test_the_command(tmp_path):
    figure = tmp_path / "frontier.svg"
    many = ("--clients", 60_000, "--parameters", 7850, "--epsilon", 8, "--uploads", 60)
    many += ("--accountant", "rdp")
    said = command(*many, "--figure", figure)
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith("Training can work")
    assert "where the mean norm is 0.2 clip norms, as measured in populations" in said.stdout
    assert "No more than 1,000 rounds were tried" in said.stdout
    drawn = figure.read_text("utf-8")
    assert all(f">{rule}</text>" in drawn for rule in ("uniform", "norm", "coin"))
    shown = json.loads(command(*USUAL, "--accountant", "rdp", "--norm-share", 1, "--json").stdout)
    assert shown["plans"]["uniform"]["bytes_up"] == pytest.approx(4 * 7850 * 1000)
    assert shown["frontier"][0]["rule"] == "uniform"
    advice = msgspec.convert(shown, Advice)
    lines = "\n".join(words(advice))
    assert "Take rule uniform: 30 rounds, 33 clients asked and 33.3 uploads a round: " in lines
    assert lines.endswith("2.2 points behind the best; most where clients differ much.")
    assert "Warning" not in lines
    large = replace(advice, question=replace(advice.question, delta=0.02))
    assert "Warning: delta = 0.02 is not below 1/n" in "\n".join(words(large))


def test_when_sampling_by_norm_pays_is_a_markdown_table():
    few = ("--clients", 10_000, "--uploads", 60, "--norm-share", 0.3)
    said = command("--pays", *few)
    lines = said.stdout.strip().splitlines()
    assert lines[0].startswith("| n | epsilon | uploads | r | asked | coin: noise |")
    assert len(lines) == 2 + 2  # epsilon 2 and 8
    assert {line.count("|") for line in lines} == {12}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trust", "centrl"), "trust = 'centrl': expected one of central, local (did you mean"),
        (("--trust", "none"), "trust = 'none': expected one of central, local"),
        (("--delta", 0), "delta = 0.0: expected a number in (0, 1)"),
        (("--epsilon", -1), "epsilon = -1.0: expected a number > 0"),
        (("--clients", 0), "clients = 0: expected a whole number >= 1"),
        (("--uploads", 0.5), "uploads = 0.5: expected at least 1"),
        (("--norm-share", 1.5), "norm_share = 1.5: expected a rate in (0, 1]"),
        (("--progress", 0), "progress = 0.0: expected a number > 0"),
        (("--figure", "x.pdf"), "--figure x.pdf: expected a file that ends in .svg"),
    ],
)
def test_bad_input_is_one_line(arguments, said):
    done = command(*USUAL, *arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_what_is_missing_is_named():
    done = command("--clients", 1000, "--epsilon", 8)
    assert done.exit_code == 2
    assert "--parameters is missing: expected a number" in done.output


def test_no_jax_is_needed():
    code = "import sys, locksfl.privacy.planner, locksfl.cli.plan; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_rule_that_the_limits_leave_no_upload_is_left_out():
    """Of 5 clients with a mean norm of .1 the coin expects half an upload a round at most; uniform
    sampling has its plan all the same."""
    for limits in ({"clients": 5}, {"clients": 1000, "downloads": 5.0}):
        q = Question(parameters=100, epsilon=8.0, delta=1e-3, accountant="rdp", **limits)
        advice = advise(replace(q, norm_share=0.1))
        assert (advice.rule, list(advice.plans)) == ("uniform", ["uniform"])
        assert advice.reason == "the limits leave no upload to a rule that chooses by norm"
        assert list(advise(q).plans) == ["uniform", "coin", "norm"]
