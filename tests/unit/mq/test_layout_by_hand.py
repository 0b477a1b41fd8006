"""Append batches read by a second decoder, made from docs/data-layout.md alone.

Golden bytes are written by the code that they test; this decoder shares nothing with it.
"""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import Any

from google_crc32c import value as crc32c
from hypothesis import given

from strata_mq.layout.batch import BatchBuilder, OutgoingMessage, PartKey
from tests.unit.mq.test_batch import parts

Message = dict[str, Any]


def batch_by_hand(data: bytes) -> tuple[list[tuple[int, ...]], list[Message]]:
    """Return parts and messages as section 3 describes them."""
    magic, version, flags, part_count, reserved, count, columns_bytes, messages_bytes = (
        struct.unpack_from(">2sBBHHIII", data)
    )
    columns_crc, reserved_too, header_crc = struct.unpack_from(">III", data, 20)
    assert (magic, version, reserved, reserved_too) == (b"AB", 1, 0, 0)
    assert header_crc == crc32c(data[:28])
    assert len(data) == 32 + columns_bytes + messages_bytes
    assert columns_crc == crc32c(data[32 : 32 + columns_bytes])
    found = [struct.unpack_from(">IiHHII", data, 32 + 20 * number) for number in range(part_count)]
    at = 32 + 20 * part_count

    def column(form: str, number: int) -> list[Any]:
        nonlocal at
        end = at + number * struct.calcsize(f">{form}")
        values = [value for (value,) in struct.iter_unpack(f">{form}", data[at:end])]
        at = end
        return values

    columns = {
        name: column(form, count)
        for name, form in (
            *(("length", "I"), ("crc", "I"), ("tag", "Q"), ("group", "Q")),
            *(("id", "17s"), ("type", "B"), ("born", "Q"), ("key_count", "B")),
        )
    }
    keys = column("Q", sum(columns["key_count"]))
    due = column("Q", count) if flags & 1 else [0] * count
    assert flags in (0, 1)
    assert at == 32 + columns_bytes
    ends = list(accumulate(columns["length"], initial=at))
    key_ends = list(accumulate(columns["key_count"], initial=0))
    messages = [
        {name: values[number] for name, values in columns.items()}
        | {
            "stored": data[ends[number] : ends[number + 1]],
            "keys": keys[key_ends[number] : key_ends[number + 1]],
            "due": due[number],
        }
        for number in range(count)
    ]
    assert ends[-1] == len(data)
    return found, messages


def expected(message: OutgoingMessage, *, has_due: bool) -> Message:
    """Return what the decoder should find of a message."""
    return {
        "length": len(message.stored),
        "crc": message.checksum,
        "tag": message.tag_hash,
        "group": message.group_hash,
        "id": message.message_id,
        "type": message.message_type,
        "born": message.born_ms,
        "key_count": len(message.key_hashes),
        "keys": list(message.key_hashes),
        "stored": message.stored,
        "due": message.due_ms if has_due else 0,
    }


@given(parts)
def test_a_batch_is_what_the_page_says(
    additions: list[tuple[PartKey, list[OutgoingMessage]]],
) -> None:
    """Header, parts, columns and messages, each in its place, and nothing else."""
    builder = BatchBuilder(crc32c)
    order: dict[int, list[OutgoingMessage]] = {}
    keys: dict[int, PartKey] = {}
    for key, part in additions:
        number, _ = builder.add(key, part)
        order.setdefault(number, []).extend(part)
        keys[number] = key
    found, messages = batch_by_hand(builder.build())
    assert found == [
        (key.topic_id, key.queue, key.slot_base, key.queue_count, len(order[number]), int(key.kind))
        for number, key in sorted(keys.items())
    ]
    # The column is there for all messages, or for none.
    has_due = any(key.kind for key in keys.values())
    wanted = [
        expected(message, has_due=has_due) for number in sorted(order) for message in order[number]
    ]
    assert messages == wanted
