"""Distribute the samples of a data set to clients: iid, by label shards, or by Dirichlet shares.

Each split returns `owner`, [samples] int64: the client, 0..clients-1, of each sample. It is a
partition (every sample has one owner) and leaves no client empty. All randomness comes from the
generator that is passed in; a counter-based one gives the same split on every machine:

    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, ...])))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from locksfl import _validate

Owner = NDArray[np.int64]


def split(
    kind: str, labels: ArrayLike, clients: int, rng: np.random.Generator, /, **options: Any
) -> Owner:
    """The split of that name, with options as a setting gives them.

    Args:
        kind: "iid", "shards" or "dirichlet".
        labels: [samples] whole numbers.
        clients: how many there are.
        rng: the source of all randomness.
        options: the other arguments of the function of that name.

    Returns:
        [samples] the client of each sample.
    """
    _validate.one_of(_KINDS, split=kind)
    chosen = _KINDS[kind]
    parameters = inspect.signature(chosen).parameters
    known = [name for name in parameters if name not in ("labels", "clients", "rng")]
    for name, value in options.items():
        if name not in known:
            expected = f"expected only {', '.join(known)}" if known else "it has none"
            hint = _validate.nearest(name, known)
            raise ValueError(f"{name} = {value!r}: not an option of split {kind}, {expected}{hint}")
    for name in known:
        if parameters[name].default is inspect.Parameter.empty and name not in options:
            raise ValueError(f"{name} is missing: split {kind} needs it")
    return chosen(labels, clients, rng=rng, **options)


def iid(labels: ArrayLike, clients: int, rng: np.random.Generator) -> Owner:
    """Shuffle and deal in turn: sizes differ by at most one.

    >>> owner = iid(np.zeros(7, int), 3, np.random.default_rng(0))
    >>> np.bincount(owner).tolist()
    [3, 2, 2]
    """
    targets = _checked(labels, clients, rng)
    owner = np.empty(len(targets), np.int64)
    owner[_shuffled(len(targets), rng)] = np.arange(len(targets)) % clients
    return owner


def shards(labels: ArrayLike, clients: int, classes: int, rng: np.random.Generator) -> Owner:
    """Sort by label, cut into shards, give each client `classes` of them.

    The split of McMahan et al. 2017 (arXiv:1602.05629, section 3). Every sample is used: the
    clients * classes shards differ in size by at most one. Which samples of a class share a shard
    is random, and so is which client gets which shard.

    A shard holds one class, and one more for each change of label within it, so a client sees at
    most `classes` classes plus the changes within its shards. With k classes there are
    k - 1 changes in total, and none falls within a shard if the shard size divides the size of
    every class. A client may get two shards of the same class, and then sees fewer.

    >>> shards([0, 0, 1, 1, 2, 2], 3, classes=1, rng=np.random.default_rng(0)).tolist()
    [1, 1, 2, 2, 0, 0]
    """
    targets = _checked(labels, clients, rng)
    _validate.count(classes=classes)
    number = clients * classes
    if number > len(targets):
        raise ValueError(
            f"classes = {classes}: expected at most "
            f"{len(targets) // clients}, for {clients} clients and {len(targets)} samples"
        )
    by_label = np.lexsort((rng.random(len(targets)), targets))
    shard = np.arange(len(targets)) * number // len(targets)
    client_of_shard = np.empty(number, np.int64)
    client_of_shard[_shuffled(number, rng)] = np.arange(number) % clients
    owner = np.empty(len(targets), np.int64)
    owner[by_label] = client_of_shard[shard]
    return owner


def dirichlet(
    labels: ArrayLike,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    min_samples: int = 1,
) -> Owner:
    """Distribute each class by its own draw of shares from Dirichlet(alpha, ..., alpha).

    A sample of class k goes to client i with probability share[k, i], as in Yurochkin et al. 2019
    (arXiv:1905.12022). Large alpha: every share is near 1/clients, so labels are iid and sizes
    multinomial. Small alpha: a class is held by few clients, and sizes differ widely.

    Clients with fewer than `min_samples` are then filled up from the clients that have most (the
    largest gives one sample, chosen at random, until there are enough). Drawing again would never
    end if most clients are empty, as they are for small alpha.
    """
    targets = _checked(labels, clients, rng)
    _validate.positive(alpha=alpha)
    _validate.count(min_samples=min_samples)
    if min_samples * clients > len(targets):
        raise ValueError(
            f"min_samples = {min_samples}: expected at most {len(targets) // clients}, "
            f"for {clients} clients and {len(targets)} samples"
        )
    owner = np.empty(len(targets), np.int64)
    for label in np.unique(targets):
        members = np.flatnonzero(targets == label)
        edges = np.cumsum(rng.dirichlet(np.full(clients, float(alpha))))
        drawn = np.searchsorted(edges, rng.random(len(members)) * edges[-1], side="right")
        owner[members] = np.minimum(drawn, clients - 1)  # a product rounded up to the last edge
    return _fill_up(owner, clients, min_samples, rng)


def _fill_up(owner: Owner, clients: int, least: int, rng: np.random.Generator) -> Owner:
    """Move samples from the largest clients until every client has `least`."""
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(least - sizes, 0)
    wanted = int(missing.sum())
    if not wanted:
        return owner
    # Taking one by one from the largest lowers them all to one level: the highest that frees
    # enough. It is >= least, since least * clients <= samples, so no donor falls below `least`.
    low, high = least, int(sizes.max())
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if _above(sizes, level).sum() >= wanted else (low, level - 1)
    given = _above(sizes, low)
    surplus = int(given.sum()) - wanted
    given[np.flatnonzero(sizes > low)[:surplus]] -= 1  # the first few remain one above the level
    order = np.lexsort((rng.random(len(owner)), owner))  # a random order within each client
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = order[rank < given[owner[order]]]
    filled = owner.copy()
    filled[moved[_shuffled(wanted, rng)]] = np.repeat(np.arange(clients), missing)
    return filled


def _above(sizes: NDArray[np.int64], level: int) -> NDArray[np.int64]:
    return np.maximum(sizes - level, 0)


def _shuffled(count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    # By sorting uniforms: numpy may change how permutation() draws; random() is more stable.
    return np.argsort(rng.random(count), kind="stable")


def _checked(labels: ArrayLike, clients: int, rng: np.random.Generator) -> NDArray[Any]:
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng = {rng!r}: expected a numpy.random.Generator")
    _validate.count(clients=clients)
    targets = np.asarray(labels)
    if targets.ndim != 1 or (targets.size and targets.dtype.kind not in "iu"):
        raise ValueError(
            f"labels: expected one whole number per sample, "
            f"got {targets.dtype} of shape {targets.shape}"
        )
    if clients > len(targets):
        raise ValueError(f"clients = {clients}: expected at most {len(targets)}, one per sample")
    return targets


_KINDS: dict[str, Callable[..., Owner]] = {"iid": iid, "shards": shards, "dirichlet": dirichlet}
