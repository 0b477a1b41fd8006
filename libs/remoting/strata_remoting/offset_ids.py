"""Ids that name a place: `offsetMsgId`, and the physical offset inside it.

RocketMQ's `offsetMsgId` is the store's address and the byte position in its CommitLog. StrataMQ has
no such position (rule 2): 63 bits name topic, queue and offset instead. Two bits choose how the
others are divided, so that small numbers of topics leave room for large offsets.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import NamedTuple

# Bits of topic id, queue and offset.
_DIVISIONS = ((20, 8, 33), (20, 13, 28), (10, 6, 45))
_DIVISION_AT = 61
_NO_PLACE = 3 << _DIVISION_AT
_PORT_AND_OFFSET = struct.Struct(">iq")


class OffsetPlace(NamedTuple):
    """Topic id, queue and offset of a message."""

    topic_id: int
    queue: int
    offset: int


class Store(NamedTuple):
    """Address that clients take for the store of a message.

    Attributes:
        host: 4 bytes of an IPv4 address, or 16 of an IPv6 one.
        port: of it.
    """

    host: bytes
    port: int

    @classmethod
    def of(cls, host: str, port: int) -> Store:
        """Return the store at an address; a name stands for 0.0.0.0: bytes have no room for it."""
        try:
            return cls(ip_address(host.strip("[]")).packed, port)
        except ValueError:
            return cls(bytes(4), port)

    @property
    def is_ipv6(self) -> bool:
        """Whether the host has 16 bytes."""
        return len(self.host) == len(_IPV6_EXAMPLE)


_IPV6_EXAMPLE = bytes(16)


def physical_offset(place: OffsetPlace) -> int:
    """Return 63 bits that name a place.

    A place whose numbers fit no division gets a number that names none.
    """
    for number, bits in enumerate(_DIVISIONS):
        if all(0 <= value < 1 << width for value, width in zip(place, bits, strict=True)):
            _, queue_bits, offset_bits = bits
            head = place.topic_id << queue_bits | place.queue
            return number << _DIVISION_AT | head << offset_bits | place.offset
    return _NO_PLACE


def place_at(physical: int) -> OffsetPlace | None:
    """Return the place that a physical offset names; None: none."""
    number = physical >> _DIVISION_AT
    if not 0 <= number < len(_DIVISIONS):
        return None
    _, queue_bits, offset_bits = _DIVISIONS[number]
    rest = physical & ((1 << _DIVISION_AT) - 1)
    offset, head = rest & ((1 << offset_bits) - 1), rest >> offset_bits
    return OffsetPlace(head >> queue_bits, head & ((1 << queue_bits) - 1), offset)


def offset_message_id(store: Store, physical: int) -> str:
    """Return the `offsetMsgId` of a message: upper-case hex, 32 digits for IPv4 and 56 for IPv6."""
    return (store.host + _PORT_AND_OFFSET.pack(store.port, physical)).hex().upper()
