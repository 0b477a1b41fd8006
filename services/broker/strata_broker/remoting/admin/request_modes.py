"""SET_MESSAGE_REQUEST_MODE: whether consumers of a group pop a topic, or pull it.

The mode is a part of the consumer group's row, so every broker knows it, also after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.access.rules import KNOWN_BY
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.answers import RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.json_bodies import read_object
from strata_mq.access import Action
from strata_mq.requests import RETRY_PREFIX
from strata_remoting import AdminCode, RemotingCommand, ResponseCode

_MODES = ("PULL", "POP")


class AdminRequestModes:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
        places: know topics.
        max_json_bytes: of the body of a request.
    """

    def __init__(self, face: OperatorFace, places: AdminPlaces, *, max_json_bytes: int) -> None:
        self._face = face
        self._places = places
        self._max_json_bytes = max_json_bytes

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {AdminCode.SET_MESSAGE_REQUEST_MODE: self.put}

    async def put(self, exchange: Exchange) -> RemotingCommand:
        """Set the mode of a consumer group for a topic.

        Every member pops every queue: `popShareQueueNum` has no effect.

        Raises:
            RemotingError: the body cannot be read.
            AccessRefused: FORBIDDEN.
            RemotingRefusal: the topic or the group does not exist, the mode is unknown, or the call
                was refused.
        """
        data = read_object(exchange.request.body, self._max_json_bytes)
        name, group, mode = (str(data.get(key)) for key in ("topic", "consumerGroup", "mode"))
        if mode not in _MODES:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR, f"the mode {mode[:40]!r} is not known: PULL or POP"
            )
        if name.startswith(RETRY_PREFIX):
            raise RemotingRefusal(
                ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"
            )
        exchange.require_group(group, Action.UPDATE)
        exchange.require_topic(name, *KNOWN_BY)
        if self._places.view.topic("", name) is None:
            raise RemotingRefusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        found = (await self._face.consumer_group(group, exchange.caller())).consumer_group
        topics = set(found.pop_topics) ^ {name}
        if (name in found.pop_topics) != (mode == "POP"):
            await self._put(exchange, found, sorted(topics))
        return succeeded(exchange.request)

    async def _put(
        self, exchange: Exchange, found: meta_pb2.ConsumerGroup, topics: list[str]
    ) -> None:
        # Another change of the row meanwhile is a conflict, not a loss.
        wanted = meta_pb2.ConsumerGroup(name=found.name, revision=found.revision, pop_topics=topics)
        await self._face.call(
            "UpdateConsumerGroup",
            admin_pb2.UpdateConsumerGroupRequest(consumer_group=wanted, update_mask=["pop_topics"]),
            admin_pb2.UpdateConsumerGroupResponse,
            exchange.caller(),
            missing=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        )
