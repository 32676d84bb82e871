"""No two draws share a key, and a draw depends on nothing but its own names."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from checks import FALSE_ALARM
from locksfl.audit.evidence import Evidence, chi_square, lagged, products, views
from locksfl.round.draws import draw_members, draw_server
from locksfl.round.randomness import (
    Purpose,
    Randomness,
    arm_number,
    client_keys,
    draw_key,
    normal,
)

ARMS, ROUNDS, CLIENTS = ("uniform", "locks", "locks-2"), 40, 300
SOURCE = Randomness.seeded(3)


def test_no_two_keys_coincide():
    """All (arm, round, purpose, client), the keys above them, and those below that a client folds
    for its own shuffles: more than 250,000 keys of 64 bits, which random ones would do but for
    one chance in 10^8. A grid in which a purpose is reused is caught."""
    clients = jnp.arange(CLIENTS)
    found = {}

    @jax.jit
    def keys_of(arm_key):
        def a_round(t):
            each = [draw_key(arm_key, t, purpose) for purpose in Purpose]
            below = jnp.concatenate([client_keys(key, clients) for key in each])
            own = jax.vmap(jax.random.fold_in, (None, 0))(below[4 * CLIENTS], jnp.arange(10))
            return jnp.concatenate([jnp.stack(each), below, own])

        return jax.random.key_data(jax.vmap(a_round)(jnp.arange(ROUNDS)))

    for arm in ARMS:
        found[arm] = np.asarray(keys_of(SOURCE.arm_key(arm))).reshape(-1, 2)
    roots = [SOURCE.arm_key(arm) for arm in ARMS] + [SOURCE.model_key()]
    roots = [np.asarray(jax.random.key_data(root))[None] for root in roots]
    everything = np.concatenate([*found.values(), *roots])
    assert len(everything) > 250_000
    assert len(np.unique(everything, axis=0)) == len(everything)
    reused = np.concatenate([everything, found["locks"][:1]])
    assert len(np.unique(reused, axis=0)) < len(reused)


def test_no_two_host_draws_coincide():
    """Cohorts of arms, rounds and purposes; and another seed is another run."""
    names = itertools.product(ARMS, range(50), Purpose)
    words = [SOURCE.host(*name).integers(0, 2**63) for name in names]
    assert len(set(words)) == len(words)
    assert SOURCE.host("locks", 3, Purpose.COHORT).integers(0, 2**63) in words
    other = Randomness.seeded(4).host("locks", 3, Purpose.COHORT).integers(0, 2**63)
    assert other not in words


def noise(arm, t, purpose, size=20_000):
    key = draw_key(SOURCE.arm_key(arm), t, purpose)
    return np.asarray(jax.random.normal(key, (size,)))


def uncorrelated(a, b):
    """sqrt(n) times the correlation is normal: two-sided at 1e-6."""
    correlation = np.corrcoef(a, b)[0, 1]
    return abs(correlation) * np.sqrt(len(a)) < stats.norm.isf(FALSE_ALARM / 2)


def ranks(values):
    """Normal scores, whatever the distribution."""
    return stats.norm.ppf((stats.rankdata(values) - 0.5) / len(values))


def independent(a, b):
    """No product of any view of one with any view of the other: their order, their size without
    the sign, a sawtooth. At 1e-6 over all nine."""
    evidence = Evidence()
    for first, second in itertools.product(views(ranks(a)), views(ranks(b))):
        evidence.add("views", products(first[:, None], second[:, None]))
    return evidence.verdict()[0]


def test_a_shared_radius_is_dependence_though_nothing_is_correlated():
    """Box and Muller's: two normals of one radius, with angles of their own."""
    rng = np.random.default_rng(1)
    radius = np.sqrt(-2 * np.log(rng.random(20_000)))
    a, b = (radius * np.cos(2 * np.pi * rng.random(20_000)) for _ in range(2))
    assert uncorrelated(a, b)
    assert not independent(a, b)
    assert not independent(a, np.exp(-(radius**2) / 2))  # a coin from the radius' own bits
    assert independent(a, rng.permutation(b))


def test_arms_rounds_and_purposes_share_no_noise():
    """Shared noise is rejected, even if only a tenth of it is shared."""
    base = noise("locks", 3, Purpose.UPDATE_NOISE)
    for other in (
        noise("uniform", 3, Purpose.UPDATE_NOISE),
        noise("locks", 4, Purpose.UPDATE_NOISE),
        noise("locks", 3, Purpose.SERVER_NORM_NOISE),
    ):
        assert uncorrelated(base, other)
        assert independent(base, other)
        assert not uncorrelated(base, 0.1 * base + other)
    assert not uncorrelated(base, noise("locks", 3, Purpose.UPDATE_NOISE))


def test_clients_share_no_noise():
    """A client's coin says nothing of its norm noise, of its next coin or of its neighbour's."""
    key, clients = SOURCE.arm_key("locks"), jnp.arange(20_000)
    now = draw_members(key, 3, clients, jnp.ones(clients.size))
    later = draw_members(key, 4, clients, jnp.ones(clients.size))
    for a, b in (
        (now.coins, now.norm_noise),
        (now.coins, later.coins),
        (now.norm_noise, later.norm_noise),
        (now.coins[1:], now.coins[:-1]),
    ):
        assert uncorrelated(a, b)
        assert independent(a, b)
    assert not uncorrelated(now.coins, 0.1 * now.coins + later.coins)


def test_one_round_s_draws_share_no_noise():
    """Over 20,000 rounds: the server's norm noise, the first number of its update noise, and a
    client's coin and norm noise, as the round draws them."""
    key = SOURCE.arm_key("locks")

    @jax.jit
    @jax.vmap
    def drawn(t):
        server, members = draw_server(key, t, 3), draw_members(key, t, jnp.zeros(1, int), 1.0)
        return jnp.append(server.update_noise, server.norm_noise), members.coins, members.norm_noise

    columns = np.concatenate([np.asarray(a) for a in drawn(jnp.arange(20_000))], axis=1).T
    for a, b in itertools.combinations(columns, 2):
        assert uncorrelated(a, b)
        assert independent(a, b)
        assert not uncorrelated(a, 0.1 * a / a.std() + b)


def test_slots_do_not_change_a_clients_draws():
    """Alone, among others, in another order or behind empty slots: the same coin and noise."""
    key = SOURCE.arm_key("locks")
    alone = draw_members(key, 7, jnp.array([5]), jnp.ones(1))
    for slots in ([5, 9], [-1, 9, -1, 5], [5, -1, -1, -1, -1]):
        several = draw_members(key, 7, jnp.array(slots), jnp.ones(len(slots)))
        here = slots.index(5)
        assert several.coins[here] == alone.coins[0]
        assert several.norm_noise[here] == alone.norm_noise[0]
        assert several.present.tolist() == [client >= 0 for client in slots]
    assert several.coins[1] != alone.coins[0]


def test_the_servers_noise_is_the_same_on_every_device():
    """It depends on key and round only, so that devices agree on it without talking."""
    key = SOURCE.arm_key("locks")
    one, two = draw_server(key, 7, 50), jax.jit(draw_server, static_argnums=2)(key, 7, 50)
    np.testing.assert_array_equal(one.update_noise, two.update_noise)
    assert one.norm_noise == two.norm_noise
    assert not np.array_equal(one.update_noise, draw_server(key, 8, 50).update_noise)


def test_an_arm_keeps_its_draws_when_others_come():
    """Arms are told apart by name, not by place; the first weights are shared by all."""
    assert len({arm_number(arm) for arm in ARMS}) == len(ARMS)
    same = jax.random.key_data(Randomness.seeded(3).arm_key("locks"))
    np.testing.assert_array_equal(same, jax.random.key_data(SOURCE.arm_key("locks")))


def test_a_seed_is_a_simulation_and_the_system_is_not():
    assert Randomness.seeded(0).simulated
    first, second = Randomness.from_system(), Randomness.from_system()
    assert not first.simulated
    assert first.entropy != second.entropy


@pytest.mark.parametrize("seed", [-1, 1.0, True, None, "7"])
def test_odd_seeds_are_refused(seed):
    with pytest.raises(ValueError, match=r"seed = .*: expected a whole number >= 0"):
        Randomness.seeded(seed)


def test_noise_is_normal_and_long():
    """A million numbers: no two equal radii, no distance at which any view of them repeats, bins
    and tails of a normal. At 1e-6 together."""
    draws = np.asarray(normal(jax.random.key(5), 2**20), np.float64)
    pairs = np.hypot(*draws.reshape(2, -1))
    assert len(np.unique(draws.astype(np.float32))) > 0.9 * draws.size  # 24 bits collide a little
    assert len(np.unique(pairs)) > 0.9 * pairs.size
    evidence = Evidence()
    for view in views(draws[None]):
        evidence.add("distances", lagged(view)[: draws.size // 2])
    counts = np.bincount((stats.norm.cdf(draws) * 256).astype(int), minlength=256)
    evidence.add("bins", chi_square(np.sum((counts - 4096.0) ** 2) / 4096 / 255, 255))
    for point in (3.0, 4.0):
        rare = draws.size * stats.norm.sf(point)
        evidence.add("tails", (np.sum(draws > point) - rare) / np.sqrt(rare))
    holds, told = evidence.verdict()
    assert holds, told


def test_noise_is_normal_and_its_tails_do_not_end_where_a_client_could_stand_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moments and quantiles of 2 million draws within 5 standard errors (false alarm 1e-6), a std
    1% off rejected; and the largest draw is that of 64 random bits, where jax.random.normal ends
    at 5.42 and would give away a client whose update passes it."""
    draws = np.asarray(normal(jax.random.key(1), 2_000_001), np.float64)
    n = draws.size
    assert n == 2_000_001
    for values, mean, spread in (
        (draws, 0.0, 1.0),
        (draws**2, 1.0, np.sqrt(2.0)),
        (draws**4, 3.0, np.sqrt(96.0)),
        (draws[: n // 2] * draws[-(n // 2) :], 0.0, 1.0),  # the two halves of Box and Muller
    ):
        assert abs(values.mean() - mean) < 5 * spread / np.sqrt(values.size)
    assert abs(((1.01 * draws) ** 2).mean() - 1.0) > 5 * np.sqrt(2.0 / n)
    for point, share in ((1.0, 0.158655254), (3.0, 0.001349898), (4.0, 3.1671e-5)):
        error = np.sqrt(share / n)
        assert abs((draws > point).mean() - share) < 5 * error
        assert abs((draws < -point).mean() - share) < 5 * error

    smallest = jnp.zeros((3, 1), jnp.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda *args: smallest)
    assert 9.4 < float(normal(jax.random.key(0), 1)[0]) < 9.6
