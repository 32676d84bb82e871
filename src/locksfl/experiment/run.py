"""An experiment from its configuration to its run folder: every arm on the same data, resumable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from locksfl._arrays import pack_arrays
from locksfl._validate import naming
from locksfl.arm import Arm
from locksfl.data.datasets import open_population
from locksfl.data.population import Population
from locksfl.experiment.config import Config, LocalConfig, PrivacyConfig, TrainConfig, to_table
from locksfl.experiment.costs import epsilon_so_far, statement
from locksfl.experiment.diagnostics import compared_clients, likeness, measuring_key
from locksfl.experiment.folder import RunFolder, environment, write_atomically
from locksfl.experiment.plan import claimed_epsilon, plan_arms
from locksfl.experiment.records import DIAGNOSTICS_NOTE, diagnostics_record, round_record
from locksfl.experiment.report import draw_diagnostics, draw_figure
from locksfl.models.build import Model, build_model
from locksfl.models.features import with_features
from locksfl.models.own import check_model, own_model
from locksfl.privacy import spent
from locksfl.privacy.forecast import forecast_line
from locksfl.privacy.journal import Books, experiment_id, header, same_experiment
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.ledger import CHECKPOINT
from locksfl.round.client import LocalWork
from locksfl.round.randomness import Randomness
from locksfl.round.server import Server, ServerState
from locksfl.simulate.simulator import BlockLog, Simulator

Record = dict[str, Any]


def open_task(config: Config) -> tuple[Population, Model]:
    """The data, dealt to clients, and the model."""
    data = config.data
    settings = {name: f"data.split.{name}" for name in data.split.options()}
    with naming(clients="data.clients", data_dir="data.dir", **settings):
        population = open_population(
            data.name,
            data.clients,
            data.split.kind,
            data.split.options(),
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
    if ":" in name:
        model = own_model(name, shape, classes, options)
    else:
        model = build_model(name, shape, classes, **options)
    check_model(model, shape, classes, population.labels.shape[1:])
    return model


def local_work(local: LocalConfig) -> LocalWork:
    """The configured local work, defaults filled in."""
    given = {k: v for k, v in dataclasses.asdict(local).items() if v is not None}
    return LocalWork(**given)


def server_for(train: TrainConfig, rounds: int | None = None) -> Server:
    """The configured server step, for an arm of so many rounds."""
    rounds = rounds or train.rounds
    momentum = {} if train.optimizer.momentum is None else {"momentum": train.optimizer.momentum}
    return Server(
        optimizer=train.optimizer.name,
        schedule=train.optimizer.schedule,
        rounds=rounds,
        average_last=min(train.average_last, rounds),
        **momentum,
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
        plan: Arm,
        work: LocalWork,
        server: Server,
        randomness: Randomness,
        *,
        evaluate_every: int = 1,
        state: ServerState | None = None,
        first_round: int = 0,
        released: tuple[np.ndarray, np.ndarray] | None = None,
        pause_every: int = 0,
    ) -> Iterator[BlockLog]:
        """Play the rounds from `first_round` on, block by block."""


@dataclass
class Progress:
    """Where a run stands: exactly what a checkpoint holds."""

    entropy: int
    plans: list[Arm]
    books: Books  # the ledger; a federation's are those of its journal
    arms: list[Record] = field(default_factory=list)  # the finished ones
    rounds_done: int = 0  # of the arm at work
    totals: Record = field(default_factory=dict)  # of the arm at work
    state: list[np.ndarray] = field(default_factory=list)

    def save(self, folder: RunFolder, simulated: bool, finished: bool = False) -> None:
        """Write it all in one atomic file. A finished run needs its secret no more: it goes."""
        books, counts = self.books.pack()
        meta = {
            "entropy": None if simulated or finished else hex(self.entropy),
            "multipliers": [[p.noise_multiplier, p.norm_multiplier] for p in self.plans],
            "arms": self.arms,
            "rounds_done": self.rounds_done,
            "totals": self.totals,
            "ledger": books,
        }
        arrays = {f"state_{i}": leaf for i, leaf in enumerate(self.state)}
        folder.save_checkpoint(meta, {**arrays, **counts})

    def follow(self, journal: Journal | None) -> None:
        """Take a federation's own journal for the ledger. One that is older than the checkpoint,
        or another one, is refused."""
        if journal is None:
            return
        if self.books.number and not journal.holds(self.books.head):
            raise ValueError(f"{journal.path}: not the ledger of this checkpoint, or an old copy")
        self.books = journal.books

    @classmethod
    def load(cls, folder: RunFolder, config: Config) -> Progress:
        """The inverse of `save`."""
        meta, arrays = folder.load_checkpoint()
        path = folder.path / CHECKPOINT
        books = Books.unpack(meta["ledger"], arrays, path)
        same_experiment(books.header["experiment"], experiment_id(to_table(config)), path)
        done = len(meta["arms"]) == len(config.arm)  # then no draw is left to make
        if config.seed is None and meta["entropy"] is None and not done:
            raise ValueError(f"{folder.path}: the checkpoint has lost its random source")
        leaves = sorted((n for n in arrays if n.startswith("state_")), key=lambda n: int(n[6:]))
        return cls(
            entropy=int(meta["entropy"] or "0", 16) if config.seed is None else config.seed,
            plans=plan_arms(config, meta["multipliers"]),
            books=books,
            arms=meta["arms"],
            rounds_done=meta["rounds_done"],
            totals=meta["totals"],
            state=[arrays[name] for name in leaves],
        )


def ledger_header(experiment: str, plans: Sequence[Arm], privacy: PrivacyConfig) -> Record:
    """What it takes to turn the ledger's counts into epsilons, for every home of a ledger."""
    return header(
        experiment,
        [(plan, claimed_epsilon(plan, privacy)) for plan in plans],
        delta=privacy.delta,
        relation=privacy.relation,
        accountant=privacy.accountant,
        accounting=privacy.accounting,
    )


@dataclass(frozen=True)
class Prepared:
    """An experiment whose data are open and whose noise is known: it can begin."""

    population: Population
    model: Model
    plans: list[Arm]

    def warnings(self) -> list[str]:
        """What a user should hear before any budget is spent."""
        hopeless = (forecast_line(plan, self.model.size) for plan in self.plans)
        return [
            *(line for plan in self.plans for line in plan.warnings()),
            *(line for line in hopeless if line is not None),
        ]


def prepare(config: Config, say: Callable[[str], None] = lambda text: None) -> Prepared:
    """Everything that can be refused, before anything is written."""
    say("calibrating the noise")
    plans = plan_arms(config)
    say("opening the data")
    return Prepared(*open_task(config), plans)


def run_experiment(
    config: Config,
    folder: RunFolder,
    *,
    prepared: Prepared | None = None,
    resume: bool = False,
    on_round: Callable[[Record], None] = lambda record: None,
    say: Callable[[str], None] = lambda text: None,
    engine: Callable[[Population, Model, list[Arm]], Engine] | None = None,
) -> Record:
    """Train every arm and fill the folder; the summary. Without an `engine`: the simulator."""
    simulated = config.seed is not None
    if resume:
        progress = Progress.load(folder, config)
        say("opening the data")
        population, model = open_task(config)
    else:
        prepared = prepared or prepare(config, say)
        population, model = prepared.population, prepared.model
        source = Randomness.from_system() if config.seed is None else Randomness.seeded(config.seed)
        identity = experiment_id(to_table(config))
        books = Books(ledger_header(identity, prepared.plans, config.privacy))
        progress = Progress(source.entropy, prepared.plans, books)
        if engine is None:
            folder.append("diagnostics.jsonl", [DIAGNOSTICS_NOTE])
        folder.write_json("environment.json", environment([str(d) for d in jax.devices()]))
        progress.save(folder, simulated)
    randomness = Randomness(progress.entropy, simulated)
    player: Engine
    player = engine(population, model, progress.plans) if engine else Simulator(population, model)
    with player.journal or nullcontext():
        progress.follow(player.journal)
        for plan in progress.plans[len(progress.arms) :]:
            _run_arm(config, folder, plan, player, randomness, progress, on_round, say)
    summary = _summary(config, progress)
    draw_figure(folder, summary)
    if config.diagnostics.every and player.simulates:
        draw_diagnostics(folder, summary)
    progress.save(folder, simulated, finished=True)
    folder.write_json("summary.json", summary)
    return summary


def _run_arm(
    config: Config,
    folder: RunFolder,
    plan: Arm,
    engine: Engine,
    randomness: Randomness,
    progress: Progress,
    on_round: Callable[[Record], None],
    say: Callable[[str], None],
) -> None:
    """Play one arm to its end, a checkpoint after every block."""
    model, server = engine.model, server_for(config.train, plan.rounds)
    say(f"compiling {plan.name}")
    state = restore(server, model, progress.state)
    counts = progress.books.counts(plan.name)
    blocks = engine.play(
        plan,
        local_work(config.local),
        server,
        randomness,
        evaluate_every=config.train.evaluate_every,
        state=state,
        first_round=progress.rounds_done,
        released=(counts.norms.copy(), counts.uploads.copy()),
        pause_every=config.diagnostics.every,
    )
    for block in blocks:
        epsilons = epsilon_so_far(plan, config.privacy, [r.round for r in block.rounds])
        pairs = zip(block.rounds, epsilons, strict=True)
        records = [round_record(plan, log, model.size, epsilon) for log, epsilon in pairs]
        folder.append("rounds.jsonl", records)
        if engine.simulates:
            seen = diagnostics_lines(config, cast(Simulator, engine), plan, randomness, block)
            folder.append("diagnostics.jsonl", seen)
        _add(progress, plan, block, records, engine.journal)
        progress.save(folder, randomness.simulated)
        state = block.state
        for record in records:
            on_round(record)
    if state is None:
        raise AssertionError("an arm has at least one round")
    weights = np.asarray(server.model(state, plan.rounds))
    _save_model(folder, plan.name, config, weights)
    progress.arms.append(_arm_summary(config, plan, progress))
    progress.rounds_done, progress.totals, progress.state = 0, {}, []
    progress.save(folder, randomness.simulated)


def diagnostics_lines(
    config: Config, simulator: Simulator, plan: Arm, randomness: Randomness, block: BlockLog
) -> list[Record]:
    """What only a simulation can see of a block; at its end, where that is due, how alike the
    clients are."""
    lines = [diagnostics_record(plan, log) for log in block.rounds]
    done = block.rounds[-1].round + 1
    if config.diagnostics.every and done % config.diagnostics.every == 0:
        sizes = simulator.population.sizes
        lines[-1]["likeness"] = likeness(
            simulator.model,
            block.state.weights,
            simulator.records,
            sizes,
            compared_clients(len(sizes), config.diagnostics.clients),
            measuring_key(randomness.arm_key(plan.name), done),
            local_work(config.local),
        )
    return lines


def restore(server: Server, model: Model, leaves: list[np.ndarray]) -> ServerState | None:
    """The server's state from the arrays of a checkpoint; None before the first round."""
    if not leaves:
        return None
    like = jax.eval_shape(server.init, jax.ShapeDtypeStruct((model.size,), jnp.float32))
    state: ServerState = jax.tree.unflatten(
        jax.tree.structure(like), [jnp.asarray(leaf) for leaf in leaves]
    )
    return state


def _add(
    progress: Progress,
    plan: Arm,
    block: BlockLog,
    records: list[Record],
    journal: Journal | None,
) -> None:
    """Take a block into the totals and the ledger, unless the engine keeps that itself."""
    totals = progress.totals
    for name in ("cohort", "uploads", "bytes_up", "bytes_down"):
        totals[name] = totals.get(name, 0) + sum(record[name] for record in records)
    totals["seconds"] = totals.get("seconds", 0.0) + block.seconds
    totals["compile_seconds"] = totals.get("compile_seconds", 0.0) + block.compile_seconds
    for name in ("accuracy", "loss", "exhausted"):
        totals[name] = records[-1][name]
    for record in records:
        for stage, tally in record.get("stages", {}).items():
            kept = totals.setdefault("stages", {}).setdefault(stage, [0, 0])
            kept[0] += tally["answered"]
            kept[1] += tally["asked"]
    progress.follow(journal)
    if journal is None:
        for log in block.rounds:
            number = log.round + 1
            progress.books.enter_round(plan.name, number, log.cohort, log.uploaded, log.received)
    progress.rounds_done += len(block.rounds)
    progress.state = [np.asarray(leaf) for leaf in jax.tree.leaves(block.state)]


def _save_model(folder: RunFolder, arm: str, config: Config, weights: np.ndarray) -> None:
    meta = {**config.model.arguments(), "model": config.model.name, "data": config.data.name}
    write_atomically(folder.path / f"model-{arm}.npz", pack_arrays(meta, {"weights": weights}))


def _arm_summary(config: Config, plan: Arm, progress: Progress) -> Record:
    privacy, totals = config.privacy, progress.totals
    costs = statement([plan], [plan.rounds], privacy)
    so_far = spent([progress.books.counts(plan.name)], privacy.delta, privacy.accountant)
    return {
        "name": plan.name,
        "rule": plan.method.rule,
        "estimator": plan.method.estimator,
        "trust": plan.method.trust,
        "rounds": plan.rounds,
        "asked_rounds": config.train.rounds,  # more than `rounds`: max_epsilon ended it, blindly
        "accuracy": totals["accuracy"],
        "loss": totals["loss"],
        "cohort": totals["cohort"],
        "uploads": totals["uploads"],
        "bytes_up": totals["bytes_up"],
        "bytes_down": totals["bytes_down"],
        "seconds": totals["seconds"],
        "compile_seconds": totals["compile_seconds"],
        "clip_norm": plan.clip_norm,
        "step": plan.step,
        "noise_multiplier": plan.noise_multiplier if plan.private else None,
        "norm_multiplier": plan.norm_multiplier or None,
        "exhausted": totals.get("exhausted"),  # clients that could not pay in the last round
        "answered": _answered(totals),
        "claimed_epsilon": claimed_epsilon(plan, privacy),
        "privacy": [cost.as_dict() for cost in costs],
        "spent_so_far": [cost.as_dict() for cost in so_far],  # never the guarantee
    }


def _answered(totals: Record) -> dict[str, float] | None:
    """For each stage of a federation's rounds, the share of the questions that was answered."""
    if "stages" not in totals:
        return None
    return {stage: came / max(1, asked) for stage, (came, asked) in totals["stages"].items()}


def _summary(config: Config, progress: Progress) -> Record:
    plans, privacy = progress.plans, config.privacy
    composed = statement(plans, [plan.rounds for plan in plans], privacy)
    counts = [progress.books.counts(plan.name) for plan in plans]
    so_far = spent(counts, privacy.delta, privacy.accountant)
    return {
        "name": config.name,
        "experiment": progress.books.header["experiment"],
        "engine": config.engine,
        "simulated": config.seed is not None,
        "tuned_without_privacy": privacy.tuned_without_privacy,
        "accounting": privacy.accounting,
        "no_guarantee": privacy.accounting == "as-printed",
        "filter": privacy.filter,
        "arms": progress.arms,
        "all_arms_composed": [cost.as_dict() for cost in composed],
        "all_arms_spent_so_far": [cost.as_dict() for cost in so_far],
    }
