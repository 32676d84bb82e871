"""Where a run stands: what a checkpoint holds, with the lines that were written before it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import jax
import numpy as np

from locksfl._tables import Record
from locksfl.arm import Arm, Noise
from locksfl.data.population import Population
from locksfl.experiment.config import Config, to_table
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.old_runs import done_of, lines_of
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.record import Finished, Line, plain
from locksfl.experiment.resuming import changes, machine_of, sealed
from locksfl.models.build import Model
from locksfl.privacy.journal import EVERYBODY, Books, Entry, experiment_id, same_experiment
from locksfl.privacy.journal_file import Journal
from locksfl.privacy.ledger import CHECKPOINT
from locksfl.privacy.terms import LedgerArm
from locksfl.round.randomness import Randomness
from locksfl.simulate.simulator import BlockLog

TIMES = ("seconds", "compile_seconds")


@dataclass
class Progress:
    """Where a run stands: exactly what a checkpoint holds."""

    randomness: Randomness
    arms: list[Arm]
    books: Books  # the ledger; a federation's are those of its journal
    done: list[Finished] = field(default_factory=list)  # of the finished arms
    lines: list[Line] = field(default_factory=list)  # of all rounds that were played
    seen: list[Record] = field(default_factory=list)  # the lines of diagnostics.jsonl
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
            "arms": list(map(plain, self.done)),
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
    def load(
        cls, folder: RunFolder, config: Config, population: Population, model: Model
    ) -> Progress:
        """The inverse of `save`; the data and the model must be as they were."""
        meta, arrays, content = folder.load_checkpoint()
        path = folder.path / CHECKPOINT
        books = Books.unpack(meta["ledger"], arrays, path)
        same_experiment(books.header.experiment, experiment_id(to_table(config)), path)
        finished = len(meta["arms"]) == len(config.arm)  # then no draw is left to make
        if config.seed is None and meta["entropy"] is None and not finished:
            raise ValueError(f"{folder.path}: the checkpoint has no random state")
        arms = plan_arms(config, [Noise.of(each) for each in meta["multipliers"]])
        pairs = zip(arms, books.header.arms, strict=True)
        if any(LedgerArm.of(arm, began.claimed_epsilon) != began for arm, began in pairs):
            raise ValueError(
                f"{path}: a rule or an estimator no longer states what it did when the run began; "
                "expected the code as it was, or a new run"
            )
        secret = Randomness(int(meta["entropy"] or "0", 16), simulated=False)
        count = sum(name.startswith("state_") for name in arrays)
        progress = cls(
            randomness=secret if config.seed is None else Randomness.seeded(config.seed),
            arms=arms,
            books=books,
            done=done_of(meta["arms"], folder.path, config, model.task.kind),
            lines=lines_of(content["rounds.jsonl"], arms, population.test_public),
            seen=content["diagnostics.jsonl"],
            rounds_done=meta["rounds_done"],
            totals=dict.fromkeys(TIMES, 0.0) | meta["totals"],
            state=[arrays[f"state_{i}"] for i in range(count)],
            data=meta.get("data"),  # checkpoints of version 0.1 have none of these
            machine=meta.get("machine", {}),
            run=meta.get("run") or secrets.token_hex(16),
            noted=meta.get("noted"),
        )
        progress.check_same(config, population, model, folder)
        return progress

    @property
    def remaining(self) -> list[Arm]:
        """The arms that are not finished."""
        return self.arms[len(self.done) :]

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
