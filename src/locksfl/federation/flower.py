"""Every import from Flower that Flower does not document, and nothing else.

pyproject.toml pins the one version with which these are known to work. A new version of Flower may
change this file, and its uses in node.py (Fleet API) and superlink.py (Control and Runtime APIs).
What Flower documents (flwr.app, flwr.clientapp, flwr.serverapp, flwr.simulation) is imported where
it is used. Only locksfl.federation imports flwr.

A device needs no server: what only the server uses and is slow to import is imported when called.
"""

# mypy: implicit-reexport
# ruff: noqa: F401

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    SYSTEM_TIME_TOLERANCE,
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
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
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
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, uses_nist_ec_curve
from flwr.supercore.protobuf.client import ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid


def http_grid(address: str, ca: bytes, token: str) -> HttpGrid:
    """The Grid of a run whose task this process has claimed."""
    from flwr.superlink.grid import HttpGrid

    return HttpGrid(address, insecure=False, root_certificates=ca, token=token)


def build_bundle(project: str) -> bytes:
    """A Flower app bundle that consists of one pyproject.toml."""
    from flwr.cli.build import build_fab_from_files

    content, _ = build_fab_from_files({"pyproject.toml": project.encode()})
    return content


def run_superlink(arguments: Sequence[str]) -> None:
    """`flower-superlink` in this process, until it ends."""
    from flwr.superlink.cli.flower_superlink import flower_superlink

    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()
