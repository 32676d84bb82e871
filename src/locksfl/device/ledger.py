"""Every release of a device, for all runs and servers together: one SQLite file."""

from __future__ import annotations

from pathlib import Path


class DeviceLedger:
    """A device's ledger."""

    @classmethod
    def create(cls, path: Path) -> DeviceLedger:
        """A new ledger; a file that is there is never written over."""
        raise NotImplementedError
