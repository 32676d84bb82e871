"""Arrays on disk, with a JSON header in one .npz (checkpoints, models), and in memory. No JAX."""

from __future__ import annotations

import json
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from locksfl._tables import Json

Floats = NDArray[np.float64]

ALIGNMENT = 64  # bytes; what XLA asks for


def aligned(array: np.ndarray) -> np.ndarray:
    """The array itself if XLA can use it where it lies, else a copy that XLA can use. XLA copies an
    array that is not aligned, once for each device. Large arrays of NumPy are 16 bytes off; those
    of a mapped file are aligned."""
    if array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous:
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    copy = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def pack_arrays(meta: Json, arrays: dict[str, np.ndarray]) -> bytes:
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
    except IsADirectoryError:
        raise ValueError(f"{path}: a folder; expected one of the files in it") from None
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        # NumPy takes what it does not know for a pickle, and says how to load one
        why = "" if "pickle" in str(error) else f" ({error})"
        raise ValueError(f"{path}: damaged or not written by this program{why}") from None


def flat_weights(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The weights in a model's file as one vector, which is how version 0.1 wrote them."""
    names = meta.get("parameters", ["weights"])
    return np.concatenate([np.asarray(arrays[name], np.float32).ravel() for name in names])
