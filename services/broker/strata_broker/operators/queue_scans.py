"""Reads whole topics for jobs: their offsets, and their messages in large answers.

A scan consumes nothing and knows no consumer group. It crosses the epochs of a queue, whichever
raft groups hold them. Answers of storage are forwarded as bytes; no message is parsed.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata.admin.v1 import admin_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.receive_config import PullSection
from strata_broker.clients.provision import topic_not_found
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.receives.receive import topic_ref
from strata_broker.storage_client import epochs
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.filters import parse_tag_expression
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

# A selective filter ends an answer before it is full.
_MAX_FETCHES = 64


class QueueScans:
    """See the module docstring.

    Args:
        view: of the metadata.
        storage: reads.
        holders: asks all raft groups that hold a part of a topic.
        limits: sizes, shared with pulls; `max_bytes_in_flight` limits the answers, and so the
            number of concurrent scans.
        metrics: shows the use of that limit.
    """

    def __init__(
        self,
        view: MetadataView,
        storage: StorageClient,
        holders: HolderCalls,
        *,
        limits: PullSection,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._storage = storage
        self._holders = holders
        self._limits = limits
        at_once = max(1, limits.max_bytes_in_flight // limits.max_bytes)
        self._running = Limit("scans", at_once, "scans", metrics=metrics)

    async def spans(self, request: admin_pb2.ListQueueSpansRequest) -> list[admin_pb2.QueueSpan]:
        """Return the offsets that were stored between two times, by queue; also empty spans.

        Raises:
            RequestError: unknown topic, or storage refused.
        """
        topic = self._topic(request.namespace, request.topic)
        begins = await self._offsets(topic, request.begin_ms)
        ends = begins
        if request.HasField("end_ms"):
            ends = await self._offsets(topic, request.end_ms)
        spans = []
        for (raft_group, queue), begin in begins.items():
            end = ends.get((raft_group, queue), begin)
            last = end.by_time if request.HasField("end_ms") else end.next_offset
            # Without a begin time a span begins at the oldest message.
            first = begin.by_time if request.begin_ms else begin.min_offset
            spans.append(
                admin_pb2.QueueSpan(
                    queue=queue,
                    raft_group=raft_group,
                    first_offset=min(first, last),
                    end_offset=last,
                )
            )
        return sorted(spans, key=lambda span: (span.queue, span.end_offset, span.first_offset))

    async def scan(self, request: admin_pb2.ScanQueueRequest) -> admin_pb2.ScanQueueResponse:
        """Read messages of a queue from an offset on: maybe not all, but at least one if any.

        Raises:
            RequestError: unknown topic or queue, a bad filter, too many scans, storage refused.
        """
        topic = self._topic(request.namespace, request.topic)
        parse_tag_expression(request.tag)
        if not self._running.try_take():
            raise errors.too_many_requests()
        try:
            return await self._scan(topic, request)
        finally:
            self._running.give_back()

    async def _scan(
        self, topic: TopicRow, request: admin_pb2.ScanQueueRequest
    ) -> admin_pb2.ScanQueueResponse:
        wanted = storage_pb2.Filter(kind=storage_pb2.FILTER_KIND_ALL)
        if request.tag:
            wanted = storage_pb2.Filter(kind=storage_pb2.FILTER_KIND_TAG, expression=request.tag)
        limit = min(request.max_messages or self._limits.max_messages, self._limits.max_messages)
        offset, min_offset, end = request.offset, 0, request.end_offset or None
        if end is not None and offset >= end:
            return admin_pb2.ScanQueueResponse(resume_offset=offset)
        for _ in range(_MAX_FETCHES):
            count = limit if end is None else min(limit, end - offset)
            epoch = epochs.epoch_of(self._view, topic, request.queue, offset)
            fetched = await self._storage.call(
                epoch.raft_group,
                "Fetch",
                storage_pb2.FetchRequest(
                    raft_group=epoch.raft_group,
                    topic_id=topic.topic_id,
                    queue=request.queue,
                    offset=offset,
                    max_messages=max(1, count),
                    max_bytes=self._limits.max_bytes,
                    filter=wanted,
                ),
                storage_pb2.FetchResponse,
            )
            min_offset = min_offset or fetched.min_offset
            if fetched.messages:
                fetched.min_offset = min_offset
                return _answer(fetched, end)
            before, offset = offset, max(offset, fetched.resume_offset, fetched.min_offset)
            if epoch.end_offset is not None and offset >= fetched.next_offset:
                offset = max(offset, epoch.end_offset)
            if offset == before or (end is not None and offset >= end):
                break
        return admin_pb2.ScanQueueResponse(
            min_offset=min_offset, next_offset=fetched.next_offset, resume_offset=offset
        )

    async def _offsets(
        self, topic: TopicRow, time_ms: int
    ) -> dict[tuple[int, int], storage_pb2.QueueOffsets]:
        """Return (raft group, queue) -> its offsets."""

        def request_for(raft_group: int, queues: Sequence[int]) -> storage_pb2.GetOffsetsRequest:
            return storage_pb2.GetOffsetsRequest(
                raft_group=raft_group, topic=topic_ref(topic), queues=queues, time_ms=time_ms
            )

        answers = await self._holders.of_topic(
            topic, "GetOffsets", storage_pb2.GetOffsetsResponse, request_for
        )
        return {
            (raft_group, offsets.queue): offsets
            for raft_group, answer in answers
            for offsets in answer.queues
        }

    def _topic(self, namespace: str, name: str) -> TopicRow:
        topic = self._view.topic(namespace, name)
        if topic is None:
            raise topic_not_found(name)
        return topic


def _answer(fetched: storage_pb2.FetchResponse, end: int | None) -> admin_pb2.ScanQueueResponse:
    """Return storage's answer as bytes, up to `end`: a filter may have read beyond it."""
    response = admin_pb2.ScanQueueResponse.FromString(fetched.SerializeToString())
    if end is not None:
        while response.messages and response.messages[-1].offset >= end:
            del response.messages[-1]
        response.resume_offset = min(response.resume_offset, end)
    return response
