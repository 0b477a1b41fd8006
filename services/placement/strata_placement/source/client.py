"""Calls of one task to a broker: spans, scans and sends, repeated while a broker cannot answer.

A broker that cannot be reached is left for the next one of those that are named. All calls may be
repeated safely: reads change nothing, and a send that is repeated with the same message ids is
stored once (within the dedupe window of the storage nodes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import grpc

from apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from strata.admin.v1 import admin_pb2, admin_pb2_grpc
from strata_placement.source.keys import SourceKeys, signing
from strata_placement.source.options import SourceOptions
from strata_placement.source.plan import QueueSpan, StreamOffset, ends_of
from strata_placement.source.runs import DataLossError, SourceError, StoredRun

_MAX_MESSAGE_BYTES = 64 << 20
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 2.0
_CALL_S = 10.0
_REPEATED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_REPEATED_CODES = (
    definition_pb2.TOO_MANY_REQUESTS,
    definition_pb2.INTERNAL_SERVER_ERROR,
    definition_pb2.PROXY_TIMEOUT,
    definition_pb2.HA_NOT_AVAILABLE,
)

Answer = TypeVar("Answer")


class BrokerConnection:
    """A connection to one of several brokers, and to the next one when that cannot be reached.

    Args:
        endpoints: host:port of brokers.
        number: of the task: tasks spread over the endpoints.
        connect: opens a channel.

    Attributes:
        admin, messaging: the services of the broker of now.
    """

    def __init__(
        self, endpoints: Sequence[str], number: int, connect: Callable[[str], grpc.Channel]
    ) -> None:
        self._endpoints = endpoints
        self._number = number
        self._connect = connect
        self._open()

    def _open(self) -> None:
        self._channel = self._connect(self._endpoints[self._number % len(self._endpoints)])
        self.admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self.messaging = service_pb2_grpc.MessagingServiceStub(self._channel)

    def go_on(self) -> None:
        """Connect to the next broker, if there is another one."""
        if len(self._endpoints) > 1:
            self.close()
            self._number += 1
            self._open()

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


class BrokerClient:
    """Calls of a task to the brokers; a context manager.

    Args:
        options: whom to call, how long to try.
        number: of the task: tasks spread over the endpoints.
        client_id: what brokers are told who calls.
    """

    def __init__(self, options: SourceOptions, number: int = 0, client_id: str = "spark") -> None:
        self._options = options
        self._metadata = (("x-mq-client-id", client_id),)
        keys = SourceKeys.find(options.access_key, options.secret_key, options.secret_key_file)
        self._broker = BrokerConnection(
            options.endpoints,
            number,
            lambda endpoint: open_channel(endpoint, options.ca_file, keys),
        )

    def __enter__(self) -> BrokerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._broker.close()

    def spans(self, begin_ms: int | None = None, end_ms: int | None = None) -> list[QueueSpan]:
        """Return the topic's offsets, epoch by epoch, stored between two times.

        Raises:
            SourceError: refused or not answered.
        """
        options = self._options
        request = admin_pb2.ListQueueSpansRequest(
            namespace=options.namespace, topic=options.topic, begin_ms=begin_ms, end_ms=end_ms
        )
        response = self._repeat(
            lambda timeout_s: self._broker.admin.ListQueueSpans(request, timeout=timeout_s)
        )
        return [
            QueueSpan(span.queue, span.first_offset, span.end_offset)
            for span in response.spans
            if options.queues is None or span.queue in options.queues
        ]

    def ends(self, start: StreamOffset) -> dict[str, int]:
        """Return the end of each queue, for a query that has read up to `start`.

        An end before that is waited for: a leader may have ended. It stays so where somebody has
        made the topic again.

        Raises:
            DataLossError: it stays so, and options do not allow that.
            SourceError: refused or not answered.
        """
        ends_s = time.monotonic() + self._options.timeout_ms / 1_000
        while True:
            ends = ends_of(self.spans())
            behind = [key for key, end in ends.items() if end < start.get(key, 0)]
            if not behind:
                return ends
            left_s = ends_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(_MAX_PAUSE_S, left_s))
        if self._options.fail_on_data_loss:
            key = behind[0]
            raise DataLossError(
                f"queue {key} of topic {self._options.topic} ends at offset {ends[key]}, and was "
                f"read up to {start[key]}: was the topic made again? Set failOnDataLoss to false "
                "to go on at its end"
            )
        return ends

    def pieces(self, span: QueueSpan) -> tuple[()]:
        """Return nothing: a broker knows where messages are."""
        return ()

    def scan(self, span: QueueSpan, tag: str = "") -> Iterator[StoredRun]:
        """Give the messages of a span, in order, in runs as brokers answer them.

        Raises:
            DataLossError: some are not retained any more, and options do not allow that.
            SourceError: refused or not answered.
        """
        offset = span.first
        request = admin_pb2.ScanQueueRequest(
            namespace=self._options.namespace,
            topic=self._options.topic,
            queue=span.queue,
            end_offset=span.end,
            tag=tag,
        )
        stands_since_s: float | None = None
        while offset < span.end:
            request.offset = offset
            response = self._repeat(
                lambda timeout_s: self._broker.admin.ScanQueue(request, timeout=timeout_s)
            )
            if response.min_offset > offset and self._options.fail_on_data_loss:
                raise DataLossError(
                    f"queue {span.queue} of topic {self._options.topic}: offsets {offset} to "
                    f"{min(response.min_offset, span.end) - 1} are not retained any more; set "
                    "failOnDataLoss to false to go on behind them"
                )
            if response.messages:
                yield _run_of(span, response.messages)
            if response.resume_offset > offset:
                offset, stands_since_s = response.resume_offset, None
                continue
            # A queue that moves right now is whole again in a moment.
            stands_since_s = stands_since_s or time.monotonic()
            if time.monotonic() - stands_since_s > self._options.timeout_ms / 1_000:
                raise SourceError(f"queue {span.queue} does not go on at offset {offset}")
            time.sleep(_FIRST_PAUSE_S)

    def send(self, request: service_pb2.SendMessageRequest) -> None:
        """Send messages of one request; returns when all are stored.

        Raises:
            SourceError: refused or not answered.
        """

        def call(timeout_s: float) -> service_pb2.SendMessageResponse:
            return self._broker.messaging.SendMessage(
                request, timeout=timeout_s, metadata=self._metadata
            )

        def busy(response: service_pb2.SendMessageResponse) -> bool:
            codes = {entry.status.code for entry in response.entries} | {response.status.code}
            return bool(codes & set(_REPEATED_CODES))

        response = self._repeat(call, busy)
        if response.status.code != definition_pb2.OK:
            code = definition_pb2.Code.Name(response.status.code)
            raise SourceError(f"topic {self._options.topic}: {code}: {response.status.message}")

    def _repeat(
        self,
        call: Callable[[float], Answer],
        busy: Callable[[Answer], bool] = lambda answer: False,
    ) -> Answer:
        """Call until there is an answer that is not "later", within the configured time."""
        return answer_of(
            call, self._options.timeout_ms / 1_000, _CALL_S, busy, unreachable=self._broker.go_on
        )


def open_channel(endpoint: str, ca_file: str = "", keys: SourceKeys | None = None) -> grpc.Channel:
    """Return a connection to a broker; the caller closes it.

    Args:
        endpoint: its host:port.
        ca_file: certificates (PEM) by which it is known; "": no TLS.
        keys: sign each call; None: those of the environment.
    """
    keys = keys or SourceKeys.find()
    settings = [
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
    ]
    if not ca_file:
        return signing(grpc.insecure_channel(endpoint, options=settings), keys)
    credentials = grpc.ssl_channel_credentials(Path(ca_file).read_bytes())
    return signing(grpc.secure_channel(endpoint, credentials, options=settings), keys)


def answer_of(
    call: Callable[[float], Answer],
    patience_s: float,
    call_s: float,
    busy: Callable[[Answer], bool] = lambda answer: False,
    *,
    unreachable: Callable[[], None],
) -> Answer:
    """Call until there is an answer that is not "later".

    Args:
        call: takes the seconds that one call may take.
        patience_s: time for all calls.
        call_s: time of one of them at most.
        busy: whether an answer says "later".
        unreachable: called before the next try when a broker did not answer.

    Raises:
        SourceError: refused or not answered.
    """
    ends_s = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        left_s = ends_s - time.monotonic()
        try:
            answer = call(max(0.1, min(call_s, left_s)))
            if not busy(answer) or left_s <= pause_s:
                return answer
        except grpc.RpcError as error:
            if error.code() not in _REPEATED or left_s <= pause_s:
                raise SourceError(f"{error.code().name}: {error.details()}") from error
            if error.code() in _UNREACHABLE:
                unreachable()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def _run_of(span: QueueSpan, found: Iterable[admin_pb2.FoundMessage]) -> StoredRun:
    """Return found messages as columns; a broker gives none behind the end that it was told."""
    rows = [(each.offset, each.store_time_ms, each.message) for each in found]
    offsets, times_ms, messages = zip(*rows, strict=True)
    return StoredRun(span.queue, offsets, times_ms, messages)
