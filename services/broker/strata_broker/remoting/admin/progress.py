"""How far consumer groups are: for one group, and for all groups of a broker's topics."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin_pb2
from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_broker.remoting.addresses import broker_name_of
from strata_broker.remoting.admin.bodies import object_keyed, shown_queue, with_object_keys
from strata_broker.remoting.admin.listing import ResourceListing
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.exchange import Exchange, Handler
from strata_mq.requests import RequestError
from strata_remoting import AdminCode, RemotingCommand, ResponseCode
from strata_runtime.timeouts import Timeout

_MOST_GROUPS = 1_000
_Times = Mapping[tuple[str, int], rocketmq_admin_pb2.QueryTimeSpanResponse.QueueTimeSpan]
"""Times of queues by topic and number of the queue."""


class AdminProgress:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
        places: know topics and queues.
        listing: of all consumer groups.
        timeout_s: time for all groups of a broker.
    """

    def __init__(
        self,
        face: OperatorFace,
        places: AdminPlaces,
        listing: ResourceListing,
        *,
        timeout_s: float,
    ) -> None:
        self._timeout_s = timeout_s
        self._face = face
        self._places = places
        self._listing = listing

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.GET_CONSUME_STATS: self.of_group,
            AdminCode.GET_BROKER_CONSUME_STATS: self.of_broker,
            AdminCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
        }

    async def of_group(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the offsets of a consumer group, for one topic or for all it consumes.

        Raises:
            RemotingRefusal: SUBSCRIPTION_GROUP_NOT_EXIST, or the call was refused.
        """
        request = exchange.request
        group, topic = request.text("consumerGroup"), request.text("topic", "")
        found = await self._face.consumer_group(group, exchange.caller())
        lags = [lag for lag in found.queues if topic in ("", lag.topic)]
        times = await self._times(exchange, group) if lags else {}
        return with_object_keys(request, self._stats(lags, times))

    async def of_broker(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the offsets of all consumer groups on the topics behind this broker.

        Raises:
            RemotingRefusal: there are too many groups or not enough time for them, or the call was
                refused.
        """
        groups = await self._listing.groups(exchange, lambda row: row.name)
        here = self._places.names_here()
        if len(groups) > _MOST_GROUPS:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR,
                f"there are {len(groups)} consumer groups; {_MOST_GROUPS} can be shown at once: "
                "ask for a group alone",
            )
        shown, total, in_flight = [], 0, 0
        try:
            async with Timeout(self._timeout_s):
                for group in groups:
                    lags, stats = await self._of_one(exchange, group, here)
                    if stats:
                        shown.append({group: stats})
                    total += sum(lag.lag for lag in lags)
                    in_flight += sum(lag.in_flight for lag in lags)
        except TimeoutError:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_BUSY,
                f"the progress of {len(groups)} consumer groups was not found in "
                f"{self._timeout_s:g} s (calls.max_timeout_ms): ask for a group alone",
            ) from None
        answer = {
            "brokerAddr": self._places.addresses.own,
            "consumeStatsList": shown,
            "totalDiff": total,
            "totalInflightDiff": in_flight,
        }
        return with_object_keys(exchange.request, answer)

    async def _of_one(
        self, exchange: Exchange, group: str, here: Container[str]
    ) -> tuple[list[admin_pb2.ConsumerQueueLag], list[dict[str, Any]]]:
        """Return the progress of a group on topics behind this broker; it may be gone meanwhile."""
        try:
            found = await self._face.consumer_group(group, exchange.caller())
            lags = [lag for lag in found.queues if broker_name_of(lag.topic) in here]
            topics = sorted({lag.topic for lag in lags})
            times = await self._times(exchange, group) if lags else {}
        except (RemotingRefusal, RequestError):
            if self._places.view.consumer_group("", group) is None:
                return [], []
            raise
        stats = [
            self._stats([lag for lag in lags if lag.topic == topic], times) for topic in topics
        ]
        return lags, stats

    async def time_spans(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the store times of a topic's queues, and where a consumer group is.

        Raises:
            RequestError: the topic or the group does not exist, or the call was refused.
        """
        request = exchange.request
        topic, group = request.text("topic"), request.text("group")
        times = await self._times(exchange, group, topic)
        row = self._places.topic(topic)
        spans = [
            {
                "consumeTimeStamp": span.consume_timestamp,
                "delayTime": span.delay_time_ms,
                "maxTimeStamp": span.max_timestamp,
                "messageQueue": shown_queue(self._places.view, row, number),
                "minTimeStamp": span.min_timestamp,
            }
            for (_, number), span in sorted(times.items())
            if row is not None
        ]
        return with_object_keys(request, {"consumeTimeSpanSet": spans})

    def _stats(self, lags: list[admin_pb2.ConsumerQueueLag], times: _Times) -> dict[str, Any]:
        pairs = []
        for lag in lags:
            topic = self._places.topic(lag.topic)
            if topic is None:
                continue
            span = times.get((lag.topic, lag.queue))
            offsets = {
                "brokerOffset": lag.next_offset,
                "consumerOffset": lag.cursor,
                "lastTimestamp": span.consume_timestamp if span is not None else 0,
                "pullOffset": min(lag.cursor + lag.in_flight, lag.next_offset),
            }
            pairs.append((shown_queue(self._places.view, topic, lag.queue), offsets))
        return {"consumeTps": 0.0, "offsetTable": object_keyed(pairs)}

    async def _times(self, exchange: Exchange, group: str, *topics: str) -> _Times:
        """Return the times of topics; none named: of all that the group consumes.

        A topic that is named takes a right of its own: without it nobody learns that it exists.
        """
        resource = definition_pb2.Resource
        answer = await self._face.call_rocketmq(
            "QueryTimeSpan",
            rocketmq_admin_pb2.QueryTimeSpanRequest(
                group=resource(name=group), topics=[resource(name=topic) for topic in topics]
            ),
            rocketmq_admin_pb2.QueryTimeSpanResponse,
            exchange.caller(),
        )
        found = {}
        for span in answer.queue_time_span_list:
            queue = span.message_queue
            number = self._number(queue)
            if number is not None:
                found[queue.topic.name, number] = span
        return found

    def _number(self, queue: definition_pb2.MessageQueue) -> int | None:
        topic = self._places.topic(queue.topic.name)
        home = self._places.view.home(topic, queue.broker.name) if topic is not None else None
        if home is None or not 0 <= queue.id < len(home.queues):
            return None
        return home.queues[queue.id]
