"""Every picture in docs/, made anew: the round as a drawing, the digits as `make run` has them,
theory against practice as `locks theory` has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from locksfl.experiment.figures import COLOURS, plotting, save_figure

DOCS = Path(__file__).resolve().parent.parent / "docs"
GREY, BLUE, RED = "#c8ccd0", *COLOURS[:2]


def draw_round() -> None:
    """Population, cohort, norms, uploaders and sum, from left to right."""
    rng = np.random.default_rng(4)
    cohort = np.sort(rng.choice(100, 30, replace=False))
    norms = np.clip(rng.gamma(2.0, 0.28, 30), 0.06, 1.0)
    probability = np.minimum(1, 0.9 * 12 * norms / norms.sum() + 0.1 * 12 / 30)
    uploads = rng.random(30) < probability
    figure, axes = plotting().subplots(
        1, 4, figsize=(11, 3.4), gridspec_kw={"width_ratios": [1, 1.25, 1.25, 0.8]}
    )
    colours = np.full(100, GREY, dtype=object)
    colours[cohort] = BLUE
    axes[0].scatter(*np.divmod(np.arange(100), 10)[::-1], c=list(colours), s=28)
    axes[0].invert_yaxis()
    _caption(axes[0], "1  a coin each", "the server asks a random cohort\nof the n clients")

    axes[1].bar(range(30), norms, color=BLUE, width=0.8)
    axes[1].axhline(1.0, color="black", lw=0.8, ls=":")
    axes[1].text(29.5, 1.02, "clip norm C", ha="right", va="bottom", fontsize=8)
    axes[1].set_ylim(0, 1.25)
    _caption(
        axes[1], "2  norms, with noise", "how large is your update?\nThis answer is charged too"
    )

    filled = [RED if sent else "white" for sent in uploads]
    axes[2].bar(range(30), probability, color=filled, edgecolor=RED, width=0.8)
    axes[2].axhline(0.1 * 12 / 30, color="black", lw=0.8, ls=":")
    axes[2].text(30.5, 0.1 * 12 / 30, "floor", ha="left", va="bottom", fontsize=8)
    axes[2].set_ylim(0, 1.25)
    _caption(
        axes[2],
        "3  a coin of p each",
        "large updates are likelier to be\nsent (filled bars); p is known",
    )

    t = np.linspace(-3, 3, 200)
    axes[3].fill_between(t, np.exp(-(t**2) / 2), color=RED, alpha=0.25)
    axes[3].plot(t, np.exp(-(t**2) / 2), color=RED, lw=1.2)
    axes[3].annotate("", (0, 0), (0, 1), arrowprops={"arrowstyle": "-", "ls": ":", "lw": 0.8})
    axes[3].set_ylim(0, 1.25)
    _caption(axes[3], "4  sum / p, with noise", "averaged over a public\nnumber; the model steps")
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_visible(False)
    save_figure(figure, DOCS / "round.png", only_png=True, w_pad=2.0)


def _caption(axis: Axes, title: str, text: str) -> None:
    axis.set_title(title, fontsize=11, loc="left", fontweight="bold")
    axis.set_xlabel(text, fontsize=9, loc="left")


def draw_digits() -> None:
    """The figure of `make run`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        locks = Path(sys.executable).with_name("locks")
        subprocess.run([locks, "run", "--seed", "0", "--out", out], check=True)
        shutil.copyfile(out / "figure.png", DOCS / "digits.png")


def draw_theory() -> None:
    """Both bounds against known problems, and against a run."""
    locks = [Path(sys.executable).with_name("locks"), "theory"]
    run = DOCS.parent / "experiments" / "theory-digits.toml"
    subprocess.run([*locks, "check", "--picture", DOCS / "theory-known.png"], check=True)
    subprocess.run([*locks, "estimate", run, "--picture", DOCS / "theory-digits.png"], check=True)


if __name__ == "__main__":
    draw_round()
    draw_digits()
    draw_theory()
