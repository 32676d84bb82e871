"""The public bundle: what may leave the server after a run, and nothing else.

In central trust the cohort, the number of uploads, exact bytes, the ledger and everything that a
simulation alone can see stay behind: publishing the cohort's size would void the amplification, and
the number of uploads depends on true norms. So do all figures on held-out records, unless these are
public: nobody adds noise to them. What is written here is the models, the configuration without its
seed, the statement, accuracy on public records, and post-processing of releases: what a `PublicRun`
has, and the files that are functions of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from locksfl.experiment.config import to_table
from locksfl.experiment.coverage import covered
from locksfl.experiment.documents import CONFIG, PAGE, STATEMENT, TEXT
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.page import public_page
from locksfl.experiment.public import public_model
from locksfl.experiment.record import PublicRun, plain
from locksfl.experiment.records import untrained
from locksfl.experiment.sealing import read_private_key, sealed
from locksfl.experiment.statement import statement_text


def publish_folder(run: Path, target: Path, sign: Path | None = None) -> list[Path]:
    """Write the public bundle of a finished run to a new folder; its files. `sign`: the file of an
    Ed25519 key whose signature the statement is given."""
    key = None if sign is None else read_private_key(sign)
    folder = RunFolder.open(run)
    known = folder.run()
    if target.exists():
        raise ValueError(f"{target}: already exists; expected a new folder")
    if why := untrained(known):
        raise ValueError(f"{run}: {why}; expected a run in which devices trained")
    public = covered(known)
    models = {arm.name: public_model(run / arm.file, public.settings) for arm in public.arms}
    for arm in public.arms:
        if hashlib.sha256(models[arm.name]).hexdigest() != arm.model:
            raise ValueError(f"{run / arm.file}: edited since the run wrote it; expected its model")
    return publish(public, models, target, key)


def publish(
    run: PublicRun,
    models: Mapping[str, bytes],
    target: Path,
    key: Ed25519PrivateKey | None = None,
) -> list[Path]:
    """Write the bundle of a public run and of its models, by the names of its arms, to a new
    folder: all of it or nothing. Nothing else is read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        statement = sealed(run, key)
        text = json.dumps(plain(statement), indent=2, allow_nan=False) + "\n"
        (work / STATEMENT).write_text(text, "utf-8")
        (work / CONFIG).write_text(settings_text(run), "utf-8")
        (work / TEXT).write_text(statement_text(run), "utf-8")
        (work / PAGE).write_text(public_page(statement), "utf-8")
        for arm in run.arms:
            (work / arm.file).write_bytes(models[arm.name])
        os.chmod(work, 0o755)
        os.replace(work, target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return sorted(target.iterdir())


def settings_text(run: PublicRun) -> str:
    """The settings of a run as a file that can be played again."""
    return tomli_w.dumps(to_table(run.settings))
