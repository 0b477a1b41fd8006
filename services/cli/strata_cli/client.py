"""The CLI's connection to a broker: grpcio's own client, with errors as one line.

The official RocketMQ client cannot be used here: its protos would clash with ours in one process.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import grpc

from apache.rocketmq.v2 import service_pb2_grpc
from strata.admin.v1 import admin_pb2_grpc
from strata_cli.errors import CliError, UsageError
from strata_cli.options import DEFAULT_ENDPOINT, Common, milliseconds
from strata_cli.profiles import read_secret
from strata_cli.readable import printable

Response = TypeVar("Response")
Metadata = tuple[tuple[str, str], ...]

MAX_RESPONSE_BYTES = 64 * 1024 * 1024

_MAX_PORT = 65_535

_NO_ROUTE = re.compile(r"(?:TOPIC_NOT_FOUND: )?CODE: 17 +DESC: No topic route info .*topic: (\S+)")

_NO_CONNECTION = re.compile(r"Failed to connect to remote host: (?:\w+: )?([^()]+?) \(\d+\)$")

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


# A client id belongs to one user and has its subscriptions, and one process may run commands for
# several users (`embedded`).
_CONNECTIONS = count(1)


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

    Args:
        common: the broker, the keys, the time limit.
        clients: HOST:PORT of the broker's services for clients; empty: it is that of `common`.

    Attributes:
        admin: stub of strata.admin.v1.
        messaging: stub of apache.rocketmq.v2.
    """

    def __init__(self, common: Common, clients: str = "") -> None:
        _check_headers(common)
        self.endpoint = with_port(common.endpoint or DEFAULT_ENDPOINT)
        self.timeout_s = milliseconds(common.timeout) / 1_000
        self._common = common
        self._client_id = f"strata-cli@{socket.gethostname()}@{os.getpid()}@{next(_CONNECTIONS)}"
        self._secret = secret_key_of(common)
        self._channel = _channel(self.endpoint, common)
        self.admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._clients = _channel(clients, common) if clients else self._channel
        self._tell(
            f"endpoint {self.endpoint}, {'TLS' if common.tls or common.ca else 'plaintext'}, "
            f"{'access key ' + common.access_key if common.access_key else 'no keys'}"
        )
        self.messaging = service_pb2_grpc.MessagingServiceStub(self._clients)

    @property
    def channel(self) -> grpc.Channel:
        """The connection, for stubs of other services for clients."""
        return self._clients

    def call(self, method: Callable[..., Response], request: Any) -> Response:
        """Call a unary method of a stub.

        Raises:
            CallFailed: the broker refuses, or it does not answer in time.
        """
        began_s, outcome = time.perf_counter(), "OK"
        try:
            return method(request, timeout=self.timeout_s, metadata=self.metadata())
        except grpc.RpcError as error:
            outcome = str(error.code().name)
            raise self.failure(error) from None
        except ValueError as error:
            # grpcio's answer when somebody has closed the connection.
            outcome = "closed"
            raise CallFailed(str(error), grpc.StatusCode.UNAVAILABLE) from None
        finally:
            name = type(request).__name__.removesuffix("Request")
            took_ms = (time.perf_counter() - began_s) * 1_000
            self._tell(f"{name}: {outcome} after {took_ms:.1f} ms")

    def _tell(self, text: str) -> None:
        """Write a line on standard error for `--verbose`."""
        if self._common.verbose:
            print(f"strata: {printable(text)}", file=sys.stderr)

    def metadata(self) -> Metadata:
        """Return the headers of one call, signed when there are keys."""
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = [
            ("x-mq-client-id", self._client_id),
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
        if self._common.session_token:
            headers.append(("x-mq-session-token", self._common.session_token))
        return tuple(headers)

    def failure(self, error: grpc.RpcError) -> CallFailed:
        """Return the one line that is shown for a failed call."""
        status, details = error.code(), error.details() or ""
        if status in _STATUS_WORDS and "strata" not in details:
            return CallFailed(
                f"{_STATUS_WORDS[status]} {self.endpoint}: {reason_of(details)}", status
            )
        if status is grpc.StatusCode.UNIMPLEMENTED:
            return CallFailed(f"{self.endpoint} does not offer this: {details}", status)
        return CallFailed(plain(details) or status.name, status)

    def under(self, common: Common) -> AdminClient:
        """Return a client with the same connection and keys, in a command's namespace.

        Raises:
            UsageError: no namespace can have that name.
        """
        _check_headers(common)
        other = copy.copy(self)
        other._common = replace(self._common, namespace=common.namespace)
        other.timeout_s = milliseconds(common.timeout) / 1_000
        return other

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()
        self._clients.close()


def reason_of(details: str) -> str:
    """Return why there was no connection, without gRPC's words about its attempts."""
    found = _NO_CONNECTION.search(details)
    return found[1].lower() if found else details


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


def _check_headers(common: Common) -> None:
    """Refuse texts that the headers of a call cannot hold.

    Raises:
        UsageError: one of them is not printable ASCII.
    """
    for option in ("namespace", "access_key", "session_token"):
        text = getattr(common, option)
        if not (text.isascii() and text.isprintable()):
            name = option.replace("_", "-")
            raise UsageError(f"--{name}: it may only have ASCII characters that can be printed")


def secret_key_of(common: Common) -> str:
    """Return the secret key that a command was given, in a file or as it is.

    Raises:
        CliError: the file cannot be read.
    """
    if not common.secret_key_file:
        return common.secret_key
    return read_secret(Path(common.secret_key_file), "--secret-key-file", on_shared=_warn)


def _warn(text: str) -> None:
    """Warn a person. Programs go on: a mounted secret is often readable by a whole container."""
    if sys.stderr.isatty():
        print(f"warning: {text}", file=sys.stderr)


_HELD: ContextVar[AdminClient | None] = ContextVar("held", default=None)


@contextmanager
def held(client: AdminClient) -> Iterator[None]:
    """Let `connect` use a connection that is open, and that stays so."""
    token = _HELD.set(client)
    try:
        yield
    finally:
        _HELD.reset(token)


@contextmanager
def connect(common: Common) -> Iterator[AdminClient]:
    """Yield a client and close it."""
    open_one = _HELD.get()
    if open_one is not None:
        yield open_one.under(common)
        return
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
