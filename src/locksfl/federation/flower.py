"""Every import from Flower that Flower does not document, and nothing else.

pyproject.toml pins the one version with which these are known to work. A new version of Flower may
change this file, and its uses in post.py (the objects of a message), superlink.py (Control and
Runtime APIs), stock.py (the state of a SuperLink) and gate.py (paths, headers and signatures of the
Fleet API).
What Flower documents (flwr.app, flwr.clientapp, flwr.serverapp, flwr.simulation) is imported where
it is used. Only locksfl.federation imports flwr.

A device needs no server: what only the server uses and is slow to import is imported when called.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import httpx
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    ErrorCode,
)
from flwr.common.serde import (
    context_from_proto,
    fab_to_proto,
    run_from_proto,
)
from flwr.proto import control_pb2 as control
from flwr.proto import fleet_pb2 as fleet
from flwr.proto import runtime_pb2 as runtime
from flwr.proto.message_pb2 import ObjectTree
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
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    sign_message,
    uses_nist_ec_curve,
    verify_signature,
)
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.run import Run
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

NOBODY = NOOP_FLWR_AID, NOOP_ACCOUNT_NAME  # who registers a node where there are no accounts


class HeaderInterceptor:
    """Adds one header to every call."""

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """Called by Flower's clients."""
        context.request.headers[self.name] = self.value
        return call_next(context)


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
