"""LOCKS: federated learning that samples the clients whose updates matter most and states what the
training cost each user in privacy.

Start with `train` and `Population`; the round is `locksfl.round.algorithm`.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from locksfl.arm import Arm
    from locksfl.data.population import Population
    from locksfl.data.task import Task
    from locksfl.experiment.config import LocalConfig, OptimizerConfig
    from locksfl.experiment.estimator import LocksClassifier
    from locksfl.experiment.own_data import from_table
    from locksfl.experiment.training import Trained, train, train_many
    from locksfl.models.build import Model
    from locksfl.models.fitted import Fitted, load
    from locksfl.privacy import Cost, account, calibrate

__version__ = metadata.version("locks-fl")

_HOMES = {
    "Arm": "locksfl.arm",
    "Cost": "locksfl.privacy",
    "Fitted": "locksfl.models.fitted",
    "LocalConfig": "locksfl.experiment.config",
    "LocksClassifier": "locksfl.experiment.estimator",
    "Model": "locksfl.models.build",
    "OptimizerConfig": "locksfl.experiment.config",
    "Population": "locksfl.data.population",
    "Task": "locksfl.data.task",
    "Trained": "locksfl.experiment.training",
    "account": "locksfl.privacy",
    "calibrate": "locksfl.privacy",
    "from_table": "locksfl.experiment.own_data",
    "load": "locksfl.models.fitted",
    "train": "locksfl.experiment.training",
    "train_many": "locksfl.experiment.training",
}

__all__ = [
    "Arm", "Cost", "Fitted", "LocalConfig", "LocksClassifier", "Model", "OptimizerConfig",
    "Population", "Task", "Trained", "account", "calibrate", "from_table", "load", "train",
    "train_many",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use: `locks --help` needs no JAX."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'locksfl' has no attribute {name!r}")
