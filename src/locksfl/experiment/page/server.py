"""The server's own page: all of the public one, and what must not leave the run folder."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from operator import attrgetter

import numpy as np

from locksfl._charts import Chart, Line, level
from locksfl._files import write_atomically
from locksfl._tables import Record
from locksfl.experiment.documents import PAGE
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.page import sections
from locksfl.experiment.page.blocks import (
    Block,
    Figure,
    Listing,
    Section,
    Table,
    Text,
    number_text,
)
from locksfl.experiment.page.sheet import again, render, sheet_of
from locksfl.experiment.page.story import Story, of_run
from locksfl.privacy.ledger import read_run

SECRET = (
    "**The server's own page: do not pass it on.** It shows what was released to nobody. What may "
    "be shown is made by **locks publish RUN FOLDER**, with a report.html for the public in it."
)
BAND = ("0.1", "0.5", "0.9")  # the quantiles that are drawn: a band and its middle
UNSEEN = (
    "This run has secret random numbers, and tells its own files nothing that was not released: no "
    "norms, no share of clipped updates, no signal-to-noise ratio. A simulation (a run with a "
    "seed) shows them."
)


def draw_page(folder: RunFolder, summary: Record) -> None:
    """Write report.html. Whatever is wrong with it, the run is not lost: a warning says so."""
    try:
        write_atomically(folder.path / PAGE, server_page(folder, summary).encode())
    except Exception as error:
        warnings.warn(
            f"{folder.path / PAGE} was not written ({error!r}); once its cause is gone, locks "
            f"report {folder.path} writes it",
            RuntimeWarning,
            stacklevel=2,
        )


def server_page(folder: RunFolder, summary: Record | None = None) -> str:
    """The page of a run folder; of one that is about to be finished, with its summary."""
    story = of_run(folder, folder.summary() if summary is None else summary)
    more = [
        _with_more(sections.asked([story]), _true_counts(folder, story)),
        _with_more(sections.budget([story]), _ledger(folder)),
        _norms(folder, story),
        sections.configuration(story.config),
        *_environment(folder),
        _again(story),
    ]
    about = "Report of a training run, for whoever ran it"
    return render(replace(sheet_of(story, about, more), secret=SECRET))


def _with_more(section: Section, blocks: list[Block]) -> Section:
    return replace(section, blocks=[*section.blocks, *blocks])


def _true_counts(folder: RunFolder, story: Story) -> list[Block]:
    """What a simulation counted, where that would be secret; of a federation, who answered."""
    lines = folder.lines("rounds.jsonl")
    blocks: list[Block] = []
    if story.statement["simulated"] and any(line.get("public") for line in lines):
        rows = [
            (arm["name"], *(number_text(round(arm[name])) for name in ("cohort", "uploads")))
            for arm in story.arms
        ]
        blocks += [
            Text("What this simulation counted in all rounds, released to nobody:"),
            Table(("arm", "asked", "uploaded"), rows),
        ]
    answered = [
        f"**{arm['name']}**: {share:.1%} of the {stage}s that were asked for were answered."
        for arm in story.arms
        for stage, share in (arm.get("answered") or {}).items()
    ]
    few = [f"**{arm['name']}**: {said}" for arm in story.arms if (said := arm.get("few_uploads"))]
    return [*blocks, *([Listing([*answered, *few])] if answered or few else [])]


def _ledger(folder: RunFolder) -> list[Block]:
    """What was entered before anything was released."""
    try:
        books = read_run(folder.path)
    except (OSError, ValueError) as error:
        return [Text(f"The ledger could not be read: {error}.")]
    rows = []
    for counts in books.arms:
        arm, uploads = counts.arm, counts.uploads
        charged = "all clients, every round"
        if arm.charges_each:
            charged = f"{np.median(uploads):g} rounds (most: {np.max(uploads)})"
        limit = None if arm.filtered is None else arm.filtered.budget_epsilon
        rows.append((arm.name, f"{counts.rounds}/{arm.rounds}", charged, number_text(limit)))
    heads = ("arm", "rounds", "charged to a client", "client's budget")
    return [
        Text(
            f"The ledger has {books.number:,} entries, chained up to {books.head[-16:]}. From it "
            "alone, **locks privacy account RUN** recomputes every epsilon."
        ),
        Table(heads, rows),
    ]


def _norms(folder: RunFolder, story: Story) -> Section:
    """Norms, clipping, signal and noise: what a simulation knows, or what was released."""
    by_arm = _by_arm(folder, "diagnostics.jsonl", story)
    blocks: list[Block] = [Text(UNSEEN)]
    if any(by_arm.values()):
        only = "**Seen by this simulation only, released to nobody.** No epsilon covers it."
        blocks = [Text(only), *_seen(by_arm, story)]
    return Section("Norms, clipping, and signal to noise", [*blocks, *_released(folder, story)])


def _by_arm(folder: RunFolder, name: str, story: Story) -> dict[str, list[Record]]:
    """The lines of a file that may have been deleted."""
    lines = folder.lines(name) if (folder.path / name).is_file() else []
    names = [arm["name"] for arm in story.arms]
    return {arm: [line for line in lines if line.get("arm") == arm] for arm in names}


def _seen(by_arm: dict[str, list[Record]], story: Story) -> list[Block]:
    norms = []
    for style, (name, lines) in enumerate(by_arm.items()):
        there = [(line["round"], line["norm_quantiles"]) for line in lines]
        rounds = [number for number, found in there if found]
        low, middle, high = ([found[share] for _, found in there if found] for share in BAND)
        if rounds:
            norms.append(Line(name, rounds, middle, style, low=low, high=high))
    clips = {float(arm["clip_norm"]) for arm in story.arms if arm.get("last_clip_norm") is None}
    levels = [level("clip norm", clip, norms) for clip in sorted(clips)] if norms else []
    charts = [
        (
            *("norm of an update", [*norms, *levels]),
            "How large updates are before they are clipped: the median, and 10 to 90% of them.",
        ),
        (
            *("share clipped", _field(by_arm, "clipped_fraction")),
            "The share of updates that were longer than the clip norm.",
        ),
        (
            *("signal to noise", _field(by_arm, "signal_to_noise")),
            "The length of the mean update over that of the noise. Below 1, a single round is "
            "mostly noise; many rounds average it out.",
        ),
    ]
    return [
        Figure(Chart("round", name, lines, from_zero=True), caption)
        for name, lines, caption in charts
        if lines
    ]


def _field(by_arm: dict[str, list[Record]], field: str) -> list[Line]:
    found = []
    for style, (name, lines) in enumerate(by_arm.items()):
        there = [(line["round"], line[field]) for line in lines if line.get(field) is not None]
        if there:
            rounds, values = zip(*there, strict=True)
            found.append(Line(name, rounds, values, style))
    return found


def _released(folder: RunFolder, story: Story) -> list[Block]:
    """What was released of norms: their noisy sums, and clip norms that follow from releases."""
    sums = _field(_by_arm(folder, "rounds.jsonl", story), "released_norm_sum")
    adapted = story.lines(sections.ROUND, attrgetter("clip_norm"))
    blocks: list[Block] = []
    if sums:
        chart = Chart("round", "sum of norms, with noise", sums)
        blocks.append(Figure(chart, "Released, and charged: the sum of the cohort's norms."))
    if adapted:
        chart = Chart("round", "clip norm", adapted, from_zero=True)
        blocks.append(Figure(chart, "The clip norm follows from counts released with noise."))
    return blocks


def _environment(folder: RunFolder) -> list[Section]:
    """Versions and devices."""
    path = folder.path / "environment.json"
    if not path.is_file():  # it may have been deleted
        return []
    told = json.loads(path.read_text("utf-8"))
    rows = [(name, told[name]) for name in ("python", "platform")]
    rows += [("devices", ", ".join(told["devices"])), *told["packages"].items()]
    return [Section("Environment", [Table(("", "version"), rows, left=2)])]


def _again(story: Story) -> Section:
    """What another run gives depends on who has the random numbers."""
    if story.statement["simulated"]:
        said = (
            "config.toml has the seed: the same versions on the same kind of machine give the same "
            "rounds, models and figures."
        )
    else:
        said = (
            "There is no seed, and the random numbers are gone: another run has other models, and "
            "costs the same people once more."
        )
    return again(story, said, " --out again")
