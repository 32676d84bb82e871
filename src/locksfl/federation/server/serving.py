"""A federation's run at the server: SuperLink up, nodes known, the experiment played."""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from locksfl.arm import Arm
from locksfl.data.population import Population
from locksfl.experiment.config import Config, to_table
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.record import Line, Run, plain
from locksfl.experiment.run import Prepared, run_experiment
from locksfl.federation import logs, settings
from locksfl.federation.logs import log, logging_to
from locksfl.federation.server.allowed import policy_for, terms_line
from locksfl.federation.server.devices import Watched
from locksfl.federation.server.engine import Federation
from locksfl.federation.server.place import KeyFolder, Place
from locksfl.federation.wire import Network
from locksfl.methods import ESTIMATORS, PRIVATE, RULES, TRUSTS
from locksfl.methods.sound import either
from locksfl.models.build import Model
from locksfl.privacy.journal import experiment_id

PULL_SECONDS = 0.2
SAY_SECONDS = 60.0
IN_VAIN = 10  # rounds without any release, after which an operator should look
Say = Callable[[str], None]
OnRound = Callable[[Line], None]


def as_federation(config: Config, engine: str = "flower") -> Config:
    """The experiment, marked as one with real devices: a client that is asked may not answer."""
    trust = config.privacy.trust
    if not TRUSTS[trust].private:
        raise ValueError(
            f"privacy.trust = {trust!r}: expected {either(PRIVATE)}; no device answers without "
            "noise"
        )
    if config.privacy.accounting == "as-printed":
        raise ValueError("privacy.accounting = 'as-printed': expected 'sound' in a federation")
    for arm in config.arms:
        rule, _, _ = arm.parts
        if rule.asks is not None and not rule.released and arm.rule not in RULES:
            raise ValueError(
                f"arm.{arm.name}.rule = {arm.rule!r}: a device would decide by it, and runs no "
                f"code that a server names; expected a rule that releases the {rule.asks.name}"
            )
        if arm.estimator not in ESTIMATORS:
            raise ValueError(
                f"arm.{arm.name}.estimator = {arm.estimator!r}: a device runs no code that a "
                f"server names; expected one of {', '.join(ESTIMATORS)}"
            )
    return dataclasses.replace(config, engine=engine)


def federation_engine(
    config: Config,
    folder: RunFolder,
    seconds: float,
    network: Callable[[int], Network],
    exclude: bool = False,
    credits: bool = True,
    ready: Callable[[], None] = lambda: None,
) -> Callable[[Population, Model, list[Arm]], Federation]:
    """What `run_experiment` takes; `network` is called with the number of parameters, `ready`
    before every round: it returns when the round may begin."""

    def build(population: Population, model: Model, plans: list[Arm]) -> Federation:
        policy = policy_for(config, plans)
        logs.say(terms_line(policy), **policy)
        return Federation(
            population,
            model,
            network(model.size),
            plans,
            folder=folder.path,
            experiment=experiment_id(to_table(config)),
            privacy=config.privacy,
            seconds=seconds,
            exclude=exclude,
            credits=credits,
            ready=ready,
        )

    return build


def serve(
    config: Config,
    folder: RunFolder,
    place: Place,
    *,
    prepared: Prepared | None = None,
    resume: bool = False,
    on_round: OnRound = lambda line: None,
    on_past: OnRound = lambda line: None,
    say: Say = lambda text: None,
    started: Callable[[], None] = lambda: None,
) -> Run:
    """Play the experiment on the registered nodes. `started` is called when nodes can connect."""
    home = folder.path / "flower"
    home.mkdir(mode=0o700, exist_ok=True)
    os.environ.update(settings(home))
    from locksfl.federation.server.grid import GridNetwork
    from locksfl.federation.server.mail import Mail
    from locksfl.federation.server.patience import Patience
    from locksfl.federation.server.superlink import SuperLink

    now = KeyFolder(place.keys)

    def revoked() -> set[int]:
        valid = now.now()
        return {number for number, key in enumerate(keys) if key not in valid}

    def gone() -> dict[int, str]:
        away, left = revoked(), now.left()
        return {i: "left" if key in left else "revoked" for i, key in enumerate(keys) if i in away}

    devices: Watched
    without = 0  # rounds in a row

    def tell(line: Line) -> None:
        nonlocal without
        logs.say(round_line(line, config.train.rounds), **plain(line))
        released = any(tally.answered for tally in line.secret.stages.values())
        without = 0 if released else without + 1
        if without == IN_VAIN:
            log.warning("nothing was released in %d rounds: see locks federation status", without)
        on_round(line)

    with logging_to(place.log_format, home / "server.log"), _kept_if_begun(folder, home):
        keys = place.members(config.data.clients, home / "members.json")
        where = f"{place.host}:{place.port}"
        logs.say(f"starting a server for {len(keys)} devices on {where}", run=str(folder.path))
        say("starting the SuperLink")
        with SuperLink(home, place, list(keys)) as link, _interrupts_logged():
            nodes = link.nodes()
            started()
            _wait_for(len(nodes), lambda: link.seen().keys() | revoked(), place.wait, say)
            with link.run() as run:

                def ready() -> None:
                    devices.check_willing()
                    _enough_wait(
                        lambda: link.waiting() - revoked(), place.min_waiting, len(keys), link.check
                    )

                def watched(size: int) -> Watched:
                    nonlocal devices
                    mail, names = Mail(link.call, run, size), list(keys.values())
                    local = TRUSTS[config.privacy.trust].guards_server
                    patience = Patience(place.quorum, link.seen if local else None)
                    network = GridNetwork(
                        mail, nodes, size, check=link.check, revoked=revoked, patience=patience
                    )
                    devices = Watched(network, names, folder.path, place.seconds, link.seen, gone)
                    return devices

                engine = federation_engine(
                    config,
                    folder,
                    place.seconds,
                    watched,
                    place.exclude,
                    credits=False,
                    ready=ready,
                )
                played = run_experiment(
                    config,
                    folder,
                    prepared=prepared,
                    resume=resume,
                    on_round=tell,
                    on_past=on_past,
                    say=say,
                    engine=engine,
                )
        logs.say("the run is finished")
        return played


def round_line(line: Line, rounds: int) -> str:
    """A round in one line: for each stage what became of its questions, and the score."""
    told = []
    for stage, tally in line.secret.stages.items():
        refused = [f"{count} refused {code}" for code, count in tally.refused.items()]
        unsound = (("rejected", tally.rejected), ("missing", tally.missing))
        others = [f"{count} {name}" for name, count in unsound if count]
        answered = f"{stage} {tally.answered} of {tally.asked} answered"
        told.append(", ".join([answered, *refused, *others]))
    if line.score is not None:
        told.append(f"score {line.score:.3f}")
    return f"round {line.round} of {rounds} of {line.arm}: {'; '.join(told)}"


@contextmanager
def _kept_if_begun(folder: RunFolder, home: Path) -> Iterator[None]:
    """Log why a run ended, if it was not its end; nothing is kept of a run that has not begun."""
    try:
        yield
    except Exception as error:
        log.error("the run has stopped: %s", error)
        raise
    finally:
        if not folder.begun:
            shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _interrupts_logged() -> Iterator[None]:
    """At once: what has to be ended after it may take its time."""
    try:
        yield
    except KeyboardInterrupt:
        log.warning("the run has stopped: Ctrl-C or SIGTERM at the server")
        raise


def _enough_wait(
    here: Callable[[], Collection[int]], least: int, count: int, check: Callable[[], None]
) -> None:
    """Wait until so many of all devices wait for a question, and say every minute that they do
    not. No coin of the round has been tossed yet, so who waits decides when a round begins, and
    neither whether it is played nor whom it asks."""
    due = time.monotonic() + SAY_SECONDS
    while (waiting := len(here())) < least:
        check()
        if time.monotonic() >= due:
            due += SAY_SECONDS
            log.warning(
                "%d of %d devices are waiting, expected %d (--min-waiting): no round begins, and "
                "nobody is charged",
                *(waiting, count, least),
            )
        time.sleep(PULL_SECONDS)


def _wait_for(count: int, known: Callable[[], Collection[int]], wait: float, say: Say) -> None:
    """Wait until of all it is `known` that they are here, or will not be, or the time is up: a
    round continues with those that answer. With nobody, no run begins."""
    ends, before = time.monotonic() + wait, None
    while (missing := count - len(known())) and time.monotonic() < ends:
        say(told := f"waiting for {missing} of {count} nodes")
        if told != before:
            logs.say(told)
        before = told
        time.sleep(0.3)
    if missing == count:
        raise ValueError(
            f"--wait {wait:g}: none of {count} devices has called; expected at least one (start "
            "them, or wait for longer)"
        )
    if missing:
        log.warning("%d of %d devices have not called: the run begins without them", missing, count)
