"""The largest request and the longest wait of each of the broker's RPCs (rule 34).

An RPC without an entry has the edge's defaults: 64 KiB and `calls.max_timeout_ms`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType

from google.protobuf.descriptor import ServiceDescriptor

from apache.rocketmq.v2 import admin_pb2, service_pb2
from strata.admin.v1 import admin_pb2 as strata_admin_pb2
from strata.broker.v1 import peer_pb2
from strata_broker.base.config import BrokerConfig
from strata_edge.method_limits import KIB, MethodLimits

_MIB = 1 << 20
_OPERATOR_S = 600.0  # operators say themselves how long they wait
_STREAM_S = 86_400.0  # a watch is opened again after a day


def default_limits(config: BrokerConfig) -> MethodLimits:
    """Return the limits of an RPC that has none of its own."""
    return MethodLimits(max_time_s=config.calls.max_timeout_ms / 1_000)


def method_limits(config: BrokerConfig, max_receive_bytes: int) -> Mapping[str, MethodLimits]:
    """Return the limits by `/package.Service/Rpc`.

    Args:
        config: of the broker.
        max_receive_bytes: of a request with messages or rows.
    """
    default = default_limits(config)
    # A filter has 64 Ki characters of up to four bytes.
    poll = replace(
        default,
        max_request_bytes=320 * KIB,
        max_time_s=default.max_time_s + config.receive.max_polling_ms / 1_000,
    )
    large = replace(default, max_request_bytes=max_receive_bytes)
    messaging = {
        "SendMessage": large,
        # `ack.max_entries` handles.
        "AckMessage": replace(default, max_request_bytes=_MIB),
        "ReceiveMessage": poll,
        "PullMessage": poll,
        # Settings with filters, and stack traces of clients.
        "Telemetry": replace(default, max_request_bytes=512 * KIB),
    }
    tables = {
        **dict.fromkeys(("Put", "CompareAndSet", "Batch"), large),
        **dict.fromkeys(("Watch", "Export"), replace(default, max_time_s=_STREAM_S)),
    }
    operators = MethodLimits(max_request_bytes=4 * _MIB, max_time_s=_OPERATOR_S)
    return {
        **_paths(service_pb2.DESCRIPTOR.services_by_name["MessagingService"], messaging),
        # By its name: a broker without the plugin imports nothing of it.
        **{f"/strata.kv.v1.KvService/{rpc}": of_rpc for rpc, of_rpc in tables.items()},
        **{path: operators for file in (strata_admin_pb2, admin_pb2) for path in _all_of(file)},
        # A command may carry a message.
        **dict.fromkeys(_all_of(peer_pb2), replace(operators, max_request_bytes=max_receive_bytes)),
    }


def _paths(
    service: ServiceDescriptor, limits: Mapping[str, MethodLimits]
) -> dict[str, MethodLimits]:
    """By path what is given by name.

    Raises:
        KeyError: the service has no such RPC.
    """
    return {
        f"/{service.full_name}/{service.methods_by_name[rpc].name}": of_rpc
        for rpc, of_rpc in limits.items()
    }


def _all_of(file: ModuleType) -> Iterator[str]:
    for service in file.DESCRIPTOR.services_by_name.values():
        for rpc in service.methods:
            yield f"/{service.full_name}/{rpc.name}"
