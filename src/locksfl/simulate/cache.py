"""Compiled programs kept on disk, so that a second run starts at once.

The folder is the user's own cache folder, never a run folder: a program holds no data, only shapes
and settings. `LOCKS_CACHE` names another folder, or is "off". What cannot be written is not kept,
and nothing fails for it. Whoever has told JAX of a cache folder keeps that one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import warnings
from pathlib import Path

import jax
import pooch

VARIABLE = "LOCKS_CACHE"
OFF = "off"


def keep_compiled() -> Path | None:
    """Keep what JAX compiles from now on; the folder, or None where nothing is kept.

    For programs: it sets JAX for the whole process, which is not a library's to do.
    """
    chosen = os.environ.get(VARIABLE, "")
    told = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if chosen == OFF or told:
        return None
    root = Path(chosen) if chosen else Path(pooch.os_cache("locks-fl")) / "compiled"
    # a program for one processor may not run on another that shares the home folder
    folder = root / _processor()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # whoever writes here runs as us
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # small programs too: a start compiles twenty of them
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # a full disk or a damaged entry means to compile, as without a cache
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    return folder


def _processor() -> str:
    """A name for what this processor can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        able = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        able = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {able}".encode()).hexdigest()[:12]
