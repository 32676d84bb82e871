"""The ServerApp that the bundle names. The server is a separate program, so this is never run."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Say how a run is started."""
    del grid, context
    raise ValueError("expected a run that was started with: locks federation server")
