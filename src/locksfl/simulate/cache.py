"""Compiled programs, kept in this process and on disk, so that a second run starts at once.

The folder is the user's own cache folder, never a run folder: a program holds no data, only shapes
and settings. `LOCKS_CACHE` names another folder, or is "off". Programs that cannot be written are
not kept, and that is not an error. A cache folder already configured in JAX is left as it is.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pooch

VARIABLE = "LOCKS_CACHE"
OFF = "off"
MOST_PROGRAMS = 64  # that a process keeps: some megabytes each, and the models that they play

_programs: OrderedDict[Any, Any] = OrderedDict()  # the most recently used one last
_locks: dict[Any, threading.Lock] = {}
_lock = threading.Lock()


def compiled_once(key: Any, make: Callable[[], Any]) -> Any:
    """What `make` returned when it was first called for this key in this process. Threads that want
    the same program wait for one another. A program takes its data as arguments, so the key need
    not know them; what JAX's settings change while it is traced is added here."""
    settings = ("jax_default_matmul_precision", "jax_enable_x64")
    key = (key, *(getattr(jax.config, name) for name in settings))
    with _lock:
        mine = _locks.setdefault(key, threading.Lock())
    with mine:
        found = _programs.get(key) or make()
        with _lock:
            _programs[key] = found
            _programs.move_to_end(key)
            while len(_programs) > MOST_PROGRAMS:
                oldest, _ = _programs.popitem(last=False)
                _locks.pop(oldest, None)
    return found


def keep_compiled() -> Path | None:
    """Keep what JAX compiles from now on. Returns the folder, or None if nothing is kept.

    For applications only: it configures JAX for the whole process, which a library must not do.
    """
    chosen = os.environ.get(VARIABLE, "")
    told = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if chosen == OFF or told:
        return None
    root = Path(chosen) if chosen else Path(pooch.os_cache("locks-fl")) / "compiled"
    # a program for one processor may not run on another that shares the home folder
    folder = root / _processor()
    try:
        # private, because anyone who can write here can run code as this user
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # small programs too: starting compiles twenty of them
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # with a full disk or a damaged entry, JAX compiles as it would without a cache
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
