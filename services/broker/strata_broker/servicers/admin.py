"""The clients' half of `strata.admin.v1.AdminService`: topics, consumer groups, messages.

Operators and the `strata` command call it on any broker.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TypeVar

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_broker.metadata import MetadataView, Name
from strata_broker.operations import Operations
from strata_broker.servicers.admin_rpc import add
from strata_broker.sessions import Client, Sessions
from strata_edge.ports import Edge
from strata_runtime.config import Config, to_json, to_toml

Row = TypeVar("Row")

_DEFAULT_PAGE = 1_000
_MAX_PAGE = 10_000


class AdminServicer:
    """See the module docstring."""

    def __init__(
        self,
        view: MetadataView,
        operations: Operations,
        sessions: Sessions,
        config: Config,
    ) -> None:
        self._view = view
        self._operations = operations
        self._sessions = sessions
        self._config = config

    def register(self, edge: Edge) -> None:
        """Serve every RPC on an edge."""
        add(edge, "CreateTopic", admin_pb2.CreateTopicRequest, self.create_topic)
        add(edge, "GetTopic", admin_pb2.GetTopicRequest, self.get_topic)
        add(edge, "ListTopics", admin_pb2.ListTopicsRequest, self.list_topics)
        add(edge, "UpdateTopic", admin_pb2.UpdateTopicRequest, self.update_topic)
        add(edge, "DeleteTopic", admin_pb2.DeleteTopicRequest, self.delete_topic)
        add(
            edge,
            "CreateConsumerGroup",
            admin_pb2.CreateConsumerGroupRequest,
            self.create_consumer_group,
        )
        add(edge, "GetConsumerGroup", admin_pb2.GetConsumerGroupRequest, self.get_consumer_group)
        add(
            edge,
            "ListConsumerGroups",
            admin_pb2.ListConsumerGroupsRequest,
            self.list_consumer_groups,
        )
        add(
            edge,
            "UpdateConsumerGroup",
            admin_pb2.UpdateConsumerGroupRequest,
            self.update_consumer_group,
        )
        add(
            edge,
            "DeleteConsumerGroup",
            admin_pb2.DeleteConsumerGroupRequest,
            self.delete_consumer_group,
        )
        add(
            edge,
            "ResetConsumerGroup",
            admin_pb2.ResetConsumerGroupRequest,
            self.reset_consumer_group,
        )
        add(edge, "FindMessages", admin_pb2.FindMessagesRequest, self.find_messages)
        add(edge, "GetConfig", admin_pb2.GetConfigRequest, self.get_config)

    async def create_topic(
        self, request: admin_pb2.CreateTopicRequest
    ) -> admin_pb2.CreateTopicResponse:
        """Make a topic."""
        topic = await self._operations.create_topic(request.topic)
        return admin_pb2.CreateTopicResponse(topic=topic)

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
        rows, token = _page(
            (
                ((row.namespace, row.name), row)
                for row in self._view.topics()
                if (namespace is None or row.namespace == namespace)
                and (request.include_system or not row.is_dead_letter)
            ),
            request.page_size,
            request.page_token,
        )
        return admin_pb2.ListTopicsResponse(
            topics=[row.parsed() for row in rows], next_page_token=token
        )

    async def update_topic(
        self, request: admin_pb2.UpdateTopicRequest
    ) -> admin_pb2.UpdateTopicResponse:
        """Change a topic."""
        topic = await self._operations.update_topic(request.topic, request.update_mask)
        return admin_pb2.UpdateTopicResponse(topic=topic)

    async def delete_topic(
        self, request: admin_pb2.DeleteTopicRequest
    ) -> admin_pb2.DeleteTopicResponse:
        """Delete a topic and its data."""
        await self._operations.delete_topic(request.namespace, request.name)
        return admin_pb2.DeleteTopicResponse()

    async def create_consumer_group(
        self, request: admin_pb2.CreateConsumerGroupRequest
    ) -> admin_pb2.CreateConsumerGroupResponse:
        """Make a consumer group."""
        group = await self._operations.create_consumer_group(request.consumer_group)
        return admin_pb2.CreateConsumerGroupResponse(consumer_group=group)

    async def get_consumer_group(
        self, request: admin_pb2.GetConsumerGroupRequest
    ) -> admin_pb2.GetConsumerGroupResponse:
        """Show a consumer group, how far it is, and its members."""
        group = self._operations.consumer_group(request.namespace, request.name)
        members = self._sessions.members((request.namespace, request.name))
        return admin_pb2.GetConsumerGroupResponse(
            consumer_group=group,
            queues=await self._operations.consumer_lags(group),
            members=map(_member, members),
        )

    async def list_consumer_groups(
        self, request: admin_pb2.ListConsumerGroupsRequest
    ) -> admin_pb2.ListConsumerGroupsResponse:
        """List consumer groups by namespace and name."""
        namespace = request.namespace if request.HasField("namespace") else None
        rows, token = _page(
            (
                ((row.namespace, row.name), row)
                for row in self._view.consumer_groups()
                if namespace is None or row.namespace == namespace
            ),
            request.page_size,
            request.page_token,
        )
        return admin_pb2.ListConsumerGroupsResponse(consumer_groups=rows, next_page_token=token)

    async def update_consumer_group(
        self, request: admin_pb2.UpdateConsumerGroupRequest
    ) -> admin_pb2.UpdateConsumerGroupResponse:
        """Change a consumer group."""
        group = await self._operations.update_consumer_group(
            request.consumer_group, request.update_mask
        )
        return admin_pb2.UpdateConsumerGroupResponse(consumer_group=group)

    async def delete_consumer_group(
        self, request: admin_pb2.DeleteConsumerGroupRequest
    ) -> admin_pb2.DeleteConsumerGroupResponse:
        """Delete a consumer group, its state and its dead letters."""
        await self._operations.delete_consumer_group(request.namespace, request.name)
        return admin_pb2.DeleteConsumerGroupResponse()

    async def reset_consumer_group(
        self, request: admin_pb2.ResetConsumerGroupRequest
    ) -> admin_pb2.ResetConsumerGroupResponse:
        """Move a consumer group's cursors."""
        queues = await self._operations.reset_consumer_group(request)
        return admin_pb2.ResetConsumerGroupResponse(queues=queues)

    async def find_messages(
        self, request: admin_pb2.FindMessagesRequest
    ) -> admin_pb2.FindMessagesResponse:
        """Find messages; consumes nothing."""
        messages = await self._operations.find_messages(request)
        return admin_pb2.FindMessagesResponse(messages=messages)

    async def get_config(self, _: admin_pb2.GetConfigRequest) -> admin_pb2.GetConfigResponse:
        """Show the configuration in force, secrets masked."""
        return admin_pb2.GetConfigResponse(text=to_toml(self._config), json=to_json(self._config))


def _page(
    rows: Iterable[tuple[Name, Row]], page_size: int, page_token: str
) -> tuple[list[Row], str]:
    """Return a page of rows by name, and the token of the next ("" at the end).

    A token is `namespace/name` of the last row given; neither part can hold a slash.
    """
    size = min(page_size or _DEFAULT_PAGE, _MAX_PAGE)
    if page_token:
        namespace, _, name = page_token.partition("/")
        rows = (row for row in rows if row[0] > (namespace, name))
    page = heapq.nsmallest(size + 1, rows, key=lambda row: row[0])
    token = "/".join(page[size - 1][0]) if len(page) > size else ""
    return [row for _, row in page[:size]], token


def _member(client: Client) -> admin_pb2.GroupMember:
    return admin_pb2.GroupMember(
        client_id=client.client_id,
        language=_enum_name(definition_pb2.Language, client.language),
        version=client.version,
        client_type=_enum_name(definition_pb2.ClientType, client.client_type),
        subscriptions={topic: text for (_, topic), text in client.subscriptions.items()},
        last_heartbeat_ms=client.heard_wall_ms,
    )


def _enum_name(
    enum: type[definition_pb2.Language] | type[definition_pb2.ClientType], number: int
) -> str:
    """Return a value's name; a number this version does not know as it is."""
    return enum.Name(number) if number in enum.values() else str(number)  # type: ignore[arg-type]
