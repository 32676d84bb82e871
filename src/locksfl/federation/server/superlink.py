"""The server's SuperLink: start it as a child process, register its nodes, begin a run.

Flower has no login: anyone who reaches the port can register nodes and start runs. Two things
follow. The SuperLink runs with `--isolation process` and a secret, so that no one else gets the
run's ServerApp, and no uploaded bundle is ever executed here. And devices run this package's app,
never the bundle (node.py).

It keeps its state in memory: in central trust the messages are secrets, and a killed server begins
a new run anyway. Nodes are known by their keys, not by the numbers that a SuperLink assigns.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.serverapp import Grid

from locksfl.federation import certificates, child, flower

START_SECONDS = 60.0
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

    home: Path  # a private folder of the run: its log, its secret
    certs: Path
    port: int
    host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._ca = (self.certs / certificates.CA).read_bytes()

    @property
    def address(self) -> str:
        """The address by which this machine itself reaches it."""
        everywhere = self.host in ("0.0.0.0", "::", "")
        host = certificates.LOOPBACK if everywhere else self.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def __enter__(self) -> SuperLink:
        secret = self.home / "superlink.secret"
        secret.touch(mode=0o600)
        secret.write_bytes(self._secret)
        command = [
            *("superlink", "--host", self.host, "--port", str(self.port), "--isolation", "process"),
            *("--superexec-auth-secret-file", str(secret), "--enable-supernode-auth"),
            *("--ssl-ca-certfile", str(self.certs / certificates.CA)),
            *("--ssl-certfile", str(self.certs / certificates.CERTIFICATE)),
            *("--ssl-keyfile", str(self.certs / certificates.KEY)),
        ]
        self._process = child.start(command, self.home, self.home / "superlink.log")
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        child.stop([self._process])
        (self.home / "superlink.secret").unlink(missing_ok=True)

    def check(self) -> None:
        """Refuse to continue if it has ended."""
        if self._process.poll() is not None:
            raise ValueError(f"the SuperLink has ended; its log: {self.home / 'superlink.log'}")

    def register(self, public_keys: Sequence[bytes]) -> list[int]:
        """Register these keys. Returns the numbers of their nodes."""
        with self._control() as control:
            requests = [flower.control.RegisterNodeRequest(public_key=key) for key in public_keys]
            return [int(control.RegisterNode(request).node_id) for request in requests]

    def online(self) -> set[int]:
        """The nodes that are connected now."""
        with self._control() as control:
            nodes = control.ListNodes(flower.control.ListNodesRequest()).nodes_info
        return {int(node.node_id) for node in nodes if node.status == "online"}

    @contextmanager
    def run(self) -> Iterator[Grid]:
        """Begin a Flower run with this process as its ServerApp. Yields the Grid to its nodes."""
        grid = flower.http_grid(self.address, self._ca, self._task())
        client = grid._runtime_client
        heart = flower.HeartbeatSender(flower.make_task_heartbeat_fn_http(client))
        heart.start()
        status = "failed"
        try:
            answer = client.PullTaskInput(flower.runtime.PullTaskInputRequest())
            run, identity = flower.run_from_proto(answer.run), flower.TaskIdentity
            # messages of this process are signed with these
            identity.task_id, identity.run_id = answer.task_id, run.run_id
            identity.node_id = flower.context_from_proto(answer.context).node_id
            grid.set_run(run)
            yield grid
            status = "completed"
        finally:
            with suppress(httpx.HTTPError, RuntimeError):  # it has ended: there is no one to tell
                client.PushTaskOutput(
                    flower.runtime.PushTaskOutputRequest(sub_status=status, details="")
                )
            heart.stop()
            grid.close()

    def _task(self) -> str:
        """Claim the task of a new run. Returns its token."""
        content = flower.build_bundle(BUNDLE)
        fab = flower.Fab(hashlib.sha256(content).hexdigest(), content, {})
        with self._control() as control:
            request = flower.control.StartRunRequest(fab=flower.fab_to_proto(fab))
            started = control.StartRun(request)
        interceptors: list[flower.ProtobufClientInterceptor] = [
            flower.RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            flower.SuperExecAuthHttpInterceptor(
                master_secret=self._secret, protected_methods={ACQUIRE}
            ),
        ]
        with flower.RuntimeHttpClient.from_server_address(
            self.address, False, self._ca, interceptors=interceptors
        ) as client:
            types = [flower.TaskType.SERVER_APP]
            wanted = flower.runtime.AcquireTaskRequest(supported_task_types=types)
            while True:
                self.check()
                acquired = client.AcquireTask(wanted)
                if acquired.token and acquired.task.run_id == started.run_id:
                    return str(acquired.token)
                if not acquired.token:
                    time.sleep(0.1)

    def _control(self) -> flower.ControlHttpClient:
        return flower.ControlHttpClient.from_server_address(
            self.address,
            False,
            self._ca,
            interceptors=[flower.RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def _wait(self) -> None:
        """Wait until it answers or has ended (for example, because its port is in use)."""
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends:
            self.check()
            if certificates.check_connection(self.address, self.certs / certificates.CA, 1.0):
                self.check()  # another server may hold the port
                return
            time.sleep(0.1)
        raise ValueError(f"the SuperLink did not start; its log: {self.home / 'superlink.log'}")
