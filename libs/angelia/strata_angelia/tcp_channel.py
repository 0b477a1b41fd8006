"""Calling side of the tcp transport: a connection per lane, many calls in flight on each.

An ack never waits in a socket behind 64 MiB of messages, nor a small answer behind answers of
reads: classes of calls that differ in size have their own connections (`classes.Lane`).

A lane connects at its first call and again at the first call after a loss. After a failed attempt,
its calls fail at once for `reconnect_pause_s`. It never repeats a call: only the caller knows
whether that is safe. It always reads, because calls and windows bound the bytes that can arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from google.protobuf.message import Message

from strata_angelia import frames
from strata_angelia.classes import LANE_OF, CallClass, Lane, class_of
from strata_angelia.cluster_id import ClusterId, own
from strata_angelia.codec import Codec, ProtobufCodec
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    TOO_LARGE,
    UNAVAILABLE,
    AngeliaError,
)
from strata_angelia.tcp_client import ClientConnection, PendingCall
from strata_angelia.tls import PeerTls, refused_by_server, speaks_no_tls, tls_reason
from strata_runtime.addresses import host_and_port
from strata_runtime.logs import get_logger
from strata_runtime.tasks import Tasks, cancels_of_caller
from strata_runtime.timeouts import Timeout

Response = TypeVar("Response", bound=Message)


class TcpChannel:
    """See `ports.Channel`.

    Args:
        endpoint: `host:port`.
        codec: encoding of all messages.
        options: limits.
        trace_parent: gives the W3C `traceparent` of the running context, or "".
        cluster: of this process; None: it belongs to none.
        tls: certificates of this process; None: plaintext.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        codec: Codec | None = None,
        options: AngeliaOptions | None = None,
        trace_parent: Callable[[], str] = str,
        cluster: ClusterId | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._codec = codec or ProtobufCodec()
        self._options = options or AngeliaOptions()
        self._trace_parent = trace_parent
        cluster = own(cluster)
        self._lanes = {
            lane: _Lane(endpoint, self._codec.name, self._options, cluster=cluster, tls=tls)
            for lane in Lane
        }
        # Method -> its class, and the connection of that class; as many as there are RPCs.
        self._ways: dict[str, tuple[CallClass, _Lane]] = {}

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """See `ports.Channel.call`."""
        call_class, lane = self._way(method)
        connection = lane.open_connection()
        if connection is not None and (timeout_s is None or timeout_s > 0):
            payload = self._encode(connection, request)
            if connection.has_room(call_class, len(payload)):
                # Nothing to wait for but the answer: as for nearly every call.
                prefix = frames.encode_request_prefix(timeout_s, self._trace_parent())
                pending = connection.begin(method, payload, prefix, streaming=False)
                data = await self._answer(connection, pending, method, timeout_s)
                return self._decode(data, response_type)
        return await self._call_in_time(method, request, response_type, timeout_s)

    async def _answer(
        self,
        connection: ClientConnection,
        pending: PendingCall,
        method: str,
        timeout_s: float | None,
    ) -> bytes:
        """Wait for a call's answer; leaner than `asyncio.timeout`.

        Raises:
            AngeliaError: the call failed, or its time is over.
        """
        timer = None
        if timeout_s is not None:
            late = AngeliaError(DEADLINE_EXCEEDED, f"{method} at {self._endpoint}")
            timer = asyncio.get_running_loop().call_later(timeout_s, pending.give_up, late)
        try:
            data = await pending.next()
        finally:
            if timer is not None:
                timer.cancel()
            connection.finish(pending)
        if data is None:
            raise AngeliaError(INTERNAL, f"{method} answered with a stream")
        return data

    async def _call_in_time(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        timeout_s: float | None,
    ) -> Response:
        """Carry out a call that may wait for a connection, or for room."""
        timeout = Timeout(timeout_s)
        try:
            async with timeout:
                connection = await self._lane(method).connected()
                payload = self._encode(connection, request)
                await connection.wait_for_room(self._class_of(method), len(payload))
                pending = connection.begin(method, payload, self._prefix(timeout), streaming=False)
                try:
                    data = await pending.next()
                finally:
                    connection.finish(pending)
        except TimeoutError:
            raise AngeliaError(DEADLINE_EXCEEDED, f"{method} at {self._endpoint}") from None
        if data is None:
            raise AngeliaError(INTERNAL, f"{method} answered with a stream")
        return self._decode(data, response_type)

    async def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        """See `ports.Channel.stream`. Leaving early cancels the call (`contextlib.aclosing`)."""
        connection = await self._lane(method).connected()
        payload = self._encode(connection, request)
        await connection.wait_for_room(self._class_of(method), len(payload))
        prefix = frames.encode_request_prefix(None, self._trace_parent())
        pending = connection.begin(method, payload, prefix, streaming=True)
        try:
            while (data := await pending.next()) is not None:
                connection.give_credit(pending, len(data))
                yield self._decode(data, response_type)
        finally:
            connection.finish(pending)

    async def close(self) -> None:
        """See `ports.Channel.close`."""
        for lane in self._lanes.values():
            await lane.close()

    def _way(self, method: str) -> tuple[CallClass, _Lane]:
        way = self._ways.get(method)
        if way is None:
            call_class = class_of(method, self._options.class_of)
            way = self._ways[method] = call_class, self._lanes[LANE_OF[call_class]]
        return way

    def _class_of(self, method: str) -> CallClass:
        return self._way(method)[0]

    def _lane(self, method: str) -> _Lane:
        return self._way(method)[1]

    def _prefix(self, timeout: Timeout) -> bytes:
        deadline_s = timeout.when()
        left_s = None
        if deadline_s is not None:
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        return frames.encode_request_prefix(left_s, self._trace_parent())

    def _encode(self, connection: ClientConnection, request: Message) -> bytes:
        data = self._codec.encode(request)
        limit = min(connection.max_message_bytes, self._options.max_message_bytes)
        if len(data) > limit:
            raise AngeliaError(
                TOO_LARGE, f"the request has {len(data)} bytes, the limit is {limit}"
            )
        return data

    def _decode(self, data: bytes, response_type: type[Response]) -> Response:
        try:
            return self._codec.decode(data, response_type)
        except AngeliaError as error:
            raise AngeliaError(INTERNAL, f"bad response: {error.reason}") from None


class _Lane:
    """One connection of a channel: made at its first call, and anew at the first after a loss."""

    def __init__(
        self,
        endpoint: str,
        codec: str,
        options: AngeliaOptions,
        *,
        cluster: ClusterId,
        tls: PeerTls | None,
    ) -> None:
        self._endpoint = endpoint
        self._codec = codec
        self._options = options
        self._cluster = cluster
        self._tls = tls
        self._tasks = Tasks("angelia.channel", self._connect_failed)
        self._connecting: asyncio.Task[ClientConnection] | None = None
        self._connection: ClientConnection | None = None
        self._retry_at_s = 0.0
        self._closed = False

    def open_connection(self) -> ClientConnection | None:
        """Return the connection if it is there."""
        connection = self._connection
        if self._closed or connection is None or not connection.usable:
            return None
        return connection

    async def connected(self) -> ClientConnection:
        """Return the connection, made if there is none.

        Raises:
            AngeliaError: it cannot be made, or the channel was closed.
        """
        if self._closed:
            raise AngeliaError(UNAVAILABLE, "the channel was closed")
        if self._connection is not None and self._connection.usable:
            return self._connection
        if self._connecting is None:
            if asyncio.get_running_loop().time() < self._retry_at_s:
                raise AngeliaError(
                    UNAVAILABLE, f"the last connection attempt to {self._endpoint} failed"
                )
            self._connecting = self._tasks.spawn("connect", self._connect())
        cancels = cancels_of_caller()
        try:
            # Shielded: the caller's deadline must not end the attempt that others wait for.
            return await asyncio.shield(self._connecting)
        except asyncio.CancelledError:
            # Closing the channel cancels the attempt; a caller that is cancelled stays so.
            if not self._closed or cancels_of_caller() > cancels:
                raise
            raise AngeliaError(UNAVAILABLE, "the channel was closed") from None

    async def close(self) -> None:
        """Fail what is under way and end the connection."""
        self._closed = True
        await self._tasks.stop()
        if self._connection is not None:
            self._connection.end(UNAVAILABLE, "the caller closes")
            # The peer gets the goodbye, but nobody here waits for it.
            self._connection.fail_all(AngeliaError(UNAVAILABLE, "the channel was closed"))
            self._connection = None

    async def _connect(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        try:
            async with Timeout(self._options.connect_timeout_s):
                self._connection = await self._welcomed()
        except (OSError, TimeoutError, ValueError, AngeliaError) as error:
            # Others say where they are: it may be no address.
            self._retry_at_s = loop.time() + self._options.reconnect_pause_s
            if isinstance(error, AngeliaError) and error.code != UNAVAILABLE:
                raise
            reason = "timeout" if isinstance(error, TimeoutError) else tls_reason(error)
            text = f"{self._endpoint} cannot be reached: {reason}"
            raise AngeliaError(UNAVAILABLE, text) from None
        finally:
            self._connecting = None
        return self._connection

    async def _welcomed(self) -> ClientConnection:
        """Return a connection after its handshakes.

        While a cluster begins to use TLS, a server that does not speak it is called in plaintext.
        """
        tls = self._tls
        if tls is None:
            return await self._open(None)
        try:
            return await self._open(tls)
        except OSError as error:
            if tls.mode == "required" or not speaks_no_tls(error):
                raise
        return await self._open(None)

    async def _open(self, tls: PeerTls | None) -> ClientConnection:
        host, port = host_and_port(self._endpoint)
        connection = ClientConnection(
            self._options, self._codec, self._cluster, endpoint=self._endpoint
        )
        welcomed = False
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                lambda: connection,
                host,
                port,
                ssl=tls.credentials.client if tls is not None else None,
            )
            if tls is not None:
                tls.met(self._endpoint, transport.get_extra_info("ssl_object"))
            try:
                await connection.wait_welcome()
            except AngeliaError as error:
                if tls is not None and connection.was_cut:
                    raise refused_by_server(tls) from error
                raise
            welcomed = True
        finally:
            if not welcomed:
                # Refused, too late, or the channel closes: nobody else will end it.
                connection.abort(UNAVAILABLE, "no handshake")
        return connection

    def _connect_failed(self, name: str, failure: BaseException) -> None:
        # The callers that wait get the failure; what is not one of ours is a mistake in here.
        if not isinstance(failure, AngeliaError):
            get_logger("angelia").error("connect failed", task=name, exc_info=failure)
