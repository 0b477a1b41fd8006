"""`strata.admin.v1.AdminService`: what operators and the `strata` command call on any broker."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.metadata import MetadataView, Name
from strata_broker.metadata_watch import MetaRefusedError
from strata_broker.operations import Operations
from strata_broker.servicers.errors import call_error
from strata_broker.sessions import Client, Sessions
from strata_edge.ports import CallError, CallInfo, Edge
from strata_mq.errors import RequestError
from strata_runtime.config import Config, to_json, to_toml

SERVICE = "strata.admin.v1.AdminService"

Request = TypeVar("Request", bound=Message)
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
        version: str,
    ) -> None:
        self._view = view
        self._operations = operations
        self._sessions = sessions
        self._config = config
        self._version = version

    def register(self, edge: Edge) -> None:
        """Serve every RPC on an edge."""
        self._add(edge, "CreateTopic", admin_pb2.CreateTopicRequest, self.create_topic)
        self._add(edge, "GetTopic", admin_pb2.GetTopicRequest, self.get_topic)
        self._add(edge, "ListTopics", admin_pb2.ListTopicsRequest, self.list_topics)
        self._add(edge, "UpdateTopic", admin_pb2.UpdateTopicRequest, self.update_topic)
        self._add(edge, "DeleteTopic", admin_pb2.DeleteTopicRequest, self.delete_topic)
        self._add(
            edge,
            "CreateConsumerGroup",
            admin_pb2.CreateConsumerGroupRequest,
            self.create_consumer_group,
        )
        self._add(
            edge, "GetConsumerGroup", admin_pb2.GetConsumerGroupRequest, self.get_consumer_group
        )
        self._add(
            edge,
            "ListConsumerGroups",
            admin_pb2.ListConsumerGroupsRequest,
            self.list_consumer_groups,
        )
        self._add(
            edge,
            "UpdateConsumerGroup",
            admin_pb2.UpdateConsumerGroupRequest,
            self.update_consumer_group,
        )
        self._add(
            edge,
            "DeleteConsumerGroup",
            admin_pb2.DeleteConsumerGroupRequest,
            self.delete_consumer_group,
        )
        self._add(
            edge,
            "ResetConsumerGroup",
            admin_pb2.ResetConsumerGroupRequest,
            self.reset_consumer_group,
        )
        self._add(edge, "FindMessages", admin_pb2.FindMessagesRequest, self.find_messages)
        self._add(edge, "GetConfig", admin_pb2.GetConfigRequest, self.get_config)
        self._add(edge, "GetCluster", admin_pb2.GetClusterRequest, self.get_cluster)

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

    async def get_cluster(self, _: admin_pb2.GetClusterRequest) -> admin_pb2.GetClusterResponse:
        """Show nodes, raft groups and their state."""
        return admin_pb2.GetClusterResponse(
            nodes=self._view.nodes(),
            raft_groups=await self._operations.raft_group_health(),
            version=self._version,
        )

    def _add(
        self,
        edge: Edge,
        rpc: str,
        request_type: type[Request],
        answer: Callable[[Request], Awaitable[Message]],
    ) -> None:
        async def serve(data: bytes, _: CallInfo) -> bytes:
            try:
                request = request_type.FromString(data)
            except DecodeError as error:
                raise CallError("INVALID_ARGUMENT", f"not a {request_type.__name__}") from error
            try:
                response = await answer(request)
            except (RequestError, MetaRefusedError, AngeliaError, TimeoutError) as failure:
                raise call_error(failure) from failure
            return response.SerializeToString()

        edge.add_unary(f"/{SERVICE}/{rpc}", serve)


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
