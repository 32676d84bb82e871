"""Every picture in docs/, made anew: the round as a drawing, the digits as `make run` has them,
theory against practice as `locks theory` has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from locksfl._svg import svg_document

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLUE, RED = "c0", "c1"  # of the style sheet
FLOOR, TOP = 300, 220  # pixels: where bars stand, and how high 1 is
WORDS = (  # of each panel: where it begins, its title, and what is said of it
    (16, "1  a coin each", "the server asks a random cohort", "of the n clients"),
    (250, "2  norms, with noise", "how large is your update?", "This answer is charged too"),
    (592, "3  a coin of p each", "large updates are likelier to be", "sent (filled); p is known"),
    (906, "4  sum / p, with noise", "averaged over a public", "number; the model steps"),
)


def draw_round() -> None:
    """Population, cohort, norms, uploaders and sum, from left to right."""
    rng = np.random.default_rng(4)
    cohort = set(np.sort(rng.choice(100, 30, replace=False)))
    norms = np.clip(rng.gamma(2.0, 0.28, 30), 0.06, 1.0)
    probability = np.minimum(1, 0.9 * 12 * norms / norms.sum() + 0.1 * 12 / 30)
    uploads = rng.random(30) < probability
    parts = []
    for number in range(100):
        look = f'class="{BLUE}"' if number in cohort else 'class="grey" fill-opacity=".3"'
        down, across = divmod(number, 10)
        place = f'cx="{24 + 21 * across}" cy="{70 + 24 * down}"'
        parts.append(f'<circle {look} fill="currentColor" {place} r="4.5"/>')
    parts += [_bar(250, number, norm, BLUE, True) for number, norm in enumerate(norms)]
    parts += _level(250, 1.0, "clip norm C")
    for number, (p, sent) in enumerate(zip(probability, uploads, strict=True)):
        parts.append(_bar(592, number, p, RED, bool(sent)))
    parts += _level(592, 0.1 * 12 / 30, "floor")
    t = np.linspace(-3, 3, 80)
    bell = zip(986 + 26 * t, FLOOR - TOP * np.exp(-(t**2) / 2), strict=True)
    curve = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in bell)
    look = f'class="{RED}" fill="currentColor" fill-opacity=".25" stroke="currentColor"'
    parts.append(f'<path {look} d="{curve}"/>')
    line = 'class="grey" stroke="currentColor" stroke-dasharray="2 3"'
    parts.append(f'<path {line} d="M986 {FLOOR}V{FLOOR - TOP}"/>')
    for x, title, *said in WORDS:
        parts.append(f'<text class="head" x="{x}" y="30">{title}</text>')
        for number, text in enumerate(said):
            parts.append(f'<text x="{x}" y="{FLOOR + 28 + 19 * number}">{text}</text>')
    about = (
        "Of 100 clients a coin each asks 30; each releases a noisy norm; large ones make an upload "
        "likelier; the sum of the uploads over their probabilities, with noise, moves the model."
    )
    drawing = svg_document("".join(parts), 1080, FLOOR + 62, "One round of LOCKS", about)
    (DOCS / "round.svg").write_text(drawing, "utf-8")


def _bar(left: int, number: int, value: float, colour: str, filled: bool) -> str:
    size = f'x="{left + 8.5 * number:.1f}" y="{FLOOR - TOP * value:.1f}" width="6.5"'
    filling = 'fill="currentColor"' if filled else 'fill="none"'
    look = f'class="{colour}" {filling} stroke="currentColor"'
    return f'<rect {look} {size} height="{TOP * value:.1f}"/>'


def _level(left: int, value: float, name: str) -> list[str]:
    y = FLOOR - TOP * value
    line = 'class="grey" stroke="currentColor" stroke-dasharray="2 3"'
    text = f'<text class="small soft" x="{left + 256}" y="{y + 4:.1f}">{name}</text>'
    return [f'<path {line} d="M{left} {y:.1f}H{left + 252}"/>', text]


def draw_digits() -> None:
    """The figure of `make run`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        locks = Path(sys.executable).with_name("locks")
        subprocess.run([locks, "run", "--seed", "0", "--out", out], check=True)
        shutil.copyfile(out / "figure.svg", DOCS / "digits.svg")


def draw_theory() -> None:
    """Both bounds against known problems, and against a run."""
    locks = [Path(sys.executable).with_name("locks"), "theory"]
    run = DOCS.parent / "experiments" / "theory-digits.toml"
    subprocess.run([*locks, "check", "--picture", DOCS / "theory-known.svg"], check=True)
    subprocess.run([*locks, "estimate", run, "--picture", DOCS / "theory-digits.svg"], check=True)


if __name__ == "__main__":
    draw_round()
    draw_digits()
    draw_theory()
