"""The CLI's connection to a broker: grpcio's own client, with errors as one line.

The official RocketMQ client cannot be used here: its protos would clash with ours in one process.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import grpc

from apache.rocketmq.v2 import service_pb2_grpc
from strata.admin.v1 import admin_pb2_grpc
from strata_cli.options import DEFAULT_ENDPOINT, CliError, Common, UsageError, milliseconds

Response = TypeVar("Response")
Metadata = tuple[tuple[str, str], ...]

MAX_RESPONSE_BYTES = 64 * 1024 * 1024

_MAX_PORT = 65_535

_NO_ROUTE = re.compile(r"(?:TOPIC_NOT_FOUND: )?CODE: 17 +DESC: No topic route info .*topic: (\S+)")

_CODES = {
    grpc.StatusCode.NOT_FOUND: "not_found",
    grpc.StatusCode.INVALID_ARGUMENT: "refused",
    grpc.StatusCode.OUT_OF_RANGE: "refused",
    grpc.StatusCode.ALREADY_EXISTS: "refused",
    grpc.StatusCode.FAILED_PRECONDITION: "refused",
    grpc.StatusCode.ABORTED: "refused",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "refused",
    grpc.StatusCode.PERMISSION_DENIED: "refused",
    grpc.StatusCode.UNAUTHENTICATED: "refused",
    grpc.StatusCode.UNIMPLEMENTED: "refused",
    grpc.StatusCode.UNAVAILABLE: "unreachable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "unreachable",
}
_STATUS_WORDS = {
    grpc.StatusCode.UNAVAILABLE: "cannot reach",
    grpc.StatusCode.DEADLINE_EXCEEDED: "no answer in time from",
}


class CallFailed(CliError):
    """A broker answered a call with an error, or not at all.

    Attributes:
        status: gRPC's status of the call.
    """

    def __init__(self, message: str, status: grpc.StatusCode) -> None:
        super().__init__(message, _CODES.get(status, "failed"))
        self.status = status


class AdminClient:
    """Calls to one broker with a time limit.

    Attributes:
        admin: stub of strata.admin.v1.
        messaging: stub of apache.rocketmq.v2.
    """

    def __init__(self, common: Common) -> None:
        self.endpoint = with_port(common.endpoint or DEFAULT_ENDPOINT)
        self.timeout_s = milliseconds(common.timeout) / 1_000
        self._common = common
        self._secret = _secret_key(common)
        self._channel = _channel(self.endpoint, common)
        self.admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self.messaging = service_pb2_grpc.MessagingServiceStub(self._channel)

    @property
    def channel(self) -> grpc.Channel:
        """The connection, for stubs of other services."""
        return self._channel

    def call(self, method: Callable[..., Response], request: Any) -> Response:
        """Call a unary method of a stub.

        Raises:
            CallFailed: the broker refuses, or it does not answer in time.
        """
        try:
            return method(request, timeout=self.timeout_s, metadata=self.metadata())
        except grpc.RpcError as error:
            raise self.failure(error) from None

    def metadata(self) -> Metadata:
        """Return the headers of one call, signed when there are keys."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = [
            ("x-mq-client-id", f"strata-cli@{socket.gethostname()}@{os.getpid()}"),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-version", "5.1.2"),
            ("x-mq-date-time", now),
            ("x-mq-namespace", self._common.namespace),
        ]
        if self._common.access_key:
            secret = self._secret.encode()
            signature = hmac.new(secret, now.encode(), hashlib.sha1).hexdigest().upper()
            headers.append(
                (
                    "authorization",
                    f"MQv2-HMAC-SHA1 Credential={self._common.access_key}, "
                    f"SignedHeaders=x-mq-date-time, Signature={signature}",
                )
            )
        return tuple(headers)

    def failure(self, error: grpc.RpcError) -> CallFailed:
        """Return the one line that is shown for a failed call."""
        status, details = error.code(), error.details() or ""
        if status in _STATUS_WORDS and "strata" not in details:
            return CallFailed(f"{_STATUS_WORDS[status]} {self.endpoint}: {details}", status)
        if status is grpc.StatusCode.UNIMPLEMENTED:
            return CallFailed(f"{self.endpoint} does not offer this: {details}", status)
        return CallFailed(plain(details) or status.name, status)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def plain(text: str) -> str:
    """Return a refusal in our own words if the server has to use RocketMQ's text."""
    return _NO_ROUTE.sub(r"topic \1 does not exist", text)


def with_port(endpoint: str) -> str:
    """Return an endpoint with its port or the default port.

    Raises:
        UsageError: it is not HOST:PORT.
    """
    if endpoint.startswith("unix:") or "://" in endpoint:
        return endpoint
    host, colon, port = endpoint.rpartition(":")
    if endpoint.endswith("]") or not colon:
        return f"{endpoint}:{DEFAULT_ENDPOINT.rpartition(':')[2]}"
    is_port = port.isascii() and port.isdigit() and int(port) <= _MAX_PORT
    if not host or not is_port or (":" in host and not host.endswith("]")):
        raise UsageError(f"--endpoint {endpoint}: write HOST:PORT; an IPv6 address in brackets")
    return endpoint


def _secret_key(common: Common) -> str:
    if not common.secret_key_file:
        return common.secret_key
    try:
        return Path(common.secret_key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "the file is not text"
        raise CliError(f"--secret-key-file {common.secret_key_file}: {reason}") from None


@contextmanager
def connect(common: Common) -> Iterator[AdminClient]:
    """Yield a client and close it."""
    client = AdminClient(common)
    try:
        yield client
    finally:
        client.close()


def _channel(endpoint: str, common: Common) -> grpc.Channel:
    options = [
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        ("grpc.enable_http_proxy", 0),
    ]
    if not (common.tls or common.ca):
        return grpc.insecure_channel(endpoint, options)
    try:
        roots = Path(common.ca).read_bytes() if common.ca else None
    except OSError as error:
        raise CliError(f"--ca {common.ca}: {error.strerror}") from None
    return grpc.secure_channel(endpoint, grpc.ssl_channel_credentials(roots), options)
