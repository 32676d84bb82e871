"""Each split is a partition, is as skewed as it says, and is the same on every machine."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from locksfl.data import splits


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, 0x5911])))


def table(owner: np.ndarray, labels: np.ndarray, clients: int) -> np.ndarray:
    """[clients, classes] how many samples of each class each client owns."""
    classes = int(labels.max()) + 1
    counts = np.bincount(owner * classes + labels, minlength=clients * classes)
    return counts.reshape(clients, classes)


BALANCED = np.tile(np.arange(10), 1000)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(1, 40),
    extra=st.integers(0, 100),
    classes=st.integers(1, 5),
    per_client=st.integers(1, 4),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
)
def test_every_split_is_a_partition(seed, clients, extra, classes, per_client, alpha):
    samples = clients * per_client + extra
    labels = np.random.default_rng(seed).integers(0, classes, samples)
    rng = generator(seed)
    made = {
        "iid": splits.iid(labels, clients, rng),
        "shards": splits.shards(labels, clients, per_client, rng),
        "dirichlet": splits.dirichlet(labels, clients, alpha, rng, min_samples=per_client),
    }
    least = {"iid": samples // clients, "shards": per_client, "dirichlet": per_client}
    for kind, owner in made.items():
        # One owner a sample, each a client, none empty.
        assert owner.shape == (samples,)
        assert owner.dtype == np.int64
        assert owner.min() >= 0
        sizes = np.bincount(owner, minlength=clients)
        assert len(sizes) == clients
        assert sizes.min() >= least[kind]


def test_iid_sizes_and_classes():
    """Sizes differ by one at most; labels are dealt without regard to class.

    Statistic: chi-square of the client by class table, (clients-1)(classes-1) degrees of
    freedom; false alarm 1e-6 on either side. A deal of the sorted labels must be rejected.
    """
    clients = 37
    degrees = (clients - 1) * 9
    low, high = stats.chi2.ppf(1e-6, degrees), stats.chi2.isf(1e-6, degrees)
    owner = splits.iid(BALANCED, clients, generator(1))
    assert np.ptp(np.bincount(owner)) == 1
    assert low < stats.chi2_contingency(table(owner, BALANCED, clients)).statistic < high
    too_even = np.arange(10_000) // 10 % clients  # one of each class at a time
    assert stats.chi2_contingency(table(too_even, BALANCED, clients)).statistic < low
    skewed = splits.shards(BALANCED, clients, 2, generator(1))
    assert stats.chi2_contingency(table(skewed, BALANCED, clients)).statistic > high


def test_shards_of_whole_classes_give_at_most_so_many_classes():
    # 200 shards of 50, 20 to a class: no change of label falls within a shard.
    owner = splits.shards(BALANCED, 100, 2, generator())
    counts = table(owner, BALANCED, 100)
    assert (counts.sum(axis=1) == 100).all()
    assert set(np.unique(counts)) == {0, 50, 100}
    assert (counts > 0).sum(axis=1).max() == 2
    assert ((counts > 0).sum(axis=1) == 1).any()  # both shards of one class: it happens


@pytest.mark.parametrize(("clients", "per_client"), [(7, 2), (100, 2), (30, 3), (90, 1)])
def test_shards_exceed_by_the_changes_of_label_at_most(clients, per_client):
    labels = np.random.default_rng(5).choice(10, 4321, p=np.arange(1, 11) / 55)
    owner = splits.shards(labels, clients, per_client, generator(2))
    held = (table(owner, labels, clients) > 0).sum(axis=1)
    # All clients together: 10 classes change 9 times, and a change adds one class to one client.
    assert np.maximum(held - per_client, 0).sum() <= 9
    # Each class here is longer than a shard but one, so a shard holds two classes at most.
    longest_shard = -(-len(labels) // (clients * per_client))
    if np.bincount(labels).min() >= longest_shard - 1:
        assert held.max() <= 2 * per_client
    # The same bound rejects a split that pays no heed to labels.
    wrong = (table(splits.iid(labels, clients, generator(2)), labels, clients) > 0).sum(axis=1)
    assert np.maximum(wrong - per_client, 0).sum() > 9
    assert np.ptp(np.bincount(owner)) <= per_client


def test_shards_by_hand():
    # Sorted: 0 0 0 1 1 1; shards of two are {0,0} {0,1} {1,1}: the middle one holds both.
    owner = splits.shards(np.array([0, 1, 0, 1, 0, 1]), 3, 1, generator())
    held = table(owner, np.array([0, 1, 0, 1, 0, 1]), 3)
    assert sorted(map(tuple, held.tolist())) == [(0, 2), (1, 1), (2, 0)]


def test_dirichlet_with_large_alpha_is_iid():
    """Each sample's client is then uniform: chi-square with classes (clients-1) degrees.

    A finite alpha stretches the statistic by (N + n alpha)/(1 + n alpha), here 1 + 2e-7. False
    alarm 1e-6 on either side; alpha = 20 (stretch near 2) must be rejected.
    """
    clients = 50
    low, high = stats.chi2.ppf(1e-6, 490), stats.chi2.isf(1e-6, 490)

    def statistic(alpha: float) -> float:
        counts = table(splits.dirichlet(BALANCED, clients, alpha, generator(3)), BALANCED, clients)
        return float(((counts - 20.0) ** 2 / 20.0).sum())

    assert low < statistic(1e8) < high
    assert statistic(20.0) > high


@pytest.mark.parametrize("alpha", [0.05, 0.5, 2.0])
def test_dirichlet_has_the_concentration_of_its_alpha(alpha):
    """Two samples of a class share a client with probability (alpha+1)/(n alpha+1).

    The mean over 400 classes, each an independent draw, within 6 standard errors (false alarm
    below 1e-6, with room for the skew of small alpha); half and twice alpha must be rejected.
    """
    clients, classes, members = 20, 400, 100
    labels = np.repeat(np.arange(classes), members)
    counts = table(splits.dirichlet(labels, clients, alpha, generator(4)), labels, clients)
    pairs = (counts * (counts - 1)).sum(axis=0) / (members * (members - 1))
    error = pairs.std(ddof=1) / np.sqrt(classes)

    def expected(a: float) -> float:
        return (a + 1) / (clients * a + 1)

    assert abs(pairs.mean() - expected(alpha)) < 6 * error
    for wrong in (alpha / 2, alpha * 2):
        assert abs(pairs.mean() - expected(wrong)) > 6 * error


def test_dirichlet_fills_up_from_the_largest_only():
    rng = generator(6)
    before = rng.choice(30, 600, p=np.r_[0.5, 0.3, np.full(8, 0.025), np.zeros(20)])
    after = splits._fill_up(before, 30, 5, generator(7))
    old, new = np.bincount(before, minlength=30), np.bincount(after, minlength=30)
    missing = np.maximum(5 - old, 0)
    # One by one, the slow way.
    slow = old.copy()
    for _ in range(missing.sum()):
        slow[slow.argmax()] -= 1
    np.testing.assert_array_equal(np.sort(slow + missing), np.sort(new))
    assert (new[old < 5] == 5).all()
    moved = before != after
    assert moved.sum() == missing.sum()  # and no more than needed
    assert (old[before[moved]] > 5).all()


def test_dirichlet_with_exactly_enough_samples():
    owner = splits.dirichlet(np.zeros(60, int), 20, 1e-3, generator(), min_samples=3)
    assert (np.bincount(owner) == 3).all()


GOLDEN = {
    "iid": "c337433baeb75371",
    "shards": "2c9aa4fb1f2a650b",
    "dirichlet": "f16c0d7d2bbd83fe",
}
OPTIONS = {"iid": {}, "shards": {"classes": 2}, "dirichlet": {"alpha": 0.1}}


@pytest.mark.parametrize("kind", GOLDEN)
def test_same_seed_same_split_everywhere(kind):
    def digest(seed: int) -> str:
        owner = splits.split(kind, BALANCED[:2000], 150, generator(seed), **OPTIONS[kind])
        return hashlib.sha256(owner.astype("<i8").tobytes()).hexdigest()[:16]

    assert digest(0) == digest(0) == GOLDEN[kind]
    assert digest(1) != GOLDEN[kind]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("shard", {}, r"split = 'shard': expected one of iid, shards, dirichlet \(did you mean"),
        ("zebra", {}, "split = 'zebra': expected one of iid, shards, dirichlet$"),
        ("iid", {"alpha": 1.0}, r"alpha = 1\.0: not an option of split iid, it has none"),
        ("dirichlet", {"alhpa": 1.0}, r"alhpa = 1\.0: .* \(did you mean 'alpha'\?\)"),
        ("dirichlet", {"rng": 3, "alpha": 1.0}, "rng = 3: not an option of split dirichlet"),
        ("dirichlet", {}, "alpha is missing: split dirichlet needs it"),
        ("dirichlet", {"alpha": 0.0}, r"alpha = 0\.0: expected a number > 0"),
        ("dirichlet", {"alpha": float("nan")}, "alpha = nan: expected a number > 0"),
        ("dirichlet", {"alpha": "a"}, "alpha = 'a': expected a number"),
        ("dirichlet", {"alpha": 1, "min_samples": 0}, "min_samples = 0: expected a whole number"),
        ("dirichlet", {"alpha": 1, "min_samples": 4}, "min_samples = 4: expected at most 3, for"),
        ("shards", {}, "classes is missing: split shards needs it"),
        ("shards", {"classes": 4}, "classes = 4: expected at most 3, for"),
        ("shards", {"classes": 1.5}, r"classes = 1\.5: expected a whole"),
    ],
)
def test_bad_settings_give_one_line(kind, options, message):
    with pytest.raises(ValueError, match=message) as refused:
        splits.split(kind, np.zeros(35, int), 10, generator(), **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", GOLDEN)
def test_impossible_splits_give_one_line(kind):
    def attempt(labels, clients, rng):
        return splits.split(kind, labels, clients, rng, **OPTIONS[kind])

    for labels, clients, message in (
        (np.zeros(9, int), 10, "clients = 10: expected at most 9, one per sample"),
        ([], 1, "clients = 1: expected at most 0"),
        (np.zeros(9, int), 0, "clients = 0: expected a whole number >= 1"),
        (np.zeros(9), 3, "labels: expected one whole number per sample, got float64"),
    ):
        with pytest.raises(ValueError, match=message):
            attempt(labels, clients, generator())
    with pytest.raises(ValueError, match="rng = 0: expected a numpy"):
        attempt(np.zeros(9, int), 3, 0)
