"""The digest and the signature of a public document: {"statement", "config", "rounds"}.

The digest is a SHA-256 over all of it, as JSON with sorted keys and without spaces; it stands in
the statement. It finds accidents and careless edits: whoever forges a page computes it anew. A
signature (Ed25519, of the operator's key) is what a forger cannot make.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from locksfl.experiment.documents import Document

SEALS = ("digest", "signature")  # of a statement: what they are computed from has neither
ALGORITHM = "Ed25519"
CONTEXT = b"locks public document, format 2\n"  # so that no other signature of the key fits here
MADE_BY = "openssl genpkey -algorithm ed25519"


def digest(document: Document) -> str:
    """The SHA-256 of a document, its seals left out."""
    statement = {name: v for name, v in document["statement"].items() if name not in SEALS}
    told = json.dumps(
        {**document, "statement": statement},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=True,
        allow_nan=False,
    )
    return hashlib.sha256(told.encode()).hexdigest()


def sealed(document: Document, key: Ed25519PrivateKey | None = None) -> Document:
    """The document with its digest and, with a key, its signature."""
    found = digest(document)
    seals: Document = {"digest": found}
    if key is not None:
        seals["signature"] = {
            "algorithm": ALGORITHM,
            "public_key": _raw(key.public_key()).hex(),
            "signature": key.sign(CONTEXT + found.encode()).hex(),
        }
    bare = {name: v for name, v in document["statement"].items() if name not in SEALS}
    return {**document, "statement": {**bare, **seals}}


def signature_problem(document: Document, wanted: Ed25519PublicKey | None) -> str | None:
    """What is wrong with a document's signature, if anything is. Without one nothing is, unless
    the signature of a certain key is wanted."""
    told = document["statement"].get("signature")
    if told is None:
        return None if wanted is None else "not signed; expected the signature of --key"
    if wanted is not None and _raw(wanted).hex() != told["public_key"]:
        return f"signed by another key than --key: {fingerprint(told['public_key'])}"
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(told["public_key"]))
        key.verify(bytes.fromhex(told["signature"]), CONTEXT + digest(document).encode())
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
