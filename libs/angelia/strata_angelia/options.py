"""Limits and times of Angelia; every queue and buffer of the package is bounded by one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from strata_angelia.classes import CLASS_OF, CallClass
from strata_angelia.roles import ACCESS_OF, RpcAccess

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ClassLimits:
    """Limits of one class of calls under way on a connection, and at an in-process server.

    Attributes:
        max_calls: more answer OVERLOADED.
        max_bytes: of requests. A caller waits, within the call's deadline; a server refuses.
            Not counted in-process, where nothing is copied. One request may exceed it.
    """

    max_calls: int
    max_bytes: int


CLASS_LIMITS: Mapping[CallClass, ClassLimits] = MappingProxyType(
    {
        CallClass.CONTROL: ClassLimits(4_096, 128 * MIB),
        CallClass.RELEASE: ClassLimits(8_192, 64 * MIB),
        CallClass.REPORT: ClassLimits(256, 64 * MIB),
        CallClass.APPEND: ClassLimits(4_096, 128 * MIB),
        # A broker may park 20,000 receives, and each may be a call.
        CallClass.READ: ClassLimits(32_768, 64 * MIB),
    }
)


@dataclass(frozen=True, slots=True)
class AngeliaOptions:
    """Limits of a server or a channel.

    Attributes:
        max_message_bytes: serialised size of one request or response.
        classes: budget of each class of calls.
        class_of: class by the RPC's path; CONTROL where it is not named.
        access_of: who may call an RPC, by its path; with TLS, others are refused.
        stream_window_bytes: response bytes of one stream that its consumer has not taken yet;
            the server waits. One message may exceed it.
        max_connections: connections of a server; a channel has up to three.
        connect_timeout_s: for connecting and the handshake.
        reconnect_pause_s: after a failed connect, calls fail at once for this time.
        ping_interval_s: distance of pings on a connection.
        silence_timeout_s: a connection on which nothing arrived for so long is lost.
    """

    max_message_bytes: int = 64 * MIB
    classes: Mapping[CallClass, ClassLimits] = field(default_factory=lambda: CLASS_LIMITS)
    class_of: Mapping[str, CallClass] = field(default_factory=lambda: CLASS_OF)
    access_of: Mapping[str, RpcAccess] = field(default_factory=lambda: ACCESS_OF)
    stream_window_bytes: int = 4 * MIB
    max_connections: int = 4_096
    connect_timeout_s: float = 3.0
    reconnect_pause_s: float = 0.1
    ping_interval_s: float = 3.0
    silence_timeout_s: float = 10.0
