"""The body of a batch ack: JSON with a set of bits for each queue that was popped from.

Java's clients write short names and the bits as base64; other clients write the long names, or the
bytes of the bits as numbers.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from strata_remoting.command import RemotingError

_NORMAL_TOPIC = "0"
_BYTE_MAX = 0xFF
_NUMBER_MAX = (1 << 63) - 1
# Offsets that clients count from the first one of a pop.
_MOST_BIT_BYTES = 1 << 16
# A byte with any bit.
_ONES = re.compile(rb"[^\x00]", re.DOTALL)


class BatchAck(NamedTuple):
    """Messages of one queue that came with one pop.

    Attributes:
        group: consumer group.
        topic: of the messages.
        is_retry: they are of a topic of retries.
        queue_id: of the messages.
        first_offset: offset of bit 0.
        popped_ms: wall time of the pop.
        invisible_ms: how long nobody else gets the messages.
        mark: the broker's own number, see `PopInfo.mark`.
        bits: little-endian; bit i stands for offset `first_offset` + i.
    """

    group: str
    topic: str
    is_retry: bool
    queue_id: int
    first_offset: int
    popped_ms: int
    invisible_ms: int
    mark: int
    bits: bytes

    def offsets(self) -> Iterator[int]:
        """Yield the offsets of the messages, in order."""
        # The time goes with the messages: a client sends megabytes without one.
        for found in _ONES.finditer(self.bits):
            at, byte = found.start(), found[0][0]
            for bit in range(8):
                if byte >> bit & 1:
                    yield self.first_offset + 8 * at + bit

    @property
    def message_count(self) -> int:
        """Number of messages."""
        return int.from_bytes(self.bits).bit_count()


def read_batch_ack(data: Mapping[str, Any]) -> BatchAck:
    """Return one element of the list `acks`.

    Raises:
        RemotingError: a field is missing or cannot be read.
    """
    return BatchAck(
        group=_text(data, "c", "consumerGroup"),
        topic=_text(data, "t", "topic"),
        is_retry=_text(data, "r", "retry", _NORMAL_TOPIC) != _NORMAL_TOPIC,
        queue_id=_number(data, "q", "queueId"),
        first_offset=_number(data, "so", "startOffset"),
        popped_ms=_number(data, "pt", "popTime"),
        invisible_ms=_number(data, "it", "invisibleTime"),
        mark=_number(data, "rq", "reviveQueueId"),
        bits=_bits(data),
    )


def _text(data: Mapping[str, Any], short: str, long: str, default: str = "") -> str:
    value = data.get(short, data.get(long, default))
    if not isinstance(value, str) or not value:
        raise RemotingError(f"{short} ({long}) of a batch ack is missing")
    return value


def _number(data: Mapping[str, Any], short: str, long: str) -> int:
    value = data.get(short, data.get(long, 0))
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _NUMBER_MAX:
        raise RemotingError(f"{short} ({long}) of a batch ack is no number from 0 to {_NUMBER_MAX}")
    return value


def _bits(data: Mapping[str, Any]) -> bytes:
    value = data.get("b", data.get("bitSet"))
    found = _bytes(value)
    if found is None:
        raise RemotingError("b (bitSet) of a batch ack is neither base64 nor a list of bytes")
    if len(found) > _MOST_BIT_BYTES:
        raise RemotingError(
            f"b (bitSet) of a batch ack has {len(found)} bytes; {_MOST_BIT_BYTES} are allowed"
        )
    return found


def _bytes(value: object) -> bytes | None:
    if isinstance(value, str):
        try:
            return binascii.a2b_base64(value, strict_mode=True)
        except (binascii.Error, ValueError):
            return None
    if isinstance(value, list) and all(
        type(one) is int and -(_BYTE_MAX // 2) - 1 <= one <= _BYTE_MAX for one in value
    ):
        # Bytes of Java have a sign.
        return bytes(one & _BYTE_MAX for one in value)
    return None
