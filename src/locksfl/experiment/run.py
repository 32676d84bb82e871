"""An experiment from its configuration to its run folder: every arm on the same data, resumable."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from locksfl._files import write_atomically
from locksfl._tables import Record
from locksfl._validate import naming
from locksfl.arm import Arm, Noise
from locksfl.data.datasets import held_out_population, open_population
from locksfl.data.population import Population
from locksfl.experiment import coverage, records
from locksfl.experiment.config import Config, PrivacyConfig, TrainConfig, to_table
from locksfl.experiment.costs import epsilon_so_far, statement
from locksfl.experiment.diagnostics import compared_clients, likeness
from locksfl.experiment.folder import RunFolder, environment
from locksfl.experiment.metrics import held_out_metrics, score_by_client
from locksfl.experiment.page import draw_page
from locksfl.experiment.plan import claimed_epsilon, plan_arms
from locksfl.experiment.report import draw_diagnostics, draw_figure
from locksfl.experiment.resuming import changes, machine_of, sealed
from locksfl.experiment.statement import unit_text
from locksfl.methods import TRUSTS
from locksfl.methods.cyclic import check_secret
from locksfl.models.build import Model, with_task
from locksfl.models.fitted import Fitted
from locksfl.models.own import check_model, make_model
from locksfl.models.public_features import with_features
from locksfl.privacy import spent
from locksfl.privacy.forecast import forecast_line
from locksfl.privacy.journal import EVERYBODY, Books, Entry, Header, experiment_id, same_experiment
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.ledger import CHECKPOINT
from locksfl.privacy.terms import LedgerArm
from locksfl.round.client import LocalWork
from locksfl.round.control import first_state
from locksfl.round.randomness import Purpose, Randomness, draw_key
from locksfl.round.server import Server, ServerState
from locksfl.simulate.simulator import BlockLog, Simulator

TIMES = ("seconds", "compile_seconds")


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


@dataclass
class Progress:
    """Where a run stands: exactly what a checkpoint holds."""

    randomness: Randomness
    arms: list[Arm]
    books: Books  # the ledger; a federation's are those of its journal
    finished: list[Record] = field(default_factory=list)  # the summaries of the finished arms
    rounds_done: int = 0  # of the arm at work
    totals: Record = field(default_factory=lambda: dict.fromkeys(TIMES, 0.0))  # of the arm at work
    state: list[np.ndarray] = field(default_factory=list)
    data: tuple[str, str] | None = None  # a secret key, and the keyed hash `sealed`; both in hex
    machine: dict[str, str] = field(default_factory=dict)  # how it rounds (resuming.machine_of)
    run: str = field(default_factory=lambda: secrets.token_hex(16))  # its id in a journal of runs
    noted: str | None = None  # the head of that journal when this run was debited

    def save(self, folder: RunFolder, finished: bool = False) -> None:
        """Write it all in one atomic file. A finished run needs its secret no more: it goes."""
        books, counts = self.books.pack()
        public = self.randomness.simulated or finished
        meta = {
            "entropy": None if public else hex(self.randomness.entropy),
            "data": None if finished else self.data,
            "machine": self.machine,
            "run": self.run,
            "noted": self.noted,
            "multipliers": [arm.noise.numbers for arm in self.arms],
            "arms": self.finished,
            "rounds_done": self.rounds_done,
            "totals": self.totals,
            "ledger": books,
        }
        arrays = {f"state_{i}": leaf for i, leaf in enumerate(self.state)}
        folder.save_checkpoint(meta, {**arrays, **counts})

    def follow(self, journal: Journal | None) -> None:
        """Take a federation's own journal for the ledger. One that is older than the checkpoint,
        or another one, is refused."""
        if journal is None or journal.books is self.books:  # followed already
            return
        known = journal.holds(self.books.head) if self.books.number else True
        if not known or not journal.books.covers(self.books):
            raise ValueError(f"{journal.path}: not the ledger of this checkpoint, or an old copy")
        self.books = journal.books

    def add(self, arm: Arm, block: BlockLog, journal: Journal | None) -> None:
        """Take in a block; its releases too, unless the engine's own journal has them."""
        for name in TIMES:
            self.totals[name] += getattr(block, name)
        self.follow(journal)
        if journal is None:
            for log in block.rounds:
                number = log.round + 1
                if log.cohort is None or log.uploaded is None:  # every client, drawn or not
                    self.books.enter(Entry(arm.name, number, "reserve", EVERYBODY))
                else:
                    self.books.enter_round(arm.name, number, log.cohort, log.uploaded, log.received)
        self.rounds_done += len(block.rounds)
        self.state = [np.asarray(leaf) for leaf in jax.tree.leaves(block.state)]

    @classmethod
    def load(cls, folder: RunFolder, config: Config) -> Progress:
        """The inverse of `save`."""
        meta, arrays = folder.load_checkpoint()
        path = folder.path / CHECKPOINT
        books = Books.unpack(meta["ledger"], arrays, path)
        same_experiment(books.header.experiment, experiment_id(to_table(config)), path)
        done = len(meta["arms"]) == len(config.arm)  # then no draw is left to make
        if config.seed is None and meta["entropy"] is None and not done:
            raise ValueError(f"{folder.path}: the checkpoint has no random state")
        arms = plan_arms(config, [Noise.of(each) for each in meta["multipliers"]])
        pairs = zip(arms, books.header.arms, strict=True)
        if any(LedgerArm.of(arm, began.claimed_epsilon) != began for arm, began in pairs):
            raise ValueError(
                f"{path}: a rule or an estimator no longer states what it did when the run began; "
                "expected the code as it was, or a new run"
            )
        secret = Randomness(int(meta["entropy"] or "0", 16), simulated=False)
        return cls(
            randomness=secret if config.seed is None else Randomness.seeded(config.seed),
            arms=arms,
            books=books,
            finished=meta["arms"],
            rounds_done=meta["rounds_done"],
            totals=dict.fromkeys(TIMES, 0.0) | meta["totals"],
            state=[
                arrays[f"state_{i}"] for i in range(sum(n.startswith("state_") for n in arrays))
            ],
            data=meta.get("data"),  # checkpoints of version 0.1 have none of these
            machine=meta.get("machine", {}),
            run=meta.get("run") or secrets.token_hex(16),
            noted=meta.get("noted"),
        )

    @property
    def remaining(self) -> list[Arm]:
        """The arms that are not finished."""
        return self.arms[len(self.finished) :]

    def check_same(
        self, config: Config, population: Population, model: Model, folder: RunFolder
    ) -> None:
        """Refuse to go on with the noise of this run where anything else has changed that an update
        is computed from (resuming.py). A simulation of version 0.1, which protects nobody, may go
        on."""
        if not self.remaining or (self.data is None and self.randomness.simulated):
            return
        if self.data is None:
            raise ValueError(
                f"{folder.path}: its checkpoint does not say on which data the run began (program "
                "0.1), so its noise could be used twice; expected a new run"
            )
        key, digest = self.data
        changed = changes(self.machine, machine_of(config, population, model))
        if sealed(config, population, bytes.fromhex(key)) != digest:
            changed.insert(0, "the data, or code of your own")
        if changed:
            raise ValueError(
                f"{folder.path}: changed since the run began, so that its noise would be used "
                f"twice: {'; '.join(changed)}; expected all as it was, or a new run"
            )


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
    on_round: Callable[[Record], None] = lambda record: None,
    say: Callable[[str], None] = lambda text: None,
    engine: Callable[[Population, Model, list[Arm]], Engine] | None = None,
) -> Record:
    """Train every arm and fill the folder; the summary. Without an `engine`: the simulator."""
    if resume:
        progress = Progress.load(folder, config)
        say("opening the data")
        population, model = open_task(config)
        progress.check_same(config, population, model, folder)
    else:
        prepared = prepared or prepare(config, say)
        population, model = prepared.population, prepared.model
        source = Randomness.from_system() if config.seed is None else Randomness.seeded(config.seed)
        identity = experiment_id(to_table(config))
        books = Books(ledger_header(identity, prepared.arms, config.privacy))
        key = secrets.token_bytes(32)
        seal = (key.hex(), sealed(config, population, key))
        machine = machine_of(config, population, model)
        progress = Progress(source, prepared.arms, books, data=seal, machine=machine)
        if engine is None and shows_diagnostics(config):
            folder.append("diagnostics.jsonl", [records.DIAGNOSTICS_NOTE])
        folder.write_json("environment.json", environment([str(d) for d in jax.devices()]))
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
    summary = _summary(config, population, progress)
    draw_figure(folder, summary)
    if config.diagnostics.every and player.simulates and shows_diagnostics(config):
        draw_diagnostics(folder, summary)
    progress.save(folder, finished=True)
    coverage.settle(config, progress.arms, summary)  # no round can follow any more
    draw_page(folder, summary)
    folder.write_json("summary.json", summary)
    return summary


def _run_arm(
    config: Config,
    folder: RunFolder,
    arm: Arm,
    population: Population,
    engine: Engine,
    progress: Progress,
    on_round: Callable[[Record], None],
) -> None:
    """Play one arm to its end, a checkpoint after every block."""
    model, server = engine.model, server_for(config.train, arm.rounds)
    work = config.local.work()
    state = restore(server, model, progress.state, arm, work)
    counts = progress.books.counts(arm.name)
    played = [line for line in folder.lines("rounds.jsonl") if line["arm"] == arm.name]
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
        counts=[line["released_count"] for line in played] if arm.controlled else (),
    )
    for block in () if records.stalled(played, patience) else blocks:
        epsilons = epsilon_so_far(arm, config.privacy, [r.round for r in block.rounds])
        pairs = zip(block.rounds, epsilons, strict=True)
        lines = [records.round_record(arm, log, model, epsilon) for log, epsilon in pairs]
        folder.append("rounds.jsonl", lines)
        played += lines
        ends = records.stalled(played, patience)
        if engine.simulates and shows_diagnostics(config):
            simulator = cast(Simulator, engine)
            seen = diagnostics_lines(config, simulator, arm, progress.randomness, block)
            if ends or lines[-1]["round"] == arm.rounds:  # how the model serves each of the clients
                some = compared_clients(population.clients, config.diagnostics.clients)
                final = server.model(block.state, arm.rounds)
                seen[-1]["by_client"] = score_by_client(model, final, population, some)
            folder.append("diagnostics.jsonl", seen)
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
    told = _arm_summary(config, arm, progress, played)
    told["metrics"] = held_out_metrics(model, weights, population)
    progress.finished.append(told)
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


def _arm_summary(config: Config, arm: Arm, progress: Progress, lines: list[Record]) -> Record:
    last = lines[-1]
    costs, so_far = _costs([arm], progress.books, config.privacy)
    told: Record = {
        "name": arm.name,
        "rule": arm.rule,
        "estimator": arm.estimator,
        "trust": arm.trust,
        "sampling": arm.sampling,
        "rounds": arm.rounds,
        "asked_rounds": config.train.rounds,  # more than `rounds`: max_epsilon ended it, blindly
        **{name: last[name] for name in ("accuracy", "r2", "loss") if name in last},
        "asked_uploads": arm.uploads * arm.rounds,
        **records.totals(lines),
        "public": records.totals([records.shown(line) for line in lines])
        if arm.parts[2].amplified
        else None,
        **{name: progress.totals[name] for name in TIMES},
        "clip_norm": arm.clip_norm,
        "step": arm.step,
        "noise_multiplier": arm.noise.noise_multiplier,
        "norm_multiplier": arm.noise.norm_multiplier,
        **({"played_rounds": last["round"]} if config.train.stop_after else {}),
        **({"ladder": list(arm.ladder)} if arm.ladder else {}),
        **arm.scheme.facts(arm),
        **({} if arm.clip_quantile is None else _adapted(arm, last)),
        "exhausted": last["exhausted"],  # clients that could not pay in the last round
        "answered": _answered(lines),
        "claimed_epsilon": claimed_epsilon(arm, config.privacy),
        "privacy": costs,
        "spent_so_far": so_far,  # never the guarantee
    }
    return {**told, "few_uploads": records.few_uploads(arm, told, lines)}


def _adapted(arm: Arm, last: Record) -> Record:
    return {"clip_multiplier": arm.noise.clip_multiplier, "last_clip_norm": last["clip_norm"]}


def _answered(lines: list[Record]) -> dict[str, float] | None:
    """For each stage of a federation's rounds, the share of the questions that was answered."""
    tallies: dict[str, list[Record]] = {}
    for line in lines:
        for stage, tally in line.get("stages", {}).items():
            tallies.setdefault(stage, []).append(tally)
    shares = {
        stage: sum(one["answered"] for one in all_) / max(1, sum(one["asked"] for one in all_))
        for stage, all_ in tallies.items()
    }
    return shares or None


def _summary(config: Config, population: Population, progress: Progress) -> Record:
    privacy = config.privacy
    composed, so_far = _costs(progress.arms, progress.books, privacy)
    return {
        "name": config.name,
        "data": Path(config.data.name).name,
        "experiment": progress.books.header.experiment,
        "engine": config.engine,
        "simulated": config.seed is not None,
        "tuned_without_privacy": privacy.tuned_without_privacy,
        "accounting": privacy.accounting,
        "no_guarantee": privacy.accounting == "as-printed",
        "filter": privacy.filter,
        "task": population.task.kind,
        "unit": unit_text(config),
        "held_out": {"public": population.test_public, "clients": population.test_clients},
        "classes_public": population.classes_public,
        "released_statistics": population.recipe.released if population.recipe else [],
        "population": progress.noted
        and {"id": privacy.population, "run": progress.run, "head": progress.noted},
        "arms": progress.finished,
        "all_arms_composed": composed,
        "all_arms_spent_so_far": so_far,
    }


def _costs(arms: Sequence[Arm], books: Books, privacy: PrivacyConfig) -> list[list[Record]]:
    """What arms cost together: the guarantee, and what was spent so far."""
    counts = [books.counts(arm.name) for arm in arms]
    promised = statement(arms, privacy)
    so_far = spent(counts, privacy.delta, privacy.accountant)
    return [[cost.as_dict() for cost in costs] for costs in (promised, so_far)]
