"""What is in a data set: counts, a histogram of the clients' sizes, classes, a picture."""

from __future__ import annotations

from base64 import b64encode
from html import escape
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from locksfl._svg import svg_document
from locksfl.data import datasets, npy_folder
from locksfl.data.catalogue import CATALOGUE, NAMES
from locksfl.data.origin import Preparation
from locksfl.data.population import Population
from locksfl.data.shakespeare import decode

BINS = 10
BAR = 40  # characters of the longest bar
EXAMPLES = 40


def open_for_description(name: str, data_dir: datasets.Directory = None) -> Population:
    """A set with its users, or with all samples in one client if it has none; checked."""
    if not datasets.has_users(name):
        return datasets.open_population(name, 1, "iid", {}, 0, data_dir)
    if name not in NAMES:
        npy_folder.verify(datasets.find_folder(name, data_dir))
    return datasets.natural_population(name, data_dir)


class Sizes(msgspec.Struct, frozen=True):
    """How many samples a client has."""

    least: int  # samples of the smallest client
    median: float  # of all clients
    most: int  # samples of the largest
    histogram: list[tuple[int, int, int]]  # from so many samples to so many: so many clients


class Description(msgspec.Struct, frozen=True):
    """What `locks data describe` shows; None where it is not known of this kind of set."""

    name: str  # as `data.name` has it
    clients: int | None  # None: it has no users, and needs a split
    samples: int  # to train on
    held_out: int  # samples that are held out
    features: str  # their type and shape
    classes: int  # classes, targets or tags
    task: str  # classes, numbers or tags
    samples_of_class: list[int] | None  # numbers have none
    held_out_of_class: list[int] | None  # the same of held-out samples
    samples_a_client: Sizes | None = None  # of a set with users
    licence: str | None = None  # of a named set
    class_names: list[str] | None = None  # this and the next ones: of an imported folder
    feature_names: list[str] | None = None  # of columns
    recipe: Preparation | None = None  # how the features were made
    held_out_clients: int | None = None  # whose samples are held out
    held_out_public: bool | None = None  # whether they were declared public


def description(name: str, data_dir: datasets.Directory = None) -> Description:
    """What is in a data set.

    Args:
        name: one of catalogue.NAMES, or a folder that `locks data import` made.
        data_dir: where the data are; without it, the environment variable LOCKS_DATA.
    """
    population = open_for_description(name, data_dir)
    natural, sizes = datasets.has_users(name), population.sizes
    about = Description(
        name=name,
        clients=population.clients if natural else None,
        samples=population.samples,
        held_out=len(population.test_labels),
        features=f"{population.features.dtype} {list(population.features.shape[1:])}",
        classes=population.classes,
        task=population.task.kind,
        samples_of_class=_of_class(population.labels, population),
        held_out_of_class=_of_class(population.test_labels, population),
        samples_a_client=_sizes(sizes) if natural else None,
        licence=CATALOGUE[name].licence if name in NAMES else None,
    )
    if name in NAMES:
        return about
    header = npy_folder.read_header(datasets.find_folder(name, data_dir))
    return msgspec.structs.replace(
        about,
        class_names=header.class_names,
        feature_names=header.feature_names,
        recipe=header.recipe,
        held_out_clients=header.test_clients,
        held_out_public=header.test_public,
    )


def lines(about: Description) -> list[str]:
    """A description as lines of text."""
    users = about.clients if about.clients is not None else "none; use a split"
    out = [f"{about.name}: {about.samples} samples, {about.held_out} held out"]
    if about.held_out_public is False:
        out[0] += " (private: no figure on them is published)"
    out += [f"clients: {users}", f"features: {about.features}"]
    if about.recipe and (steps := about.recipe.lines()):
        out += ["recipe:", *steps]
    if about.licence is not None:
        out.append(f"licence: {about.licence}")
    if (sizes := about.samples_a_client) is not None:
        out.append(f"samples per client: {sizes.least} to {sizes.most}, median {sizes.median:g}")
        width = max((count for _, _, count in sizes.histogram), default=1)
        for low, high, count in sizes.histogram:
            span = f"{low}" if low == high else f"{low}-{high}"
            bar = "#" * round(BAR * count / width) or ("." if count else "")
            out.append(f"  {span:>15} {count:>9} {bar}")
    out.append(f"{about.task}: {about.classes}")
    counts, held_out = about.samples_of_class or [], about.held_out_of_class or []
    if about.classes <= 20:
        for c, pair in enumerate(zip(counts, held_out, strict=True)):
            label = about.class_names[c] if about.class_names else str(c)
            out.append(f"  {label:>15} {pair[0]:>9}  held out {pair[1]}")
    return out


def picture(name: str, data_dir: datasets.Directory = None) -> str:
    """Examples as SVG, a few from each of the first clients: images, lines of text, or rows."""
    population = open_for_description(name, data_dir)
    step = max(1, population.samples // EXAMPLES)
    rows = np.arange(0, population.samples, step)[:EXAMPLES]
    examples, labels = population.features[rows], population.labels[rows]
    if examples.ndim >= 3 and (examples.ndim == 3 or examples.shape[-1] in (1, 3, 4)):
        return _images(name, examples, labels)
    if population.features.dtype == np.uint8 and population.scale == 1.0:
        return _texts(name, examples)
    return _rows(name, examples)


def _images(name: str, examples: NDArray[Any], labels: NDArray[Any]) -> str:
    parts = []
    for number, (image, label) in enumerate(zip(examples, labels, strict=True)):
        x, y = 16 + 92 * (number % 10), 16 + 106 * (number // 10)
        where = f'class="small" text-anchor="middle" x="{x + 40}" y="{y}"'
        parts.append(f"<text {where}>{label}</text>{_image(image, x, y + 6, 80, 80)}")
    return svg_document("".join(parts), 940, 430, f"{name}: examples and their labels")


def _texts(name: str, examples: NDArray[Any]) -> str:
    parts = []
    for number, codes in enumerate(examples):
        text = decode(codes).replace("\n", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}")
        where = f'class="small" font-family="monospace" x="12" y="{22 + 18 * number}"'
        parts.append(f'<text {where} xml:space="preserve">{escape(text)}</text>')
    return svg_document("".join(parts), 940, 18 * len(examples) + 18, f"{name}: examples")


def _rows(name: str, examples: NDArray[Any]) -> str:
    table = examples.reshape(len(examples), -1).astype(np.float64)
    spread = table.std(axis=0)
    far = (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1)  # of the feature's mean
    words = (
        "A row is an example, a column a feature: black is 3 standard deviations or more below its "
        "mean, white 3 or more above."
    )
    text = f'<text class="soft small" x="12" y="432">{words}</text>'
    drawn = _image(np.clip(far, -3, 3), 12, 12, 916, 400, ends=(-3, 3)) + text
    return svg_document(drawn, 940, 446, f"{name}: examples", words)


def _image(
    pixels: NDArray[Any],
    x: int,
    y: int,
    width: int,
    height: int,
    ends: tuple[float, float] | None = None,
) -> str:
    """Pixels as an element that shows each of them. Numbers are shown from black to white: from
    one end to the other, or from the least to the largest."""
    from PIL import Image

    if pixels.dtype != np.uint8:
        low, high = ends or (pixels.min(), pixels.max())
        pixels = (255 * (pixels - low) / ((high - low) or 1)).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels.squeeze()).save(file, "PNG")
    data = b64encode(file.getvalue()).decode()
    place = f'x="{x}" y="{y}" width="{width}" height="{height}" preserveAspectRatio="none"'
    return f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>'


def _of_class(labels: NDArray[Any], population: Population) -> list[int] | None:
    """How many labels are of each class, or samples have each tag; numbers are not counted."""
    task, classes = population.task, population.classes
    if task.kind == "numbers":
        return None
    counts = np.zeros(classes, np.int64)
    for start in range(0, len(labels), 2**20):  # a mapped array is read in pieces
        part = np.asarray(labels[start : start + 2**20])
        if task.kind == "tags":
            counts += part.sum(axis=0)
        else:
            counts += np.bincount(part[part >= 0], minlength=classes)
    return counts.tolist()


def _sizes(sizes: NDArray[np.int64]) -> Sizes:
    """Of the clients, with a histogram in bins of equal width."""
    low, high = int(sizes.min()), int(sizes.max())
    width = -(-(high - low + 1) // BINS)
    counts = np.bincount((sizes - low) // width).tolist()
    edges = range(low, high + 1, width)
    bins = [(at, min(at + width - 1, high), n) for at, n in zip(edges, counts, strict=True)]
    return Sizes(low, float(np.median(sizes)), high, bins)
