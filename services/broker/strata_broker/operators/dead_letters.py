"""Dead-letter topics for operators: counts, messages, and messages that are not redriven yet.

A dead letter is redriven when the consumer group of redrives (`REDRIVE_GROUP`, one per namespace)
has consumed it. This group's position on the dead-letter topic is the only record, replicated like
any other. This module only reads it; `redrive` changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.clients.provision import consumer_group_not_found
from strata_broker.metadata.metadata import MetadataView, Name, TopicRow
from strata_broker.operators.message_queries import MessageQueries, PageInProgress, QueuePosition
from strata_broker.receives.receive import topic_ref
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_mq.requests import REDRIVE_GROUP, Code, RequestError

# Rows of one (consumer group, queue) are at most 110,000.
_MAX_OPEN_OFFSETS = 110_000


class Letter(NamedTuple):
    """One message of a dead-letter topic."""

    stored: storage_pb2.StoredMessage
    redriven: bool


class Letters(NamedTuple):
    """A page of letters, by raft group and offset."""

    letters: Sequence[Letter]
    next_page_token: str


class RedriveProgress:
    """The position of redrives on one queue of a dead-letter topic."""

    def __init__(self, state: storage_pb2.ConsumerQueueState) -> None:
        self._head = state.head
        self._open = frozenset(state.open_offsets)

    def is_redriven(self, offset: int) -> bool:
        """Whether it was consumed."""
        return offset < self._head and offset not in self._open


class DeadLetters:
    """See the module docstring."""

    def __init__(self, view: MetadataView, queries: MessageQueries, holders: HolderCalls) -> None:
        self._view = view
        self._queries = queries
        self._holders = holders

    def topic_of(self, name: Name) -> TopicRow:
        """Return the dead-letter topic of a consumer group.

        Raises:
            RequestError: CONSUMER_GROUP_NOT_FOUND, NOT_FOUND.
        """
        group = self._view.consumer_group(*name)
        if group is None:
            raise consumer_group_not_found(name[1])
        topic = self._view.topic_by_id(group.dead_letter_topic_id)
        if topic is None:
            raise RequestError(Code.NOT_FOUND, f"{name[1]} has no dead-letter topic")
        return topic

    async def count(self, group: meta_pb2.ConsumerGroup) -> admin_pb2.DeadLetterTopic | None:
        """Return the counts of a consumer group's dead-letter topic; None: it is empty."""
        topic = self._view.topic_by_id(group.dead_letter_topic_id)
        if topic is None:
            return None
        answers = await self._holders.of_topic(
            topic,
            "GetOffsets",
            storage_pb2.GetOffsetsResponse,
            lambda raft_group, queues: storage_pb2.GetOffsetsRequest(
                raft_group=raft_group, topic=topic_ref(topic), queues=queues
            ),
        )
        queues = [queue for _, answer in answers for queue in answer.queues]
        messages = sum(queue.next_offset - queue.min_offset for queue in queues)
        if not messages:
            return None
        return admin_pb2.DeadLetterTopic(
            namespace=topic.namespace,
            topic=topic.name,
            consumer_group=group.name,
            messages=messages,
            waiting=await self.waiting(topic),
            last_store_time_ms=max(queue.last_store_time_ms for queue in queues),
        )

    async def waiting(self, topic: TopicRow) -> int:
        """Return how many letters are not redriven."""
        states = await self._states(topic, max_open_offsets=0)
        return sum(
            max(state.next_offset - max(state.head, state.min_offset), 0)
            + state.in_flight
            + state.waiting
            for state in states.values()
        )

    async def progress(self, topic: TopicRow) -> dict[int, RedriveProgress]:
        """Return raft group -> progress of redrives on its queue."""
        states = await self._states(topic, max_open_offsets=_MAX_OPEN_OFFSETS)
        return {raft_group: RedriveProgress(state) for raft_group, state in states.items()}

    async def page(
        self, name: Name, max_messages: int, page_token: str, *, waiting_only: bool = False
    ) -> Letters:
        """Return letters of a consumer group, oldest first in each raft group.

        Raises:
            RequestError: unknown names, or a bad token.
        """
        topic = self.topic_of(name)
        first = QueuePosition.parse(page_token)
        states = await self._states(topic, max_open_offsets=_MAX_OPEN_OFFSETS)
        page = PageInProgress(max_messages)
        letters: list[Letter] = []
        for raft_group, state in sorted(states.items()):
            if raft_group < first.queue:
                continue
            progress = RedriveProgress(state)
            offset = max(state.min_offset, first.offset if raft_group == first.queue else 0)
            while offset < state.next_offset:
                if page.full:
                    return Letters(letters, str(QueuePosition(raft_group, offset)))
                offset = await self._read(
                    topic, raft_group, offset, progress, page, letters, waiting_only=waiting_only
                )
        return Letters(letters, "")

    async def _read(
        self,
        topic: TopicRow,
        raft_group: int,
        offset: int,
        progress: RedriveProgress,
        page: PageInProgress,
        letters: list[Letter],
        *,
        waiting_only: bool,
    ) -> int:
        """Add letters to the page; return the offset to continue at."""
        page.left_fetches -= 1
        fetched = await self._queries.fetch(raft_group, topic, raft_group, offset, page.left)
        for stored in fetched.messages:
            if page.full:
                return stored.offset
            redriven = progress.is_redriven(stored.offset)
            if not (waiting_only and redriven):
                page.add(stored)
                letters.append(Letter(stored, redriven))
        return max(fetched.resume_offset, offset + 1)

    async def _states(
        self, topic: TopicRow, *, max_open_offsets: int
    ) -> dict[int, storage_pb2.ConsumerQueueState]:
        """Return raft group -> position of redrives on its queue; no entry: at the start."""
        group = self._view.consumer_group(topic.namespace, REDRIVE_GROUP)
        number = group.consumer_group_id if group is not None else 0
        answers = await self._holders.of_topic(
            topic,
            "GetConsumerState",
            storage_pb2.GetConsumerStateResponse,
            lambda raft_group, queues: storage_pb2.GetConsumerStateRequest(
                raft_group=raft_group,
                consumer_group_id=number,
                topic=topic_ref(topic),
                queues=queues,
                max_open_offsets=max_open_offsets,
            ),
        )
        return {raft_group: state for raft_group, answer in answers for state in answer.queues}
