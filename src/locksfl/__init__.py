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
    from locksfl.experiment.own_data import from_table
    from locksfl.experiment.training import Trained, train
    from locksfl.models.build import Model
    from locksfl.privacy import Cost, account, calibrate

__version__ = metadata.version("locks-fl")

_HOMES = {
    "Arm": "locksfl.arm",
    "Cost": "locksfl.privacy",
    "LocalConfig": "locksfl.experiment.config",
    "Model": "locksfl.models.build",
    "OptimizerConfig": "locksfl.experiment.config",
    "Population": "locksfl.data.population",
    "Task": "locksfl.data.task",
    "Trained": "locksfl.experiment.training",
    "account": "locksfl.privacy",
    "calibrate": "locksfl.privacy",
    "from_table": "locksfl.experiment.own_data",
    "train": "locksfl.experiment.training",
}

__all__ = [
    "Arm", "Cost", "LocalConfig", "Model", "OptimizerConfig", "Population", "Task", "Trained",
    "account", "calibrate", "from_table", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use: `locks --help` needs no JAX."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'locksfl' has no attribute {name!r}")
