"""How far is the planner's number of rounds behind the best? For a finished comparison of
experiments/results/rounds.toml:

python scripts/check_planner.py RUN
python scripts/check_planner.py         # of docs/results
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from locksfl.privacy.planner import PROGRESS, Question, choose

TABLE = Path(__file__).resolve().parent.parent / "docs" / "results" / "rounds.json"
ALLOWED = {"MNIST": 0.01, "MNIST, iid": 0.01}  # what the constant was chosen on
ELSEWHERE = 0.02
GRID = (10, 20, 40, 80, 160)
CLIENTS = {"writers": 539}
PARAMETERS = 7850  # softmax on 28 x 28 pixels


def planned_rounds(label: str, total: float, progress: float) -> int:
    """What `locks plan --uploads-in-all TOTAL` says for rule uniform."""
    clients = CLIENTS.get(label, 1000)
    question = Question(clients, PARAMETERS, 8.0, uploads_in_all=total, progress=progress)
    return choose(question, "uniform", 1.0).arm.rounds


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
    """One line for each data set and total of uploads."""
    cells: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows:
        total = round(row["rounds"] * row["uploads"])
        cells.setdefault((row["data"], total), {})[row["rounds"]] = row["accuracy"]
    found = []
    for (label, total), accuracy in cells.items():
        planned = planned_rounds(label, total, progress)
        best = max((r for r in GRID if r in accuracy), key=lambda r: accuracy[r])
        behind = accuracy[best] - at(planned, accuracy)
        line = {"data": label, "total": total, "planned": planned, "best": best, "behind": behind}
        found.append({**line, "holds": behind <= ALLOWED.get(label, ELSEWHERE)})
    return found


def main() -> None:
    """Read the run's table and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path)
    run = parser.parse_args().run
    lines = judged(read(run / "table.json" if run else TABLE))
    print("| data | uploads in all | planned rounds | best rounds | points behind | holds |")
    print("|---|---|---|---|---|---|")
    for line in lines:
        holds = "yes" if line["holds"] else "NO"
        cells = [line["data"], f"{line['total']:,}", str(line["planned"]), str(line["best"])]
        print("| " + " | ".join([*cells, f"{100 * line['behind']:.2f}", holds]) + " |")
    if not all(line["holds"] for line in lines):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
