"""What a person sees of a run: the table, and the figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from rich.box import SIMPLE
from rich.table import Table

from locksfl._charts import Chart, Line, level
from locksfl._files import write_atomically
from locksfl._svg import svg_file
from locksfl._tables import Record
from locksfl._text import epsilon_text, size_text, table_of
from locksfl.experiment.costs import epsilons_by_observer
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.metrics import BASELINES
from locksfl.experiment.records import score_of, shown
from locksfl.experiment.statement import ended_early
from locksfl.methods import TRUSTS, sampling_of
from locksfl.privacy import OBSERVERS, RELATIONS

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


def summary_table(summary: Record) -> Table:
    """One row per arm; epsilon by observer and relation."""
    observers = (f"ε {observer}\n" + " /\n".join(RELATIONS) for observer in OBSERVERS)
    rows = (
        (
            arm["name"],
            _decimal(score_of(arm)),
            _uploads(arm),
            size_text(shown(arm)["bytes_up"]),
            size_text(shown(arm)["bytes_down"]),
            *epsilons_by_observer(arm["privacy"], " / "),
            f"{arm['seconds']:.1f}",
        )
        for arm in summary["arms"]
    )
    heads = ("arm", _score_name(summary), "uploads", "up", "down", *observers, "seconds")
    named = summary["name"], summary.get("data")
    title = f"{' · '.join(dict.fromkeys(filter(None, named)))}{_stamp(summary)}"
    table = table_of(heads, rows, left=1, title=title, box=SIMPLE, padding=0)
    if (constant := _baseline(summary)) is not None:
        table.add_row("baseline", _decimal(constant), *[""] * 6)
    if len(summary["arms"]) > 1:
        table.add_section()
        table.add_row(
            "all arms", *[""] * 4, *epsilons_by_observer(summary["all_arms_composed"], " / "), ""
        )
    return table


def _score_name(summary: Record) -> str:
    return "R²" if "r2" in summary["arms"][0] else "accuracy"


def _baseline(summary: Record) -> float | None:
    """The score of a constant answer."""
    return summary["arms"][0]["metrics"]["baseline"]


def _decimal(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"


def metrics_line(arm: Record, task: str) -> str:
    """An arm's metrics in a sentence, each beside that of a constant answer, if that has one."""
    found = arm["metrics"]

    def told(name: str, word: str, beside: str = "") -> str:
        value = arm.get(name, found.get(name))  # the score as the table has it
        constant = f"{BASELINES[task]}: " if beside == "baseline" else ""
        against = f" ({constant}{_decimal(found[beside])})" if beside else ""
        return f"{word} {_decimal(value)}{against}"

    words = ", ".join(told(*names) for names in SAID[task])
    low, high = found["gain_low"], found["gain_high"]
    if low is not None and low <= 0:
        apart = f"{low:+.3f} to {high:+.3f}"
        words += f". NOT SHOWN TO BE BETTER than a constant answer (95%: {apart})"
    return f"{arm['name']}: {words}."


def _uploads(arm: Record) -> str:
    return f"{'~' * _estimated(arm)}{round(shown(arm)['uploads']):,}"


def _estimated(arm: Record) -> bool:
    return shown(arm) is not arm


def _stamp(summary: Record) -> str:
    """The warning that accompanies all output of a run accounted as printed."""
    if not summary["no_guarantee"]:
        return ""
    claimed = epsilon_text(max(arm["claimed_epsilon"] for arm in summary["arms"]))
    return f" · NO GUARANTEE (claimed ε = {claimed}, accounting as printed)"


def notes(summary: Record) -> list[str]:
    """What a reader of the table has to know, one sentence each."""
    arms = summary["arms"]
    said = []
    if summary["no_guarantee"]:
        said.append(
            "no guarantee: the claimed ε takes no account of who sees what; the table does."
        )
    if summary["filter"]:
        gone = ", ".join(f"{arm['name']} {arm['exhausted']}" for arm in arms)
        said.append(f"filter: ε is each client's budget; exhausted at the end: {gone}.")
    for arm in arms:
        if arm["rounds"] < arm["asked_rounds"]:
            said.append(
                f"{arm['name']}: stopped after {arm['rounds']} of {arm['asked_rounds']} rounds, "
                "by the accountant alone (max_epsilon); nothing observed in training decided it."
            )
    said += [
        f"The features were scaled with statistics of these data, {told}: no ε here has that in it."
        for told in summary["released_statistics"]
    ]
    said += [metrics_line(arm, summary["task"]) for arm in arms]
    said += [f"{arm['name']}: {arm['few_uploads']}" for arm in arms if arm.get("few_uploads")]
    for arm in arms:
        if early := ended_early(arm):
            said.append(f"{early}; stopped by what was released, so ε is that of all planned ones.")
    for arm in arms:
        if (last := arm.get("last_clip_norm")) is not None:
            z = arm["clip_multiplier"]
            noise = f"with noise (clip multiplier {z:.4g}), part of ε" if z else "without noise"
            said.append(
                f"{arm['name']}: the clip norm adapted from {arm['clip_norm']:.4g} to {last:.4g}, "
                f"by counts of updates within it, released {noise}."
            )
    for arm in arms:
        if played := sampling_of(arm).story(arm):
            said.append(f"{arm['name']}: {played}")
    for arm in arms:
        shares = arm.get("answered") or {}
        if any(share < 1 for share in shares.values()):
            told = ", ".join(f"{share:.1%} of the {stage}s" for stage, share in shares.items())
            said.append(f"{arm['name']}: answered: {told}; the update lacks the rest.")
    said.append(f"δ = {arms[0]['privacy'][0]['delta']:g}; unit of privacy: {summary['unit']}.")
    if TRUSTS[trust := arms[0]["trust"]].amplified:
        said.append(f"SERVER sees raw updates (trust {trust}); PUBLIC sees the models only.")
    if any(map(_estimated, arms)):
        said.append("uploads and bytes: estimated from releases; true counts are the server's.")
    if not summary["held_out"]["public"]:
        name = _score_name(summary)
        said.append(f"{name}: on people held out, whom no ε covers; not for publication.")
    if summary["simulated"]:
        said.append("simulated: a seed was given; ε is what secret randomness would have cost.")
    elif told := summary["population"]:
        said.append(
            f"population {told['id']}: debited; all its runs: locks privacy spent {told['id']}."
        )
    elif TRUSTS[trust].private:
        said.append(
            "only this run is covered; other runs over the same people, and tuning, cost more."
        )
    if summary["tuned_without_privacy"]:
        said.append("tuned_without_privacy: clip and step were tuned on the data; not charged.")
    return said


def draw_figure(folder: RunFolder, summary: Record) -> None:
    """The score by round and by bytes sent, one line per arm: figure.svg."""
    lines = folder.lines("rounds.jsonl")
    by_round: list[Line] = []
    by_bytes: list[Line] = []
    for number, arm in enumerate(summary["arms"]):
        mine = [line for line in lines if line["arm"] == arm["name"]]
        sent = accumulate(shown(line)["bytes_up"] for line in mine)
        points = (
            (line["round"], total / 1e6, score)
            for line, total in zip(mine, sent, strict=True)
            if (score := score_of(line)) is not None
        )
        rounds, at, scores = zip(*points, strict=True)
        label = f"{arm['name']} ({_decimal(score_of(arm))}, {_uploads(arm)} uploads)"
        by_round.append(Line(label, rounds, scores, number))
        by_bytes.append(Line(label, at, scores, number))
    if (constant := _baseline(summary)) is not None:
        for drawn in (by_round, by_bytes):
            drawn.append(level(BASELINES[summary["task"]], constant, drawn))
    estimated = ", estimated from releases" if any(map(_estimated, summary["arms"])) else ""
    held_out = f"{_score_name(summary)} on held-out data"
    charts = [
        Chart("round", held_out, by_round, least_range=0.1),
        Chart(f"sent by all clients (MB{estimated})", held_out, by_bytes, least_range=0.1),
    ]
    stamp = "" if summary["held_out"]["public"] else f"\n{NOT_PUBLIC}"
    text = svg_file(charts, _title(summary) + stamp, columns=2)
    write_atomically(folder.path / "figure.svg", text.encode())


NOT_PUBLIC = "NOT A RELEASE: accuracy on people held out, whom no ε covers"
SECRET = "seen by this simulation only, released to nobody"
BAND = ("0.1", "0.5", "0.9")  # the quantiles that are drawn: a band and its middle


def draw_diagnostics(folder: RunFolder, summary: Record) -> None:
    """How alike the clients were, by round: diagnostics.svg."""
    lines = folder.lines("diagnostics.jsonl")[1:]  # the first is the note
    private = TRUSTS[summary["arms"][0]["trust"]].private
    exact = "NOT A RELEASE" if private else "exact, without privacy"
    clips = {arm["name"]: arm["clip_norm"] for arm in summary["arms"]}
    arms = {name: [line for line in lines if line["arm"] == name] for name in clips}
    text = likeness_figure(arms, clips, f"{summary['name']}: {exact}; {SECRET}")
    write_atomically(folder.path / "diagnostics.svg", text.encode())


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


def _title(summary: Record) -> str:
    arm = summary["arms"][0]
    finite = [c for c in arm["privacy"] if c["epsilon"] is not None]
    if not finite:
        return f"{summary['name']}: no privacy"
    if summary["no_guarantee"]:
        return f"{summary['name']}{_stamp(summary)}"
    cost = finite[0]
    stamp = ", simulated" if summary["simulated"] else ""
    kind = (cost["observer"], cost["relation"])
    every = [c for a in summary["arms"] for c in a["privacy"]]
    alike = [c["epsilon"] for c in every if (c["observer"], c["relation"]) == kind]
    epsilons = sorted(epsilon or math.inf for epsilon in alike)
    least, most = epsilon_text(epsilons[0]), epsilon_text(epsilons[-1])
    epsilon = f"each arm ε = {most}" if least == most else f"ε = {least} to {most}"
    return (
        f"{summary['name']}: {epsilon}, δ = {cost['delta']:g} against "
        f"{cost['observer']} ({cost['relation']}{stamp})"
    )
