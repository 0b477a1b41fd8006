"""MetaService: protos in, domain calls, protos out."""

from __future__ import annotations

from collections.abc import AsyncIterator

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import OVERLOADED, AngeliaError, CallContext
from strata_nameserver.errors import MetaError
from strata_nameserver.metadata import Metadata

_OK = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK)


class MetaServicer:
    """Serves `strata.meta.v1.MetaService` over Angelia."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    async def create_topic(
        self, request: meta_pb2.CreateTopicRequest, context: CallContext
    ) -> meta_pb2.CreateTopicResponse:
        """Make a topic."""
        try:
            topic = await self._metadata.create_topic(request.topic)
        except MetaError as error:
            return meta_pb2.CreateTopicResponse(status=_refused(error))
        return meta_pb2.CreateTopicResponse(status=_OK, topic=topic)

    async def update_topic(
        self, request: meta_pb2.UpdateTopicRequest, context: CallContext
    ) -> meta_pb2.UpdateTopicResponse:
        """Change a topic."""
        try:
            topic = await self._metadata.update_topic(request.topic, request.update_mask)
        except MetaError as error:
            return meta_pb2.UpdateTopicResponse(status=_refused(error))
        return meta_pb2.UpdateTopicResponse(status=_OK, topic=topic)

    async def delete_topic(
        self, request: meta_pb2.DeleteTopicRequest, context: CallContext
    ) -> meta_pb2.DeleteTopicResponse:
        """Delete a topic's row; brokers drop its data and confirm that."""
        try:
            await self._metadata.delete_topic(request.namespace, request.name)
        except MetaError as error:
            return meta_pb2.DeleteTopicResponse(status=_refused(error))
        return meta_pb2.DeleteTopicResponse(status=_OK)

    async def create_consumer_group(
        self, request: meta_pb2.CreateConsumerGroupRequest, context: CallContext
    ) -> meta_pb2.CreateConsumerGroupResponse:
        """Make a consumer group with its dead-letter topic."""
        try:
            group = await self._metadata.create_consumer_group(request.consumer_group)
        except MetaError as error:
            return meta_pb2.CreateConsumerGroupResponse(status=_refused(error))
        return meta_pb2.CreateConsumerGroupResponse(status=_OK, consumer_group=group)

    async def update_consumer_group(
        self, request: meta_pb2.UpdateConsumerGroupRequest, context: CallContext
    ) -> meta_pb2.UpdateConsumerGroupResponse:
        """Change a consumer group."""
        try:
            group = await self._metadata.update_consumer_group(
                request.consumer_group, request.update_mask
            )
        except MetaError as error:
            return meta_pb2.UpdateConsumerGroupResponse(status=_refused(error))
        return meta_pb2.UpdateConsumerGroupResponse(status=_OK, consumer_group=group)

    async def delete_consumer_group(
        self, request: meta_pb2.DeleteConsumerGroupRequest, context: CallContext
    ) -> meta_pb2.DeleteConsumerGroupResponse:
        """Delete a consumer group with its dead-letter topic."""
        try:
            await self._metadata.delete_consumer_group(request.namespace, request.name)
        except MetaError as error:
            return meta_pb2.DeleteConsumerGroupResponse(status=_refused(error))
        return meta_pb2.DeleteConsumerGroupResponse(status=_OK)

    async def confirm_dropped(
        self, request: meta_pb2.ConfirmDroppedRequest, context: CallContext
    ) -> meta_pb2.ConfirmDroppedResponse:
        """Mark a tombstone done."""
        try:
            await self._metadata.confirm_dropped(request.kind, request.id)
        except MetaError as error:
            return meta_pb2.ConfirmDroppedResponse(status=_refused(error))
        return meta_pb2.ConfirmDroppedResponse(status=_OK)

    async def get_snapshot(
        self, request: meta_pb2.GetSnapshotRequest, context: CallContext
    ) -> meta_pb2.GetSnapshotResponse:
        """Return all rows."""
        try:
            revision, rows = await self._metadata.snapshot()
        except MetaError as error:
            return meta_pb2.GetSnapshotResponse(status=_refused(error))
        return meta_pb2.GetSnapshotResponse(status=_OK, revision=revision, rows=rows)

    async def watch(
        self, request: meta_pb2.WatchRequest, context: CallContext
    ) -> AsyncIterator[meta_pb2.WatchResponse]:
        """Stream changes.

        Raises:
            AngeliaError: OVERLOADED: too many watchers; the response has no status of its own.
        """
        try:
            async for response in self._metadata.watch(request.from_revision):
                yield response
        except MetaError as error:
            raise AngeliaError(OVERLOADED, error.reason) from error

    async def register_node(
        self, request: meta_pb2.RegisterNodeRequest, context: CallContext
    ) -> meta_pb2.RegisterNodeResponse:
        """Take a node in."""
        try:
            replicas = await self._metadata.register_node(request.node)
        except MetaError as error:
            return meta_pb2.RegisterNodeResponse(status=_refused(error))
        return meta_pb2.RegisterNodeResponse(status=_OK, replicas=replicas)

    async def heartbeat(
        self, request: meta_pb2.HeartbeatRequest, context: CallContext
    ) -> meta_pb2.HeartbeatResponse:
        """Note that a node is alive."""
        try:
            self._metadata.heartbeat(request.node_id, request.boot_id)
        except MetaError as error:
            return meta_pb2.HeartbeatResponse(status=_refused(error))
        return meta_pb2.HeartbeatResponse(status=_OK)


def _refused(error: MetaError) -> meta_pb2.MetaStatus:
    return meta_pb2.MetaStatus(outcome=error.outcome, reason=error.reason)
