"""Reads single messages by their place, as a consumer group may."""

from __future__ import annotations

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.face import MessagingFace, PulledAnswer
from strata_broker.remoting.queue_ids import public_queue
from strata_remoting import OffsetPlace


class PlaceReads:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        view: knows queues.
    """

    def __init__(self, face: MessagingFace, view: MetadataView) -> None:
        self._face = face
        self._view = view

    async def at(
        self, exchange: Exchange, group: str, topic: TopicRow, place: OffsetPlace
    ) -> definition_pb2.Message | None:
        """Read the message at a place; None: there is none any more.

        Raises:
            RequestError: the message could not be read, or the client may not read it.
            RemotingRefusal: SERVICE_NOT_AVAILABLE: no raft group serves the queue.
        """
        found: list[definition_pb2.Message] = []

        async def keep(answer: PulledAnswer) -> None:
            if answer.failure is not None:
                raise answer.failure
            found.extend(answer.messages)

        await self._face.pull(
            service_pb2.PullMessageRequest(
                group=definition_pb2.Resource(name=group),
                message_queue=public_queue(self._view, topic, place.queue),
                offset=place.offset,
                batch_size=1,
            ),
            exchange.caller(group),
            keep,
        )
        at_place = [one for one in found if one.system_properties.queue_offset == place.offset]
        return at_place[0] if at_place else None
