"""Common parts of all requests: the caller, its namespace, its deadline."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from apache.rocketmq.v2 import definition_pb2
from strata_broker.base.audit import Audited, FirstUse
from strata_broker.metadata.metadata import Name
from strata_mq.requests import MAX_NAMESPACE_LENGTH, Code, RequestError

_CLIENT_ID = "x-mq-client-id"
_NAMESPACE = "x-mq-namespace"
_LANGUAGE = "x-mq-language"
_MOST_MS = (1 << 63) - 1
# Time of a call that is reserved for sending its answer: at most this, and this share.
_ANSWER_S = 0.2
_ANSWER_SHARE = 0.05
MAX_CLIENT_ID_LENGTH = 255
_MAX_LANGUAGE_LENGTH = 64
# gRPC's form of an address of IPv6 begins with it.
_ESCAPED_BRACKET = "%5B"
# Names that clients use instead of the enum's.
_LANGUAGE_NAMES = {"HTTP": "NODE_JS", "GO": "GOLANG", "DOTNET": "DOT_NET"}


class Caller(NamedTuple):
    """The caller: the client's id, the namespace it was configured with, its language."""

    client_id: str
    namespace: str
    # As in the client's metadata: JAVA, GO, PYTHON, HTTP (Node) ...
    language: str = ""
    # User that signed the call; "": access is not controlled, or it does not matter here.
    user: str = ""
    # `host:port`; "": it does not matter here.
    peer: str = ""

    def name_of(self, resource: definition_pb2.Resource) -> Name:
        """Return the key under which a topic or consumer group is known.

        Most clients write their namespace into every resource, Node clients into the metadata
        only.
        """
        return resource.resource_namespace or self.namespace, resource.name


def caller_of(metadata: Mapping[str, str]) -> Caller:
    """Return the caller; its values are kept as long as the client lives.

    Raises:
        RequestError: CLIENT_ID_REQUIRED; REQUEST_HEADER_FIELDS_TOO_LARGE.
    """
    return _caller(
        metadata.get(_CLIENT_ID, ""), metadata.get(_NAMESPACE, ""), metadata.get(_LANGUAGE, "")
    )


@lru_cache(maxsize=1024)
def _caller(client_id: str, namespace: str, language: str) -> Caller:
    if not client_id:
        raise RequestError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(client_id) + len(namespace) + len(language) > MAX_CLIENT_ID_LENGTH:
        _check_header("client id", client_id, MAX_CLIENT_ID_LENGTH)
        _check_header("namespace", namespace, MAX_NAMESPACE_LENGTH)
        _check_header("language", language, _MAX_LANGUAGE_LENGTH)
    return Caller(client_id, namespace, language)


def _check_header(what: str, value: str, most: int) -> None:
    if len(value) > most:
        raise RequestError(
            Code.REQUEST_HEADER_FIELDS_TOO_LARGE, f"{what} is longer than {most} characters"
        )


def use_of(caller: Caller, rpc: str) -> FirstUse:
    """Return the use of something that a client's call makes if nobody made it before."""
    return FirstUse(Audited(caller.user, caller.peer, caller.client_id), rpc)


def operator_of(metadata: Mapping[str, str]) -> Caller:
    """Return the caller of an operator's call; its tool may have no client id."""
    return Caller(metadata.get(_CLIENT_ID, ""), metadata.get(_NAMESPACE, ""))


@lru_cache(maxsize=64)
def language_of(name: str) -> int:
    """Return the `definition_pb2.Language` for the language text in the metadata."""
    name = _LANGUAGE_NAMES.get(name.upper(), name.upper())
    if name in definition_pb2.Language.keys():  # noqa: SIM118 - an enum wrapper is no mapping
        return definition_pb2.Language.Value(name)
    return definition_pb2.LANGUAGE_UNSPECIFIED


def milliseconds(value: Duration | Timestamp) -> int:
    """Return a time in milliseconds, within 63 bits; unlike protobuf's own, for any values."""
    wanted_ms = int(value.seconds) * 1000 + int(value.nanos) // 1_000_000
    return max(-_MOST_MS, min(wanted_ms, _MOST_MS))


def host_of(peer: str) -> str:
    """Return the host of `host:port`, without brackets; "" for ""."""
    host = peer.rpartition(":")[0]
    if host.startswith(_ESCAPED_BRACKET):
        host = unquote(host)
    return host.strip("[]")


def time_for(left_s: float | None, default_s: float, most_s: float) -> float:
    """Return how long a call may take.

    Args:
        left_s: time until the client's deadline, maybe years; None: the client set no deadline.
        default_s: for a call without deadline.
        most_s: longest time of any call.

    Returns:
        The time, a little short of the client's deadline: an answer with the reason of a failure
        must arrive before the client gives up.
    """
    if left_s is None:
        return default_s
    return min(left_s - min(_ANSWER_S, left_s * _ANSWER_SHARE), most_s)


def addresses_of(endpoints: definition_pb2.Endpoints) -> list[tuple[str, int]]:
    """Return (host, port) of every address that a client names."""
    return [(address.host, address.port) for address in endpoints.addresses]


def enum_name(
    enum: type[definition_pb2.Language] | type[definition_pb2.ClientType], number: int
) -> str:
    """Return a value's name, or the number if this version does not know it."""
    return enum.Name(number) if number in enum.values() else str(number)  # type: ignore[arg-type]
