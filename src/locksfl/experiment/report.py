"""What a person sees of a run: the table, and the figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from locksfl._charts import Chart, Line, level
from locksfl._files import write_atomically
from locksfl._svg import svg_file
from locksfl._tables import Record
from locksfl._text import epsilon_text, size_text, table_of
from locksfl.experiment.costs import epsilons_by_observer
from locksfl.experiment.metrics import BASELINES
from locksfl.experiment.page.story import ArmStory, Story
from locksfl.experiment.record import AnyMetrics
from locksfl.experiment.statement import ended_early, unit_text
from locksfl.methods import TRUSTS
from locksfl.privacy import OBSERVERS, RELATIONS

SCORES = ("accuracy", "r2")
SAID = {  # of each task: the metric, its word, and the one of a constant answer
    "classes": (
        ("accuracy", "accuracy", "baseline"), ("balanced_accuracy", "balanced"), ("auc", "AUC"),
        ("f1", "F1"), ("calibration_error", "calibration error"),
    ),
    "numbers": (
        ("r2", "R²", "baseline"), ("rmse", "RMSE", "baseline_rmse"), ("mae", "MAE", "baseline_mae"),
    ),
    "tags": (
        ("accuracy", "accuracy", "baseline"),
        ("exact_match", "exact match", "baseline_exact_match"),
        ("f1_micro", "F1 micro"), ("f1_macro", "macro"), ("auc", "AUC"),
    ),
}  # fmt: skip


def summary_table(story: Story) -> Table:
    """One row per arm; epsilon by observer and relation."""
    observers = (f"ε {observer}\n" + " /\n".join(RELATIONS) for observer in OBSERVERS)
    rows = (
        (
            arm.name,
            _decimal(arm.score),
            _uploads(arm),
            size_text(arm.total.bytes_up),
            size_text(arm.total.bytes_down),
            *epsilons_by_observer(arm.public.privacy, " / "),
            "" if arm.secret is None else f"{arm.secret.seconds:.1f}",
        )
        for arm in story.arms
    )
    heads = ("arm", story.score_name, "uploads", "up", "down", *observers, "seconds")
    named = [story.name, *([] if story.secret is None else [story.secret.data])]
    title = f"{' · '.join(dict.fromkeys(named))}{_stamp(story)}"
    table = table_of(heads, rows, left=1, title=title, box=SIMPLE, padding=0)
    if story.baseline is not None:
        table.add_row("baseline", _decimal(story.baseline), *[""] * 6)
    if len(story.arms) > 1:
        table.add_section()
        table.add_row("all arms", *[""] * 4, *epsilons_by_observer(story.run.all_arms, " / "), "")
    return table


def _decimal(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"


def metrics_line(arm: ArmStory, metrics: AnyMetrics) -> str:
    """An arm's metrics in a sentence, each beside that of a constant answer, if that has one."""
    task = str(metrics.__struct_config__.tag)

    def words(name: str, word: str, beside: str = "") -> str:
        value = getattr(metrics, name)
        if name in SCORES and arm.score is not None:
            value = arm.score  # as the table has it
        constant = f"{BASELINES[task]}: " if beside == "baseline" else ""
        against = f" ({constant}{_decimal(getattr(metrics, beside))})" if beside else ""
        return f"{word} {_decimal(value)}{against}"

    text = ", ".join(words(*names) for names in SAID[task])
    low, high = metrics.gain_low, metrics.gain_high
    if low is not None and low <= 0:
        apart = f"{low:+.3f} to {high:+.3f}"
        text += f". NOT SHOWN TO BE BETTER than a constant answer (95%: {apart})"
    return f"{arm.name}: {text}."


def _uploads(arm: ArmStory) -> str:
    return f"{'~' * (not arm.exact)}{round(arm.total.uploads):,}"


def _stamp(story: Story) -> str:
    """The warning that accompanies all output of a run accounted as printed."""
    if story.config.privacy.accounting == "sound":
        return ""
    claimed = epsilon_text(max(arm.public.claimed_epsilon or 0.0 for arm in story.arms))
    return f" · NO GUARANTEE (claimed ε = {claimed}, accounting as printed)"


def notes(story: Story) -> list[str]:
    """What a reader of the table has to know, one sentence each."""
    arms, run, privacy = story.arms, story.run, story.config.privacy
    trust = TRUSTS[privacy.trust]
    said = []
    if privacy.accounting != "sound":
        said.append(
            "no guarantee: the claimed ε takes no account of who sees what; the table does."
        )
    if privacy.filter:
        gone = ", ".join(f"{arm.name} {arm.exhausted}" for arm in arms)
        said.append(f"filter: ε is each client's budget; exhausted at the end: {gone}.")
    said += [
        f"{arm.name}: stopped after {arm.planned} of {story.config.train.rounds} rounds, by the "
        "accountant alone (max_epsilon); nothing observed in training decided it."
        for arm in run.arms
        if arm.planned < story.config.train.rounds
    ]
    said += [
        f"The features were scaled with statistics of these data, {how}: no ε here has that in it."
        for how in run.released_statistics
    ]
    said += [metrics_line(arm, arm.metrics) for arm in arms if arm.metrics is not None]
    said += [f"{arm.name}: {arm.few_uploads}" for arm in arms if arm.few_uploads]
    said += [
        f"{early}; stopped by what was released, so ε is that of all planned ones."
        for early in map(ended_early, run.arms)
        if early
    ]
    for arm in arms:
        if (last := arm.public.rounds[-1].clip_norm) is not None:
            z = arm.public.noise.clip_multiplier
            noise = f"with noise (clip multiplier {z:.4g}), part of ε" if z else "without noise"
            said.append(
                f"{arm.name}: the clip norm adapted from {arm.plan.clip_norm:.4g} to {last:.4g}, "
                f"by counts of updates within it, released {noise}."
            )
    said += [f"{arm.name}: {how}" for arm in arms if (how := arm.plan.scheme.story(arm.plan))]
    for arm in arms:
        if any(share < 1 for share in arm.answered.values()):
            shares = (f"{share:.1%} of the {stage}s" for stage, share in arm.answered.items())
            said.append(f"{arm.name}: answered: {', '.join(shares)}; the update lacks the rest.")
    said.append(f"δ = {run.all_arms[0].delta:g}; unit of privacy: {unit_text(story.config)}.")
    if trust.amplified:
        said.append(f"SERVER sees raw updates (trust {trust.name}); PUBLIC sees the models only.")
    if not story.exact:
        said.append("uploads and bytes: estimated from releases; true counts are the server's.")
    if not run.held_out.public:
        said.append(
            f"{story.score_name}: on people held out, whom no ε covers; not for publication."
        )
    if run.simulated:
        said.append("simulated: a seed was given; ε is what secret randomness would have cost.")
    elif story.secret and (debit := story.secret.population):
        said.append(
            f"population {debit.id}: debited; all its runs: locks privacy spent {debit.id}."
        )
    elif trust.private:
        said.append(
            "only this run is covered; other runs over the same people, and tuning, cost more."
        )
    if privacy.tuned_without_privacy:
        said.append("tuned_without_privacy: clip and step were tuned on the data; not charged.")
    return said


def draw_figure(folder: Path, story: Story) -> None:
    """The score by round and by bytes sent, one line per arm: figure.svg."""
    by_round: list[Line] = []
    by_bytes: list[Line] = []
    for number, arm in enumerate(story.arms):
        points = [(p.round, p.sent, p.score) for p in arm.points if p.score is not None]
        rounds, at, scores = zip(*points, strict=True)
        label = f"{arm.name} ({_decimal(arm.score)}, {_uploads(arm)} uploads)"
        by_round.append(Line(label, rounds, scores, number))
        by_bytes.append(Line(label, at, scores, number))
    if story.baseline is not None:
        for drawn in (by_round, by_bytes):
            drawn.append(level(BASELINES[story.task or "classes"], story.baseline, drawn))
    estimated = "" if story.exact else ", estimated from releases"
    held_out = f"{story.score_name} on held-out data"
    charts = [
        Chart("round", held_out, by_round, least_range=0.1),
        Chart(f"sent by all clients (MB{estimated})", held_out, by_bytes, least_range=0.1),
    ]
    stamp = "" if story.run.held_out.public else f"\n{NOT_PUBLIC}"
    text = svg_file(charts, _title(story) + stamp, columns=2)
    write_atomically(folder / "figure.svg", text.encode())


NOT_PUBLIC = "NOT A RELEASE: accuracy on people held out, whom no ε covers"
SECRET = "seen by this simulation only, released to nobody"
BAND = ("0.1", "0.5", "0.9")  # the quantiles that are drawn: a band and its middle


def draw_diagnostics(folder: Path, story: Story, lines: Sequence[Record]) -> None:
    """How alike the clients were, by round: diagnostics.svg. `lines`: of diagnostics.jsonl."""
    private = TRUSTS[story.config.privacy.trust].private
    exact = "NOT A RELEASE" if private else "exact, without privacy"
    clips = {arm.name: arm.plan.clip_norm for arm in story.arms}
    arms = {name: [line for line in lines if line.get("arm") == name] for name in clips}
    text = likeness_figure(arms, clips, f"{story.name}: {exact}; {SECRET}")
    write_atomically(folder / "diagnostics.svg", text.encode())


def likeness_figure(
    arms: Mapping[str, Sequence[Record]], clip_norms: Mapping[str, float], title: str
) -> str:
    """Six panels of lines of diagnostics.jsonl, as SVG."""
    norms: list[Line] = []
    dissimilarity: list[Line] = []
    drift: list[Line] = []
    pairs: dict[str, list[Line]] = {"cosine": [], "angle": [], "correlation": []}
    for number, (name, lines) in enumerate(arms.items()):
        norm = _band(name, [(line["round"], line["norm_quantiles"]) for line in lines], number)
        clip = clip_norms[name]
        norms += [norm, *([Line("", norm.x, [clip] * len(norm.x))] if norm.x else [])]
        seen = [(line["round"], line["likeness"]) for line in lines if line.get("likeness")]
        rounds = [r for r, _ in seen]
        updates = [one["updates"] for _, one in seen]
        gradients = [one.get("gradients", one["updates"]) for _, one in seen]
        drifts = [one.get("drift", one["updates"]["mean_norm"]) for _, one in seen]
        for panel, filled, hollow in (
            (dissimilarity, [u["dissimilarity"] for u in updates], "dissimilarity"),
            (drift, drifts, "spread"),
        ):
            of_gradients = _numbers(one[hollow] for one in gradients)
            panel.append(Line(name, rounds, of_gradients, number, thin=True, hollow=True))
            panel.append(Line(name, rounds, _numbers(filled), number))
        for measure, bands in pairs.items():
            points = [(r, u[measure]) for r, u in zip(rounds, updates, strict=True)]
            bands.append(_band(name, points, number))
    charts = [
        Chart("round", "", norms, from_zero=True, title="norms of the cohort (dotted: clip norm)"),
        Chart("round", "", dissimilarity, title="dissimilarity (hollow: gradients)", log_y=True),
        Chart("round", "", drift, title="drift (hollow: spread of gradients)", log_y=True),
        Chart("round", "", pairs["cosine"], title="cosine of two clients"),
        Chart("round", "", pairs["angle"], title="angle of two clients (degrees)"),
        Chart("round", "", pairs["correlation"], title="correlation of two clients"),
    ]
    return svg_file(charts, title, columns=3, width=1000, height=190)


def _numbers(values: Iterable[float | None]) -> list[float]:
    """What is 0/0 is not drawn."""
    return [math.nan if value is None else value for value in values]


def _band(label: str, points: Sequence[tuple[int, Record]], number: int) -> Line:
    """The median and the 10 to 90% range of a distribution by round."""
    there = [(r, quantiles) for r, quantiles in points if quantiles]
    low, middle, high = ([quantiles[share] for _, quantiles in there] for share in BAND)
    return Line(label, [r for r, _ in there], middle, number, low=low, high=high)


def _title(story: Story) -> str:
    costs = [cost for arm in story.run.arms for cost in arm.privacy]
    first = next((c for c in costs if c.epsilon is not None), None)
    if first is None:
        return f"{story.name}: no privacy"
    if stamp := _stamp(story):
        return f"{story.name}{stamp}"
    simulated = ", simulated" if story.run.simulated else ""
    kind = (first.observer, first.relation)
    alike = [cost.epsilon for cost in costs if (cost.observer, cost.relation) == kind]
    epsilons = sorted(epsilon or math.inf for epsilon in alike)
    least, most = epsilon_text(epsilons[0]), epsilon_text(epsilons[-1])
    epsilon = f"each arm ε = {most}" if least == most else f"ε = {least} to {most}"
    return (
        f"{story.name}: {epsilon}, δ = {first.delta:g} against "
        f"{first.observer} ({first.relation}{simulated})"
    )
