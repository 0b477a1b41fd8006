"""Reads a topic without a consumer group: from a place on, or as messages are stored.

Messages of several queues are merged by their store time as far as they are there; a queue keeps
its order.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient
from strata_cli.errors import CliError, UsageError
from strata_cli.options import time_ms
from strata_cli.views import View, found_message_view

Answer = TypeVar("Answer")

NEWEST = 10
"""Messages that are shown if nothing says where to begin."""

_POLL_S = 0.25
_RETRY_S = 1.0
_BATCH = 100
_FIRST_TIME_MS = 100_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest:
    """The messages to read.

    Attributes:
        topic: its name.
        namespace: of the topic.
        begin: earliest, latest, an offset, or a time; "": the newest messages.
        queue: only this one; None: all.
        tag: tag filter; "": every message.
        count: most messages; None: no limit.
        follows: goes on with messages that are stored later.
    """

    topic: str
    namespace: str
    begin: str = ""
    queue: int | None = None
    tag: str = ""
    count: int | None = None
    follows: bool = False


def read(client: AdminClient, tail: TailRequest) -> Iterator[View]:
    """Yield messages, oldest first.

    Raises:
        CliError: no such topic or queue, or the broker refused; while it follows, an unreachable
            broker is asked again.
    """
    reader = _Reader(client, tail)
    left = tail.count
    for view in reader.run():
        if left is not None and left <= 0:
            return
        yield view
        left = None if left is None else left - 1
        if left == 0:
            return


class _Reader:
    """Positions in the queues of a topic."""

    def __init__(self, client: AdminClient, tail: TailRequest) -> None:
        self._client = client
        self._tail = tail
        self._positions: dict[int, int] = {}
        # Where queues ended at the last look; a position may be behind that (--from OFFSET).
        self._ends: dict[int, int] = {}

    def run(self) -> Iterator[View]:
        self._positions = self._first_positions()
        stored = self._ends = self._stored()
        if not self._tail.begin:
            yield from self._newest(stored)
        else:
            yield from self._merged(stored)
        while self._tail.follows:
            time.sleep(_POLL_S)
            grown = self._patiently(self._look_for_more)
            yield from self._merged(grown)

    def _status(self) -> list[admin_pb2.QueueStatus]:
        request = admin_pb2.GetTopicRequest(namespace=self._tail.namespace, name=self._tail.topic)
        queues = self._client.call(self._client.admin.GetTopic, request).queues
        if self._tail.queue is None:
            return list(queues)
        found = [each for each in queues if each.queue == self._tail.queue]
        if not found:
            raise CliError(
                f"topic {self._tail.topic} has {len(queues)} queues, from 0", "not_found"
            )
        return found

    def _stored(self) -> dict[int, int]:
        """Return queue -> first offset that holds no message yet."""
        return {each.queue: each.next_offset for each in self._status()}

    def _look_for_more(self) -> dict[int, int]:
        stored = self._stored()
        for queue, end in stored.items():
            # A new queue begins at 0; a topic that was deleted and made again begins anew.
            self._positions.setdefault(queue, 0)
            if end < self._ends.get(queue, 0):
                self._positions[queue] = 0
        self._ends = stored
        return stored

    def _first_positions(self) -> dict[int, int]:
        status, begin = self._status(), self._tail.begin
        if begin == "latest":
            return {each.queue: each.next_offset for each in status}
        if not begin:
            wanted = self._wanted_newest()
            return {each.queue: max(each.min_offset, each.next_offset - wanted) for each in status}
        if begin == "earliest":
            return {each.queue: each.min_offset for each in status}
        if begin.isdigit() and int(begin) < _FIRST_TIME_MS:
            return {each.queue: max(each.min_offset, int(begin)) for each in status}
        request = admin_pb2.ListQueueSpansRequest(
            namespace=self._tail.namespace, topic=self._tail.topic, begin_ms=time_ms(begin)
        )
        positions = {each.queue: each.next_offset for each in status}
        for span in self._client.call(self._client.admin.ListQueueSpans, request).spans:
            if span.queue in positions:
                positions[span.queue] = min(positions[span.queue], span.first_offset)
        return positions

    def _wanted_newest(self) -> int:
        if self._tail.count is not None and not self._tail.follows:
            return self._tail.count
        return NEWEST

    def _newest(self, stored: dict[int, int]) -> Iterator[View]:
        yield from deque(self._merged(stored), self._wanted_newest())

    def _merged(self, stored: dict[int, int]) -> Iterator[View]:
        """Yield the messages of all queues up to the given offsets, by store time."""
        queues = [
            self._queue(queue, end)
            for queue, end in sorted(stored.items())
            if self._positions[queue] < end
        ]
        yield from heapq.merge(*queues, key=lambda view: int(view["store_time_ms"]))

    def _queue(self, queue: int, end: int) -> Iterator[View]:
        """Yield the messages of a queue up to an offset; move its position."""
        while self._positions[queue] < end:
            request = admin_pb2.ScanQueueRequest(
                namespace=self._tail.namespace,
                topic=self._tail.topic,
                queue=queue,
                offset=self._positions[queue],
                end_offset=end,
                max_messages=_BATCH,
                tag=self._tail.tag,
            )
            scan = partial(self._client.call, self._client.admin.ScanQueue, request)
            response = self._patiently(scan)
            for found in response.messages:
                yield found_message_view(found)
                self._positions[queue] = found.offset + 1
            after = max(self._positions[queue], response.resume_offset)
            if after == self._positions[queue] and not response.messages:
                # The offsets up to the end hold no message that can be read now.
                return
            self._positions[queue] = after

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask until a broker answers, if messages are followed."""
        told = False
        while True:
            try:
                return ask()
            except CliError as error:
                if not self._tail.follows or error.code != "unreachable":
                    raise
                if not told:
                    print(f"strata: {error}; it is asked again", file=sys.stderr, flush=True)
                told = True
                time.sleep(_RETRY_S)


def check_begin(begin: str) -> None:
    """Check the value of --from before a broker is asked.

    Raises:
        UsageError: it is neither a word, nor an offset, nor a time.
    """
    if begin in ("", "earliest", "latest"):
        return
    try:
        time_ms(begin)
    except UsageError:
        raise UsageError(
            f"--from {begin}: write earliest, latest, an offset or a time "
            "(2026-11-21T12:30:00Z, or milliseconds since 1970)"
        ) from None
