"""Handles with which producers recall delayed messages: base64 of words with blanks between them.

A handle of RocketMQ has five words: `v1`, topic, broker name, time of delivery in ms, message id.
Clients read these and ignore further ones; the sixth word is the broker's own handle.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from typing import NamedTuple

from strata_remoting.command import RemotingError

_VERSION = "v1"
_ALPHABET = b"-_"
_WORDS = 6
_MOST_DIGITS = 19


class RecallHandle(NamedTuple):
    """A delayed message.

    Attributes:
        topic: of the message.
        broker_name: to whose broker the recall goes.
        delivery_ms: wall time in ms.
        message_id: of the message.
        handle: the broker's own, without blanks.
    """

    topic: str
    broker_name: str
    delivery_ms: int
    message_id: str
    handle: str


def encode_recall_handle(handle: RecallHandle) -> str:
    """Return the text of a handle."""
    topic, broker_name, delivery_ms, message_id, own = handle
    words = (_VERSION, topic, broker_name, str(delivery_ms), message_id.replace(" ", "_"), own)
    return urlsafe_b64encode(" ".join(words).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Return the handle of a text.

    Raises:
        RemotingError: it is none of these, with RocketMQ's text.
    """
    try:
        words = b64decode(text.encode("ascii"), _ALPHABET, validate=True).decode().split(" ")
    except ValueError:
        raise _invalid() from None
    if len(words) != _WORDS or words[0] != _VERSION or not _is_time(words[3]):
        raise _invalid()
    _, topic, broker_name, delivery, message_id, own = words
    return RecallHandle(topic, broker_name, int(delivery), message_id, own)


def _is_time(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _invalid() -> RemotingError:
    return RemotingError("recall handle is invalid")
