"""QUERY_ASSIGNMENT: consumers that leave the balance to the broker ask for their queues.

A topic that the consumer group pops (`ConsumerGroup.pop_topics`) is one assignment of any queue,
for every member: leases divide the messages. All other topics are pulled, and their queues are
divided as the clients would do it. So are those of an ordered consumer group: Java's orderly
consumers pop messages and never hand them out, but pull well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from strata_broker.metadata.metadata import MetadataView
from strata_broker.remoting.addresses import broker_name_of
from strata_broker.remoting.answers import RemotingRefusal, with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.heartbeats import read_balance
from strata_broker.remoting.members import RemotingMembers
from strata_broker.remoting.queue_ids import known_topic, queue_numbers
from strata_mq.access import Action
from strata_remoting import RemotingCommand, RequestCode, ResponseCode

_ANY_QUEUE_ID = -1


class RemotingAssignments:
    """See the module docstring.

    Args:
        view: knows topics and consumer groups.
        members: of consumer groups.
        max_json_bytes: of the body of a request.
    """

    def __init__(
        self, view: MetadataView, members: RemotingMembers, *, max_json_bytes: int
    ) -> None:
        self._view = view
        self._members = members
        self._max_json_bytes = max_json_bytes

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.QUERY_ASSIGNMENT: self.query}

    async def query(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the queues of a client; without any list, it keeps those that it has.

        Raises:
            RemotingError: the body cannot be read.
            RemotingRefusal: the strategy is unknown.
            RequestError: the topic does not exist, or the client may not use the group.
        """
        wanted = read_balance(exchange.request.body, self._max_json_bytes)
        exchange.require_group(wanted.group, Action.SUB)
        exchange.require_topic(wanted.topic, Action.SUB)
        topic = known_topic(self._view, wanted.topic)
        count = len(queue_numbers(self._view, topic))
        if not wanted.is_broadcast and self._is_popped(wanted.group, topic.name):
            return _answer(exchange.request, topic.name, [_ANY_QUEUE_ID], "POP")
        if wanted.is_broadcast:
            return _answer(exchange.request, topic.name, range(count), "PULL")
        strategy = _STRATEGIES.get(wanted.strategy)
        if strategy is None:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR,
                f"the strategy {wanted.strategy[:40]!r} is not known: the broker divides queues by "
                f"{' and '.join(_STRATEGIES)}; leave others to the client (clientRebalance)",
            )
        members = self._members.client_ids(wanted.group)
        if wanted.client_id not in members:
            # Its heartbeat has not come yet.
            return with_json(exchange.request, {})
        own = strategy(members.index(wanted.client_id), len(members), count)
        return _answer(exchange.request, topic.name, own, "PULL")

    def _is_popped(self, group: str, topic: str) -> bool:
        row = self._view.consumer_group("", group)
        return row is not None and not row.fifo and topic in row.pop_topics


def averagely(index: int, members: int, queues: int) -> Sequence[int]:
    """Return the queue ids of a member: neighbours, the first members have one more."""
    size, more = divmod(queues, members)
    start = index * size + min(index, more)
    return range(start, start + size + (index < more))


def by_circle(index: int, members: int, queues: int) -> Sequence[int]:
    """Return the queue ids of a member: each member gets every so many."""
    return range(index, queues, members)


_STRATEGIES: Mapping[str, Callable[[int, int, int], Sequence[int]]] = {
    "AVG": averagely,
    "AVG_BY_CIRCLE": by_circle,
}


def _answer(
    request: RemotingCommand, topic: str, queue_ids: Sequence[int], mode: str
) -> RemotingCommand:
    name = broker_name_of(topic)
    shown = [
        {
            "messageQueue": {"brokerName": name, "queueId": queue_id, "topic": topic},
            "mode": mode,
        }
        for queue_id in queue_ids
    ]
    return with_json(request, {"messageQueueAssignments": shown})
