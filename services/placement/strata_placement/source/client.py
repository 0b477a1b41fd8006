"""Calls of one task to a broker: spans, scans and sends, repeated while a broker cannot answer.

All of them may be repeated safely: reads change nothing, and a send that is repeated with the same
message ids is stored once (within the dedupe window of the storage nodes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import grpc

from apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from strata.admin.v1 import admin_pb2, admin_pb2_grpc
from strata_placement.source.keys import SourceKeys, signing
from strata_placement.source.options import SourceOptions
from strata_placement.source.plan import QueueSpan
from strata_placement.source.runs import DataLossError, SourceError, StoredRun

_MAX_MESSAGE_BYTES = 64 << 20
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 2.0
_CALL_S = 10.0
_REPEATED = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
)
_REPEATED_CODES = (
    definition_pb2.TOO_MANY_REQUESTS,
    definition_pb2.INTERNAL_SERVER_ERROR,
    definition_pb2.PROXY_TIMEOUT,
    definition_pb2.HA_NOT_AVAILABLE,
)

Answer = TypeVar("Answer")


class BrokerClient:
    """A connection to one of the brokers; a context manager.

    Args:
        options: whom to call, how long to try.
        number: of the task: tasks spread over the endpoints.
        client_id: what brokers are told who calls.
    """

    def __init__(self, options: SourceOptions, number: int = 0, client_id: str = "spark") -> None:
        self._options = options
        self._metadata = (("x-mq-client-id", client_id),)
        endpoint = options.endpoints[number % len(options.endpoints)]
        keys = SourceKeys.find(options.access_key, options.secret_key, options.secret_key_file)
        self._channel = open_channel(endpoint, options.ca_file, keys)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._messaging = service_pb2_grpc.MessagingServiceStub(self._channel)

    def __enter__(self) -> BrokerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

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
            lambda timeout_s: self._admin.ListQueueSpans(request, timeout=timeout_s)
        )
        return [
            QueueSpan(span.queue, span.first_offset, span.end_offset)
            for span in response.spans
            if options.queues is None or span.queue in options.queues
        ]

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
                lambda timeout_s: self._admin.ScanQueue(request, timeout=timeout_s)
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
            return self._messaging.SendMessage(request, timeout=timeout_s, metadata=self._metadata)

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
        return answer_of(call, self._options.timeout_ms / 1_000, _CALL_S, busy)


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
) -> Answer:
    """Call until there is an answer that is not "later".

    Args:
        call: takes the seconds that one call may take.
        patience_s: time for all calls.
        call_s: time of one of them at most.
        busy: whether an answer says "later".

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
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)


def _run_of(span: QueueSpan, found: Iterable[admin_pb2.FoundMessage]) -> StoredRun:
    """Return found messages as columns; a broker gives none behind the end that it was told."""
    rows = [(each.offset, each.store_time_ms, each.message) for each in found]
    offsets, times_ms, messages = zip(*rows, strict=True)
    return StoredRun(span.queue, offsets, times_ms, messages)
