"""Every import from Flower that Flower does not document, and nothing else.

pyproject.toml pins the one version with which these are known to work. A new version of Flower may
change this file, and its uses in node.py (Fleet API), superlink.py (Control and Runtime APIs) and
gate.py (paths, headers and signatures of the Fleet API).
What Flower documents (flwr.app, flwr.clientapp, flwr.serverapp, flwr.simulation) is imported where
it is used. Only locksfl.federation imports flwr.

A device needs no server: what only the server uses and is slow to import is imported when called.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import httpx
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ErrorCode,
)
from flwr.common.serde import (
    context_from_proto,
    fab_to_proto,
    message_from_proto,
    message_to_proto,
    run_from_proto,
)
from flwr.proto import control_pb2 as control
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import runtime_pb2 as runtime
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER as PUBLIC_KEY_HEADER
from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER as SIGNATURE_HEADER
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    uses_nist_ec_curve,
    verify_signature,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.retry import RetryInvoker, constant
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

RETRY_SECONDS = 5.0


class HeaderInterceptor:
    """Adds one header to every call."""

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """Called by Flower's clients."""
        context.request.headers[self.name] = self.value
        response: httpx.Response = call_next(context)
        return response


def http_grid(
    address: str, ca: bytes, token: str, secret: HeaderInterceptor, alive: Callable[[], bool]
) -> HttpGrid:
    """The Grid of a run whose task this process has claimed.

    Flower's own Grid tries for ever (max_tries and max_time are None), and takes a refusal for a
    Ctrl-C: it sends SIGINT to its own process. This one tries again for RETRY_SECONDS while the
    SuperLink lives, and raises httpx.HTTPError. One call takes at most 30 seconds.
    """
    from flwr.superlink.grid import HttpGrid

    def hopeless(error: Exception) -> bool:
        if isinstance(error, httpx.HTTPStatusError):
            return error.response.status_code != httpx.codes.SERVICE_UNAVAILABLE
        return isinstance(error, httpx.TimeoutException) or not alive()

    grid = HttpGrid(address, insecure=False, root_certificates=ca, token=token)
    grid._retry_invoker = RetryInvoker(
        lambda: constant(0.2),
        (httpx.TransportError, httpx.HTTPStatusError),
        max_tries=None,
        max_time=RETRY_SECONDS,
        should_giveup=hopeless,
    )
    client = grid._runtime_client
    client._interceptors = (*client._interceptors, secret)
    return grid


def build_bundle(project: str) -> bytes:
    """A Flower app bundle that consists of one pyproject.toml."""
    from flwr.cli.build import build_fab_from_files

    content, _ = build_fab_from_files({"pyproject.toml": project.encode()})
    return content


def superlink_app(arguments: Sequence[str]) -> Any:
    """The ASGI app that `flower-superlink` with these arguments would serve."""
    from flwr.superlink.cli.flower_superlink import (
        SuperLinkLifespan,
        _parse_superlink_lifespan_config,
    )
    from flwr.superlink.main import create_app

    sys.argv = ["flower-superlink", *arguments]
    return create_app(_parse_superlink_lifespan_config(), SuperLinkLifespan)
