"""The header of a send or a reply: full names, or single letters (SEND_MESSAGE_V2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strata_remoting import RemotingCommand, RequestCode

_LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "maxReconsumeTimes": "l",
    "batch": "m",
}

_FULL_NAMES = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))


class SendHeader(NamedTuple):
    """Arguments of a send.

    Attributes:
        producer_group: of the sender.
        topic: of all messages.
        queue_id: number of the queue in the topic; negative: any.
        system_flag: compression and kind of transaction.
        born_ms: when the message was made, by its producer's clock.
        flag: number that belongs to the application.
        properties: of a single message, as one text.
        reconsume_times: how often the message was sent back before.
        max_reconsume_times: how often it may be; None: as its consumer group says.
        is_batch: whether the body is that of a batch.
    """

    producer_group: str
    topic: str
    queue_id: int
    system_flag: int
    born_ms: int
    flag: int
    properties: str
    reconsume_times: int
    max_reconsume_times: int | None
    is_batch: bool


def field_names(request: RemotingCommand) -> Callable[[str], str]:
    """Return what finds the name of a field in a request from the field's full name."""
    return str if request.code in _FULL_NAMES else _LETTERS.__getitem__


def send_header(request: RemotingCommand) -> SendHeader:
    """Return the header of a send.

    Raises:
        RemotingError: a field is missing, or is no number.
    """
    name = field_names(request)
    most = name("maxReconsumeTimes")
    return SendHeader(
        request.text(name("producerGroup")),
        request.text(name("topic")),
        request.number(name("queueId")),
        request.number(name("sysFlag"), 0),
        request.number(name("bornTimestamp"), 0),
        request.number(name("flag"), 0),
        request.text(name("properties"), ""),
        request.number(name("reconsumeTimes"), 0),
        request.number(most) if most in request.fields else None,
        request.code == RequestCode.SEND_BATCH_MESSAGE
        or request.truth(name("batch"), default=False),
    )
