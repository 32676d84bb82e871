"""An experiment from its configuration to its run folder: every arm on the same data, resumable."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from msgspec import structs

from locksfl._files import write_atomically
from locksfl._tables import Record
from locksfl._validate import naming
from locksfl.arm import Arm
from locksfl.data.datasets import held_out_population, open_population
from locksfl.data.population import Population
from locksfl.experiment import coverage, records
from locksfl.experiment.config import Config, PrivacyConfig, TrainConfig, to_table
from locksfl.experiment.costs import epsilon_so_far
from locksfl.experiment.diagnostics import compared_clients, likeness
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.metrics import score_by_client
from locksfl.experiment.outcome import Facts, finished, run_of
from locksfl.experiment.page import ServerFacts, draw_page
from locksfl.experiment.page.story import of_run
from locksfl.experiment.plan import claimed_epsilon, plan_arms
from locksfl.experiment.progress import TIMES, Progress
from locksfl.experiment.record import Debit, Line, Run, plain
from locksfl.experiment.report import draw_diagnostics, draw_figure
from locksfl.experiment.resuming import machine_of, sealed
from locksfl.methods import TRUSTS
from locksfl.methods.cyclic import check_secret
from locksfl.models.build import Model, with_task
from locksfl.models.fitted import Fitted
from locksfl.models.own import check_model, make_model
from locksfl.models.public_features import with_features
from locksfl.privacy.forecast import forecast_line
from locksfl.privacy.journal import Books, Header, experiment_id
from locksfl.privacy.journal_file import Journal
from locksfl.round.client import LocalWork
from locksfl.round.control import first_state
from locksfl.round.randomness import Purpose, Randomness, draw_key
from locksfl.round.server import Server, ServerState
from locksfl.simulate.simulator import BlockLog, Simulator


def open_task(config: Config) -> tuple[Population, Model]:
    """The data, dealt to clients, and the model."""
    data, options = config.data, config.data.split.options()
    settings = {name: f"data.split.{name}" for name in options}
    if config.engine is not None and data.split.kind == "natural":  # clients are the devices
        held_out = held_out_population(data.name, data.dir)
        held_out = with_features(held_out, config.features.name, config.features.file)
        return held_out, model_for(config, held_out)
    with naming(clients="data.clients", data_dir="data.dir", **settings):
        population = open_population(
            data.name,
            data.clients,
            data.split.kind,
            options,
            data.split_seed,
            data.dir,
            min_samples=data.min_samples,
            max_samples=data.max_samples,
        )
    population = with_features(population, config.features.name, config.features.file)
    return population, model_for(config, population)


def model_for(config: Config, population: Population) -> Model:
    """The configured model for these records, checked on made-up ones."""
    name, options = config.model.name, config.model.arguments()
    shape, classes = population.features.shape[1:], population.classes
    model = make_model(name, shape, classes, options)
    check_model(model, shape, classes, population.positions)
    return with_task(model, population.task)


def server_for(train: TrainConfig, rounds: int | None = None) -> Server:
    """The configured server step, for an arm of so many rounds."""
    rounds = rounds or train.rounds
    options = train.optimizer.given()
    del options["step"]  # of each arm
    return Server(
        options.pop("name"), rounds=rounds, average_last=min(train.average_last, rounds), **options
    )


class Engine(Protocol):
    """What plays an arm's rounds: the simulator, or a federation."""

    model: Model
    simulates: bool  # it sees what no server can, and logs it apart

    @property
    def journal(self) -> Journal | None:
        """A ledger of its own, on disk before anybody is asked."""

    def play(
        self,
        arm: Arm,
        work: LocalWork,
        server: Server,
        randomness: Randomness,
        /,
        *,
        evaluate_every: int = 1,
        state: ServerState | None = None,
        first_round: int = 0,
        released: tuple[np.ndarray, np.ndarray] | None = None,
        pause_every: int = 0,
        counts: Sequence[float] = (),
    ) -> Iterator[BlockLog]:
        """Play the rounds from `first_round` on, block by block."""


def ledger_header(experiment: str, arms: Sequence[Arm], privacy: PrivacyConfig) -> Header:
    """What it takes to turn the ledger's counts into epsilons, for every home of a ledger."""
    claims = [(arm, claimed_epsilon(arm, privacy)) for arm in arms]
    names = ("delta", "relation", "accountant", "accounting")
    return Header.of(experiment, claims, **{name: getattr(privacy, name) for name in names})


@dataclass(frozen=True)
class Prepared:
    """An experiment whose data are open and whose noise is known: it can begin."""

    population: Population
    model: Model
    arms: list[Arm]

    def warnings(self) -> list[str]:
        """What a user should hear before any budget is spent."""
        hopeless = (forecast_line(arm, self.model.size) for arm in self.arms)
        of_arms = (line for arm in self.arms for line in arm.warnings())
        return [line for line in (*of_arms, *hopeless) if line is not None]


def prepare(config: Config, say: Callable[[str], None] = lambda text: None) -> Prepared:
    """Everything that can be refused, before anything is written."""
    if config.engine is None:  # the devices of a federation have records of their own
        config.data.check_unit(simulated=config.seed is not None)
        if config.diagnostics.every and not shows_diagnostics(config):
            raise ValueError(
                f"diagnostics.every = {config.diagnostics.every}: it shows what is released to "
                "nobody; expected 0, or a simulation (seed)"
            )
    say("calibrating the noise")
    arms = plan_arms(config)
    if config.seed is None:
        check_secret(arms)
    coverage.check(config, arms)
    say("opening the data")
    population, model = open_task(config)
    if config.train.stop_after is not None and not population.test_public:
        raise ValueError(
            f"train.stop_after = {config.train.stop_after}: the held-out records are people's, and "
            "when to stop would tell of them, charged to nobody; expected a public test set "
            "(locks data import --test FILE --test-public), or no stop_after"
        )
    return Prepared(population, model, arms)


def run_experiment(
    config: Config,
    folder: RunFolder,
    *,
    prepared: Prepared | None = None,
    resume: bool = False,
    on_round: Callable[[Line], None] = lambda line: None,
    on_past: Callable[[Line], None] = lambda line: None,
    say: Callable[[str], None] = lambda text: None,
    engine: Callable[[Population, Model, list[Arm]], Engine] | None = None,
) -> Run:
    """Train every arm and fill the folder; the run. Without an `engine`: the simulator. Of a run
    that is resumed, `on_past` hears of the rounds that were played before."""
    if resume:
        say("opening the data")
        population, model = open_task(config)
        progress = Progress.load(folder, config, population, model)
        for line in progress.lines:
            on_past(line)
    else:
        prepared = prepared or prepare(config, say)
        population, model = prepared.population, prepared.model
        progress = _begun(config, folder, prepared)
        if engine is None and shows_diagnostics(config):
            _append_seen(folder, progress, [records.DIAGNOSTICS_NOTE])
        progress.save(folder)
    player: Engine
    player = engine(population, model, progress.arms) if engine else Simulator(population, model)
    with player.journal or nullcontext():
        progress.follow(player.journal)
        if progress.remaining:  # nothing can be refused any more, and nothing has been drawn
            noted = coverage.debit(config, progress.arms, progress.run, progress.noted)
            progress.noted = noted
        for arm in progress.remaining:
            say(f"compiling {arm.name}")
            _run_arm(config, folder, arm, population, player, progress, on_round)
    debit = None
    if progress.noted is not None:
        debit = Debit(id=str(config.privacy.population), run=progress.run, head=progress.noted)
    facts = Facts.of(population, model)
    left = (progress.arms, progress.books, progress.lines, progress.done, facts)
    run = run_of(config, *left, debit)
    story = of_run(run, config)
    draw_figure(folder.path, story)
    if config.diagnostics.every and player.simulates and shows_diagnostics(config):
        draw_diagnostics(folder.path, story, progress.seen)
    progress.save(folder, finished=True)
    if debit is not None:  # no round can follow any more
        played = [arm.played for arm in run.public.arms]
        debit = coverage.settle(config, progress.arms, played, debit)
        run = structs.replace(run, secret=structs.replace(run.secret, population=debit))
    known = ServerFacts(config, progress.books, progress.seen, folder.environment)
    draw_page(folder.path, of_run(run, config), known)
    folder.write_json("summary.json", plain(run))
    return run


def _begun(config: Config, folder: RunFolder, prepared: Prepared) -> Progress:
    """Before the first round: what must be found unchanged when the run goes on."""
    population, model = prepared.population, prepared.model
    source = Randomness.from_system() if config.seed is None else Randomness.seeded(config.seed)
    identity = experiment_id(to_table(config))
    books = Books(ledger_header(identity, prepared.arms, config.privacy))
    key = secrets.token_bytes(32)
    seal = (key.hex(), sealed(config, population, key))
    machine = machine_of(config, population, model)
    folder.write_environment([str(d) for d in jax.devices()])
    return Progress(source, prepared.arms, books, data=seal, machine=machine)


def _append_seen(folder: RunFolder, progress: Progress, lines: list[Record]) -> None:
    folder.append("diagnostics.jsonl", lines)
    progress.seen += lines


def _run_arm(
    config: Config,
    folder: RunFolder,
    arm: Arm,
    population: Population,
    engine: Engine,
    progress: Progress,
    on_round: Callable[[Line], None],
) -> None:
    """Play one arm to its end, a checkpoint after every block."""
    model, server = engine.model, server_for(config.train, arm.rounds)
    work = config.local.work()
    state = restore(server, model, progress.state, arm, work)
    counts = progress.books.counts(arm.name)
    played = [line for line in progress.lines if line.arm == arm.name]
    patience, pause = config.train.stop_after, config.diagnostics.every
    if patience is not None:  # a block ends wherever the run may
        pause = math.gcd(pause, config.train.evaluate_every)
    blocks = engine.play(
        arm,
        work,
        server,
        progress.randomness,
        evaluate_every=config.train.evaluate_every,
        state=state,
        first_round=progress.rounds_done,
        released=(counts.norms.copy(), counts.uploads.copy()),
        pause_every=pause,
        counts=[line.secret.released.uploads or 0.0 for line in played] if arm.controlled else (),
    )
    for block in () if records.stalled(played, patience) else blocks:
        epsilons = epsilon_so_far(arm, config.privacy, [r.round for r in block.rounds])
        pairs = zip(block.rounds, epsilons, strict=True)
        lines = [records.round_line(arm, *pair, population.test_public) for pair in pairs]
        folder.append("rounds.jsonl", map(plain, lines))
        played += lines
        progress.lines += lines
        ends = records.stalled(played, patience)
        if engine.simulates and shows_diagnostics(config):
            simulator = cast(Simulator, engine)
            seen = diagnostics_lines(config, simulator, arm, progress.randomness, block)
            if ends or lines[-1].round == arm.rounds:  # how the model serves each of the clients
                some = compared_clients(population.clients, config.diagnostics.clients)
                final = server.model(block.state, arm.rounds)
                seen[-1]["by_client"] = score_by_client(model, final, population, some)
            _append_seen(folder, progress, seen)
        progress.add(arm, block, engine.journal)
        progress.save(folder)
        state = block.state
        for line in lines:
            on_round(line)
        if ends:
            break
    if state is None:
        raise AssertionError("an arm has at least one round")
    weights = np.asarray(server.model(state, arm.rounds))
    made = Fitted(model, weights, population.scale, population.encoding, recipe=population.recipe)
    write_atomically(folder.path / f"model-{arm.name}.npz", made.packed())
    progress.done.append(finished(arm, made, population, config.public(), progress.totals))
    progress.rounds_done, progress.totals, progress.state = 0, dict.fromkeys(TIMES, 0.0), []
    progress.save(folder)


def shows_diagnostics(config: Config) -> bool:
    """Whether a run may tell what was never released: a simulation, or one without privacy."""
    return config.seed is not None or not TRUSTS[config.privacy.trust].private


def diagnostics_lines(
    config: Config, simulator: Simulator, arm: Arm, randomness: Randomness, block: BlockLog
) -> list[Record]:
    """What only a simulation can see of a block; at its end, where that is due, how alike the
    clients are."""
    lines = [records.diagnostics_record(arm, log) for log in block.rounds]
    done = block.rounds[-1].round + 1
    if config.diagnostics.every and done % config.diagnostics.every == 0:
        sizes = simulator.population.sizes
        lines[-1]["likeness"] = likeness(
            simulator.model,
            block.state.weights,
            simulator.records,
            sizes,
            compared_clients(len(sizes), config.diagnostics.clients),
            draw_key(randomness.arm_key(arm.name), done, Purpose.LOCAL),  # the next round's
            config.local.work(),
        )
    return lines


def restore(
    server: Server,
    model: Model,
    leaves: list[np.ndarray],
    arm: Arm,
    work: LocalWork,
) -> ServerState | None:
    """The server's state from the arrays of a checkpoint of an arm; None before the first round."""
    if not leaves:
        return None
    weights = jax.ShapeDtypeStruct((model.size,), jnp.float32)
    like = jax.eval_shape(lambda first: first_state(server, first, arm, work), weights)
    state: ServerState = jax.tree.unflatten(jax.tree.structure(like), map(jnp.asarray, leaves))
    return state
