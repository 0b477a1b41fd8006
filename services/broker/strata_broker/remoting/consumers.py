"""Calls with which remoting clients tell of themselves and agree on queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.remoting.addresses import broker_name_of
from strata_broker.remoting.answers import RemotingRefusal, succeeded, with_body, with_json
from strata_broker.remoting.exchange import (
    Exchange,
    Handler,
    RemotingPeer,
    headers_of,
    may_send,
)
from strata_broker.remoting.face import MessagingFace
from strata_broker.remoting.heartbeats import (
    HeartbeatData,
    LockedQueue,
    read_heartbeat,
    read_locks,
)
from strata_broker.remoting.members import RemotingMembers
from strata_broker.remoting.position_updates import PositionUpdates
from strata_broker.remoting.producer_groups import ProducerGroups
from strata_broker.remoting.queue_locks import QueueKey, QueueLocks
from strata_broker.remoting.requesters import Requesters
from strata_mq.access import Action
from strata_mq.requests import check_consumer_group
from strata_remoting import RemotingCommand, RemotingError, RequestCode, ResponseCode

_MOST_CLIENT_ID = 120
_MOST_LOCKED = 4_096

HeartbeatListener = Callable[[Exchange, HeartbeatData], Awaitable[None]]
"""Is told of each heartbeat that was taken, so that its body is parsed once."""


class RemotingConsumers:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        members: of consumer groups.
        locks: of queues.
        producer_groups: of producers that can be asked for decisions.
        updates: know which positions are being stored.
        requesters: clients that may wait for replies.
        max_groups: of one client.
        max_json_bytes: of the body of a heartbeat, or of a request for locks.
    """

    def __init__(
        self,
        face: MessagingFace,
        members: RemotingMembers,
        locks: QueueLocks,
        *,
        producer_groups: ProducerGroups,
        updates: PositionUpdates,
        requesters: Requesters,
        max_groups: int,
        max_json_bytes: int,
    ) -> None:
        self._face = face
        self._members = members
        self._locks = locks
        self._producer_groups = producer_groups
        self._updates = updates
        self._requesters = requesters
        self._max_groups = max_groups
        self._max_json_bytes = max_json_bytes
        # Consumer groups by connection.
        self._groups: dict[RemotingPeer, set[str]] = {}
        self._listeners: list[HeartbeatListener] = []

    def on_heartbeat(self, listener: HeartbeatListener) -> None:
        """Call back after each heartbeat, before it is answered."""
        self._listeners.append(listener)

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.members,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def disconnected(self, client: RemotingPeer) -> None:
        """Forget a client whose connection ended."""
        self._members.disconnected(client, self._groups.pop(client, ()))
        self._producer_groups.disconnected(client)
        self._requesters.disconnected(client)

    async def heartbeat(self, exchange: Exchange) -> RemotingCommand:
        """Note that a client lives, with its groups and subscriptions.

        Raises:
            RemotingError: the body cannot be read, or has too many groups.
            RequestError: a consumer group's name is illegal, or the client may not use it;
                TOO_MANY_REQUESTS.
        """
        client = exchange.client
        data = read_heartbeat(exchange.request.body, self._max_json_bytes)
        if len(data.client_id) > _MOST_CLIENT_ID:
            raise RemotingError(f"a client id has at most {_MOST_CLIENT_ID} characters")
        if len(data.producer_groups) + len(data.consumers) > self._max_groups:
            raise self._too_many_groups()
        client.language = exchange.request.language
        await self._sign_of_life(exchange, data.client_id)
        # The id is the client's from here on: another user's was refused.
        if client.client_id != data.client_id:
            self.disconnected(client)
            client.client_id = data.client_id
        if not client.is_gone:
            # Not the exchange, which holds the request.
            rights = partial(may_send, exchange.principal)
            self._producer_groups.heard(client, data.producer_groups, rights)
            principal = exchange.principal
            self._requesters.heard(client, "" if principal is None else principal.user)
        for group, subscriptions in data.consumers.items():
            check_consumer_group(group)
            for topic in subscriptions:
                exchange.require_topic(topic, Action.SUB)
            self._check_room(client, group)
            await self._sign_of_life(exchange, data.client_id, group)
            if client.is_gone or client.client_id != data.client_id:
                # The connection ended meanwhile, or took another id: nobody would forget a member.
                return succeeded(exchange.request)
            # Other heartbeats of the connection have joined groups meanwhile.
            self._check_room(client, group)
            self._members.heard(client, data.client_id, group, subscriptions)
            self._groups.setdefault(client, set()).add(group)
        for listener in self._listeners:
            await listener(exchange, data)
        return succeeded(exchange.request)

    async def unregister(self, exchange: Exchange) -> RemotingCommand:
        """Forget a client, or one of its groups, once its positions are stored."""
        request, client = exchange.request, exchange.client
        self._producer_groups.left(client, request.text("producerGroup", ""))
        group = request.text("consumerGroup", "")
        if group:
            exchange.require_group(group, Action.SUB)
        client_id = client.client_id
        if group and request.text("clientID") == client_id:
            await self._updates.settled(client)
            # Meanwhile the client may have connected anew, or taken another id: those stay.
            if client.client_id == client_id:
                self._members.disconnected(client, (group,))
                self._groups.get(client, set()).discard(group)
        return succeeded(request)

    async def members(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the ids of a consumer group's members.

        Raises:
            RemotingRefusal: there is none, with RocketMQ's text.
        """
        group = exchange.request.text("consumerGroup")
        exchange.require_group(group, Action.SUB, Action.GET)
        found = self._members.listing(group)
        if not found:
            raise RemotingRefusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return with_body(exchange.request, found)

    async def check_config(self, exchange: Exchange) -> RemotingCommand:
        """Accept a client's SQL92 subscription; a pull tells if the expression is wrong."""
        return succeeded(exchange.request)

    async def lock(self, exchange: Exchange) -> RemotingCommand:
        """Lock queues for a client, and answer with those that it has now.

        Raises:
            RemotingError: the body cannot be read, or names too many queues.
        """
        wanted = read_locks(exchange.request.body, self._max_json_bytes)
        exchange.require_group(wanted.group, Action.SUB)
        taken = self._each(
            wanted.queues,
            wanted.group,
            lambda key: self._locks.try_lock(key, wanted.client_id, exchange.client.peer),
        )
        shown = [
            {"brokerName": one.broker_name, "queueId": one.queue_id, "topic": one.topic}
            for one in taken
        ]
        return with_json(exchange.request, {"lockOKMQSet": shown})

    async def unlock(self, exchange: Exchange) -> RemotingCommand:
        """Give locks back.

        Raises:
            RemotingError: see `lock`.
        """
        wanted = read_locks(exchange.request.body, self._max_json_bytes)
        exchange.require_group(wanted.group, Action.SUB)

        def give_back(key: QueueKey) -> bool:
            self._locks.unlock(key, wanted.client_id)
            return True

        self._each(wanted.queues, wanted.group, give_back)
        return succeeded(exchange.request)

    def _each(
        self, queues: list[LockedQueue], group: str, act: Callable[[QueueKey], bool]
    ) -> list[LockedQueue]:
        """Return the queues for which an action succeeds; queues of other names are not ours."""
        if len(queues) > _MOST_LOCKED:
            raise RemotingError(f"a request names at most {_MOST_LOCKED} queues")
        return [
            one
            for one in queues
            if one.broker_name == broker_name_of(one.topic)
            and act(QueueKey(group, one.topic, one.queue_id))
        ]

    def _check_room(self, client: RemotingPeer, group: str) -> None:
        """Check that a connection may have one more group, which another heartbeat may leave out.

        Raises:
            RemotingError: it has too many.
        """
        groups = self._groups.get(client, set())
        if group in groups or len(groups) < self._max_groups:
            return
        # Members without a heartbeat are forgotten elsewhere.
        groups.intersection_update([one for one in groups if self._members.has(client, one)])
        if len(groups) >= self._max_groups:
            raise self._too_many_groups()

    def _too_many_groups(self) -> RemotingError:
        return RemotingError(
            f"a client has at most {self._max_groups} groups (remoting.max_groups_per_client)"
        )

    async def _sign_of_life(self, exchange: Exchange, client_id: str, group: str = "") -> None:
        """Note that a client lives, by the id of its heartbeat: the connection may have another."""
        kind = definition_pb2.PULL_CONSUMER if group else definition_pb2.PRODUCER
        request = service_pb2.HeartbeatRequest(client_type=kind)
        if group:
            request.group.name = group
        caller = exchange.caller(group)
        caller.metadata = headers_of(client_id, exchange.client.language, group)
        await self._face.call("Heartbeat", request, service_pb2.HeartbeatResponse, caller)
