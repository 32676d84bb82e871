"""The server's own page: all of the public one, and what must not leave the run folder."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

import numpy as np

from locksfl._charts import Chart, Line, level
from locksfl._files import write_atomically
from locksfl._tables import Record
from locksfl.experiment.config import Config
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
from locksfl.experiment.page.story import Story
from locksfl.privacy.journal import Books
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


@dataclass(frozen=True)
class ServerFacts:
    """What a server has beside a run's summary."""

    config: Config
    books: Books | str  # the ledger, or why it could not be read
    seen: Sequence[Record]  # the lines of diagnostics.jsonl
    environment: Record | None

    @classmethod
    def read(cls, folder: RunFolder) -> ServerFacts:
        """Those of a finished run; some of its files may have been deleted."""
        books: Books | str
        try:
            books = read_run(folder.path)
        except (OSError, ValueError) as error:
            books = str(error)
        there = (folder.path / "diagnostics.jsonl").is_file()
        seen = folder.lines("diagnostics.jsonl") if there else []
        return cls(folder.config, books, seen, folder.environment)


def draw_page(folder: Path, story: Story, facts: ServerFacts) -> None:
    """Write report.html. Whatever is wrong with it, the run is not lost: a warning says so."""
    try:
        write_atomically(folder / PAGE, server_page(story, facts).encode())
    except Exception as error:
        warnings.warn(
            f"{folder / PAGE} was not written ({error!r}); once its cause is gone, locks "
            f"report {folder} writes it",
            RuntimeWarning,
            stacklevel=2,
        )


def server_page(story: Story, facts: ServerFacts) -> str:
    """The page of a run, for its server."""
    more = [
        _with_more(sections.asked([story]), _true_counts(story)),
        _with_more(sections.budget([story]), _ledger(facts.books)),
        _norms(facts.seen, story),
        sections.configuration(facts.config),
        *_environment(facts.environment),
        _again(story),
    ]
    about = "Report of a training run, for whoever ran it"
    return render(replace(sheet_of(story, about, more), secret=SECRET))


def _with_more(section: Section, blocks: list[Block]) -> Section:
    return replace(section, blocks=[*section.blocks, *blocks])


def _true_counts(story: Story) -> list[Block]:
    """What a simulation counted, where that would be secret; of a federation, who answered."""
    blocks: list[Block] = []
    known = [(arm.name, arm.true_counts) for arm in story.arms]
    if story.run.simulated and not story.exact and all(counts for _, counts in known):
        rows = [
            (
                name,
                f"{sum(one.cohort for one in counts):,}",
                f"{sum(one.uploads for one in counts):,}",
            )
            for name, counts in known
        ]
        blocks += [
            Text("What this simulation counted in all rounds, released to nobody:"),
            Table(("arm", "asked", "uploaded"), rows),
        ]
    said = [
        f"**{arm.name}**: {share:.1%} of the {stage}s that were asked for were answered."
        for arm in story.arms
        for stage, share in arm.answered.items()
    ]
    said += [f"**{arm.name}**: {arm.few_uploads}" for arm in story.arms if arm.few_uploads]
    return [*blocks, *([Listing(said)] if said else [])]


def _ledger(books: Books | str) -> list[Block]:
    """What was entered before anything was released."""
    if isinstance(books, str):
        return [Text(f"The ledger could not be read: {books}.")]
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


def _norms(seen: Sequence[Record], story: Story) -> Section:
    """Norms, clipping, signal and noise: what a simulation knows, or what was released."""
    by_arm = {arm.name: [one for one in seen if one.get("arm") == arm.name] for arm in story.arms}
    blocks: list[Block] = [Text(UNSEEN)]
    if any(by_arm.values()):
        only = "**Seen by this simulation only, released to nobody.** No epsilon covers it."
        blocks = [Text(only), *_seen(by_arm, story)]
    return Section("Norms, clipping, and signal to noise", [*blocks, *_released(story)])


def _seen(by_arm: dict[str, list[Record]], story: Story) -> list[Block]:
    norms = []
    for style, (name, lines) in enumerate(by_arm.items()):
        there = [(line["round"], line["norm_quantiles"]) for line in lines]
        rounds = [number for number, quantiles in there if quantiles]
        low, middle, high = (
            [quantiles[share] for _, quantiles in there if quantiles] for share in BAND
        )
        if rounds:
            norms.append(Line(name, rounds, middle, style, low=low, high=high))
    clips = {arm.plan.clip_norm for arm in story.arms if arm.points[-1].clip_norm is None}
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
    lines_of_arms = []
    for style, (name, lines) in enumerate(by_arm.items()):
        there = [(line["round"], line[field]) for line in lines if line.get(field) is not None]
        if there:
            rounds, values = zip(*there, strict=True)
            lines_of_arms.append(Line(name, rounds, values, style))
    return lines_of_arms


def _released(story: Story) -> list[Block]:
    """What was released of norms: their noisy sums, and clip norms that follow from releases."""
    sums = []
    for style, arm in enumerate(story.arms):
        rounds = () if arm.secret is None else arm.secret.rounds
        numbers = [(i, one.released.norm_sum) for i, one in enumerate(rounds, 1)]
        if known := [(i, value) for i, value in numbers if value is not None]:
            xs, ys = zip(*known, strict=True)
            sums.append(Line(arm.name, xs, ys, style))
    adapted = story.lines(sections.ROUND, attrgetter("clip_norm"))
    blocks: list[Block] = []
    if sums:
        chart = Chart("round", "sum of norms, with noise", sums)
        blocks.append(Figure(chart, "Released, and charged: the sum of the cohort's norms."))
    if adapted:
        chart = Chart("round", "clip norm", adapted, from_zero=True)
        blocks.append(Figure(chart, "The clip norm follows from counts released with noise."))
    return blocks


def _environment(facts: Record | None) -> list[Section]:
    """Versions and devices."""
    if facts is None:
        return []
    rows = [(name, facts[name]) for name in ("python", "platform")]
    rows += [("devices", ", ".join(facts["devices"])), *facts["packages"].items()]
    return [Section("Environment", [Table(("", "version"), rows, left=2)])]


def _again(story: Story) -> Section:
    """What another run gives depends on who has the random numbers."""
    if story.run.simulated:
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
