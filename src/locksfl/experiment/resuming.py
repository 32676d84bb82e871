"""What a run must find unchanged when it goes on with the noise that it began with.

Two models with one and the same noise differ by what was added to it. So a copy of an unfinished
run that is resumed on other data, with other code, or on a machine that rounds updates otherwise,
would tell more than it was charged for: it is refused. The number of devices may change.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from dataclasses import replace
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np

from locksfl import _loading
from locksfl.data.population import Population
from locksfl.experiment.config import Config
from locksfl.models.build import Model
from locksfl.round.client import Chunk, LocalWork, Records, measure
from locksfl.round.exact import safe_norms
from locksfl.simulate.cache import processor

UPDATE = "an update of made-up records"
ROWS = 64  # of them: a number that no machine changes
HARMLESS = ("--xla_dump", "--xla_force_host_platform_device_count")  # they change no number
INSTRUCTIONS = re.compile(r"\b(?:s?sse|avx|fma|f16c|amx|asimd|sve)\w*")  # that compute with floats


def sealed(config: Config, population: Population, key: bytes) -> str:
    """A keyed hash of the data and of the modules of the user's own that the settings name."""
    names = {config.model.name, config.features.file or ""}
    names |= {name for arm in config.arms for name in (arm.rule, arm.estimator)}
    texts = [_loading.source(name) for name in sorted(names) if ":" in name]
    parts = (population.digest(key).encode(), *(hashlib.sha256(text).digest() for text in texts))
    return hashlib.blake2b(b"".join(parts), key=key, digest_size=32).hexdigest()


def machine_of(config: Config, population: Population, model: Model) -> dict[str, str]:
    """What decides how the updates of a secret run are rounded. A federation's are computed on its
    devices; nothing for a simulation, which protects nobody."""
    if config.seed is not None:
        return {}
    device = jax.local_devices()[0]
    facts = {name: metadata.version(name) for name in ("locks-fl", "jax", "jaxlib")}
    facts["device"] = device.device_kind
    if config.engine is not None:
        return facts
    given = {flag.partition("=")[0]: flag for flag in os.environ.get("XLA_FLAGS", "").split()}
    flags = sorted(flag for name, flag in given.items() if not name.startswith(HARMLESS))
    facts |= {"compiler": device.client.platform_version, "XLA_FLAGS": " ".join(flags)}
    if device.platform == "cpu":
        facts["instruction set"] = " ".join(sorted(set(INSTRUCTIONS.findall(processor()))))
        facts["threads (NPROC)"] = str(_threads())
    return facts | {UPDATE: made_up_update(population, model, config.local.work())}


def _threads() -> int:
    """Of XLA on a CPU, which divides the sums of large products among them: one for each core,
    unless NPROC says how many, and one for each device."""
    given = os.environ.get("NPROC", "")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(int(given) if given.isdecimal() else cores, jax.local_device_count())


def made_up_update(population: Population, model: Model, work: LocalWork) -> str:
    """A hash of what one client with made-up records would compute: compiled anew, on one device,
    from random numbers as JAX draws them here."""
    key, made = jax.random.key(1), np.random.default_rng(0)
    shapes = [(ROWS, *array.shape[1:]) for array in (population.features, population.labels)]
    parts = (
        made.uniform(0, 5, shapes[0]).astype(population.features.dtype),  # pixels, or characters
        np.zeros(shapes[1], population.labels.dtype),
        np.array([0], np.int32),
        np.array([ROWS], np.int32),
        np.float32(population.scale),
    )
    records = Records(*map(jnp.asarray, parts))
    chunk = Chunk(jnp.arange(ROWS)[None], jnp.ones((1, ROWS), bool), key[None])
    once = replace(work, epochs=1)
    weights = model.init(key) + 0.05 * jax.random.normal(key, (model.size,))
    visit = jax.jit(lambda w, r, c: measure(model, w, r, c, once, safe_norms))(
        weights, records, chunk
    )
    content = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(visit))
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def changes(began: dict[str, str], now: dict[str, str]) -> list[str]:
    """What differs between two machines, word by word."""
    lines = []
    for name in [name for name in now if began.get(name) != now[name]]:
        was, here = (str(one.get(name, "")).split() for one in (began, now))
        gone = " ".join(word for word in was if word not in here) or "nothing"
        new = " ".join(word for word in here if word not in was) or "nothing"
        lines.append(f"{name} (was {gone}, is {new})")
    return lines
