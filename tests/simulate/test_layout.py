"""Ragged clients in rectangles, and cohorts that are never cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from locksfl.round.client import LocalWork, SizeClass, used_samples
from locksfl.simulate.layout import (
    MOST_CLASSES,
    Bucket,
    class_counts,
    likely_count,
    pack,
    size_classes,
    widen,
)


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=40),
    least=st.integers(1, 50),
    most=st.none() | st.integers(50, 400),
)
def test_every_client_fits_its_class(sizes, least, most):
    """Rows for all that it uses, with little padding, and the flags that choose_rows needs."""
    sizes, work = np.array(sizes), LocalWork(min_samples=least, max_samples=most)
    classes, class_of = size_classes(sizes, work)
    used = used_samples(sizes, work)
    assert len(classes) <= MOST_CLASSES
    assert sorted(set(class_of.tolist())) == list(range(len(classes)))
    ratio = max(1.5, (used.max() / used.min()) ** (1 / MOST_CLASSES) * 1.001)
    for size, use, number in zip(sizes, used, class_of, strict=True):
        shape = classes[number]
        assert use <= shape.rows <= use * ratio + 1e-9
        assert size <= use or shape.subsample_from >= size
        assert size >= use or shape.repeats
    for number, shape in enumerate(classes):  # and no flag that nobody needs
        members = class_of == number
        assert shape.repeats == bool((sizes < used)[members].any())
        assert (shape.subsample_from > 0) == bool((sizes > used)[members].any())


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    devices=st.integers(1, 4),
    chunk=st.integers(1, 5),
    rate=st.floats(0, 1),
)
def test_nobody_is_lost_or_doubled(seed, devices, chunk, rate):
    """Whatever the cohort: widened and packed, every member has one slot, in its own class, from
    the front of each device's slots, and the devices have equal work."""
    rng = np.random.default_rng(seed)
    class_of = rng.integers(0, 3, 60).astype(np.int8)
    cohort = np.flatnonzero(rng.random(60) < rate).astype(np.int32)
    layout = tuple(Bucket(SizeClass(rows, 0, False), chunk, 1) for rows in (2, 4, 8))
    counts = class_counts(cohort, class_of, 3)
    wide = widen(layout, counts.tolist(), devices)
    slots = pack(cohort, class_of, wide, devices)
    assert sorted(slots[slots >= 0].tolist()) == cohort.tolist()
    first = 0
    for number, bucket in enumerate(wide):
        here = slots[:, first : first + bucket.slots]
        filled = (here >= 0).sum(axis=1)
        assert filled.sum() == counts[number]
        assert np.ptp(filled) <= 1
        assert all((row[:count] >= 0).all() for row, count in zip(here, filled, strict=True))
        assert (class_of[here[here >= 0]] == number).all()
        assert bucket.chunk == chunk
        first += bucket.slots


def test_a_cohort_is_never_cut():
    """Without widening it is an error, not a shorter cohort; what fits is left as it is."""
    layout = (Bucket(SizeClass(4, 0, False), 2, 1),)
    cohort, class_of = np.arange(5, dtype=np.int32), np.zeros(5, np.int8)
    with pytest.raises(AssertionError, match="never be cut"):
        pack(cohort, class_of, layout, 2)
    assert widen(layout, [5], 2)[0].chunks == 2
    assert widen(layout, [4], 2) == layout


@pytest.mark.parametrize(("clients", "rate"), [(20, 0.3), (1000, 0.01), (10**6, 1e-6), (7, 1.0)])
def test_slots_suffice_but_for_once_in_a_million(clients, rate):
    slots = likely_count(clients, rate)
    assert stats.binom(clients, rate).sf(slots) < 1e-6
    assert 1 <= slots <= clients
