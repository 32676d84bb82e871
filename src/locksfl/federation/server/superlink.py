"""The server's SuperLink: start it as a child process, speak to its gate, begin a run.

Flower has no login. Three things follow. The SuperLink stands behind a gate (gate.py), so that a
stranger can do nothing, and a device only what devices do. It runs with `--isolation process` and a
secret, so that no uploaded bundle is ever executed here. And devices run this package's app, never
the bundle (node.py).

It keeps its state in memory: in central trust the messages are secrets, and a killed server begins
a new run anyway. Nodes are known by their keys, not by the numbers that a SuperLink assigns.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from locksfl._files import write_atomically
from locksfl.federation import certificates, child, flower
from locksfl.federation.server.gate import SECRET, SEEN
from locksfl.federation.server.place import Place, listen
from locksfl.federation.wire import LostLink

Client = TypeVar("Client", flower.ControlHttpClient, flower.RuntimeHttpClient)
START_SECONDS, CALL_SECONDS = 60.0, 30.0
ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
# a Flower app without code: it names the apps in the installed package
BUNDLE = """
[project]
name = "locks"
version = "1.0.0"
description = "Points into the installed locks-fl; holds no code."
license = { text = "Apache-2.0" }
dependencies = []
[tool.flwr.app]
publisher = "locks"
[tool.flwr.app.components]
serverapp = "locksfl.federation.server.server_app:app"
clientapp = "locksfl.federation.device.client_app:app"
[tool.flwr.app.config]
"""


@dataclass
class SuperLink:
    """A SuperLink on this machine. Use as a context manager."""

    home: Path  # a private folder of the run: its log, its secrets
    place: Place
    keys: Sequence[bytes]

    def __post_init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._header = flower.HeaderInterceptor(SECRET, secrets.token_hex(32))
        self._ca = (self.place.certs / certificates.CA).read_bytes()
        self._client = httpx.Client(
            headers={SECRET: self._header.value},
            verify=ssl.create_default_context(cadata=self._ca.decode("ascii")),
            timeout=CALL_SECONDS,
        )

    def __enter__(self) -> SuperLink:
        certs, secret, gate = self.place.certs, *self._secret_files
        write_atomically(secret, self._secret, secret=True)
        files = [str(certs / name) for name in (certificates.CERTIFICATE, certificates.KEY)]
        with (
            listen(self.place.host, self.place.port) as public,
            listen(certificates.LOOPBACK, 0) as private,
        ):
            sockets = [public.fileno(), private.fileno()]
            self.address = f"{certificates.LOOPBACK}:{private.getsockname()[1]}"
            given = {
                "sockets": sockets,
                "members": [key.hex() for key in self.keys],
                "keys": str(self.place.keys.resolve()),
                "secret": self._header.value,
                "server": certificates.fingerprint(certs / certificates.CA),
                "stock": self.place.stock,
                "certificate": files[0],
                "key": files[1],
            }
            write_atomically(gate, json.dumps(given).encode(), secret=True)
            command = [
                *("superlink", str(gate), "--isolation", "process", "--enable-supernode-auth"),
                *("--superexec-auth-secret-file", str(secret)),
                *("--ssl-ca-certfile", str(certs / certificates.CA)),
                *("--ssl-certfile", files[0], "--ssl-keyfile", files[1]),
            ]
            log = self.home / "superlink.log"
            self._process = child.start(command, self.home, log, sockets=sockets)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        lost = self._lost(error) if isinstance(error, httpx.HTTPError) else None
        self._client.close()
        child.stop([self._process])
        for path in self._secret_files:
            path.unlink(missing_ok=True)
        if lost is not None:
            raise lost from None

    def check(self) -> None:
        """Refuse to continue if it has ended."""
        if self._process.poll() is not None:
            raise self._lost()

    def _lost(self, error: httpx.HTTPError | None = None) -> LostLink:
        """Why nothing goes on, in one line: it has ended, or refuses, or does not answer."""
        with suppress(subprocess.TimeoutExpired):  # a connection may be lost before its process is
            self._process.wait(1.0)
        code, log = self._process.poll(), self.home / "superlink.log"
        if code is not None:
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            lines = log.read_text("utf-8", "replace").split("\n") if log.is_file() else []
            last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
            return LostLink(f"the SuperLink has ended ({how}); its log, {log}, ends: {last[:200]}")
        if isinstance(error, httpx.HTTPStatusError):
            status = error.response.status_code
            why = ": its run has been stopped" if status in (401, 403) else ""
            told = f"refused {error.request.url.path} ({status}){why}"
            return LostLink(f"the SuperLink {told}; its log: {log}")
        return LostLink(f"the SuperLink does not answer ({error!r}); its log: {log}")

    @property
    def _secret_files(self) -> tuple[Path, Path]:
        return self.home / "superlink.secret", self.home / "gate.json"

    def nodes(self) -> list[int]:
        """Flower's numbers of the devices, in the order of their keys."""
        numbers = self._told()["nodes"]
        return [numbers[key.hex()] for key in self.keys]

    def seen(self) -> dict[int, float]:
        """How many seconds ago each device last called; by its number, the place of its key."""
        with suppress(httpx.HTTPError):  # to know it is no reason to end a run
            told = self._told()["seen"]
            return {i: told[k.hex()] for i, k in enumerate(self.keys) if k.hex() in told}
        return {}

    def waiting(self) -> set[int]:
        """The devices that wait at the gate for a question, now."""
        with suppress(httpx.HTTPError):
            told = {*self._told()["waiting"]}
            return {i for i, key in enumerate(self.keys) if key.hex() in told}
        return set()

    def _told(self) -> dict[str, Any]:
        return json.loads(self.call(SEEN, ()))

    def call(self, path: str, pieces: Sequence[bytes]) -> bytes:
        """One of this server's own calls to the gate and its mailroom."""
        content = b"".join(pieces)
        answer = self._client.post(f"https://{self.address}{path}", content=content)
        return answer.raise_for_status().content

    @contextmanager
    def run(self) -> Iterator[flower.Run]:
        """Begin a Flower run with this process as its ServerApp."""
        token = flower.RuntimeTokenHttpInterceptor(token=self._task())
        client = self._client_of(flower.RuntimeHttpClient, "flwr-serverapp", token)

        def beat() -> bool:
            with suppress(httpx.HTTPError, RuntimeError):  # or the client is closed
                client.SendTaskHeartbeat(flower.runtime.SendTaskHeartbeatRequest())
            return True

        heart = flower.HeartbeatSender(beat)
        heart.start()
        status: str | None = "failed"
        try:
            answer = client.PullTaskInput(flower.runtime.PullTaskInputRequest())
            run, identity = flower.run_from_proto(answer.run), flower.TaskIdentity
            # messages of this process are signed with these
            identity.task_id, identity.run_id = answer.task_id, run.run_id
            identity.node_id = flower.context_from_proto(answer.context).node_id
            yield run
            status = "completed"
        except httpx.TransportError:  # it has ended, or hangs: there is no one to tell
            status = None
            raise
        finally:
            if status is not None:
                with suppress(httpx.HTTPError):
                    output = flower.runtime.PushTaskOutputRequest(sub_status=status, details="")
                    client.PushTaskOutput(output)
                heart.stop()
            client.close()

    def _task(self) -> str:
        """Claim the task of a new run. Returns its token."""
        content = flower.build_bundle(BUNDLE)
        fab = flower.Fab(hashlib.sha256(content).hexdigest(), content, {})
        with self._client_of(flower.ControlHttpClient, "flwr CLI") as control:
            request = flower.control.StartRunRequest(fab=flower.fab_to_proto(fab))
            started = control.StartRun(request)
        may = flower.SuperExecAuthHttpInterceptor(
            master_secret=self._secret, protected_methods={ACQUIRE}
        )
        with self._client_of(flower.RuntimeHttpClient, "SuperExec", may) as client:
            types = [flower.TaskType.SERVER_APP]
            wanted = flower.runtime.AcquireTaskRequest(supported_task_types=types)
            while True:
                self.check()
                acquired = client.AcquireTask(wanted)
                if acquired.token and acquired.task.run_id == started.run_id:
                    return str(acquired.token)
                if not acquired.token:
                    time.sleep(0.1)

    def _client_of(
        self, kind: type[Client], name: str, *allowing: flower.ProtobufClientInterceptor
    ) -> Client:
        """One of Flower's clients, which the gate lets pass."""
        version = flower.RuntimeVersionHttpInterceptor(component_name=name)
        interceptors = [version, *allowing, self._header]
        return kind.from_server_address(self.address, False, self._ca, interceptors=interceptors)

    def _wait(self) -> None:
        """Wait until it answers or has ended."""
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends:
            self.check()
            with suppress(certificates.NobodyThere):
                return certificates.check_connection(
                    self.address, self.place.certs / certificates.CA, 1.0
                )
            time.sleep(0.1)
        raise ValueError(f"the SuperLink did not start; its log: {self.home / 'superlink.log'}")
