"""Record the corpus from the code as it is: `python -m corpus.record arms|folders` from tests/.

To be run on the commit before a redesign, never on the one after it. What differs on purpose is
then listed in differs.json, a line each, and its commit says why.
"""

from __future__ import annotations

import collections
import json
import lzma
import random
import sys
import tempfile
from pathlib import Path

from corpus import cases, reading

HERE = Path(__file__).parent
ARMS, ANSWERS = HERE / "arms.jsonl.xz", HERE / "folders.json"
CASES, MOST_REFUSED, PRICED = 2000, 500, 2  # every other case has its epsilons recorded


def record_arms() -> None:
    """2,000 cases, a quarter of them refused, every kind of term about equally often."""
    source, count, lines = random.Random(20261119), collections.Counter[str](), []
    while len(lines) < CASES:
        case = cases.draw(source)
        answer = reading.answered(case, epsilons=False)
        kinds = (
            {term["mechanism"] for term in answer["terms"]["PUBLIC"]} if "terms" in answer else ()
        )
        kind = min(kinds, default="refused")
        if count[kind] >= (MOST_REFUSED if kind == "refused" else (CASES - MOST_REFUSED) // 6 + 1):
            continue
        count[kind] += 1
        if len(lines) % PRICED == 0:
            answer = reading.answered(case, epsilons=True)
        lines.append(json.dumps([case, answer]))
    with lzma.open(ARMS, "wt", preset=9) as file:
        file.write("\n".join(lines) + "\n")
    print(dict(count), ARMS.stat().st_size)


def record_folders() -> None:
    """What this commit writes, and what it then says of it."""
    from corpus import folders

    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as unpacked:
        folders.write(Path(made))
        folders.pack(Path(made))
        answers = folders.read(folders.unpack(Path(unpacked)))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(a)}" for name, a in answers.items())
    ANSWERS.write_text(f"{{\n{lines}\n}}\n", "utf-8")
    print(folders.KEPT.stat().st_size, ANSWERS.stat().st_size)


if __name__ == "__main__":
    {"arms": record_arms, "folders": record_folders}[sys.argv[1]]()
