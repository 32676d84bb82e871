"""The status of a run as a page in a browser, and for Prometheus, on this machine alone."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from locksfl.experiment.folder import RunFolder
from locksfl.federation.certificates import LOOPBACK
from locksfl.federation.server.devices import HEADS, device_cells, metrics, status

REFRESH = 5  # seconds


def page(told: dict[str, Any]) -> str:
    """A status as HTML; it loads itself again."""
    from jinja2 import Environment, StrictUndefined

    inside = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = resources.files("locksfl.federation.server").joinpath("status.html").read_text("utf-8")
    rows = map(device_cells, told["devices"])
    return inside.from_string(text).render(told=told, seconds=REFRESH, heads=HEADS, rows=rows)


def page_server(run: Path, port: int) -> ThreadingHTTPServer:
    """Serves / and /metrics, read from the run folder each time. Loopback only, and only to who
    asks for this machine by name: a page from elsewhere cannot have a browser read it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            own = self.connection.getsockname()[1]
            if self.headers.get("Host") not in (f"{LOOPBACK}:{own}", f"localhost:{own}"):
                self.send_error(403)
                return
            kinds = {"/": ("text/html", page), "/metrics": ("text/plain", metrics)}
            if self.path not in kinds:
                self.send_error(404)
                return
            kind, made = kinds[self.path]
            try:
                content = made(status(RunFolder.open(run))).encode()
            except (ValueError, OSError) as error:  # the folder has been moved, for example
                self.send_error(500, explain=str(error))
                return
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing: whoever watches knows."""

    try:
        return ThreadingHTTPServer((LOOPBACK, port), Handler)
    except OSError as error:
        raise ValueError(f"--port {port}: {error.strerror}; expected a free port") from None
