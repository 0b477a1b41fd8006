"""The clients' half of `strata.admin.v1.AdminService`: topics and consumer groups.

Operators and the `strata` command call it on any broker.
"""

from __future__ import annotations

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.broker.v1 import peer_pb2
from strata_broker.access.principals import current_principal, topic_target
from strata_broker.base.slices import slices
from strata_broker.clients.peers import BrokerPeers
from strata_broker.metadata.metadata import MetadataView, Name
from strata_broker.metadata.requests import enum_name
from strata_broker.operators.topics import Operations
from strata_broker.servicers.pages import page, page_of_names
from strata_mq.access import ResourceKind
from strata_mq.requests import (
    check_new_consumer_group,
    check_new_topic,
    check_not_own_consumer_group,
    check_not_own_topic,
    is_dead_letter_topic,
    is_own_consumer_group,
    is_table_topic,
)
from strata_runtime.config import Config, to_json, to_toml


class AdminServicer:
    """See the module docstring."""

    def __init__(
        self,
        view: MetadataView,
        operations: Operations,
        peers: BrokerPeers,
        *,
        config: Config,
    ) -> None:
        self._view = view
        self._operations = operations
        self._peers = peers
        self._config = config

    async def create_topic(
        self, request: admin_pb2.CreateTopicRequest
    ) -> admin_pb2.CreateTopicResponse:
        """Make a topic."""
        check_new_topic(request.topic.name)
        topic = await self._operations.create_topic(request.topic)
        return admin_pb2.CreateTopicResponse(topic=topic)

    async def create_topics(
        self, request: admin_pb2.CreateTopicsRequest
    ) -> admin_pb2.CreateTopicsResponse:
        """Make many topics."""
        return await self._operations.create_topics(request.topics)

    async def get_topic(self, request: admin_pb2.GetTopicRequest) -> admin_pb2.GetTopicResponse:
        """Show a topic and its queues."""
        topic = self._operations.topic(request.namespace, request.name)
        queues = await self._operations.queue_statuses(topic)
        return admin_pb2.GetTopicResponse(topic=topic.parsed(), queues=queues)

    async def list_topics(
        self, request: admin_pb2.ListTopicsRequest
    ) -> admin_pb2.ListTopicsResponse:
        """List topics by namespace and name."""
        namespace = request.namespace if request.HasField("namespace") else None
        principal = current_principal()

        def wanted(name: Name) -> bool:
            is_system = is_dead_letter_topic(name[1]) or is_table_topic(name[1])
            is_shown = request.include_system or not is_system
            return is_shown and principal.may_see(*topic_target(name))

        names, token = await page_of_names(
            self._view.topic_names,
            wanted,
            request.page_size,
            request.page_token,
            namespace=namespace,
            prefix=request.prefix,
        )
        rows = map(self._view.topics().parsed, names)
        return admin_pb2.ListTopicsResponse(
            topics=[row for row in rows if row is not None], next_page_token=token
        )

    async def update_topic(
        self, request: admin_pb2.UpdateTopicRequest
    ) -> admin_pb2.UpdateTopicResponse:
        """Change a topic."""
        check_not_own_topic(request.topic.name)
        topic = await self._operations.update_topic(request.topic, request.update_mask)
        return admin_pb2.UpdateTopicResponse(topic=topic)

    async def delete_topic(
        self, request: admin_pb2.DeleteTopicRequest
    ) -> admin_pb2.DeleteTopicResponse:
        """Delete a topic and its data."""
        check_not_own_topic(request.name)
        await self._operations.delete_topic(request.namespace, request.name)
        return admin_pb2.DeleteTopicResponse()

    async def purge_topic(
        self, request: admin_pb2.PurgeTopicRequest
    ) -> admin_pb2.PurgeTopicResponse:
        """Delete the messages of a topic."""
        check_not_own_topic(request.name)
        topic = self._operations.topic(request.namespace, request.name)
        deleted = await self._operations.purge_topic(topic)
        queues = await self._operations.queue_statuses(topic)
        return admin_pb2.PurgeTopicResponse(deleted_messages=deleted, queues=queues)

    async def create_consumer_group(
        self, request: admin_pb2.CreateConsumerGroupRequest
    ) -> admin_pb2.CreateConsumerGroupResponse:
        """Make a consumer group."""
        check_new_consumer_group(request.consumer_group.name)
        group = await self._operations.create_consumer_group(request.consumer_group)
        return admin_pb2.CreateConsumerGroupResponse(consumer_group=group)

    async def get_consumer_group(
        self, request: admin_pb2.GetConsumerGroupRequest
    ) -> admin_pb2.GetConsumerGroupResponse:
        """Show a consumer group, how far it is, and its members."""
        group = self._operations.consumer_group(request.namespace, request.name)
        members = await self._peers.members((request.namespace, request.name))
        return admin_pb2.GetConsumerGroupResponse(
            consumer_group=group,
            queues=await self._operations.consumer_lags(group),
            members=map(_member, members),
        )

    async def list_consumer_groups(
        self, request: admin_pb2.ListConsumerGroupsRequest
    ) -> admin_pb2.ListConsumerGroupsResponse:
        """List consumer groups by namespace and name, without StrataMQ's own."""
        namespace = request.namespace if request.HasField("namespace") else None
        principal = current_principal()
        names, token = await page_of_names(
            self._view.consumer_group_names,
            lambda name: (
                not is_own_consumer_group(name[1]) and principal.may_see(ResourceKind.GROUP, name)
            ),
            request.page_size,
            request.page_token,
            namespace=namespace,
            prefix=request.prefix,
        )
        rows = [self._view.consumer_group(*name) for name in names]
        return admin_pb2.ListConsumerGroupsResponse(
            consumer_groups=[row for row in rows if row is not None], next_page_token=token
        )

    async def update_consumer_group(
        self, request: admin_pb2.UpdateConsumerGroupRequest
    ) -> admin_pb2.UpdateConsumerGroupResponse:
        """Change a consumer group."""
        check_not_own_consumer_group(request.consumer_group.name)
        group = await self._operations.update_consumer_group(
            request.consumer_group, request.update_mask
        )
        return admin_pb2.UpdateConsumerGroupResponse(consumer_group=group)

    async def delete_consumer_group(
        self, request: admin_pb2.DeleteConsumerGroupRequest
    ) -> admin_pb2.DeleteConsumerGroupResponse:
        """Delete a consumer group, its state and its dead letters."""
        check_not_own_consumer_group(request.name)
        await self._operations.delete_consumer_group(request.namespace, request.name)
        return admin_pb2.DeleteConsumerGroupResponse()

    async def reset_consumer_group(
        self, request: admin_pb2.ResetConsumerGroupRequest
    ) -> admin_pb2.ResetConsumerGroupResponse:
        """Move a consumer group's cursors."""
        queues = await self._operations.reset_consumer_group(request)
        return admin_pb2.ResetConsumerGroupResponse(queues=queues)

    async def list_clients(
        self, request: admin_pb2.ListClientsRequest
    ) -> admin_pb2.ListClientsResponse:
        """List the clients that are connected to any broker."""
        wanted = peer_pb2.ListClientsRequest(
            topic=request.topic, consumer_group=request.consumer_group
        )
        if request.HasField("namespace"):
            wanted.namespace = request.namespace
        rows, token = page(
            (
                ((client.client_id, ""), client)
                for client in await self._peers.clients(wanted)
                if _is_of_kind(client, request.kind)
            ),
            request.page_size,
            request.page_token,
        )
        response = admin_pb2.ListClientsResponse(next_page_token=token)
        async for some in slices(rows):
            response.clients.extend(map(_client, some))
        return response

    async def get_config(self, _: admin_pb2.GetConfigRequest) -> admin_pb2.GetConfigResponse:
        """Show the configuration in force, secrets masked."""
        return admin_pb2.GetConfigResponse(text=to_toml(self._config), json=to_json(self._config))


def _is_of_kind(client: peer_pb2.ConnectedClient, kind: admin_pb2.ClientKind.ValueType) -> bool:
    if kind == admin_pb2.CLIENT_KIND_UNSPECIFIED:
        return True
    is_producer = client.client_type == definition_pb2.PRODUCER
    return is_producer == (kind == admin_pb2.CLIENT_KIND_PRODUCER)


def _client(client: peer_pb2.ConnectedClient) -> admin_pb2.ConnectedClient:
    member = _member(client)
    return admin_pb2.ConnectedClient(
        client_id=client.client_id,
        client_type=member.client_type,
        language=member.language,
        version=client.version,
        address=client.address,
        hostname=client.hostname,
        namespace=client.namespace,
        consumer_group=client.consumer_group,
        topics=client.topics,
        subscriptions=member.subscriptions,
        last_heartbeat_ms=client.heard_ms,
    )


def _member(client: peer_pb2.ConnectedClient) -> admin_pb2.GroupMember:
    return admin_pb2.GroupMember(
        client_id=client.client_id,
        language=enum_name(definition_pb2.Language, client.language),
        version=client.version,
        client_type=enum_name(definition_pb2.ClientType, client.client_type),
        subscriptions={
            topic: subscribed.expression for topic, subscribed in client.subscriptions.items()
        },
        last_heartbeat_ms=client.heard_ms,
    )
