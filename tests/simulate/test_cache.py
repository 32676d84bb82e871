"""What is compiled is kept on disk, and nothing depends on it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax
from jax import monitoring
from locksfl.simulate.cache import keep_compiled
events = []
monitoring.register_event_listener(lambda name, **_: events.append(name))
folder = keep_compiled()
print(folder, jax.config.jax_compilation_cache_dir)
jax.jit(lambda x: x * 2 + 1)(1.0)
hits = events.count("/jax/compilation_cache/cache_hits")
misses = events.count("/jax/compilation_cache/cache_misses")
print(hits > 0, misses > 0)
"""


def run(**variables):
    """(folder told, folder set, hits, misses) of a new process."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment | variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split()


def test_a_second_process_compiles_nothing(tmp_path):
    """And a damaged entry is compiled anew, without a word."""
    folder, used, hits, misses = run(LOCKS_CACHE=str(tmp_path))
    assert folder == used
    assert folder.startswith(str(tmp_path))
    assert os.stat(folder).st_mode & 0o077 == 0, "whoever can write there can run programs as us"
    assert (hits, misses) == ("False", "True")
    assert run(LOCKS_CACHE=str(tmp_path))[2:] == ["True", "False"]
    for entry in os.scandir(folder):
        with open(entry, "wb") as file:
            file.write(b"damaged")
    assert run(LOCKS_CACHE=str(tmp_path))[2] == "False"


def test_it_can_be_off_or_elsewhere(tmp_path):
    assert run(LOCKS_CACHE="off") == ["None", "None", "False", "False"]
    own = str(tmp_path / "own")
    told, used, _, _ = run(LOCKS_CACHE=str(tmp_path), JAX_COMPILATION_CACHE_DIR=own)
    assert (told, used) == ("None", own), "who has told JAX of a folder keeps it"


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, kind):
    path = tmp_path / "file"
    path.write_text("")
    place = path if kind == "a file" else path / "folder"
    assert run(LOCKS_CACHE=str(place))[:2] == ["None", "None"]
