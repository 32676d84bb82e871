"""Arrays and a JSON header in one .npz: the format of checkpoints, ledgers and models. No JAX."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np


def pack_arrays(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Arrays and a JSON header as one .npz."""
    buffer = BytesIO()
    header = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    np.savez(buffer, meta=header, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack_arrays(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The inverse of `pack_arrays`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return json.loads(bytes(arrays.pop("meta"))), arrays
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: damaged or not written by this program ({error})") from None
