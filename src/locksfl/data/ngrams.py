"""Text as numbers by a fixed, public rule: words, pairs of words and parts of words, hashed.

Nothing is learnt from any text, so the encoder costs no privacy and is the same everywhere. Every
part of a text is hashed to one of SIZE places and to a sign; what falls on a place is added up, and
the whole is scaled to length 1 (feature hashing: Weinberger et al. 2009).

>>> encode(["Some text", "some  TEXT!"])[:, :4].shape
(2, 4)
>>> bool((encode(["Some text"]) == encode(["some  TEXT!"])).all())
True
"""

from __future__ import annotations

import functools
import re
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SIZE = 2048
PARTS = (3, 4)  # characters, of words with a mark at either end

_WORD = re.compile(r"\w+")


def encode(texts: Sequence[str]) -> NDArray[np.float16]:
    """[texts, SIZE] rows of length 1; a text without a word is zero."""
    encoded = np.zeros((len(texts), SIZE), np.float16)
    for row, text in enumerate(texts):
        words = _WORD.findall(unicodedata.normalize("NFKC", text).lower())
        if words:
            parts = [_parts(word) for word in words]
            first = np.array([of_word[0] for of_word in parts], np.uint32)
            pairs = first[:-1] * np.uint32(0x9E3779B1) + first[1:]  # wraps around, as hashes do
            hashes = np.concatenate([*parts, pairs])
            signs = 1.0 - 2.0 * (hashes >> np.uint32(31))
            counts = np.bincount(hashes % SIZE, signs, SIZE)
            encoded[row] = counts / max(float(np.linalg.norm(counts)), 1.0)
    return encoded


@functools.lru_cache(2**16)
def _parts(word: str) -> NDArray[np.uint32]:
    """The hashes of a word and of its parts."""
    marked = f"<{word}>"
    cut = (marked[i : i + n] for n in PARTS for i in range(len(marked) - n + 1))
    tokens = [f"={word}", *cut]
    return np.array([zlib.crc32(token.encode()) for token in tokens], np.uint32)
