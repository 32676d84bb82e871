"""Download a data set's files into the data directory, through pooch: checksum, cache, retry.

A file gets its name only once its checksum is correct. Until then its bytes are in NAME.part, and a
later attempt continues from there if the server allows it.
"""

from __future__ import annotations

import http.client
import logging
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pooch

from locksfl.data.catalogue import CATALOGUE, Entry, File

ATTEMPTS = 3
TIMEOUT = 30.0  # seconds without a byte
CHUNK = 2**18

OnBytes = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in total


def fetch(
    entry: Entry,
    root: Path,
    *,
    addresses: Mapping[str, str] | None = None,
    on_bytes: OnBytes = lambda name, done, total: None,
    attempts: int = ATTEMPTS,
) -> list[Path]:
    """Download the missing files of a set (and of the sets that it needs) into root/NAME.

    Files that are already complete are not downloaded again; damaged ones are.

    Args:
        entry: the set.
        root: the data directory.
        addresses: other addresses, by file name.
        on_bytes: called as bytes arrive.
        attempts: how often an address is tried.

    Returns:
        The paths of all its files.
    """
    others, place = addresses or {}, root / entry.name
    paths: list[Path] = []
    for name in entry.needs:
        needed = CATALOGUE[name]
        paths += fetch(needed, root, addresses=others, on_bytes=on_bytes, attempts=attempts)
    missing = [file for file in entry.files if not _whole(place / file.name, file.checksum)]
    for file in [entry.archive] if entry.archive and missing else missing:
        address = others.get(file.name, file.address)
        if address is None:
            raise ValueError(f"data set {entry.name}: {place / file.name}: {entry.how}")
        try:
            got = _get(file, address, place, on_bytes, attempts)
        except ValueError as error:
            raise ValueError(f"data set {entry.name}: {address}: {error}") from None
        if file is entry.archive:
            _unpack(got, place, entry)
            got.unlink()
    return paths + [place / file.name for file in entry.files]


def _get(file: File, address: str, place: Path, on_bytes: OnBytes, attempts: int) -> Path:
    """The file in `place`, complete and with the correct checksum."""

    def download(url: str, target: str, _: Any) -> None:
        part = place / f"{file.name}.part"
        _download(url, part, lambda done, total: on_bytes(file.name, done, total))
        os.replace(part, target)  # pooch checks it there and names it only if it is correct

    pooch.get_logger().setLevel(logging.ERROR)
    store = pooch.create(
        path=place,
        base_url="",
        registry={file.name: file.checksum},
        urls={file.name: address},
        retry_if_failed=attempts - 1,
    )
    try:
        return Path(store.fetch(file.name, downloader=download))
    except ValueError as error:
        if "hash" not in str(error):
            raise
        expected = file.checksum.replace(":", " ")
        raise ValueError(f"wrong checksum, expected {expected}") from None


def _download(url: str, part: Path, on_bytes: Callable[[int, int | None], None]) -> None:
    """Download an address into `part`, from where an earlier attempt ended. ValueError if it is cut
    off."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "locks-fl"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            goes_on = reply.status == 206
            have = have if goes_on else 0
            length = reply.headers.get("Content-Length")
            total = have + int(length) if length is not None else None
            with part.open("ab" if goes_on else "wb") as file:
                while chunk := reply.read(CHUNK):
                    file.write(chunk)
                    have += len(chunk)
                    on_bytes(have, total)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing beyond what exists: it is not the beginning of this file
            part.unlink(missing_ok=True)
        raise ValueError(f"the server answered {error.code} {error.reason}") from None
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as e:
        raise ValueError(f"no connection, or cut after {have} bytes ({e})") from None
    if total is not None and have < total:
        raise ValueError(f"connection cut after {have} of {total} bytes")


def _whole(path: Path, checksum: str) -> bool:
    kind, _, expected = checksum.partition(":")
    return path.is_file() and pooch.file_hash(str(path), alg=kind) == expected


def _unpack(packed: Path, place: Path, entry: Entry) -> None:
    """Extract the set's files from an archive; each gets its name only when it is complete."""
    wanted = {file.name: file for file in entry.files}
    with tarfile.open(packed) as archive, tempfile.TemporaryDirectory(dir=place) as folder:
        for member in archive:
            file = wanted.get(Path(member.name).name)
            source = archive.extractfile(member) if file else None
            if file is None or source is None:
                continue
            target = Path(folder) / file.name
            target.write_bytes(source.read())
            if not _whole(target, file.checksum):
                raise ValueError(
                    f"data set {entry.name}: {packed}: {file.name} does not have the expected "
                    "checksum"
                )
            os.replace(target, place / file.name)
    for name in wanted:
        if not (place / name).is_file():
            raise ValueError(f"data set {entry.name}: {packed} holds no {name}")
