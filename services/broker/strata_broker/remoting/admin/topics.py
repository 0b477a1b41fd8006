"""Requests that make, change, delete and describe topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.metadata.metadata import TopicRow
from strata_broker.remoting.addresses import broker_name_of
from strata_broker.remoting.admin.bodies import (
    DATA_VERSION,
    long_table,
    object_keyed,
    shown_queue,
    with_object_keys,
)
from strata_broker.remoting.admin.listing import ResourceListing
from strata_broker.remoting.admin.operator_face import AlreadyThere, OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.admin.topic_configs import WantedTopic, shown_topic, wanted_topic
from strata_broker.remoting.answers import RemotingRefusal, succeeded, with_body, with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.json_bodies import objects_in, read_object
from strata_broker.remoting.queue_ids import known_topic
from strata_mq.access import Action
from strata_remoting import AdminCode, RemotingCommand, ResponseCode

_MOST_TOPICS = 256


class AdminTopics:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
        places: know topics, and which of them are behind this broker.
        listing: of all topics.
        max_json_bytes: of the body of a request.
    """

    def __init__(
        self,
        face: OperatorFace,
        places: AdminPlaces,
        listing: ResourceListing,
        *,
        max_json_bytes: int,
    ) -> None:
        self._face = face
        self._places = places
        self._listing = listing
        self._max_json_bytes = max_json_bytes

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.UPDATE_AND_CREATE_TOPIC: self.put,
            AdminCode.UPDATE_AND_CREATE_TOPIC_LIST: self.put_all,
            AdminCode.DELETE_TOPIC_IN_BROKER: self.delete,
            AdminCode.DELETE_TOPIC_IN_NAMESRV: self.delete_route,
            AdminCode.GET_TOPIC_CONFIG: self.config,
            AdminCode.GET_ALL_TOPIC_CONFIG: self.configs,
            AdminCode.GET_TOPIC_STATS_INFO: self.stats,
        }

    async def put(self, exchange: Exchange) -> RemotingCommand:
        """Make a topic, or change what a topic that exists already may change.

        Raises:
            RemotingRefusal: the topic cannot be as it is wanted, or the call was refused.
        """
        await self._put(wanted_topic(exchange.request.fields), exchange)
        return succeeded(exchange.request)

    async def put_all(self, exchange: Exchange) -> RemotingCommand:
        """Make several topics by one change, then change those that existed, in order.

        The topics that can be made are made, also if another one is refused.

        Raises:
            RemotingError: the body cannot be read.
            RemotingRefusal: see `put`.
        """
        data = read_object(exchange.request.body, self._max_json_bytes)
        topics = objects_in(data, "topicConfigList")
        if len(topics) > _MOST_TOPICS:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR, f"a request has at most {_MOST_TOPICS} topics"
            )
        wanted = [wanted_topic(one | {"topic": one.get("topicName")}) for one in topics]
        new = [one for one in wanted if self._places.topic(one.name) is None]
        reasons = await self._make(new, exchange)
        for one in wanted:
            if one.name in reasons and await self._places.new_topic(one.name) is None:
                raise RemotingRefusal(ResponseCode.SYSTEM_ERROR, reasons[one.name])
            if one.name in reasons or one not in new:
                await self._put(one, exchange)
        return succeeded(exchange.request)

    async def delete(self, exchange: Exchange) -> RemotingCommand:
        """Delete a topic and its messages; tools ask every broker, so a missing one is deleted.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: the call was refused.
        """
        name = exchange.request.text("topic")
        exchange.require_topic(name, Action.DELETE)
        if self._places.topic(name) is not None:
            await self._face.call(
                "DeleteTopic",
                admin_pb2.DeleteTopicRequest(name=name),
                admin_pb2.DeleteTopicResponse,
                exchange.caller(),
                # It may be gone meanwhile.
                missing=ResponseCode.SUCCESS,
            )
        return succeeded(exchange.request)

    async def delete_route(self, exchange: Exchange) -> RemotingCommand:
        """Confirm that a topic has no route, once it is deleted.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: the topic exists: its route alone cannot be deleted.
        """
        name = exchange.request.text("topic")
        exchange.require_topic(name, Action.DELETE)
        if self._places.topic(name) is not None:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR,
                f"topic {name} exists: its route goes with the topic; delete the topic in a "
                "broker, for instance with -c",
            )
        return succeeded(exchange.request)

    async def config(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the configuration of a topic.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: TOPIC_NOT_EXIST.
        """
        name = exchange.request.text("topic")
        exchange.require_topic(name, Action.GET)
        if self._places.topic(name) is None:
            raise RemotingRefusal(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}"
            )
        found = await self._face.topic(name, exchange.caller())
        return with_json(exchange.request, shown_topic(found.topic, len(found.queues)))

    async def configs(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the configurations of the topics behind this broker.

        Raises:
            RemotingRefusal: the answer would be too large, or the call was refused.
        """
        here = self._places.names_here()

        def shown(row: meta_pb2.Topic) -> tuple[str, dict[str, Any]] | None:
            is_here = broker_name_of(row.name) in here
            return (row.name, shown_topic(row, row.queue_count)) if is_here else None

        table = await self._listing.topics(exchange, shown)
        head = {"dataVersion": DATA_VERSION}
        return with_body(exchange.request, await long_table(head, "topicConfigTable", table))

    async def stats(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the first and the next offset of each queue, and its last store time.

        Raises:
            AccessRefused: FORBIDDEN.
            RequestError: TOPIC_NOT_FOUND.
            RemotingRefusal: the call was refused.
        """
        name = exchange.request.text("topic")
        exchange.require_topic(name, Action.GET)
        if self._places.topic(name) is None:
            raise RemotingRefusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        topic = known_topic(self._places.view, name)
        found = await self._face.topic(name, exchange.caller())
        return with_object_keys(
            exchange.request,
            {"offsetTable": object_keyed(self._offsets(topic, found)), "topicPutTps": 0.0},
        )

    def _offsets(
        self, topic: TopicRow, found: admin_pb2.GetTopicResponse
    ) -> list[tuple[dict[str, Any], dict[str, int]]]:
        return [
            (
                shown_queue(self._places.view, topic, status.queue),
                {
                    "lastUpdateTimestamp": status.last_store_time_ms,
                    "maxOffset": status.next_offset,
                    "minOffset": status.min_offset,
                },
            )
            for status in found.queues
        ]

    async def _make(self, new: Sequence[WantedTopic], exchange: Exchange) -> dict[str, str]:
        """Make topics; return why some of them were not, by name."""
        if not new:
            return {}
        answer = await self._face.call(
            "CreateTopics",
            admin_pb2.CreateTopicsRequest(topics=[one.new() for one in new]),
            admin_pb2.CreateTopicsResponse,
            exchange.caller(),
        )
        return {each.name: each.reason for each in answer.failures}

    async def _put(self, wanted: WantedTopic, exchange: Exchange) -> None:
        row = self._places.topic(wanted.name)
        caller = exchange.caller()
        if row is None:
            try:
                await self._face.call(
                    "CreateTopic",
                    admin_pb2.CreateTopicRequest(topic=wanted.new()),
                    admin_pb2.CreateTopicResponse,
                    caller,
                )
            except AlreadyThere:
                # Another broker made it a moment ago: this is a change.
                row = await self._places.new_topic(wanted.name)
                if row is None:
                    raise
            else:
                return
        exchange.require_topic(wanted.name, Action.UPDATE, Action.GET)
        topic = row.parsed()
        mask = wanted.change(topic)
        if mask:
            await self._face.call(
                "UpdateTopic",
                admin_pb2.UpdateTopicRequest(topic=topic, update_mask=mask),
                admin_pb2.UpdateTopicResponse,
                caller,
                missing=ResponseCode.TOPIC_NOT_EXIST,
            )
        else:
            # Nothing to change; whoever may not look gets no success either.
            await self._face.topic(wanted.name, caller)
