"""`locks tune`: clip norm, step and rounds, on public data or charged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from locksfl.cli.console import (
    Changes,
    Json,
    ProcessCount,
    argument,
    option,
    plain_table,
    say_beside,
    show,
    start_jax,
)

if TYPE_CHECKING:
    from locksfl.grids.tune.task import Task


def tune(
    file: Annotated[Path, argument("The experiment, a TOML file.")],
    public: Annotated[
        str | None, option("Try on these data, which you declare public: a name, or a folder.")
    ] = None,
    private: Annotated[
        bool, option("Try on the experiment's own clients; every trial is charged.", "--private")
    ] = False,
    clip_norm: Annotated[str | None, option("Clip norms to try.", metavar="A,B,...")] = None,
    reach: Annotated[str | None, option("Clip norm x step to try.", metavar="A,B,...")] = None,
    rounds: Annotated[str | None, option("Rounds to try, in public.", metavar="A,B,...")] = None,
    seeds: Annotated[int, option("Runs of each public trial.", min=1)] = 2,
    epsilon: Annotated[
        float | None, option("Of an arm's private trials together. Default: privacy.epsilon.")
    ] = None,
    changes: Changes = None,
    public_changes: Annotated[
        list[str] | None,
        option("Change a setting for the public data.", "--public-set", metavar="KEY=VALUE"),
    ] = None,
    out: Annotated[
        Path | None, option("The folder. Default: runs/tune-FILE, which is continued.")
    ] = None,
    processes: ProcessCount = 1,
    as_json: Json = False,
) -> None:
    """Find clip norm, step and rounds, and write FILE-tuned.toml beside the file. The same command
    goes on where it was stopped."""
    if (public is None) != private:
        raise ValueError(
            "tune: expected either --public DATA (nothing is charged) or --private (every trial is "
            "charged to privacy.population); no epsilon covers tuning on private data otherwise"
        )
    start_jax()
    from locksfl._tables import toml_table
    from locksfl._validate import count, positive
    from locksfl.experiment.config import read_text
    from locksfl.grids.tune.task import Axes, private_task, public_task

    clips, reaches = (
        _numbers(flag, text, float, positive)
        for flag, text in (("--clip-norm", clip_norm), ("--reach", reach))
    )
    axes = Axes(clips, reaches, _numbers("--rounds", rounds, int, count), seeds)
    table = toml_table(read_text(file), file)
    if public is not None:
        if epsilon is not None:
            raise ValueError(f"--epsilon {epsilon:g}: only with --private; nothing is charged here")
        task = public_task(table, changes or (), axes, public, public_changes or ())
    else:
        if public_changes:
            raise ValueError(f"--public-set {public_changes[0]}: only with --public")
        if epsilon is not None:
            positive(**{"--epsilon": epsilon})
        if processes > 1:
            raise ValueError(f"--processes {processes}: only with --public; this is one run")
        task = private_task(table, changes or (), axes, epsilon)
    _play(task, file, out or Path("runs") / f"tune-{file.stem}", processes, as_json)


def _numbers(flag: str, text: str | None, kind: type, check: Any) -> tuple[Any, ...]:
    """The numbers of a flag, each once, rising."""
    try:
        values = {kind(part) for part in text.split(",")} if text else ()
    except ValueError:
        raise ValueError(f"{flag} {text}: expected numbers such as 1,2,4") from None
    for value in values:
        check(**{flag: value})
    return tuple(sorted(values))


def _play(task: Task, file: Path, path: Path, processes: int, as_json: bool) -> None:
    import msgspec

    from locksfl._files import write_atomically
    from locksfl.cli.progress import watching
    from locksfl.experiment.folder import held
    from locksfl.grids.tune import report, trials

    tuned = file.with_name(f"{file.stem}-tuned.toml")
    if tuned.exists() and not (path / report.REPORT).is_file():
        raise ValueError(f"{tuned}: already exists; expected no such file: it is to be written")
    trials.begin(path, task)
    stopped = f"stopped; what is finished is in {path}, and the same command goes on"
    with held(path / trials.NAMED):
        with watching(lambda: stopped, as_json) as watch:
            tuning = trials.tune(task, path, watch, say_beside, processes)
        text = report.tuned_text(task, tuning)
        if tuned.exists() and tuned.read_text("utf-8") != text:
            raise ValueError(f"{tuned}: it was changed, and stays as it is; expected no such file")
        write_atomically(path / report.REPORT, report.report_text(tuning).encode())
        write_atomically(tuned, text.encode())
    lines = (
        plain_table(report.HEADS, map(report.row, tuning.arms), left=1),
        *report.notes(tuning),
        f"tuned experiment: {tuned}  (report: {path / report.REPORT})",
    )
    show(msgspec.to_builtins(tuning), as_json, lambda _: lines)
