"""One queue's answer from the answers of the raft groups that hold its epochs (rule 18).

The epochs of a queue follow one another in offsets, so the answer of the one with the higher
offsets is the newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata.admin.v1 import admin_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.metadata import NO_RAFT_GROUP, MetadataView, TopicRow


def holder_of(view: MetadataView, topic: TopicRow, queue: int, offset: int) -> Sequence[int]:
    """Return the raft group that holds an offset of a queue; empty: nobody does."""
    override = view.overrides(topic).get(queue)
    if override is None:
        owner = view.owner(topic, queue)
        known = owner != NO_RAFT_GROUP and view.raft_group(owner) is not None
        return (owner,) if known and (topic.is_dead_letter or queue < topic.queue_count) else ()
    holder = next(
        (epoch.raft_group for epoch in reversed(override.epochs) if epoch.start_offset <= offset),
        NO_RAFT_GROUP,
    )
    return (holder,) if holder != NO_RAFT_GROUP else ()


def join_offsets(status: admin_pb2.QueueStatus, other: admin_pb2.QueueStatus) -> None:
    """Make a queue's status that of two of its epochs together."""
    if other.min_offset < other.next_offset:
        empty = status.min_offset == status.next_offset
        status.min_offset = other.min_offset if empty else min(status.min_offset, other.min_offset)
    status.next_offset = max(status.next_offset, other.next_offset)
    status.last_store_time_ms = max(status.last_store_time_ms, other.last_store_time_ms)


def join_states(
    states: Iterable[storage_pb2.ConsumerQueueState],
) -> list[storage_pb2.ConsumerQueueState]:
    """Return one state per queue, by number, from those of all epochs.

    The cursor is that of the oldest epoch that is not consumed.
    """
    by_queue: dict[int, list[storage_pb2.ConsumerQueueState]] = {}
    for state in states:
        by_queue.setdefault(state.queue, []).append(state)
    return [_joined(by_queue[queue]) for queue in sorted(by_queue)]


def _joined(
    states: list[storage_pb2.ConsumerQueueState],
) -> storage_pb2.ConsumerQueueState:
    if len(states) == 1:
        return states[0]
    states.sort(key=lambda state: state.next_offset)
    newest = states[-1]
    current = next((state for state in states if state.cursor < state.next_offset), newest)
    return storage_pb2.ConsumerQueueState(
        queue=newest.queue,
        min_offset=states[0].min_offset,
        next_offset=newest.next_offset,
        cursor=current.cursor,
        head=newest.head,
        in_flight=sum(state.in_flight for state in states),
        waiting=sum(state.waiting for state in states),
    )
