"""LITE_TOPICS: lite topics come and go. Layout: docs/data-layout.md section 4, kind 21.

The leader chooses the numbers and writes the new row of each parent queue into the command, so that
apply evaluates nothing (rule 1).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from strata_mq.commands.common import VERSION, CommandError, CommandKind, unpack_head

# Kind, version, sections, reserved, group time.
_HEAD = struct.Struct(">BBHIQ")
# Topic, parent queue, next turn, count, queue count, added, dropped, consumer groups.
_SECTION = struct.Struct(">IIIIIIII")
# Number, length of the name.
_NAMED = struct.Struct(">IH")
_GROUP = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class LiteChange:
    """Changes below one queue of a parent topic.

    Attributes:
        topic_id: the parent topic.
        home: its queue, which the names choose.
        next_turn, lite_count, queue_count: the parent row from now on.
        added: (number, name in UTF-8) of new lite topics.
        dropped: likewise of those that end, with all that they hold.
        consumer_group_ids: consumer groups whose state ends with what is dropped.
    """

    topic_id: int
    home: int
    next_turn: int
    lite_count: int
    queue_count: int
    added: Sequence[tuple[int, bytes]] = ()
    dropped: Sequence[tuple[int, bytes]] = ()
    consumer_group_ids: Sequence[int] = ()


def encode_lite_topics(group_time_ms: int, sections: Sequence[LiteChange]) -> bytes:
    """Encode a LITE_TOPICS command.

    Raises:
        struct.error: more than 65,535 sections.
    """
    pieces = [_HEAD.pack(CommandKind.LITE_TOPICS, VERSION, len(sections), 0, group_time_ms)]
    for one in sections:
        counts = (len(one.added), len(one.dropped), len(one.consumer_group_ids))
        row = (one.next_turn, one.lite_count, one.queue_count)
        pieces.append(_SECTION.pack(one.topic_id, one.home, *row, *counts))
        for number, name in (*one.added, *one.dropped):
            pieces.append(_NAMED.pack(number, len(name)) + name)
        pieces.extend(map(_GROUP.pack, one.consumer_group_ids))
    return b"".join(pieces)


def decode_lite_topics(payload: bytes) -> tuple[int, list[LiteChange]]:
    """Return group time and sections of a LITE_TOPICS command.

    Raises:
        CommandError: the bytes are no LITE_TOPICS.
    """
    _, count, _, group_time_ms = unpack_head(_HEAD, payload, CommandKind.LITE_TOPICS)
    at = _HEAD.size
    sections = []
    try:
        for _ in range(count):
            topic_id, home, *fields = _SECTION.unpack_from(payload, at)
            next_turn, lite_count, queue_count, *counts = fields
            at += _SECTION.size
            added, at = _named(payload, at, counts[0])
            dropped, at = _named(payload, at, counts[1])
            end = at + counts[2] * _GROUP.size
            groups = [group_id for (group_id,) in _GROUP.iter_unpack(payload[at:end])]
            if len(groups) != counts[2]:
                raise CommandError(f"LITE_TOPICS is cut at byte {at}")
            at = end
            sections.append(
                LiteChange(
                    *(topic_id, home, next_turn, lite_count, queue_count), added, dropped, groups
                )
            )
    except struct.error as error:
        raise CommandError(f"LITE_TOPICS is cut at byte {at}") from error
    if at != len(payload):
        raise CommandError(f"LITE_TOPICS of {len(payload)} bytes ends at {at}")
    return group_time_ms, sections


def _named(payload: bytes, at: int, count: int) -> tuple[list[tuple[int, bytes]], int]:
    named = []
    for _ in range(count):
        number, length = _NAMED.unpack_from(payload, at)
        at += _NAMED.size
        name = payload[at : at + length]
        if len(name) != length:
            raise CommandError(f"LITE_TOPICS is cut at byte {at}")
        at += length
        named.append((number, name))
    return named, at
