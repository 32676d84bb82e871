"""The same round over Flower (flwr): a server, and devices that guard their own privacy.

In: an experiment, a device's policy and data, and keys.
Out: a run folder as `locks run` leaves it, and a ledger on every device.
May not import: paper, cli. No other room imports flwr; `device/` starts without JAX.

    wire.py          what is asked and answered, and the network between; no Flower
    messages.py      questions and answers as Flower messages
    post.py          how a message travels: in one piece, by calls of our own
    certificates.py  TLS certificates and node keys
    logs.py          logs as text or JSON; telling.py, a device's answers in words
    demo.py          a whole federation on one machine; simulation.py, on Flower's own engine

    device/          what runs on a device
    server/
      serving.py     a run from its start to its end; engine.py, its arms
      rounds.py      a round, over any network that can ask and answer
      grid.py        the network over messages, with a deadline; patience.py, how long and for whom
      liars.py       what no honest device sends: a limit and a score, under local trust
      ledger.py      what every client has spent
      superlink.py   Flower's SuperLink: starts it, registers its nodes, begins a run
      gate.py        the filter before it: who may call what; gated.py, the process of both
      mailroom.py    a stage's questions and answers, in that process; mail.py, the server's end
      stock.py       the same for stock SuperNodes
      place.py       where a server listens, and the keys that it knows
      devices.py     what is known of each device; page.py, the same in a browser
      allowed.py     what an experiment asks of a device's policy

    flower.py        every import from Flower that Flower does not document

Each module imports only what it uses: `rounds.py` needs no Flower.
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
