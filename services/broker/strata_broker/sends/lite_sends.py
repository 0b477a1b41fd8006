"""Messages of lite topics: each goes to the queue with the number of its lite topic.

A lite topic whose number the broker does not know is looked up before its messages are staged; the
sends that wait for that are bounded by the directory.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata_broker.metadata.metadata import TopicRow
from strata_broker.sends.message_groups import QueueChoice
from strata_broker.storage_client.lite_directory import LiteDirectory
from strata_mq.layout import LiteMessage, OutgoingMessage
from strata_mq.requests import Code, RequestError


class LiteSends:
    """See the module docstring."""

    def __init__(self, directory: LiteDirectory) -> None:
        self._directory = directory

    def unknown(self, topic: TopicRow, outgoing: Sequence[OutgoingMessage]) -> list[str]:
        """Return the lite topics of messages that have no number here."""
        names = dict.fromkeys(map(_lite_topic_of, outgoing))
        return [name for name in names if not self._directory.number(topic, name)]

    async def look_up(self, topic: TopicRow, names: Sequence[str], timeout_s: float) -> None:
        """Learn the numbers of lite topics.

        Raises:
            RequestError: LITE_TOPIC_QUOTA_EXCEEDED, TOO_MANY_REQUESTS, or no answer in time.
        """
        await self._directory.numbers(topic, names, timeout_s)

    def choose(
        self, topic: TopicRow, outgoing: Sequence[OutgoingMessage], indexes: Sequence[int]
    ) -> list[tuple[QueueChoice, Sequence[int]]]:
        """Return the queues of messages, each with the messages' indexes, in order.

        Raises:
            RequestError: INTERNAL_SERVER_ERROR, which clients repeat: a lite topic ended meanwhile.
        """
        chosen: dict[QueueChoice, list[int]] = {}
        for index in indexes:
            name = _lite_topic_of(outgoing[index])
            number = self._directory.number(topic, name)
            if not number:
                raise RequestError(
                    Code.INTERNAL_SERVER_ERROR, "the lite topic has just ended: send again"
                )
            chosen.setdefault(QueueChoice(number, topic.queue_count), []).append(index)
        return list(chosen.items())

    def gone(self, topic_id: int, queue: int) -> None:
        """Take in that storage has no such lite topic any more."""
        self._directory.forget(topic_id, queue)


def _lite_topic_of(message: OutgoingMessage) -> str:
    assert isinstance(message, LiteMessage), "a topic of type LITE takes no other message"
    return message.lite_topic
