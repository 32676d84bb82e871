"""Downloads from a server on loopback: whole, wrong, cut, continued."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading

import pytest
from msgspec import structs

from locksfl.data import download
from locksfl.data.catalogue import CATALOGUE, Entry, File

CONTENT = bytes(range(256)) * 4000  # 1 MB


def md5(data: bytes) -> str:
    return "md5:" + hashlib.md5(data, usedforsecurity=False).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        start = 0
        asked = self.headers.get("Range")
        server.asked.append(asked)
        data = server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        if asked and server.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else None
        self.wfile.write(data[start : start + cut] if cut is not None else data[start:])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.asked, server.cuts, server.ranges = {"/a.bin": CONTENT}, [], [], True
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def entry():
    file = File("a.bin", md5(CONTENT), "http://127.0.0.1:9/replaced")
    return Entry("toy", "a toy", 1, 1, 2, "none", files=(file,))


def get(entry, server, root, **options):
    addresses = {"a.bin": f"{server.address}/a.bin"}
    return download.fetch(entry, root, addresses=addresses, **options)


def left(root):
    return sorted(p.name for p in (root / "toy").iterdir())


def test_a_good_file_is_fetched_once(server, entry, tmp_path):
    seen = []
    paths = get(entry, server, tmp_path, on_bytes=lambda *a: seen.append(a))
    assert [p.read_bytes() for p in paths] == [CONTENT]
    assert seen[-1] == ("a.bin", len(CONTENT), len(CONTENT))
    assert left(tmp_path) == ["a.bin"]
    get(entry, server, tmp_path)  # cached
    assert len(server.asked) == 1
    paths[0].write_bytes(b"damaged")
    get(entry, server, tmp_path)
    assert paths[0].read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server, entry, tmp_path):
    server.files["/a.bin"] = CONTENT[:-1] + b"!"
    with pytest.raises(ValueError, match=r"toy: http://.*/a.bin: wrong checksum, expected md5 "):
        get(entry, server, tmp_path)
    assert len(server.asked) == download.ATTEMPTS
    assert left(tmp_path) == []


def test_a_cut_connection_is_tried_again_and_goes_on(server, entry, tmp_path):
    server.cuts = [300_000, 400_000]
    get(entry, server, tmp_path)
    assert (tmp_path / "toy" / "a.bin").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=700000-"]


def test_a_connection_cut_for_good_names_no_file_and_a_later_fetch_resumes(server, entry, tmp_path):
    server.cuts = [1000] * 3
    with pytest.raises(ValueError, match="cut after 3000 of 1024000 bytes"):
        get(entry, server, tmp_path)
    assert left(tmp_path) == ["a.bin.part"]
    get(entry, server, tmp_path)
    assert server.asked[-1] == "bytes=3000-"
    assert left(tmp_path) == ["a.bin"]
    assert (tmp_path / "toy" / "a.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_starts_over(server, entry, tmp_path):
    server.ranges, server.cuts = False, [300_000]
    get(entry, server, tmp_path)
    assert (tmp_path / "toy" / "a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("rest", [b"something else", b"x" * len(CONTENT)])
def test_a_wrong_beginning_is_dropped(server, entry, tmp_path, rest):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.bin.part").write_bytes(rest)
    get(entry, server, tmp_path)
    assert (tmp_path / "toy" / "a.bin").read_bytes() == CONTENT
    assert left(tmp_path) == ["a.bin"]


def test_no_such_address(server, entry, tmp_path):
    del server.files["/a.bin"]
    with pytest.raises(ValueError, match="the server answered 404 Not Found"):
        get(entry, server, tmp_path)
    with pytest.raises(ValueError, match="no connection"):
        download.fetch(entry, tmp_path, attempts=1)


def packed(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def test_an_archive_is_unpacked(server, entry, tmp_path):
    data = packed({"a.bin": CONTENT, "other.txt": b"not asked for"})
    server.files["/a.tar.gz"] = data
    archive = File("a.tar.gz", md5(data), f"{server.address}/a.tar.gz")
    entry = structs.replace(entry, archive=archive)
    download.fetch(entry, tmp_path)
    assert left(tmp_path) == ["a.bin"]
    assert (tmp_path / "toy" / "a.bin").read_bytes() == CONTENT


def test_an_archive_with_another_file_in_it(server, entry, tmp_path):
    data = packed({"a.bin": b"another"})
    server.files["/a.tar.gz"] = data
    archive = File("a.tar.gz", md5(data), f"{server.address}/a.tar.gz")
    with pytest.raises(ValueError, match=r"a\.bin does not have the expected checksum"):
        download.fetch(structs.replace(entry, archive=archive), tmp_path)
    assert left(tmp_path) == ["a.tar.gz"]


def test_what_has_no_address_says_how_to_get_it(tmp_path):
    with pytest.raises(ValueError, match=r"shakespeare_roles.jsonl.xz: it has no public address"):
        download.fetch(CATALOGUE["shakespeare"], tmp_path)
