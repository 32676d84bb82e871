"""`locks theory lemmas | check | estimate`: the theory, measured on the real round."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from locksfl.cli.console import Json, one_line_errors, start_jax

if TYPE_CHECKING:
    from locksfl.experiment.config import Config

Picture = Annotated[Path | None, typer.Option(help="Draw it into this PNG file.")]


def add_commands(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (lemmas, check, estimate):
        app.command()(command)


def lemmas(
    repetitions: Annotated[int, typer.Option(help="Rounds of each Monte Carlo.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Of its coins.")] = 0,
    as_json: Json = False,
) -> None:
    """Lemmas 1 to 3 played by the real round: claim, measured, verdict."""
    with one_line_errors():
        from locksfl.paper.theory.lemmas import findings

        found = findings(repetitions, seed)
        if as_json:
            print(json.dumps([finding.as_dict() for finding in found], indent=2))
            return
        print(f"{'':58}{'claimed':>9}{'measured':>20}{'6 clients, exact':>21}")
        for f in found:
            measured = f"{f.measured:.4g} ± {f.standard_error:.1g}"
            exact = f"{f.exact:.4g} ({f.exact_claimed:.4g})"
            verdict = "holds" if f.holds else "fails"
            print(f"{f.lemma}  {f.claim:<55}{f.claimed:>9.4g}{measured:>20}{exact:>21}  {verdict}")
            print(f"   {f.why}")


def check(
    seeds: Annotated[int, typer.Option(help="How many runs of each.")] = 64,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Both bounds against quadratic and logistic problems whose constants are known."""
    with one_line_errors():
        from locksfl.paper.theory.check import rows

        _check_place(picture)
        found = rows(seeds)
        if picture is not None:
            from locksfl.paper.theory.picture import draw_known

            draw_known(seeds, picture)
        if as_json:
            print(json.dumps([row.as_dict() for row in found], indent=2))
            return
        print(
            f"{'':50}{'before':>9}{'least':>10}{'weighted mean':>22}{'worst seed':>12}"
            f"{'mended':>10} {'':<13}{'printed':>10}"
        )
        for r in found:
            mean = f"{r.weighted:.4g} ± {r.standard_error:.1g}"
            print(
                f"{r.case:<50}{r.before:>9.4g}{r.least:>10.3g}{mean:>22}{r.worst_seed:>12.4g}"
                f"{_number(r.corrected):>10} {r.verdict(r.corrected):<13}{_number(r.printed):>10} "
                f"{r.verdict(r.printed)}"
            )
        held = sum(bool(r.corrected_holds) for r in found)
        asked = sum(r.corrected is not None for r in found)
        print(f"the mended bound holds on every seed in {held} of {asked} cases where it applies")


def estimate(
    source: Annotated[Path, typer.Argument(help="A run folder, or a TOML file.")],
    arm: Annotated[str | None, typer.Option(help="Which arm; left out: the first.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For a TOML file.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For a TOML file; left out: 0.")] = None,
    seeds: Annotated[int, typer.Option(help="How many runs, from the seed on.")] = 1,
    looks: Annotated[int, typer.Option(help="Rounds at which L and sigma_L are taken.")] = 5,
    picture: Picture = None,
    as_json: Json = False,
) -> None:
    """Estimate L, sigma_L, sigma_G, A, c_nu, K and Delta F along a run. Reads private data."""
    with one_line_errors():
        from locksfl._validate import count

        count(**{"--seeds": seeds, "--looks": looks})
        _check_place(picture)
        config, drawn = _source(source, changes, seed)
        start_jax()
        from rich.console import Console

        from locksfl.paper.theory.estimate import NOTE, study

        with Console(stderr=True).status("") as status:
            found = study(config, arm, seeds, looks, say=status.update)
        target = picture or drawn
        if target is not None:
            from locksfl.paper.theory.picture import draw_study

            draw_study(found, config.name, target)
        if as_json:
            print(json.dumps(_plain(found.as_dict()), indent=2))
            return
        print(NOTE)
        e = found.estimates
        known = (
            f"known {e.smoothness_known:.4g}"
            if e.smoothness_known is not None
            else "a lower estimate"
        )
        lines = [
            ("L", f"{e.smoothness:.4g}  ({known}; largest seen {e.smoothness_seen:.4g})"),
            ("Delta F", f"{e.gap:.4g}  (at most; seen {e.gap_seen:.4g})"),
            ("sigma_L", f"{e.sample_spread:.4g}"),
            ("A, sigma_G", f"{e.dissimilarity:.4g}, {e.client_spread:.4g}  (mean over clients; "
             f"worst client {e.worst_dissimilarity:.4g}, {e.worst_client_spread:.4g})"),
            ("c_nu", f"{e.clip_bias:.4g}  (of the mean; worst client {e.worst_clip_bias:.4g})"),
            ("K_min, K_max", f"{e.fewest_samples}, {e.most_samples}"),
            ("d", f"{e.parameters}"),
        ]  # fmt: skip
        for name, value in lines:
            print(f"{name:<14}{value}")
        mean, total = found.weighted().mean(axis=0)[-1], found.gradient.shape[1]
        print(f"|grad F|^2    {found.gradient[:, 0].mean():.4g} before round 1; weighted mean of "
              f"{total} rounds {mean:.4g}")  # fmt: skip
        for name, values in (("mended", found.corrected), ("printed", found.printed)):
            key = "corrected" if name == "mended" else name
            told = f"{values[-1]:.4g}" if values else f"none: {found.reasons[key]}"
            print(f"{name + ' bound':<14}{told}")
        if target is not None:
            print(f"picture: {target}")


def _source(
    source: Path, changes: list[str] | None, seed: int | None
) -> tuple[Config, Path | None]:
    """The configuration to play, and where a run folder's picture goes."""
    import dataclasses

    from locksfl.experiment.config import read_config
    from locksfl.experiment.folder import RunFolder

    if not source.is_dir():
        config = read_config(source, changes or (), seed)
        return (config if config.seed is not None else dataclasses.replace(config, seed=0)), None
    if changes or seed is not None:
        raise ValueError(f"{source}: a run is looked at as it was; expected no --set, --seed")
    folder = RunFolder.open(source)
    folder.summary()  # refuses a run that is not finished
    config = folder.config
    if config.seed is None:
        raise ValueError(
            f"{source}: its randomness was secret and is gone, so its path cannot be played again; "
            f"another one can: locks theory estimate {source / 'config.toml'} --seed 0"
        )
    return config, folder.path / "theory.png"


def _check_place(picture: Path | None) -> None:
    """Before minutes of work: a picture needs a folder."""
    if picture is not None and (picture.is_dir() or not picture.parent.is_dir()):
        raise ValueError(f"--picture {picture}: expected a file in a folder that is there")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
