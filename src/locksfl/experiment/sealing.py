"""The digest and the signature of a statement.

The digest is a SHA-256 over the public run in it, as JSON with sorted keys and without spaces. It
finds accidents and careless edits: whoever forges a page computes it anew. A signature (Ed25519, of
the operator's key) is what a forger cannot make.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from locksfl.experiment.record import PublicRun, Signature, Statement, plain, read

SEALS = ("digest", "signature")  # of a statement: what they are computed from has neither
ALGORITHM: Literal["Ed25519"] = "Ed25519"
CONTEXT = b"locks public document, format 3\n"  # so that no other signature of the key fits here
MADE_BY = "openssl genpkey -algorithm ed25519"


def digest(run: PublicRun) -> str:
    """The SHA-256 of a run, without the seals of a statement."""
    table = {name: value for name, value in plain(run).items() if name not in SEALS}
    text = json.dumps(table, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(run: PublicRun, key: Ed25519PrivateKey | None = None) -> Statement:
    """The statement of a run, with its digest and, with a key, its signature. What could not be
    read again, as a text in place of a number, is refused."""
    facts = {name: getattr(run, name) for name in PublicRun.__struct_fields__}
    signature, checksum = None, digest(run)
    if key is not None:
        signature = Signature(
            algorithm=ALGORITHM,
            public_key=_raw(key.public_key()).hex(),
            signature=key.sign(CONTEXT + checksum.encode()).hex(),
        )
    return read(Statement, plain(Statement(**facts, digest=checksum, signature=signature)))


def signature_problem(statement: Statement, wanted: Ed25519PublicKey | None) -> str | None:
    """What is wrong with a statement's signature, if anything is. Without one nothing is, unless
    the signature of a certain key is wanted."""
    given = statement.signature
    if given is None:
        return None if wanted is None else "not signed; expected the signature of --key"
    if wanted is not None and _raw(wanted).hex() != given.public_key:
        return f"signed by another key than --key: {fingerprint(given.public_key)}"
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(given.public_key))
        key.verify(bytes.fromhex(given.signature), CONTEXT + digest(statement).encode())
    except (InvalidSignature, ValueError):
        return "the signature is not that of this document"
    return None


def fingerprint(public_key: str) -> str:
    """A public key as people compare it: the start of its SHA-256."""
    return "SHA256:" + hashlib.sha256(bytes.fromhex(public_key)).hexdigest()[:32]


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """An operator's key, as `openssl genpkey -algorithm ed25519` writes it."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except TypeError:
        raise ValueError(f"--sign {path}: has a password; expected a key without one") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"--sign {path}: expected a private key in PEM ({MADE_BY})") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"--sign {path}: another kind of key; expected {ALGORITHM} ({MADE_BY})")
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """The public half, as `openssl pkey -pubout` writes it."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(
            f"--key {path}: expected a public key in PEM (openssl pkey -in KEY.pem -pubout)"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"--key {path}: another kind of key; expected {ALGORITHM}")
    return key


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
