"""Telemetry: one stream per client, open for the client's life, that carries its settings.

Invariants: a stream belongs to the `x-mq-client-id` it was opened with, even if the client sends
nothing (Python clients reopen bare streams). The server never ends a healthy stream. Frames that
wait for a client are bounded; a client that does not read loses its stream.

The broker answers a client's settings, and sends the answer again when a change of the consumer
group's row changes it. A bare stream gets the changes since the client's last answer. Nothing in
the settings comes from a topic's row.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from hashlib import blake2b

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.access.guard import principal_of
from strata_broker.access.principals import AccessRefused
from strata_broker.base import errors
from strata_broker.base.config import BrokerConfig, TelemetrySection
from strata_broker.base.failures import passed_over, unexpected
from strata_broker.base.parsing import parse
from strata_broker.base.shares import OwnerShares
from strata_broker.clients import settings
from strata_broker.clients.producers import Producers
from strata_broker.clients.sessions import Client, Sessions
from strata_broker.metadata.filters import Filters
from strata_broker.metadata.metadata import MetadataView, Name
from strata_broker.metadata.quotas import Quotas
from strata_broker.metadata.requests import Caller, caller_of, language_of
from strata_edge.addresses import network_of_peer
from strata_edge.ports import CallError, CallInfo
from strata_mq.requests import Code, RequestError
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks

# Frames made before other tasks get their turn: a change may concern thousands of clients.
_PUSHES_PER_TURN = 64
# Life of a stream that a client opens before it hears that it should go.
_LAST_STREAM_S = 0.5
# Time after which nobody makes calls any more who was asked to go.
_LEAVING_S = 30.0


class TelemetryStream:
    """The sending side of one client's stream.

    Attributes:
        caller: owner of the stream.
        client: session of the client, perhaps from an earlier stream.
        peer: address of the client's connection, `host:port`.
        group: consumer group of the client, whose changes are pushed; None: none.
        namespace: in whose quota of connections it counts.
        told: hash of the settings that the client got last, here or on an earlier stream.
        idle: no frame waits for the client.
    """

    def __init__(
        self,
        caller: Caller,
        client: Client,
        config: TelemetrySection,
        *,
        peer: str,
        on_idle: Callable[[], None],
    ) -> None:
        self.caller = caller
        self.client = client
        self.peer = peer
        self.idle = False
        self._on_idle = on_idle
        self.group: Name | None = None
        self.namespace = caller.namespace
        self.told = client.told
        # None ends the stream.
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue(config.max_frames_queued)
        self._max_bytes = config.max_bytes_queued
        self._queued_bytes = 0
        self._failure: CallError | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def push(self, frame: bytes) -> None:
        """Send a serialised TelemetryCommand; a full queue ends the stream."""
        is_full = self._frames.full() or (
            self._queued_bytes > 0 and self._queued_bytes + len(frame) > self._max_bytes
        )
        if self._failure is None and is_full:
            self.fail(CallError("RESOURCE_EXHAUSTED", "the client does not read its stream"))
        elif self._failure is None:
            self.idle = False
            self._queued_bytes += len(frame)
            self._frames.put_nowait(frame)

    def push_later(self, delay_s: float, frame: bytes) -> None:
        """Send a frame after a pause, if the stream is still open then."""
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(delay_s, self.push, frame))

    def cancel_later(self) -> None:
        """Forget the delayed frame: a newer one replaces it."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def fail(self, failure: CallError) -> None:
        """End the stream with an error, without sending what waits."""
        self._failure = failure
        self.end()

    def end(self) -> None:
        """End the stream after the waiting frames; after a failure at once."""
        self.cancel_later()
        self.idle = False
        if self._frames.full():
            self._frames.get_nowait()
        self._frames.put_nowait(None)

    async def next(self) -> bytes | None:
        """Return the next frame to send; None: the end.

        Raises:
            CallError: the stream was ended with an error.
        """
        if self._frames.empty():
            self.idle = True
            self._on_idle()
        frame = await self._frames.get()
        if self._failure is not None:
            raise self._failure
        if frame is not None:
            self._queued_bytes -= len(frame)
        return frame


class Telemetry:
    """Serves all streams."""

    def __init__(
        self,
        view: MetadataView,
        sessions: Sessions,
        quotas: Quotas,
        *,
        producers: Producers,
        filters: Filters,
        config: BrokerConfig,
        requests: RequestTasks,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._sessions = sessions
        self._quotas = quotas
        self._producers = producers
        self._filters = filters
        self._on_idle: Callable[[], None] = lambda: None
        self._on_reply: Callable[[service_pb2.TelemetryCommand], None] = lambda _: None
        self._config = config
        self._requests = requests
        self._open: set[TelemetryStream] = set()
        # Client id -> its open streams, the latest one last.
        self._by_client: dict[str, list[TelemetryStream]] = {}
        self._by_group: defaultdict[Name, set[TelemetryStream]] = defaultdict(set)
        # Streams whose consumer group changed; open ones only, so at most `max_streams`.
        self._outdated: set[TelemetryStream] = set()
        self._ending = False
        # Connections that were asked to go a moment ago; as many as the edge sends away in it.
        self._leaving: set[str] = set()
        self._group_changed = asyncio.Event()
        maximum = config.telemetry.max_streams
        self._limit = Limit("telemetry streams", maximum, "streams", metrics=metrics)
        most = {"address": config.telemetry.max_streams_per_address}
        self._shares = OwnerShares("telemetry streams", most, metrics)
        self._pushed = metrics.counter("strata_broker_settings_pushed_total")
        metrics.gauge("strata_broker_settings_waiting", lambda: len(self._outdated))
        view.on_consumer_groups(self._on_consumer_groups)

    async def serve(self, requests: AsyncIterator[bytes], info: CallInfo) -> AsyncIterator[bytes]:
        """Serve one stream for its life.

        Raises:
            CallError: no client id, bad settings, or too many streams: of all, or of a namespace.
            AccessRefused: the client is another user's.
        """
        try:
            caller = caller_of(info.metadata)
        except RequestError as bad:
            raise _stream_error(bad) from bad
        address = network_of_peer(info.peer)
        owner = (("address", address),)
        if not self._shares.try_take(owner):
            raise CallError(
                "RESOURCE_EXHAUSTED",
                "too many telemetry streams from this address (telemetry.max_streams_per_address)",
            )
        if not self._limit.try_take():
            self._shares.give_back(owner)
            raise CallError(
                "RESOURCE_EXHAUSTED", "too many telemetry streams (telemetry.max_streams)"
            )
        try:
            user = principal_of(info).user
            client = self._sessions.heard(caller.client_id, info.peer, user)
            self._quotas.connected(caller.namespace)
        except RequestError as limit_reached:
            self._limit.give_back()
            self._shares.give_back(owner)
            if isinstance(limit_reached, AccessRefused):
                raise
            raise _stream_error(limit_reached) from limit_reached
        client.address = address
        stream = TelemetryStream(
            caller, client, self._config.telemetry, peer=info.peer, on_idle=self._stream_idle
        )
        self._opened(stream)
        reader = None
        try:
            reader = self._requests.spawn(
                "read telemetry",
                self._read(stream, requests),
                lambda _: stream.fail(CallError("INTERNAL", unexpected().text)),
            )
            while (frame := await stream.next()) is not None:
                yield frame
        finally:
            self._closed(stream)
            self._shares.give_back(owner)
            if reader is not None:
                reader.cancel()

    def on_idle(self, callback: Callable[[], None]) -> None:
        """Call back when no frame waits for a client any more."""
        self._on_idle = callback

    def on_reply(self, callback: Callable[[service_pb2.TelemetryCommand], None]) -> None:
        """Call back with clients' answers to commands."""
        self._on_reply = callback

    def stream_of(self, client_id: str) -> TelemetryStream | None:
        """Return the open stream of a client, the latest one of several; None: it has none."""
        streams = self._by_client.get(client_id)
        return streams[-1] if streams else None

    async def push_changes(self) -> None:
        """Push new settings to clients after changes of their consumer groups, until cancelled.

        A round tells each client once, and rounds are `push_interval_ms` apart. If a row changes
        several times in between, only its last state is pushed.
        """
        interval_s = self._config.telemetry.push_interval_ms / 1000
        while True:
            await self._group_changed.wait()
            self._group_changed.clear()
            outdated, self._outdated = self._outdated, set()
            for number, stream in enumerate(outdated, 1):
                if stream in self._open:
                    with passed_over(self._requests, "push settings"):
                        self._push_if_changed(stream)
                if number % _PUSHES_PER_TURN == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(interval_s)

    def end_all(self) -> None:
        """End every stream: the broker stops, clients open a new one elsewhere.

        A stream that is opened later lives long enough for its client to get its settings.
        """
        self._ending = True
        for stream in self._open:
            stream.end()

    def end_of(self, peers: Collection[str]) -> None:
        """End the streams of connections that were asked to go; clients open new ones elsewhere.

        A stream that is opened there a moment later lives as long as after `end_all`.

        Args:
            peers: addresses of the connections, `host:port`.
        """
        if not peers:
            return
        self._leaving.update(peers)
        loop = asyncio.get_running_loop()
        loop.call_later(_LEAVING_S, self._leaving.difference_update, tuple(peers))
        for stream in self._open:
            if stream.peer in self._leaving:
                stream.end()

    def _opened(self, stream: TelemetryStream) -> None:
        self._open.add(stream)
        self._by_client.setdefault(stream.caller.client_id, []).append(stream)
        self._join_group(stream)
        self._producers.update(stream)
        stream.client.open_calls += 1
        if self._ending or stream.peer in self._leaving:
            asyncio.get_running_loop().call_later(_LAST_STREAM_S, stream.end)
        if stream.client.said:
            self._outdated.add(stream)
            self._group_changed.set()

    def _closed(self, stream: TelemetryStream) -> None:
        self._open.discard(stream)
        streams = self._by_client[stream.caller.client_id]
        streams.remove(stream)
        if not streams:
            del self._by_client[stream.caller.client_id]
        self._outdated.discard(stream)
        self._leave_group(stream)
        self._producers.closed(stream)
        self._limit.give_back()
        self._quotas.disconnected(stream.namespace)
        stream.client.open_calls -= 1
        stream.cancel_later()

    async def _read(self, stream: TelemetryStream, requests: AsyncIterator[bytes]) -> None:
        """Read the client's frames until it closes its side."""
        try:
            async for request in requests:
                self._take(stream, parse(service_pb2.TelemetryCommand, request))
        except DecodeError as error:
            stream.fail(CallError("INVALID_ARGUMENT", str(error)))
        except CallError as bad:
            # With access control the guard reads each frame first.
            stream.fail(bad)
        except RequestError as bad:
            stream.fail(_stream_error(bad))
        else:
            stream.end()

    def _take(self, stream: TelemetryStream, command: service_pb2.TelemetryCommand) -> None:
        self._sessions.heard(stream.caller.client_id)
        if command.WhichOneof("command") != "settings":
            self._on_reply(command)
            return
        said = command.settings
        most = self._config.telemetry.max_settings_bytes
        if said.ByteSize() > most:
            raise RequestError(
                Code.PAYLOAD_TOO_LARGE,
                f"settings have at most {most} bytes (telemetry.max_settings_bytes)",
            )
        settings.check(said)
        self._count_in(stream, settings.namespace_of(said) or stream.caller.namespace)
        self._leave_group(stream)
        language = said.user_agent.language or language_of(stream.caller.language)
        client = self._sessions.described(stream.caller, said, language)
        assert client is stream.client, "a client with an open stream is not forgotten"
        self._join_group(stream)
        self._producers.update(stream)
        frame = self._settings_frame(stream, said, language)
        client.told = _hash(frame)
        self._tell(stream, frame)

    def _stream_idle(self) -> None:
        self._on_idle()

    def _count_in(self, stream: TelemetryStream, namespace: str) -> None:
        """Count a stream in the namespace of its settings: its metadata may not name it."""
        if namespace != stream.namespace:
            self._quotas.connected(namespace)
            self._quotas.disconnected(stream.namespace)
            stream.namespace = namespace

    def _tell(self, stream: TelemetryStream, frame: bytes) -> None:
        """Send settings; they replace any that still wait."""
        stream.told = _hash(frame)
        stream.cancel_later()
        stream.push(frame)
        if stream.client.language == definition_pb2.NODE_JS:
            # Node may wait for settings that arrived before it listened.
            for delay_ms in self._config.telemetry.node_repeat_ms:
                stream.push_later(delay_ms / 1000, frame)

    def _on_consumer_groups(self, names: Collection[Name]) -> None:
        """Note the streams whose settings may have changed."""
        if len(names) > len(self._by_group):
            names = [name for name in self._by_group if name in names]
        for name in names:
            self._outdated |= self._by_group.get(name, set())
        if self._outdated:
            self._group_changed.set()

    def _push_if_changed(self, stream: TelemetryStream) -> None:
        client = stream.client
        if not client.said:
            # There was no room to remember what it said; its next stream says it again.
            return
        said = definition_pb2.Settings.FromString(client.said)
        frame = self._settings_frame(stream, said, client.language)
        if _hash(frame) != stream.told:
            self._pushed.add()
            self._tell(stream, frame)

    def _join_group(self, stream: TelemetryStream) -> None:
        if stream.client.said and stream.client.consumer_group is not None:
            stream.group = stream.client.consumer_group
            self._by_group[stream.group].add(stream)

    def _leave_group(self, stream: TelemetryStream) -> None:
        group, stream.group = stream.group, None
        if group is not None:
            self._by_group[group].discard(stream)
            if not self._by_group[group]:
                del self._by_group[group]

    def _settings_frame(
        self, stream: TelemetryStream, said: definition_pb2.Settings, language: int
    ) -> bytes:
        caller, group = stream.caller, None
        if said.WhichOneof("pub_sub") == "subscription":
            group = self._view.consumer_group(*caller.name_of(said.subscription.group))
        told = settings.answer(said, group, language, self._config)
        # A wrong filter does not end the stream: Node would reopen it forever.
        wrong = settings.wrong_filter(
            said, lambda wanted: self._filters.of(wanted, caller.client_id, stream.peer)
        )
        # Python clients do not start without a status.
        status = errors.ok_status() if wrong is None else errors.status_of(wrong)
        return service_pb2.TelemetryCommand(status=status, settings=told).SerializeToString()


def _hash(frame: bytes) -> bytes:
    return blake2b(frame, digest_size=8).digest()


def _stream_error(failure: RequestError) -> CallError:
    """Return the error that ends a stream: the one error that is not a Status in an answer."""
    if failure.code is Code.TOO_MANY_REQUESTS:
        return CallError("RESOURCE_EXHAUSTED", failure.text)
    return CallError("INVALID_ARGUMENT", failure.text)
