"""Compiled programs, kept in this process and on disk, so that a second run starts at once.

On disk they are in the user's own cache folder, never in a run folder: a program holds no data,
only shapes and settings. `LOCKS_CACHE` names another folder. If it is "off", a process keeps no
programs either, which tests need that change the code of a round. It is no error if a program
cannot be written. A cache folder that JAX has been configured with is left as it is.
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


def compiled_once(used: dict[Any, Any], key: Any, place: Any, make: Callable[[], Any]) -> Any:
    """The program of a key: one of those used already, or of those that this process has compiled,
    or else a new one. Threads that want the same one wait for one another.

    Args:
        used: the programs of one simulator; kept as long as that is.
        key: all that a program depends on, but for the next two. Data are arguments of a program.
        place: the devices.
        make: compiles it. What JAX's settings change while it is traced is added to the key here.
    """
    settings = (getattr(jax.config, f"jax_{n}") for n in ("default_matmul_precision", "enable_x64"))
    whole = (place, key, *settings)
    with _lock:
        mine = _locks.setdefault(whole, threading.Lock())
    with mine:
        if key not in used:
            used[key] = _programs.get(whole) or make()
        with _lock:
            _locks.pop(whole, None)  # whoever comes now finds the program
            if os.environ.get(VARIABLE) != OFF:
                _programs[whole] = used[key]
                _programs.move_to_end(whole)
                while len(_programs) > MOST_PROGRAMS:
                    _programs.popitem(last=False)
    return used[key]


def keep_compiled() -> Path | None:
    """Keep what JAX compiles from now on. Returns the folder, or None if nothing is kept.

    For applications only: it configures JAX for the whole process, which a library must not do.
    """
    chosen = os.environ.get(VARIABLE, "")
    configured = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if chosen == OFF or configured:
        return None
    root = Path(chosen) if chosen else Path(pooch.os_cache("locks-fl")) / "compiled"
    # a program for one processor may not run on another that shares the home folder
    folder = root / hashlib.sha256(processor().encode()).hexdigest()[:12]
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


def processor() -> str:
    """What this processor can do, in words."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        able = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        able = platform.processor()
    return f"{platform.machine()} {able}"
