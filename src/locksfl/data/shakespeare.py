"""Shakespeare by speaking role: guess the next character (the task of LEAF, arXiv:1812.01097).

A client is a role of a play with at least 160 characters. Its speeches, joined by newlines, are
cut into windows of 80 characters; the label of a position is the character that follows it:

    text      T o   b e ,   o r   n o t ...
    features  T o   b e ,   o r   n o ...
    labels    o   b e ,   o r   n o t ...        -1 if the last window is padded

Every character but a role's first is a label exactly once. Roles whose hash is 0 mod 10 are held
out: 110 of the 1,055, all different from the 945 roles used for training.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# LEAF's 80 characters: fixed and public, whatever the data. Any other character counts as a space.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LENGTH = 80
FEWEST = 160  # characters of a role

_CODES = np.full(128, ALPHABET.index(" "), np.uint8)
_CODES[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))


def read_roles(path: Path) -> tuple[NDArray[Any], ...]:
    """The windows of all roles, in the order of the file.

    Returns:
        features [windows, 80] uint8 and labels [windows, 80] int32 of the training roles, the
        same two of the held-out roles, and the role, 0, 1, ..., of each training window.
    """
    train: list[str] = []
    test: list[str] = []
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            role = json.loads(line)
            text = "\n".join(role["speeches"])
            if len(text) >= FEWEST:
                (test if held_out(role["play"], role["role"]) else train).append(text)
    cut = [[windows(text) for text in texts] for texts in (train, test)]
    arrays = [np.concatenate(parts) for pairs in cut for parts in zip(*pairs, strict=True)]
    sizes = [len(features) for features, _ in cut[0]]
    return *arrays, np.repeat(np.arange(len(sizes)), sizes)


def held_out(play: str, role: str) -> bool:
    """One role in ten, by the sha256 of its name: the same on every machine."""
    return int(hashlib.sha256(f"{play}/{role}".encode()).hexdigest(), 16) % 10 == 0


def encode(text: str) -> NDArray[np.uint8]:
    """[characters] numbers 0..79 in ALPHABET."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return _CODES[np.where(points < 128, points, ord(" "))]


def decode(codes: NDArray[np.uint8]) -> str:
    """The inverse of `encode`."""
    return "".join(ALPHABET[code] for code in codes)


def windows(text: str, length: int = LENGTH) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """A text of n characters as ceil((n - 1) / length) windows and their next characters."""
    codes = encode(text)
    known = max(len(codes) - 1, 0)
    rows = -(-known // length)
    features = np.zeros(rows * length, np.uint8)
    labels = np.full(rows * length, -1, np.int32)
    features[:known] = codes[:known]
    labels[:known] = codes[1:]
    return features.reshape(rows, length), labels.reshape(rows, length)
