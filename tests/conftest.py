"""Two host devices for every test, as a machine of two cores has, and quick compilations.

This has to happen before JAX is imported. Whoever sets XLA_FLAGS keeps them.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

# Tests compile many small programs and run each for milliseconds, so optimising them is wasted.
# XLA ends the process at a flag that it does not know: the third one only where it was tried.
_FLAGS = ["--xla_force_host_platform_device_count=2", "--xla_backend_optimization_level=0"]
if version("jaxlib").startswith("0.10."):
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["LOCKS_CACHE"] = "off"  # a test compiles for itself, and leaves nothing behind

# A shell starts what runs in its background deaf to Ctrl-C, and children inherit that: the
# processes that tests interrupt must hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402  (after the flags)
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")

MANY = 20_000  # pieces of memory; Linux ends a process that maps more than 65,530


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Every compiled program maps pieces of memory: those of thousands of tests are too many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MANY:
        jax.clear_caches()
        gc.collect()
