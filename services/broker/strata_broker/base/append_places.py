"""The place of each message of an append, from storage's answer for its part."""

from __future__ import annotations

from typing import NamedTuple

from strata.storage.v1 import storage_pb2
from strata_mq.requests import HandleForm


class PendingPlace(NamedTuple):
    """The name of a delayed or half message; `number` and `part` as in a handle."""

    form: HandleForm
    number: int
    part: int


def offsets_beside_duplicates(first: int, count: int, part: storage_pb2.PartResult) -> list[int]:
    """Return offsets of messages; duplicates have the offset of the first copy.

    Args:
        first: ordinal in the part of the first message.
        count: number of messages.
        part: storage's answer.
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
    """Return the names of messages that wait; a repeat has the name of the first copy.

    Args:
        first: ordinal in the part of the first message.
        count: number of messages.
        part: storage's answer.
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
