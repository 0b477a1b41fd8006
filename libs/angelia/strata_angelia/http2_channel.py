"""Calling side of the http2 transport.

With TLS the server is looked at before the first call and after each loss (`http2_tls.probe`). New
certificates are taken for new calls; calls under way keep their connections until they end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from strata_angelia.classes import LANE_OF, Lane, class_of
from strata_angelia.cluster_id import CLUSTER_HEADER, ClusterId, own
from strata_angelia.codec import Codec, ProtobufCodec
from strata_angelia.http2_codes import (
    CODEC_HEADER,
    TRACE_HEADER,
    encode,
    from_status,
    message_limits,
)
from strata_angelia.http2_tls import channel_credentials, probe
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    UNAVAILABLE,
    WRONG_CLUSTER,
    AngeliaError,
)
from strata_angelia.roles import check_server
from strata_angelia.tls import PeerTls, tls_reason
from strata_runtime.logs import get_logger
from strata_runtime.roles import PeerRole
from strata_runtime.tasks import Tasks, cancels_of_caller
from strata_runtime.timeouts import Timeout

Response = TypeVar("Response", bound=Message)


class _Connections:
    """gRPC's channels with one certificate, and how many calls use them.

    Attributes:
        number: of the credentials.
        is_tls: whether they speak TLS.
        role: of the server, over TLS.
        is_good: whether nothing was lost since the server was looked at.
        calls: under way.
    """

    def __init__(
        self, channels: Mapping[Lane, grpc.aio.Channel], role: PeerRole | None, *, is_tls: bool
    ) -> None:
        self.channels = channels
        self.role = role
        self.is_tls = is_tls
        self.number = 0
        self.is_good = True
        self.calls = 0

    async def close(self) -> None:
        """End the calls that there are."""
        for channel in self.channels.values():
            await channel.close()


class Http2Channel:
    """See `ports.Channel`.

    Args:
        endpoint: `host:port`.
        codec: encoding of all messages.
        options: limits.
        trace_parent: gives the W3C `traceparent` of the running context, or "".
        cluster: of this process; None: it belongs to none.
        tls: certificates of this process; None: plaintext.
        headers: gives further headers of each call.
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
        headers: Callable[[], Sequence[tuple[str, str]]] = tuple,
    ) -> None:
        self._tls = tls
        self._headers = headers
        self._options = options or AngeliaOptions()
        self._codec = codec or ProtobufCodec()
        self._trace_parent = trace_parent
        self._cluster = own(cluster)
        self._endpoint = endpoint
        self._closed = False
        connect_ms = int(self._options.connect_timeout_s * 1_000)
        pause_ms = int(self._options.reconnect_pause_s * 1_000)
        ping_ms = int(self._options.ping_interval_s * 1_000)
        silence_ms = int(self._options.silence_timeout_s * 1_000)
        self._arguments = [
            *message_limits(self._options),
            ("grpc.initial_reconnect_backoff_ms", pause_ms),
            # In spite of its name: how long an attempt to connect may take, TLS included.
            ("grpc.min_reconnect_backoff_ms", connect_ms),
            ("grpc.keepalive_time_ms", ping_ms),
            ("grpc.keepalive_timeout_ms", silence_ms),
            # Each channel has connections of its own, like the other transports.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._current: _Connections | None = None
        self._retired: list[_Connections] = []
        self._checking: asyncio.Task[_Connections] | None = None
        self._retry_at_s = 0.0
        self._tasks = Tasks("angelia.channel", self._check_failed)

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """See `ports.Channel.call`."""
        data = encode(self._codec, request, self._options)
        with self._failures():
            began_s = asyncio.get_running_loop().time()
            async with Timeout(timeout_s):
                connections = await self._connected()
            if timeout_s is not None:
                timeout_s -= asyncio.get_running_loop().time() - began_s
            with self._using(connections, method) as channel:
                rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
                answer = await rpc(data, timeout=timeout_s, metadata=self._metadata())
        return self._decode(answer, response_type)

    async def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        """See `ports.Channel.stream`."""
        data = encode(self._codec, request, self._options)
        with self._failures(), self._using(await self._connected(), method) as channel:
            rpc: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(method)
            call = rpc(data, metadata=self._metadata())
            try:
                async for answer in call:
                    yield self._decode(answer, response_type)
            finally:
                call.cancel()

    async def close(self) -> None:
        """See `ports.Channel.close`."""
        self._closed = True
        await self._tasks.stop()
        for connections in (*self._retired, *filter(None, [self._current])):
            await connections.close()

    async def _connected(self) -> _Connections:
        """Return connections with the newest certificate, checked if it is the first call.

        Raises:
            AngeliaError: UNAVAILABLE: the server cannot be reached, or a certificate is refused.
        """
        found = self._current
        if self._tls is None:
            if found is None:
                found = self._current = self._connections(None, None)
            return found
        if found is not None and found.is_good and found.number == self._tls.credentials.number:
            return found
        if self._closed:
            raise AngeliaError(UNAVAILABLE, "the channel was closed")
        if self._checking is None:
            if asyncio.get_running_loop().time() < self._retry_at_s:
                raise AngeliaError(
                    UNAVAILABLE, f"the last connection attempt to {self._endpoint} failed"
                )
            self._checking = self._tasks.spawn("check", self._check(self._tls))
        # Shielded: the caller's deadline must not end the check that others wait for.
        return await asyncio.shield(self._checking)

    async def _check(self, tls: PeerTls) -> _Connections:
        """Find out what the server is, and make connections if those there are do not fit."""
        loop, number = asyncio.get_running_loop(), tls.credentials.number
        try:
            async with Timeout(self._options.connect_timeout_s):
                is_tls, role = await probe(self._endpoint, tls)
        except (OSError, TimeoutError, ValueError) as error:
            # Others say where they are: it may be no address.
            self._retry_at_s = loop.time() + self._options.reconnect_pause_s
            reason = "timeout" if isinstance(error, TimeoutError) else tls_reason(error)
            text = f"{self._endpoint} cannot be reached: {reason}"
            raise AngeliaError(UNAVAILABLE, text) from None
        finally:
            self._checking = None
        found = self._current
        if found is not None and (found.number, found.is_tls) == (number, is_tls):
            found.is_good, found.role = True, role
            return found
        if found is not None:
            self._retired.append(found)
        self._current = self._connections(tls if is_tls else None, role)
        self._current.number = number
        await self._close_unused()
        return self._current

    def _connections(self, tls: PeerTls | None, role: PeerRole | None) -> _Connections:
        def channel() -> grpc.aio.Channel:
            if tls is None:
                return grpc.aio.insecure_channel(self._endpoint, self._arguments)
            return grpc.aio.secure_channel(
                self._endpoint, channel_credentials(tls), self._arguments
            )

        # One connects at its first call; see `classes.Lane` for why there are several.
        return _Connections({lane: channel() for lane in Lane}, role, is_tls=tls is not None)

    @contextlib.contextmanager
    def _using(self, connections: _Connections, method: str) -> Iterator[grpc.aio.Channel]:
        """Give the connection of a method's lane for one call.

        Raises:
            AngeliaError: FORBIDDEN: such a process does not serve this.
        """
        options = self._options
        if connections.is_tls:
            check_server(method, connections.role, self._endpoint, options.access_of)
        connections.calls += 1
        try:
            yield connections.channels[LANE_OF[class_of(method, options.class_of)]]
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                # Another process may answer there now, or one that speaks TLS now.
                connections.is_good = False
            raise
        finally:
            connections.calls -= 1
            if self._retired and not self._closed:
                self._tasks.spawn("close", self._close_unused())

    async def _close_unused(self) -> None:
        """Close the connections with an old certificate whose calls have ended."""
        unused = [each for each in self._retired if not each.calls]
        self._retired = [each for each in self._retired if each.calls]
        for each in unused:
            await each.close()

    def _check_failed(self, name: str, failure: BaseException) -> None:
        # The callers that wait get the failure; what is not one of ours is a mistake in here.
        if not isinstance(failure, AngeliaError):
            get_logger("angelia").error("connect failed", task=name, exc_info=failure)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn gRPC's ways to fail into AngeliaError."""
        closed = AngeliaError(UNAVAILABLE, "the channel was closed")
        cancels = cancels_of_caller()
        try:
            yield
        except grpc.aio.AioRpcError as error:
            failure = from_status(error)
            if failure.code == WRONG_CLUSTER:
                self._cluster.check(failure.reason, self._endpoint)
            raise failure from None
        except grpc.aio.UsageError:
            raise closed from None
        except TimeoutError:
            raise AngeliaError(DEADLINE_EXCEEDED, f"no connection to {self._endpoint}") from None
        except asyncio.CancelledError:
            # Closing the channel cancels its calls; a caller that is cancelled stays so.
            if not self._closed or cancels_of_caller() > cancels:
                raise
            raise closed from None

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        found = [(CODEC_HEADER, self._codec.name)]
        if self._cluster.value:
            found.append((CLUSTER_HEADER, self._cluster.value))
        if trace_parent := self._trace_parent():
            found.append((TRACE_HEADER, trace_parent))
        return (*found, *self._headers())

    def _decode(self, data: bytes, response_type: type[Response]) -> Response:
        try:
            return self._codec.decode(data, response_type)
        except AngeliaError as error:
            raise AngeliaError(INTERNAL, f"bad response: {error.reason}") from None
