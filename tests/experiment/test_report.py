"""What a person reads of a run is what the run says."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from msgspec import structs
from rich.console import Console

from locksfl._text import epsilon_text, size_text
from locksfl.experiment.figures import legend_below, plotting, save_figure, show_range
from locksfl.experiment.record import Counts
from locksfl.experiment.records import Traffic
from locksfl.experiment.report import draw_figure, notes, summary_table
from small_runs import copied, finished, lines, quick, story, summary


def printed(table, width=160):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_the_table_has_a_row_an_arm_and_names_both_observers():
    told = summary(finished())
    text = printed(summary_table(story(finished())))
    assert "ε SERVER" in text
    assert "ε PUBLIC" in text
    for arm in told["arms"]:
        (row,) = [line for line in text.splitlines() if line.strip().startswith(arm["name"] + " ")]
        assert f"{arm['accuracy']:.3f}" in row
        assert f"~{arm['public']['uploads']:,.0f} " in row
        assert "∞ / ∞" in row
        zero_out, replace = (c["epsilon"] for c in arm["privacy"] if c["observer"] == "PUBLIC")
        assert f"{zero_out:.2f} / {replace:.2f}" in row
    assert "all arms" in text
    assert "all arms" not in printed(summary_table(story(quick())))


@pytest.mark.parametrize("epsilon", [99.99, 1234.5])
def test_the_table_fits_a_terminal(epsilon):
    told = story(finished())
    large = Traffic(1e5, 123_456, 98.7e6, 1.23e12)
    priced = [repriced(arm.public, epsilon) for arm in told.arms]
    arms = []
    for arm, public in zip(told.arms, priced, strict=True):
        arms.append(replace(arm, public=public, secret=structs.replace(arm.secret, seconds=1234.5)))
        vars(arms[-1])["traffic"] = [large]
    costs = tuple(structs.replace(cost, epsilon=epsilon) for cost in told.run.all_arms)
    run = structs.replace(told.run, arms=tuple(priced), all_arms=costs)
    text = printed(summary_table(replace(told, run=run, arms=arms)), width=80)
    assert "…" not in text
    assert len(text.splitlines()) == len(printed(summary_table(told)).splitlines())  # no wrapping


def repriced(arm, epsilon):
    costs = tuple(structs.replace(cost, epsilon=cost.epsilon and epsilon) for cost in arm.privacy)
    return structs.replace(arm, privacy=costs)


def test_what_has_to_be_said_is_said():
    told = story(finished())
    said = " ".join(notes(told))
    assert "1e-05" in said
    assert "SERVER sees raw updates" in said
    assert "simulated" in said
    assert "tuned_without_privacy" in said
    honest = " ".join(notes(story(quick(seed=None))))
    assert "simulated" not in honest
    assert "tuned_without_privacy" not in honest
    assert "raw updates" not in " ".join(notes(story(finished("local"))))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (62_800, "62.8 kB"),
        (2.5e9, "2.5 GB"),
        (1e15, "1e+03 TB"),
    ],
)
def test_sizes(count, text):
    assert size_text(count) == text


def test_epsilons():
    """What is printed as an epsilon is never below it."""
    told = {None: "∞", 8.0: "8.00", 0.126: "0.13", 345.6: "346", 0.004: "0.01", 345.2: "346"}
    assert {epsilon: epsilon_text(epsilon) for epsilon in told} == told


def title(told, run):
    draw_figure(run, told)
    return (run / "figure.svg").read_text()


def test_the_figure_names_arms_epsilon_and_observer():
    run = copied(finished())
    before = {kind: (run / f"figure.{kind}").read_bytes() for kind in ("png", "svg")}
    told = summary(run)
    text = title(story(run), run)
    assert {kind: (run / f"figure.{kind}").read_bytes() for kind in before} == before
    assert "each arm ε = 8.00, δ = 1e-05 against PUBLIC (zero-out, simulated)" in text
    for arm in told["arms"]:
        about = f"~{arm['public']['uploads']:,.0f} uploads"
        assert f"{arm['name']} ({arm['accuracy']:.3f}, {about})" in text
    assert "sent by all clients (MB, estimated from releases)" in text
    assert "no privacy" in (finished("none") / "figure.svg").read_text()
    assert "against SERVER" in (finished("local") / "figure.svg").read_text()


def test_what_is_shown_of_a_central_run_does_not_move_with_its_true_counts():
    """Neither the figure nor the table; those of local trust show exact counts, and do."""
    counts = Counts(cohort=11, uploads=10)
    moved = {}
    for trust in ("central", "local"):
        run = copied(finished(trust))
        told = story(run)
        before = (title(told, run), (run / "figure.png").read_bytes(), printed(summary_table(told)))
        other = replace(told, arms=[counting(arm, counts) for arm in told.arms])
        after = (
            title(other, run),
            (run / "figure.png").read_bytes(),
            printed(summary_table(other)),
        )
        moved[trust] = [a != b for a, b in zip(before, after, strict=True)]
    assert moved == {"central": [False] * 3, "local": [True] * 3}
    assert any("estimated from releases" in note for note in notes(story(finished())))
    assert not any("estimated" in note for note in notes(story(finished("local"))))


def counting(arm, counts):
    """An arm with these counts wherever it has true ones."""

    def other(rounds):
        return tuple(structs.replace(one, counts=one.counts and counts) for one in rounds)

    public = structs.replace(arm.public, rounds=other(arm.public.rounds))
    secret = structs.replace(arm.secret, rounds=other(arm.secret.rounds))
    return replace(arm, public=public, secret=secret)


def test_the_figure_does_not_give_one_arms_epsilon_to_all():
    run = copied(finished())
    told = story(run)
    first, second = told.run.arms
    text = title(
        replace(told, run=structs.replace(told.run, arms=(first, repriced(second, 12.5)))), run
    )
    assert "each arm" not in text
    assert "ε = 8.00 to 12.50" in text


def test_the_figure_takes_rounds_that_were_not_evaluated():
    assert None in [line["accuracy"] for line in lines(quick())]
    assert (quick() / "figure.png").stat().st_size > 10_000


@pytest.mark.parametrize("values", [[0.901, 0.903, 0.87], [0.999, 1.0], [0.1, 0.9], [0.5]])
def test_noise_is_not_drawn_as_an_event(values):
    """The axis shows all values, spans a tenth at least, and hardly goes beyond 1."""
    figure, axes = plotting().subplots()
    show_range(axes, values, 0.1)
    low, high = axes.get_ylim()
    assert low <= min(values) <= max(values) <= high
    assert 0.1 <= high - low <= max(0.12, 1.2 * (max(values) - min(values)))
    assert high < 1.02
    plotting().close(figure)


def test_the_legend_is_below_every_panel(tmp_path):
    figure, panels = plotting().subplots(1, 2)
    for axes in panels:
        axes.plot([0, 1], [0, 1], label="one")
    legend_below(figure)
    save_figure(figure, tmp_path / "figure")
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 1  # of both panels
    lowest = min(axes.get_tightbbox().y0 for axes in panels)
    assert legend.get_window_extent().y1 <= lowest


def test_the_figure_has_the_baseline():
    assert "always the most frequent (0.100)" in (finished() / "figure.svg").read_text()
