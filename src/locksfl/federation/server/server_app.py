"""What the bundle names as its ServerApp. The server is a program of its own: nobody runs this."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Say how a run is started."""
    del grid, context
    raise ValueError("expected a run that was started with: locks federation server")
