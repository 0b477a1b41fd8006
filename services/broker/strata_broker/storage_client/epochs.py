"""Joins the answers of the raft groups that hold a queue's epochs (rule 18).

The epochs of a queue follow one another in offsets, so the answer with the higher offsets is the
newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from strata.admin.v1 import admin_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.metadata.metadata import NO_RAFT_GROUP, MetadataView, TopicRow
from strata_mq.requests import Code, RequestError


def holder_of(view: MetadataView, topic: TopicRow, queue: int, offset: int) -> Sequence[int]:
    """Return the raft group that holds an offset of a queue; empty: none does."""
    override = view.overrides(topic).get(queue)
    if override is None:
        owner = view.owner(topic, queue)
        known = owner != NO_RAFT_GROUP and view.raft_group(owner) is not None
        is_one = topic.is_dead_letter or topic.is_lite or queue < topic.queue_count
        return (owner,) if known and is_one else ()
    holder = next(
        (epoch.raft_group for epoch in reversed(override.epochs) if epoch.start_offset <= offset),
        NO_RAFT_GROUP,
    )
    return (holder,) if holder != NO_RAFT_GROUP else ()


class HeldEpoch(NamedTuple):
    """The holder of an epoch of a queue.

    Attributes:
        raft_group: the holder.
        end_offset: where the next epoch begins; None: this is the last one.
    """

    raft_group: int
    end_offset: int | None


def epoch_of(view: MetadataView, topic: TopicRow, queue: int, offset: int) -> HeldEpoch:
    """Return the epoch of a queue that an offset lies in.

    Raises:
        RequestError: FORBIDDEN, nobody serves the queue.
    """
    override = view.overrides(topic).get(queue)
    if override is None:
        held = HeldEpoch(view.owner(topic, queue), None)
    else:
        number = max(
            (at for at, epoch in enumerate(override.epochs) if epoch.start_offset <= offset),
            default=0,
        )
        later = override.epochs[number + 1 :]
        end_offset = later[0].start_offset if later else None
        held = HeldEpoch(override.epochs[number].raft_group, end_offset)
    if held.raft_group == NO_RAFT_GROUP:
        raise RequestError(Code.FORBIDDEN, "no readable queue")
    return held


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
    # The message before the first one of an epoch is the last one of the epoch before.
    older = states[: states.index(current)]
    consumed_time_ms = current.consumed_time_ms or (older[-1].last_store_time_ms if older else 0)
    return storage_pb2.ConsumerQueueState(
        queue=newest.queue,
        min_offset=states[0].min_offset,
        next_offset=newest.next_offset,
        cursor=current.cursor,
        head=newest.head,
        in_flight=sum(state.in_flight for state in states),
        waiting=sum(state.waiting for state in states),
        started=any(state.started for state in states),
        open_offsets=[offset for state in states for offset in state.open_offsets],
        min_time_ms=next((state.min_time_ms for state in states if state.min_time_ms), 0),
        consumed_time_ms=consumed_time_ms,
        cursor_time_ms=current.cursor_time_ms,
        last_store_time_ms=newest.last_store_time_ms,
    )
