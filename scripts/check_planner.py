"""How far is the planner's number of rounds behind the best? And does it ever recommend a rule that
predicts more error than uniform sampling, where all norms are at the clip?

python -m scripts.check_planner RUN      # a finished comparison of experiments/results/rounds*.toml
python -m scripts.check_planner          # those of docs/results
python -m scripts.check_planner --rules  # 60 settings in which norms say nothing
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from locksfl.privacy.advice import compared, recommended
from locksfl.privacy.planner import PROGRESS, Question, choose

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
TABLES = (RESULTS / "rounds.json", RESULTS / "rounds-digits.json")
ALLOWED = {"MNIST": 0.01, "MNIST, iid": 0.01}  # what the constant was chosen on
ELSEWHERE = 0.02
CLIENTS = {"writers": 539}  # where the label does not begin with the number; else 1,000
PARAMETERS = 7850  # softmax on 28 x 28 pixels
SETTINGS = tuple(
    itertools.product((100, 490, 1000, 10_000, 60_000), (30, 7850, 39_700), (1.0, 2.0, 4.0, 8.0))
)


def clients_of(label: str) -> int:
    """The number of clients of a line."""
    named = re.match(r"[\d,]+(?= clients)", label)
    return int(named[0].replace(",", "")) if named else CLIENTS.get(label, 1000)


def planned_rounds(label: str, epsilon: float, total: float, progress: float) -> int:
    """What `locks plan --uploads-in-all TOTAL` says for rule uniform."""
    question = Question(
        clients_of(label), PARAMETERS, epsilon, uploads_in_all=total, progress=progress
    )
    return choose(question, "uniform", question.share).arm.rounds


def at(rounds: int, accuracy: dict[int, float]) -> float:
    """The accuracy of so many rounds: played, or on the line between its neighbours (in ln T)."""
    played = sorted(accuracy)
    if not played[0] <= rounds <= played[-1]:
        return 0.0  # nothing is known there
    return float(np.interp(np.log(rounds), np.log(played), [accuracy[t] for t in played]))


def read(table: Path) -> list[dict[str, Any]]:
    """The rows of a comparison."""
    rows: list[dict[str, Any]] = json.loads(table.read_text("utf-8"))["rows"]
    return rows


def judged(rows: list[dict[str, Any]], progress: float = PROGRESS) -> list[dict[str, Any]]:
    """One line for each data set, epsilon and total of uploads."""
    cells: dict[tuple[str, float, int], dict[int, float]] = {}
    for row in rows:
        cell = row["data"], row["epsilon"], round(row["rounds"] * row["uploads"])
        cells.setdefault(cell, {})[row["rounds"]] = row["accuracy"]
    lines = []
    for (label, epsilon, total), accuracy in cells.items():
        planned = planned_rounds(label, epsilon, total, progress)
        best = max(accuracy, key=accuracy.__getitem__)
        behind = accuracy[best] - at(planned, accuracy)
        line = {"data": label, "epsilon": epsilon, "total": total, "planned": planned}
        holds = behind <= ALLOWED.get(label, ELSEWHERE)
        lines.append({**line, "best": best, "behind": behind, "holds": holds})
    return lines


def misled(settings: tuple[tuple[int, int, float], ...] = SETTINGS) -> list[tuple[str, float]]:
    """For each (clients, parameters, epsilon) with all norms at the clip: the rule recommended, and
    its predicted error over uniform sampling's."""
    verdicts = []
    for clients, parameters, epsilon in settings:
        question = Question(clients, parameters, epsilon, norm_share=1.0, accountant="rdp")
        plans = compared(question)
        rule = recommended(question, plans)
        verdicts.append((rule, plans[rule].error / plans["uniform"].error))
    return verdicts


def main() -> None:
    """Print the verdicts; exit 1 if one does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--rules", action="store_true")
    chosen = parser.parse_args()
    if chosen.rules:
        verdicts = misled()
        worse = sum(ratio > 1 for _, ratio in verdicts)
        other = sum(rule != "uniform" for rule, _ in verdicts)
        print(
            f"{len(verdicts)} settings with all norms at the clip: recommended with more predicted "
            f"error than uniform {worse}, another rule than uniform {other}"
        )
        raise SystemExit(bool(worse or other))
    tables = [chosen.run / "table.json"] if chosen.run else TABLES
    lines = [line for table in tables for line in judged(read(table))]
    print("| data | ε | uploads in all | planned rounds | best rounds | points behind | holds |")
    print("|---|---|---|---|---|---|---|")
    for line in lines:
        holds = "yes" if line["holds"] else "NO"
        cells = [line["data"], f"{line['epsilon']:g}", f"{line['total']:,}", str(line["planned"])]
        cells += [str(line["best"]), f"{100 * line['behind']:.2f}", holds]
        print("| " + " | ".join(cells) + " |")
    if not all(line["holds"] for line in lines):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
