"""Your own table as a population, and what it costs to release statistics of it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl._text import python_names
from locksfl.data.importing import Request, population_of
from locksfl.data.population import Population
from locksfl.data.recipe import Release
from locksfl.data.task import CLASSES, Task
from locksfl.methods.events import EXACT, Rounds, Sampled, Terms
from locksfl.privacy import gdp
from locksfl.privacy.population import PopulationJournal, Run
from locksfl.privacy.terms import PlannedArm
from locksfl.round.noise import SYSTEM, NoiseSource, add_noise, gaussian_std, grid_for


def from_table(
    data: Any,
    *,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    task: Task = CLASSES,
    features: Sequence[str] | None = None,
    text: str | None = None,
    image: str | None = None,
    classes: int | Sequence[str] | None = None,
    test: Any = None,
    test_share: float = 0.1,
    test_public: bool = False,
    recipe: Any = None,
    separator: str | None = None,
    encoding: str | None = None,
    name: str = "table",
) -> Population:
    """A population in memory from a table; `locks data import` makes the same one on disk.

    Args:
        data: a table of pandas, polars, Arrow or Hugging Face datasets, a list of dictionaries, or
            the path of a file or folder that `locks data import` takes.
        client: the column that names the owner of each row.
        label: the class column, or those of numbers or tags. Without it, with `text`: the next
            character.
        task: what the labels are: `Task.numbers(low=0, high=100)`, `Task("tags")`; classes if not
            given.
        features: columns of numbers, or of what the recipe makes numbers of; all others if not
            given.
        text, image: a column of text or of images instead.
        classes: how many there are, or their names; without it, counted in the data.
        test: held-out records of other clients, like `data`; without it, a share of the clients.
        test_share: that share.
        test_public: whether you declare `test` public; see `Population`.
        recipe: a TOML file or its table; see `locksfl.data.recipe`.
        separator, encoding: of a text file; without them, those that fit.
        name: what to call these data in reports.
    """
    known = (classes,) if isinstance(classes, int) else classes
    with python_names():
        request = Request(
            client=client,
            label=label if isinstance(label, str) or label is None else tuple(label),
            task=task,
            features=None if features is None else tuple(features),
            text=text,
            image=image,
            classes=None if known is None else tuple(map(str, known)),
            test_share=test_share,
            test_public=test_public,
            recipe=recipe,
            separator=separator,
            encoding=encoding,
        )
        return population_of(data, request, test, name, release)


def release(
    rows: NDArray[np.float64], sensitivity: float, paid: Release, noise: NoiseSource = SYSTEM
) -> tuple[NDArray[np.float64], float]:
    """The sum over clients with Gaussian noise, charged to the population's journal beforehand,
    and the standard deviation of that noise.

    * Zero-out sensitivity: `sensitivity`, the largest length of a client's row. Rows are truncated
      to the grid of the noise before they are added, so that no length grows and the sum is exact.
    * Charged as one round of everybody, in which a trusted server adds the noise.
    * The multiplier is that of the Gaussian mechanism of `paid.epsilon` at the journal's delta and
      relation; one that the journal cannot pay is refused, and nothing is drawn.

    Args:
        rows: [clients, numbers].
        sensitivity: the bound on their lengths.
        paid: who pays, and how much.
        noise: the source; a test passes its own.
    """
    with PopulationJournal.find(paid.population) as journal:
        total = journal.total
        distance = 2.0 if total.relation == "replace" else 1.0
        multiplier = distance / gdp.mu_from_epsilon(paid.epsilon, total.delta)
        sums = (Rounds(Sampled(1.0, multiplier), 1),)
        terms: Terms = {"SERVER": (EXACT,), "PUBLIC": sums}
        arm = PlannedArm("statistics", len(rows), 1, terms)
        journal.debit(Run(secrets.token_hex(16), "import", (arm,)))
    std = gaussian_std(multiplier, sensitivity)
    grid = grid_for(std)
    return add_noise(np.trunc(rows / grid).sum(axis=0) * grid, std, noise), std
