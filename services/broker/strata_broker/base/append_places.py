"""Which place each message of an append got, from what storage answers for its part."""

from __future__ import annotations

from typing import NamedTuple

from strata.storage.v1 import storage_pb2
from strata_mq.requests import HandleForm


class PendingPlace(NamedTuple):
    """What names a message of a delayed or half part; `number` and `part` as in a handle."""

    form: HandleForm
    number: int
    part: int


def offsets_beside_duplicates(first: int, count: int, part: storage_pb2.PartResult) -> list[int]:
    """Return offsets where some messages were stored before: those have their first offset.

    Args:
        first: ordinal in the part of the first message that is asked about.
        count: how many are.
        part: what storage answered.
    """
    known = {duplicate.ordinal: duplicate.offset for duplicate in part.duplicates}
    offset = part.base_offset + sum(1 for ordinal in range(first) if ordinal not in known)
    offsets = []
    for ordinal in range(first, first + count):
        if ordinal in known:
            offsets.append(known[ordinal])
        else:
            offsets.append(offset)
            offset += 1
    return offsets


def pending_places(first: int, count: int, part: storage_pb2.PartResult) -> list[PendingPlace]:
    """Return what names messages that wait; repeats are where the first one is.

    Args:
        first: ordinal in the part of the first message that is asked about.
        count: how many are.
        part: what storage answered.
    """
    index, ordinal = part.first_pending.index, part.first_pending.ordinal + first
    places = [PendingPlace(HandleForm.PENDING, index, ordinal + number) for number in range(count)]
    for duplicate in part.duplicates:
        number = duplicate.ordinal - first
        if not 0 <= number < len(places):
            continue
        if duplicate.HasField("pending"):
            original = duplicate.pending
            places[number] = PendingPlace(HandleForm.PENDING, original.index, original.ordinal)
        else:
            places[number] = PendingPlace(HandleForm.STORED, duplicate.offset, duplicate.queue)
    return places
