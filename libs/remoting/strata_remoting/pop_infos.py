"""The extra info by which clients name a popped message: words with blanks between them.

RocketMQ's clients read eight words: first offset of the pop in the queue, time of the pop,
invisible duration, revive queue, kind of topic, broker name, queue id and offset of the message.
They ignore further words and return the whole text; the ninth word is the broker's own handle.
A batch ack returns numbers of it instead: the first five words, the queue id, and a set of bits
that are counted from the first word. So the first word is the message's own offset here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

_WORDS = 9
_MOST_CHARACTERS = 4_096
_NORMAL_TOPIC = "0"


class PoppedPlace(NamedTuple):
    """The place of a popped message, as clients know it.

    Attributes:
        broker_name: of the topic.
        queue_id: of the message.
        offset: of the message in the queue.
    """

    broker_name: str
    queue_id: int
    offset: int


class PopInfo(NamedTuple):
    """One popped message.

    Attributes:
        place: of the message.
        popped_ms: wall time of the pop.
        invisible_ms: how long nobody else gets the message.
        handle: the broker's own, without blanks.
        mark: the broker's own number, in the place of a revive queue: all that a batch ack has of
            the handle.
    """

    place: PoppedPlace
    popped_ms: int
    invisible_ms: int
    handle: str
    mark: int = 0


def encode_pop_info(info: PopInfo) -> str:
    """Return the text of an extra info."""
    broker_name, queue_id, offset = info.place
    words = (
        *(offset, info.popped_ms, info.invisible_ms, info.mark, _NORMAL_TOPIC),
        *(broker_name, queue_id, offset, info.handle),
    )
    return " ".join(map(str, words))


def handle_of_pop(text: str) -> str:
    """Return the broker's own handle in an extra info; empty: the text has none."""
    words = text[:_MOST_CHARACTERS].split(" ")
    return words[-1] if len(words) == _WORDS and len(text) <= _MOST_CHARACTERS else ""


def start_offsets_text(offsets: Mapping[int, int]) -> str:
    """Return the field `startOffsetInfo`: the first offset of each queue id."""
    return ";".join(f"{_NORMAL_TOPIC} {queue} {offset}" for queue, offset in offsets.items())


def message_offsets_text(offsets: Mapping[int, Iterable[int]]) -> str:
    """Return the field `msgOffsetInfo`: all offsets of each queue id, which are in order."""
    return ";".join(
        f"{_NORMAL_TOPIC} {queue} {','.join(map(str, own))}" for queue, own in offsets.items()
    )
