"""Play the runs of two commits on this machine, and compare what they came to, to the bit.

    python -m corpus.compare [COMMIT [BEGINNING]]     from tests/; BEGINNING: of the names of runs

COMMIT is the one in the file BASE if none is named. Each plays them with its own plays.py, and this
commit also goes on with runs that the other has begun. Exit code 1: something differs that
differs.json does not list.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from corpus.differs import differences, unexplained

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def base() -> str:
    """The commit that is compared with."""
    return (HERE / "BASE").read_text("utf-8").strip()


def known(commit: str) -> bool:
    """Whether this repository has the commit: a shallow clone may not."""
    asked = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def compared(commit: str, only: str = "") -> tuple[int, list[str]]:
    """How many runs were compared, and the paths of all that differs."""
    with tempfile.TemporaryDirectory() as folder:
        old, place = Path(folder, "code"), Path(folder)
        worktree = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*worktree, "add", "--detach", "--quiet", str(old), commit], check=True)
        try:
            before = played(old, place / "before", "", only)
        finally:
            subprocess.run([*worktree, "remove", "--force", str(old)], check=True)
        now = played(ROOT, place / "now", place / "before" / "begun", only)
    for name in [name for name in now if name.endswith(" of before")]:
        before[name] = before[name.replace("of before", "resumed")]
    return len(now), list(differences(before, now, "plays", exact=True))


def played(code: Path, out: Path, begun: Path | str, only: str) -> dict[str, Any]:
    """The facts of the runs of some code."""
    path = os.pathsep.join(str(code / part) for part in ("src", "", "tests"))
    command = [sys.executable, "-m", "corpus.plays", out, begun, only]
    subprocess.run(
        [str(word) for word in command],
        cwd=code / "tests",
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    found: dict[str, Any] = json.loads((out / "facts.json").read_text("utf-8"))
    return found


def main(commit: str = "", only: str = "") -> int:
    """Print all that differs; what is not listed counts."""
    count, found = compared(commit or base(), only)
    wrong = unexplained(found)
    for path in found:
        print(path, "" if path in wrong else "(listed)")
    print(f"{count} runs; {len(found)} values differ, {len(wrong)} of them without a reason")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
