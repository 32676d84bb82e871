"""What a person reads of a run is what the run says."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from msgspec import structs
from rich.console import Console

from locksfl._text import epsilon_text, size_text
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
    before = (run / "figure.svg").read_text()
    told = summary(run)
    text = title(story(run), run)
    assert text == before
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
        before = (title(told, run), printed(summary_table(told)))
        other = replace(told, arms=[counting(arm, counts) for arm in told.arms])
        after = (title(other, run), printed(summary_table(other)))
        moved[trust] = [a != b for a, b in zip(before, after, strict=True)]
    assert moved == {"central": [False] * 2, "local": [True] * 2}
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
    text = (quick() / "figure.svg").read_text()
    scored = [line["arm"] for line in lines(quick()) if line["accuracy"] is not None]
    for arm in set(scored):  # a marker for each round that has a score, in both panels
        (group,) = set(re.findall(rf"<title>{arm} .*?</title>.*?</g>", text)[:1])
        assert group.count('overflow="visible"') == 1 + scored.count(arm)


def test_the_figure_has_the_baseline():
    assert "always the most frequent (0.1)" in (finished() / "figure.svg").read_text()
