"""A live tail: the messages of a topic as they are stored; nothing is consumed."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient
from strata_cli.views import View, found_message_view


class LiveTail:
    """Reads what was stored since the last look; used by one thread at a time.

    Args:
        client: with the user's keys.
        namespace: of the topic.
        topic: name.
        tag: filter; empty: every message.
        max_messages: most messages of one look; what is beyond them comes with the next one.
    """

    def __init__(
        self,
        client: AdminClient,
        namespace: str,
        topic: str,
        *,
        tag: str = "",
        max_messages: int,
    ) -> None:
        self._client = client
        self._topic = admin_pb2.GetTopicRequest(namespace=namespace, name=topic)
        self._tag = tag
        self._max_messages = max_messages
        # Next offset to read, by queue; none: the first look begins at the end of each queue.
        self._next: dict[int, int] | None = None

    def look(self) -> list[View]:
        """Return new messages by store time.

        Raises:
            CliError: the topic does not exist or may not be read.
        """
        queues = self._client.call(self._client.admin.GetTopic, self._topic).queues
        if self._next is None:
            self._next = {queue.queue: queue.next_offset for queue in queues}
            return []
        found: list[View] = []
        for queue in queues:
            # A queue that was added since begins at its first message.
            offset = max(self._next.get(queue.queue, 0), queue.min_offset)
            left = self._max_messages - len(found)
            if offset < queue.next_offset and left > 0:
                found += self._scan(queue.queue, offset, left)
        return sorted(found, key=lambda message: message["store_time_ms"])

    def _scan(self, queue: int, offset: int, count: int) -> list[View]:
        request = admin_pb2.ScanQueueRequest(
            namespace=self._topic.namespace,
            topic=self._topic.name,
            queue=queue,
            offset=offset,
            max_messages=count,
            tag=self._tag,
        )
        response = self._client.call(self._client.admin.ScanQueue, request)
        assert self._next is not None
        self._next[queue] = response.resume_offset
        return [found_message_view(found) for found in response.messages]
