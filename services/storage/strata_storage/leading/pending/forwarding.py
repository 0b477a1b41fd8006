"""Brings messages that waited here to the raft group that has their queue now (rules 17, 18).

A delayed or half message waits where it was stored. When it is to be delivered and all queues of
its topic have left meanwhile, by themselves or with their slots, it is appended where one of them
is open. The append may be repeated, by whichever leader: the destination looks for the message's id
in its rows, and what it has already it answers with its place, also if it has lost the queue since.
The pending row stays until that answer came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import AngeliaError
from strata_metadata import ClusterView
from strata_metadata.channels import Channels
from strata_metadata.enum_names import name_of
from strata_mq.layout import BatchBuilder, OutgoingMessage, PartKey
from strata_mq.slots import slot_of
from strata_storage.base.directory import Directory
from strata_storage.leading.pending.resolver import Place

_APPEND = "/strata.storage.v1.StorageService/Append"
# Answers for a part whose queue is not there.
_NOT_THERE = (pb.OUTCOME_SEALED, pb.OUTCOME_WRONG_GROUP)
# Answers of a node that is not the one to ask.
_ASK_ANOTHER = (pb.OUTCOME_NOT_LEADER, pb.OUTCOME_UNKNOWN_GROUP, pb.OUTCOME_NOT_READY)


@dataclass(frozen=True, slots=True)
class ForwardOptions:
    """Times.

    Attributes:
        call_timeout_ms: for one append to the destination.
    """

    call_timeout_ms: int = 2_000


class ForwardFailed(Exception):
    """Nothing is known of the messages; it may be tried again."""


class QueueForwarder(Protocol):
    """Delivers messages where a queue is now, for a leader."""

    def holder(self, topic_id: int, queue: int, slot_base: int, moved_to: int) -> int:
        """Return the raft group that holds a queue's last epoch; 0: it is not known.

        Args:
            topic_id: its topic.
            queue: its number.
            slot_base: of the topic.
            moved_to: where it went from here; 0: nowhere by itself.
        """

    async def forward(
        self, raft_group: int, key: PartKey, messages: Sequence[OutgoingMessage]
    ) -> list[Place | None]:
        """Append messages of one queue elsewhere, each of them once; return where they are.

        None: the raft group has the queue no more, and does not have the message.

        Raises:
            ForwardFailed: to be repeated.
        """


class Forwarding:
    """`QueueForwarder` of a storage node in a cluster.

    Args:
        view: of the metadata: where queues are.
        directory: where raft groups are.
        channels: to other storage nodes; owned by the caller.
        options: times.
    """

    def __init__(
        self,
        view: ClusterView,
        directory: Directory,
        channels: Channels,
        *,
        options: ForwardOptions | None = None,
    ) -> None:
        self._view = view
        self._directory = directory
        self._channels = channels
        self._options = options or ForwardOptions()

    def holder(self, topic_id: int, queue: int, slot_base: int, moved_to: int) -> int:
        """Return the raft group that holds a queue's last epoch, as far as is known here."""
        override = self._view.queue_override(topic_id, queue)
        if override is None or not override.epochs:
            return moved_to or self._view.slot_owner(slot_of(slot_base, queue))
        return override.epochs[-1].raft_group

    async def forward(
        self, raft_group: int, key: PartKey, messages: Sequence[OutgoingMessage]
    ) -> list[Place | None]:
        """Append messages of one queue elsewhere; see `QueueForwarder`."""
        topic = self._view.topic(key.topic_id)
        if topic is not None:
            # The topic may have got queues since: a queue that knows refuses the older count.
            key = key._replace(queue_count=max(topic.queue_count, key.queue_count))
        builder = BatchBuilder(google_crc32c.value)
        builder.add(key, messages)
        batch = pb.GroupBatch(raft_group=raft_group, batch=builder.build(), may_repeat=True)
        result = await self._append(pb.AppendRequest(batches=[batch]), raft_group)
        if not result.parts:
            raise ForwardFailed(f"raft group {raft_group}: no result for a part of a batch")
        part = result.parts[0]
        if part.outcome not in (pb.OUTCOME_OK, *_NOT_THERE):
            raise ForwardFailed(f"queue {part.queue}: {name_of(pb.Outcome, part.outcome)}")
        return _places(key.topic_id, part, len(messages))

    async def _append(self, request: pb.AppendRequest, raft_group: int) -> pb.GroupResult:
        reason = "nobody is known to hold it"
        for endpoint in self._directory.endpoints_of_group(raft_group):
            try:
                response = await self._channels.get(endpoint).call(
                    _APPEND,
                    request,
                    pb.AppendResponse,
                    timeout_s=self._options.call_timeout_ms / 1_000,
                )
            except AngeliaError as error:
                reason = str(error)
                continue
            if not response.results:
                reason = f"{endpoint} answers without a result for a batch"
                continue
            result = response.results[0]
            if not result.refusal.outcome:
                return result
            reason = result.refusal.reason
            if result.refusal.outcome not in _ASK_ANOTHER:
                break
        raise ForwardFailed(f"raft group {raft_group}: {reason}")


def _places(topic_id: int, part: pb.PartResult, count: int) -> list[Place | None]:
    """Return where the messages of a part are: new ones in order, known ones where they were.

    None: the part was refused, and the message was not known.
    """
    known = {
        duplicate.ordinal: Place(topic_id, duplicate.queue, duplicate.offset)
        for duplicate in part.duplicates
    }
    places: list[Place | None] = []
    offset = part.base_offset
    for ordinal in range(count):
        if ordinal in known:
            places.append(known[ordinal])
        elif part.outcome != pb.OUTCOME_OK:
            places.append(None)
        else:
            places.append(Place(topic_id, part.queue, offset))
            offset += 1
    return places
