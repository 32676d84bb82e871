"""`locks privacy`: what a plan or a run costs, and the noise that an epsilon needs. No JAX here."""

from __future__ import annotations

import typer

privacy_app = typer.Typer(
    help="What a plan or a run costs each observer, and the noise that an epsilon needs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@privacy_app.callback()
def _privacy() -> None:
    pass
