"""`apache.rocketmq.v2.Admin`: messages, and commands to clients.

A command is sent on the telemetry stream of the client, wherever it is connected (`BrokerPeers`).
"""

from __future__ import annotations

import uuid

from google.protobuf.timestamp_pb2 import Timestamp

from apache.rocketmq.v2 import admin_pb2, definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2 as strata_admin_pb2
from strata.broker.v1 import peer_pb2
from strata_broker.clients.client_commands import not_connected
from strata_broker.clients.peers import BrokerPeers, require_ok
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.requests import Caller, enum_name, milliseconds
from strata_broker.metadata.stored_messages import parsed_message
from strata_broker.operators.message_queries import MAX_PAGE_MESSAGES, MessageQueries
from strata_broker.operators.subscriptions import Subscriptions
from strata_broker.operators.topics import Operations
from strata_broker.sends.internal_sends import InternalSends
from strata_mq.requests import Code, RequestError

# A page by number is found by reading the pages before it.
_MAX_PAGES = 100


class RocketmqAdminClientServicer:
    """See the module docstring."""

    def __init__(
        self,
        view: MetadataView,
        operations: Operations,
        subscriptions: Subscriptions,
        *,
        queries: MessageQueries,
        sends: InternalSends,
        peers: BrokerPeers,
        node_id: str,
    ) -> None:
        self._view = view
        self._operations = operations
        self._subscriptions = subscriptions
        self._queries = queries
        self._sends = sends
        self._peers = peers
        self._node_id = node_id

    async def query_message(
        self, caller: Caller, request: admin_pb2.ListMessageRequest
    ) -> admin_pb2.ListMessageResponse:
        """Find messages by id, key, tags or time, a page at a time."""
        topic = self._operations.topic(*caller.name_of(request.topic))
        wanted = self._find_request(topic, request)
        pages_to_skip = max(request.page_num - 1, 0)
        if pages_to_skip >= _MAX_PAGES:
            raise RequestError(Code.BAD_REQUEST, f"at most {_MAX_PAGES} pages; narrow the search")
        found = await self._queries.find(wanted)
        for _ in range(pages_to_skip):
            if not found.next_page_token:
                return admin_pb2.ListMessageResponse()
            wanted.page_token = found.next_page_token
            found = await self._queries.find(wanted)
        return admin_pb2.ListMessageResponse(
            messages=(
                parsed_message(
                    topic,
                    stored.message,
                    stored.store_time_ms,
                    self._node_id,
                    stored.queue,
                    stored.offset,
                )
                for stored in found.messages
            ),
            scroll_id=found.next_page_token,
        )

    def _find_request(
        self, topic: TopicRow, request: admin_pb2.ListMessageRequest
    ) -> strata_admin_pb2.FindMessagesRequest:
        wanted = strata_admin_pb2.FindMessagesRequest(
            namespace=topic.namespace, topic=topic.name, page_token=request.scroll_id
        )
        sizes = [size for size in (request.page_size, request.max_message_nums) if size > 0]
        wanted.max_messages = min([*sizes, MAX_PAGE_MESSAGES])
        if request.HasField("begin_timestamp"):
            wanted.begin_ms = max(milliseconds(request.begin_timestamp), 0)
        if request.HasField("end_timestamp"):
            wanted.end_ms = max(milliseconds(request.end_timestamp), 0)
        if request.HasField("queue_id"):
            wanted.queue = self._queue(topic, request)
        match request.WhichOneof("search_key"):
            case "message_id":
                wanted.message_id = request.message_id
            case "message_key":
                wanted.key = request.message_key
            case "subscription":
                wanted.tag = request.subscription
            case "lite_topic":
                raise RequestError(Code.UNSUPPORTED, "lite topics are not supported yet")
        if wanted.WhichOneof("by") is None and not wanted.HasField("end_ms"):
            # All retained messages, unless a time limits them.
            wanted.begin_ms = wanted.begin_ms
        return wanted

    def _queue(self, topic: TopicRow, request: admin_pb2.ListMessageRequest) -> int:
        """Return a queue by its public name; without a broker name, by its number."""
        if not request.broker_name:
            return max(request.queue_id, 0)
        home = self._view.home(topic, request.broker_name)
        if home is None or not 0 <= request.queue_id < len(home.queues):
            raise RequestError(
                Code.TOPIC_NOT_FOUND,
                f"topic {topic.name} has no queue {request.queue_id} under broker name "
                f"{request.broker_name}",
            )
        return home.queues[request.queue_id]

    async def print_thread_stack_trace(
        self, caller: Caller, request: admin_pb2.PrintThreadStackTraceRequest
    ) -> admin_pb2.PrintThreadStackTraceResponse:
        """Let a client print its threads."""
        await self._check_member(caller, request)
        said = await self._peers.command(
            request.client_id, peer_pb2.CLIENT_COMMAND_PRINT_THREAD_STACK_TRACE
        )
        require_ok(said)
        return admin_pb2.PrintThreadStackTraceResponse(thread_stack_trace=said.thread_stack_trace)

    async def verify_message(
        self, caller: Caller, request: admin_pb2.VerifyMessageRequest
    ) -> admin_pb2.VerifyMessageResponse:
        """Let a push consumer consume a stored message once, to see whether it can."""
        topic = self._operations.topic(*caller.name_of(request.topic))
        found = await self._queries.by_id(topic, request.message_id)
        if not found:
            raise RequestError(
                Code.MESSAGE_NOT_FOUND, f"no message {request.message_id} in topic {topic.name}"
            )
        await self._check_member(caller, request)
        stored = found[-1]
        message = parsed_message(
            topic,
            stored.message,
            stored.store_time_ms,
            self._node_id,
            stored.queue,
            stored.offset,
        )
        said = await self._peers.command(
            request.client_id,
            peer_pb2.CLIENT_COMMAND_VERIFY_MESSAGE,
            message.SerializeToString(),
        )
        return admin_pb2.VerifyMessageResponse(status=said.status)

    async def _check_member(
        self,
        caller: Caller,
        request: admin_pb2.PrintThreadStackTraceRequest | admin_pb2.VerifyMessageRequest,
    ) -> None:
        """Check that a client is of the consumer group that a command to it names.

        Raises:
            RequestError: NOT_FOUND.
        """
        if request.group.name:
            namespace, group = caller.name_of(request.group)
            wanted = peer_pb2.ListClientsRequest(
                namespace=namespace, consumer_group=group, client_id=request.client_id
            )
            if not await self._peers.clients(wanted):
                raise not_connected(request.client_id)

    async def admin_send_message(
        self, caller: Caller, request: admin_pb2.AdminSendMessageRequest
    ) -> admin_pb2.AdminSendMessageResponse:
        """Send a message as a producer does."""
        namespace, name = caller.name_of(request.topic)
        message = definition_pb2.Message(
            topic=definition_pb2.Resource(resource_namespace=namespace, name=name),
            user_properties=request.user_properties,
            system_properties=request.system_properties,
            body=request.body,
        )
        properties = message.system_properties
        if request.tag:
            properties.tag = request.tag
        if request.key:
            properties.keys.append(request.key)
        if not properties.message_id:
            properties.message_id = "01" + uuid.uuid4().hex.upper()
        if not properties.HasField("born_timestamp"):
            properties.born_timestamp.GetCurrentTime()
        properties.born_host = properties.born_host or self._node_id
        response = await self._sends.send(service_pb2.SendMessageRequest(messages=[message]))
        return admin_pb2.AdminSendMessageResponse(
            status=response.status, message_id=response.entries[0].message_id
        )

    async def get_consumer_running_info(
        self, caller: Caller, request: admin_pb2.GetConsumerRunningInfoRequest
    ) -> admin_pb2.GetConsumerRunningInfoResponse:
        """Show what brokers know of a consumer: clients report no more."""
        namespace, group = caller.name_of(request.group)
        wanted = peer_pb2.ListClientsRequest(
            namespace=namespace, consumer_group=group, client_id=request.client_id
        )
        self._operations.consumer_group(namespace, group)
        clients = await self._peers.clients(wanted) if request.client_id else []
        if not clients:
            raise not_connected(request.client_id)
        (client,) = clients
        info = admin_pb2.ConsumerRunningInfo(
            properties=_properties(client), subscriptions=client.subscriptions
        )
        topics = [
            name for name in sorted(client.subscriptions) if self._view.topic(namespace, name)
        ]
        for topic, states in await self._subscriptions.states(namespace, group, topics):
            if topic.name not in client.subscriptions:
                continue
            for state in states:
                info.message_queue_table.add(
                    message_queue=self._subscriptions.public_queue(topic, state.queue),
                    process_queue_info=admin_pb2.ProcessQueueInfo(
                        commit_offset=state.cursor,
                        last_consume_timestamp=state.consumed_time_ms,
                    ),
                )
        return admin_pb2.GetConsumerRunningInfoResponse(consumer_running_info=info)


def _properties(client: peer_pb2.ConnectedClient) -> dict[str, str]:
    heard = Timestamp()
    heard.FromMilliseconds(client.heard_ms)
    return {
        "client_id": client.client_id,
        "client_type": enum_name(definition_pb2.ClientType, client.client_type),
        "language": enum_name(definition_pb2.Language, client.language),
        "version": client.version,
        "hostname": client.hostname,
        "address": client.address,
        "last_heartbeat": heard.ToJsonString(),
    }
