"""The status of a run as a page in a browser, and for Prometheus, on this machine alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from locksfl.experiment.folder import RunFolder
from locksfl.federation.server.devices import HEADS, device_cells, metrics, status

LOOPBACK = "127.0.0.1"
REFRESH = 5  # seconds
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
       color-scheme: light dark; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8886; }
.scroll { overflow-x: auto; }
td { white-space: nowrap; }
.rounds { display: grid; grid-template-columns: max-content minmax(4rem, 16rem) 1fr; gap: .5rem;
          align-items: center; }
progress { width: 100%; }
"""


def page(told: dict[str, Any]) -> str:
    """A status as HTML; it loads itself again."""
    rounds = "".join(
        f'<span>{escape(arm)}</span><progress max="{planned}" value="{played}"></progress>'
        f"<span>{played} of {planned} rounds</span>"
        for arm, (played, planned) in told["rounds"].items()
    )
    asked = "no device has been asked yet"
    if told["time"] is not None:
        asked = f"as of {escape(told['time'])}; a stage waits {told['seconds']:g} s for answers"
    rows = "".join(_row("td", device_cells(device)) for device in told["devices"])
    title = f"{escape(told['run'])}: {escape(told['state'])}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="refresh" content="{REFRESH}">'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{STYLE}</style><h1>{title}</h1>"
        f'<div class="rounds">{rounds}</div><p>{asked}</p>'
        f'<div class="scroll"><table>{_row("th", HEADS)}{rows}</table></div></html>'
    )


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"


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
