"""Telemetry: one stream per client, open for the client's life, that carries its settings.

Invariants: a stream belongs to the `x-mq-client-id` it was opened with, also when it never says
anything (Python clients reopen bare streams); the server never ends a stream that is well; what
waits to be sent to a client is bounded, a client that does not read loses its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from google.protobuf.message import DecodeError

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker import errors, settings
from strata_broker.config import BrokerConfig
from strata_broker.metadata import MetadataView
from strata_broker.requests import Caller, caller_of, language_of
from strata_broker.sessions import Client, Sessions
from strata_edge.ports import CallError, CallInfo
from strata_mq.errors import RequestError
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks


class TelemetryStream:
    """The sending side of one client's stream."""

    def __init__(self, caller: Caller, max_frames: int) -> None:
        self.caller = caller
        # None ends the stream.
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue(max_frames)
        self._failure: CallError | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def push(self, frame: bytes) -> None:
        """Send a serialised TelemetryCommand; a full queue ends the stream."""
        if self._failure is None and self._frames.full():
            self.fail(CallError("RESOURCE_EXHAUSTED", "the client does not read its stream"))
        elif self._failure is None:
            self._frames.put_nowait(frame)

    def push_later(self, delay_s: float, frame: bytes) -> None:
        """Send a frame after a pause, if the stream is still open then."""
        loop = asyncio.get_running_loop()
        self._timers.append(loop.call_later(delay_s, self.push, frame))

    def cancel_later(self) -> None:
        """Forget what was to be sent later: something newer takes its place."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def fail(self, failure: CallError) -> None:
        """End the stream with an error, without sending what waits."""
        self._failure = failure
        self.end()

    def end(self) -> None:
        """End the stream after what waits; after a failure at once."""
        self.cancel_later()
        if self._frames.full():
            self._frames.get_nowait()
        self._frames.put_nowait(None)

    async def next(self) -> bytes | None:
        """Return the next frame to send; None: the end.

        Raises:
            CallError: the stream was ended with an error.
        """
        frame = await self._frames.get()
        if self._failure is not None:
            raise self._failure
        return frame


class Telemetry:
    """Serves all streams."""

    def __init__(
        self,
        view: MetadataView,
        sessions: Sessions,
        config: BrokerConfig,
        tasks: Tasks,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._sessions = sessions
        self._config = config
        self._tasks = tasks
        self._open: set[TelemetryStream] = set()
        maximum = config.telemetry.max_streams
        self._limit = Limit("telemetry streams", maximum, "streams", metrics)

    async def serve(self, requests: AsyncIterator[bytes], info: CallInfo) -> AsyncIterator[bytes]:
        """Serve one stream for its life.

        Raises:
            CallError: no client id, bad settings, or too many streams.
        """
        try:
            caller = caller_of(info.metadata)
        except RequestError as bad:
            raise CallError("INVALID_ARGUMENT", bad.text) from bad
        if not self._limit.try_take():
            raise CallError("RESOURCE_EXHAUSTED", "too many telemetry streams")
        stream = TelemetryStream(caller, self._config.telemetry.max_frames_queued)
        reading = self._read(stream, requests, language_of(caller.language))
        reader = self._tasks.spawn("read telemetry", reading)
        client = self._opened(stream)
        try:
            while (frame := await stream.next()) is not None:
                yield frame
        finally:
            self._closed(stream, client)
            reader.cancel()

    def end_all(self) -> None:
        """End every stream: the broker stops, clients open a new one elsewhere."""
        for stream in self._open:
            stream.end()

    def _opened(self, stream: TelemetryStream) -> Client:
        self._open.add(stream)
        client = self._sessions.heard(stream.caller.client_id)
        client.open_calls += 1
        return client

    def _closed(self, stream: TelemetryStream, client: Client) -> None:
        self._open.discard(stream)
        self._limit.give_back()
        client.open_calls -= 1
        stream.cancel_later()

    async def _read(
        self, stream: TelemetryStream, requests: AsyncIterator[bytes], language: int
    ) -> None:
        """Take in what the client says until it closes its side."""
        try:
            async for request in requests:
                self._take(stream, service_pb2.TelemetryCommand.FromString(request), language)
        except DecodeError:
            stream.fail(CallError("INVALID_ARGUMENT", "not a TelemetryCommand"))
        except RequestError as bad:
            stream.fail(CallError("INVALID_ARGUMENT", bad.text))
        else:
            stream.end()

    def _take(
        self, stream: TelemetryStream, command: service_pb2.TelemetryCommand, language: int
    ) -> None:
        self._sessions.heard(stream.caller.client_id)
        if command.WhichOneof("command") != "settings":
            # Answers to commands that this broker never sends; they are only a sign of life.
            return
        said = command.settings
        settings.check(said)
        if said.user_agent.language:
            language = said.user_agent.language
        self._sessions.described(stream.caller, said, language)
        frame = self._settings_frame(stream.caller, said, language)
        stream.cancel_later()
        stream.push(frame)
        if language == definition_pb2.NODE_JS:
            # Node waits for settings that may have come before it listened.
            for delay_ms in self._config.telemetry.node_repeat_ms:
                stream.push_later(delay_ms / 1000, frame)

    def _settings_frame(
        self, caller: Caller, said: definition_pb2.Settings, language: int
    ) -> bytes:
        group = None
        if said.WhichOneof("pub_sub") == "subscription":
            group = self._view.consumer_group(*caller.name_of(said.subscription.group))
        told = settings.answer(said, group, language, self._config)
        # Python clients do not start without a status.
        return service_pb2.TelemetryCommand(
            status=errors.ok_status(), settings=told
        ).SerializeToString()
