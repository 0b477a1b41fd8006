"""Finds messages that an earlier send stored at another raft group, before the topic changed.

A raft group knows the ids of the messages that it stored. When a topic gets more queues, when its
message groups leave their old queues for that, or when a queue or a slot moves, a message is sent
to another raft group than before. A client that repeats a send whose answer was lost would then
store it twice (rule 37). So a message that was made before the change is looked for in all raft
groups that have, or had, queues of the topic, as long as repeats are remembered at all
(`OwnerHistory`).

The message id has the time of creation (docs/adr/0030): the official clients set a new born time in
every attempt. The born time counts for ids of another form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strata.storage.v1 import storage_pb2
from strata_broker.base.append_places import PendingPlace
from strata_broker.base.config import SendSection
from strata_broker.base.group_clock import GroupClock
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.owner_history import OwnerHistory
from strata_broker.storage_client.rehashed_topics import RehashedTopics
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.layout import OutgoingMessage, PartKind, made_ms
from strata_mq.requests import Code, HandleForm, RequestError
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics


class Earlier(NamedTuple):
    """Where a message was stored before.

    Attributes:
        raft_group: where.
        offset: in its queue.
        place: what names it while it waits; None: it has its offset.
    """

    raft_group: int
    offset: int
    place: PendingPlace | None = None


class EarlierSends:
    """See the module docstring. Used on the event loop only.

    Args:
        view: topics, and where their queues are and were.
        storage: is asked.
        config: how long repeats are known.
        clock: group time.
        metrics: what is counted.
    """

    def __init__(
        self,
        view: MetadataView,
        storage: StorageClient,
        config: SendSection,
        *,
        clock: GroupClock,
        metrics: Metrics,
    ) -> None:
        self._storage = storage
        self._window_ms = config.repeat_window_ms
        self._slack_ms = config.repeat_slack_ms
        self._clock = clock
        self._owners = OwnerHistory(view, clock.now_ms, self._window_ms)
        self._rehashed = RehashedTopics(clock.now_ms, self._window_ms)
        self._max_lookups = config.max_repeat_lookups
        self._under_way = Limit("earlier sends", self._max_lookups, "messages", metrics=metrics)
        self._found = metrics.counter("strata_broker_earlier_sends_total")

    def message_groups_left(self, topic: TopicRow) -> None:
        """Note that the message groups of a topic leave a queue of its old queue count now."""
        self._rehashed.left(topic.topic_id)

    def suspects(self, topic: TopicRow, outgoing: Sequence[OutgoingMessage]) -> list[int]:
        """Return which messages may have been stored before the topic changed; mostly none."""
        changed_ms = self._changed_lately_ms(topic)
        if not changed_ms:
            return []
        oldest_ms, latest_ms = changed_ms - self._window_ms, changed_ms + self._slack_ms
        return [
            at
            for at, one in enumerate(outgoing)
            if 0 < one.born_ms <= latest_ms
            # An id from long ago is ignored: its clock is off, or it has another form.
            or oldest_ms <= (made_ms(one.message_id) or 0) <= latest_ms
        ]

    def may_suspect(self, topic: TopicRow) -> bool:
        """Whether any message of a topic may have been stored before the topic changed."""
        return self._changed_lately_ms(topic) > 0

    @property
    def max_lookups(self) -> int:
        """How many messages are looked for at once."""
        return self._max_lookups

    def try_begin(self, count: int) -> bool:
        """Take room for so many lookups, all of it for more; False: the messages have to wait."""
        return self._under_way.try_take(min(count, self._max_lookups))

    def end(self, count: int) -> None:
        """Give it back."""
        self._under_way.give_back(min(count, self._max_lookups))

    def oldest_ms(self) -> int:
        """Return from which group time on a message is known as the repeat of another one."""
        return self._clock.now_ms() - self._window_ms

    def raft_groups(self, topic: TopicRow, but: int) -> list[int]:
        """Return the raft groups that may hold earlier sends, except one that checks for itself."""
        return [each for each in self._owners.raft_groups(topic) if each != but]

    async def find(
        self,
        topic: TopicRow,
        message_id: str,
        kind: PartKind,
        raft_groups: Iterable[int],
        timeout_s: float,
        *,
        since_ms: int = 0,
    ) -> Earlier | None:
        """Look for a message in raft groups; None: none of them has it.

        Args:
            topic: of the message.
            message_id: of the message.
            kind: whether it may wait somewhere.
            raft_groups: where to look, in this order.
            timeout_s: time for each raft group.
            since_ms: a message that was stored before that counts as another one.

        Raises:
            RequestError: a raft group did not answer: the result is unknown.
        """
        for raft_group in raft_groups:
            found = await self.look(
                raft_group, topic, message_id, kind, timeout_s, since_ms=since_ms
            )
            if found is not None:
                self._found.add()
                return found
        return None

    async def look(
        self,
        raft_group: int,
        topic: TopicRow,
        message_id: str,
        kind: PartKind,
        timeout_s: float,
        *,
        since_ms: int = 0,
    ) -> Earlier | None:
        """Look for a message in one raft group; the arguments and errors are those of `find`."""
        if kind is not PartKind.PLAIN:
            waiting = await self._waiting_at(raft_group, topic, message_id, timeout_s)
            if waiting is not None:
                return waiting
        stored = await self._storage.call(
            raft_group,
            "Query",
            storage_pb2.QueryRequest(
                raft_group=raft_group,
                topic_id=topic.topic_id,
                message_id=message_id,
                max_messages=1,
            ),
            storage_pb2.QueryResponse,
            timeout_s=timeout_s,
        )
        for message in stored.messages:
            if message.store_time_ms < since_ms:
                continue
            return Earlier(raft_group, message.offset)
        return None

    async def _waiting_at(
        self, raft_group: int, topic: TopicRow, message_id: str, timeout_s: float
    ) -> Earlier | None:
        request = storage_pb2.ListPendingRequest(
            raft_group=raft_group, topic_id=topic.topic_id, max_messages=1, message_id=message_id
        )
        try:
            response = await self._storage.call(
                raft_group,
                "ListPending",
                request,
                storage_pb2.ListPendingResponse,
                timeout_s=timeout_s,
            )
        except RequestError as failure:
            if failure.code is Code.INVALID_RECEIPT_HANDLE:
                # No message has this id.
                return None
            raise
        for one in response.messages:
            place = PendingPlace(HandleForm.PENDING, one.pending.index, one.pending.ordinal)
            return Earlier(raft_group, 0, place)
        return None

    def _changed_lately_ms(self, topic: TopicRow) -> int:
        """Return when a topic or its owners changed last; 0: repeats know nothing of it."""
        changed_ms = max(
            topic.changed_ms, self._owners.changed_ms(topic), self._rehashed.left_ms(topic)
        )
        if not changed_ms or self._clock.now_ms() - changed_ms > self._window_ms:
            return 0
        return changed_ms
