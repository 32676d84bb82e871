"""LOCKS: federated learning that asks only the clients worth asking, and states what each user's
privacy cost. Start with `train` and `Population`; the round itself is in `locksfl.algorithm`."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from locksfl.config import LocalConfig, OptimizerConfig
    from locksfl.privacy import Cost
    from locksfl.tasks.models import Model
    from locksfl.tasks.population import Population
    from locksfl.training import Trained, train

__version__ = metadata.version("locks-fl")

_HOMES = {
    "Cost": "locksfl.privacy",
    "LocalConfig": "locksfl.config",
    "Model": "locksfl.tasks.models",
    "OptimizerConfig": "locksfl.config",
    "Population": "locksfl.tasks.population",
    "Trained": "locksfl.training",
    "train": "locksfl.training",
}

__all__ = ["Cost", "LocalConfig", "Model", "OptimizerConfig", "Population", "Trained", "train"]


def __getattr__(name: str) -> Any:
    """Import on first use: `locks --help` needs no JAX."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'locksfl' has no attribute {name!r}")
