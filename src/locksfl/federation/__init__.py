"""The same round over Flower (flwr): a server, and devices that guard their own privacy.

    rounds.py        a round as the server plays it, over any network that can ask and answer
    messages.py      questions and answers as Flower messages
    grid.py          the network over Flower's Grid, with a deadline for each stage
    liars.py         what no honest device sends: a limit and a score, under local trust
    client_app.py    the device's half: Flower's ClientApp around the guard
    node.py          the process on a device: a SuperNode that runs only this package's app
    pulling.py       a message in two steps: its words, then the model if the device wants it
    superlink.py     the server's SuperLink: starts it, registers its nodes, begins a run
    gate.py          the filter before the SuperLink: who may call what; gated.py, their process
    place.py         where a server listens, and the keys that it knows
    devices.py       what a server knows of each device, for `locks federation status`
    allowed.py       what an experiment asks of a device's policy
    logs.py          logs as text or JSON; telling.py, a device's answers in words
    certificates.py  TLS certificates and node keys

    flower.py        every import from Flower that Flower does not document

Only this package imports flwr, and each module imports only what it uses: `rounds.py` needs none.
Interfaces that Flower does not document are used by node.py, superlink.py and gate.py, for the one
version that pyproject.toml pins.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def require(module: str = "flwr", package: str = "locks-fl[flower]") -> None:
    """Refuse with one line if the extra is not installed."""
    if importlib.util.find_spec(module) is None:
        raise ValueError(
            f"{module} is not installed: expected it for `locks federation`; install it with "
            f'pip install "{package}"'
        )


def settings(home: Path) -> dict[str, str]:
    """The environment of a Flower process: its files in one folder, no telemetry, and nothing
    installed because a server asks for it."""
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
