"""Sends that name the queue of their messages, as clients of the remoting protocol do.

A gRPC client leaves the choice to the broker (rule 23). A remoting client chooses a queue of its
route and is told an offset of that queue, so its messages are stored there and nowhere else. A tool
that copies queues names one in the header `x-strata-queue` (docs/adr/0057).
"""

from __future__ import annotations

from strata_broker.metadata.metadata import LEADER_CHOOSES, TopicRow
from strata_edge.ports import HotCall
from strata_mq.requests import Code, RequestError

QUEUE_HEADER = "x-strata-queue"
"""Header of a SendMessage: the number of the queue, in its topic, for messages without a group."""

_MOST_DIGITS = 6


class QueuedCall:
    """Base of the hot calls that name a queue.

    Args:
        queue: number of the queue in its topic; `LEADER_CHOOSES` for any.
    """

    def __init__(self, queue: int) -> None:
        self.queue = queue


def named_queue(call: HotCall) -> int:
    """Return the queue that a send names; `LEADER_CHOOSES`: it names none.

    Raises:
        RequestError: BAD_REQUEST: the header holds no number.
    """
    if isinstance(call, QueuedCall):
        return call.queue
    text = call.metadata.get(QUEUE_HEADER)
    return LEADER_CHOOSES if text is None else _number(text)


def check_named_queue(queue: int, topic: TopicRow) -> None:
    """Check that a topic has the queue that a send names.

    Raises:
        RequestError: BAD_REQUEST.
    """
    if queue != LEADER_CHOOSES and queue >= topic.queue_count:
        raise RequestError(
            Code.BAD_REQUEST,
            f"{QUEUE_HEADER} is {queue}; topic {topic.name} has {topic.queue_count} queues, from 0",
        )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        raise RequestError(Code.BAD_REQUEST, f"{QUEUE_HEADER} is no number: {text[:40]!r}")
    return int(text)
