"""The public bundle: what may leave the server after a run, and nothing else.

In central trust the cohort, the number of uploads, exact bytes, the ledger and everything that a
simulation alone can see stay behind: publishing the cohort's size would void the amplification, and
the number of uploads depends on true norms. So do all figures on held-out records, unless these are
public: nobody adds noise to them. What is written here is the models, the configuration without its
seed, the statement, accuracy on public records, and post-processing of releases; `public` has the
lists.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from locksfl._tables import Record
from locksfl.arm import Arm, Noise
from locksfl.experiment import public
from locksfl.experiment.config import Config
from locksfl.experiment.coverage import covered
from locksfl.experiment.documents import CONFIG, FORMAT, PAGE, ROUNDS, STATEMENT, TEXT, Document
from locksfl.experiment.folder import RunFolder, append_lines
from locksfl.experiment.page import public_page
from locksfl.experiment.plan import plan_arms
from locksfl.experiment.records import untrained
from locksfl.experiment.sealing import read_private_key, sealed
from locksfl.experiment.statement import statement_text, statement_words, unit_text
from locksfl.methods import TRUSTS


def publish(run: Path, target: Path, sign: Path | None = None) -> list[Path]:
    """Write the public bundle of a finished run to a new folder; its files. `sign`: the file of an
    Ed25519 key whose signature the statement is given."""
    key = None if sign is None else read_private_key(sign)
    folder = RunFolder.open(run)
    summary = folder.summary()
    if target.exists():
        raise ValueError(f"{target}: already exists; expected a new folder")
    config = folder.config
    if why := untrained(folder.lines("rounds.jsonl"), TRUSTS[config.privacy.trust]):
        raise ValueError(f"{run}: {why}; expected a run in which devices trained")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        models = public_models(folder, config, summary)
        document = public_document(folder, config, summary, models, key)
        _fill(work, document, models, config)
        os.chmod(work, 0o755)
        os.replace(work, target)  # all of it or nothing
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return sorted(target.iterdir())


def played_arms(config: Config, summary: Record) -> dict[str, Arm]:
    """The arms of a finished run by name, with the noise that they had."""
    return {arm.name: arm for arm in plan_arms(config, list(map(noise_in, summary["arms"])))}


def noise_in(arm: Record) -> Noise:
    """The noise of an arm of a summary or a statement."""
    return Noise(**{item.name: arm[item.name] for item in fields(Noise) if item.name in arm})


def _fill(work: Path, document: Document, models: dict[str, bytes], config: Config) -> None:
    (work / CONFIG).write_text(tomli_w.dumps(document["config"]), "utf-8")
    for file, content in models.items():
        (work / file).write_bytes(content)
    append_lines(work / ROUNDS, document["rounds"])
    told = document["statement"]
    (work / STATEMENT).write_text(json.dumps(told, indent=2, allow_nan=False) + "\n", "utf-8")
    (work / TEXT).write_text(statement_text(told, config), "utf-8")
    (work / PAGE).write_text(public_page(document), "utf-8")


def public_models(folder: RunFolder, config: Config, summary: Record) -> dict[str, bytes]:
    """The files of the models, by name."""
    files = [f"model-{arm['name']}.npz" for arm in summary["arms"]]
    return {file: public.public_model(folder.path / file, config) for file in files}


def public_document(
    folder: RunFolder,
    config: Config,
    summary: Record,
    models: dict[str, bytes] | None = None,
    key: Ed25519PrivateKey | None = None,
) -> Record:
    """All that a bundle tells beside its models: the statement, the configuration, the rounds. It
    has its digest and, with a key, its signature, and is what `locks verify` checks. `models` are
    those of `public_models`, if they have been made."""
    held_out, arms = public.held_out(summary), played_arms(config, summary)
    rounds = [
        public.public_round(line, arms[line["arm"]], held_out["public"])
        for line in folder.lines("rounds.jsonl")
    ]
    models = public_models(folder, config, summary) if models is None else models
    statement = {
        "format": FORMAT,
        "version": metadata.version("locks-fl"),
        **public.public_summary(summary, config),
        "unit": unit_text(config),
        "held_out": held_out,
        "classes_public": summary["classes_public"],
        "released_statistics": public.public_statistics(summary),
        "covers": public.public_covers(covered(summary)),
        "arms": [
            public.public_arm(
                arm,
                arms[arm["name"]],
                [line for line in rounds if line["arm"] == arm["name"]],
                held_out["public"],
            )
            for arm in summary["arms"]
        ],
        "models": {file: hashlib.sha256(content).hexdigest() for file, content in models.items()},
    }
    statement["words"] = statement_words(statement, config)
    told = {"statement": statement, "config": public.public_table(config), "rounds": rounds}
    return sealed(told, key)
