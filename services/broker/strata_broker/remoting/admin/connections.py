"""Connected clients: members of consumer groups, and producers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from strata.admin.v1 import admin_pb2
from strata_broker.metadata.requests import host_of
from strata_broker.remoting.admin.audience import shown_subscription
from strata_broker.remoting.admin.connected_producers import ConnectedProducers
from strata_broker.remoting.admin.listing import ResourceListing
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.answers import VERSION, RemotingRefusal, with_json
from strata_broker.remoting.exchange import Exchange, Handler, client_of
from strata_broker.remoting.members import RemotingMembers
from strata_remoting import AdminCode, Language, RemotingCommand, ResponseCode

_LANGUAGES = {each.name for each in Language}
_ADDRESS = re.compile(r"[0-9a-fA-F.:\[\]]+:[0-9]+")


class AdminConnections:
    """See the module docstring. Clients of the gRPC protocol are shown too.

    A gRPC producer has no group; as with RocketMQ's proxy, its topics stand for one.

    Args:
        face: the broker's handlers for operators.
        listing: of clients.
        members: of consumer groups that are connected here by the remoting protocol.
        producers: likewise.
    """

    def __init__(
        self,
        face: OperatorFace,
        listing: ResourceListing,
        members: RemotingMembers,
        *,
        producers: ConnectedProducers,
    ) -> None:
        self._face = face
        self._listing = listing
        self._members = members
        self._producers = producers

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            AdminCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            AdminCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    async def consumers(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the members of a consumer group and their subscriptions.

        Raises:
            RemotingRefusal: CONSUMER_NOT_ONLINE, or the call was refused.
        """
        group = exchange.request.text("consumerGroup")
        found = await self._listing.clients(
            exchange, group=group, kind=admin_pb2.CLIENT_KIND_CONSUMER
        )
        clients = [one for one in found if not _is_passing(client_of(one.client_id, group))]
        if not clients:
            raise RemotingRefusal(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{group}] not online"
            )
        subscriptions = {
            topic: shown_subscription(topic, expression, is_sql=False)
            for client in clients
            for topic, expression in client.subscriptions.items()
        }
        shown = {
            "connectionSet": self._shown(clients, group),
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": await self._model(exchange, group),
            "subscriptionTable": subscriptions,
        }
        return with_json(exchange.request, shown)

    async def producers(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the producers of a group; of a topic, if they speak gRPC.

        Raises:
            RemotingRefusal: there is none, or the call was refused.
        """
        group = exchange.request.text("producerGroup")
        clients = await self._listing.clients(
            exchange, topic=group, kind=admin_pb2.CLIENT_KIND_PRODUCER
        )
        shown = self._shown(clients, "")
        shown += [
            {
                "clientAddr": one.client.peer,
                "clientId": one.client.client_id,
                "language": _language(one.client.language),
                "version": one.version,
            }
            for one in self._producers.every()
            if one.group == group
        ]
        if not shown:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR, f"the producer group[{group}] not exist"
            )
        return with_json(exchange.request, {"connectionSet": shown})

    async def all_producers(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the producers that are connected to this broker, by group.

        Raises:
            RemotingRefusal: the call was refused.
        """
        # A caller who may not list clients may not see these either.
        await self._listing.clients(exchange, kind=admin_pb2.CLIENT_KIND_PRODUCER)
        table: dict[str, list[dict[str, object]]] = {}
        for one in self._producers.every():
            table.setdefault(one.group, []).append(
                {
                    "clientId": one.client.client_id,
                    "language": _language(one.client.language),
                    "lastUpdateTimestamp": one.heard_ms,
                    "remoteIP": host_of(one.client.peer),
                    "version": one.version,
                }
            )
        return with_json(exchange.request, {"data": table})

    async def _model(self, exchange: Exchange, group: str) -> str:
        found = await self._face.consumer_group(group, exchange.caller())
        return "BROADCASTING" if found.consumer_group.broadcast else "CLUSTERING"

    def _shown(
        self, clients: Sequence[admin_pb2.ConnectedClient], group: str
    ) -> list[dict[str, object]]:
        peers, versions = self._members.peers(group), self._producers.versions()
        shown: list[dict[str, object]] = []
        for client in clients:
            client_id = client_of(client.client_id, group)
            shown.append(
                {
                    "clientAddr": peers.get(client_id, client.address or client_id),
                    "clientId": client_id,
                    "language": client.language if client.language in _LANGUAGES else "OTHER",
                    "version": versions.get(client_id, VERSION),
                }
            )
        return shown


def _is_passing(client_id: str) -> bool:
    """Whether a client only pulled and never said who it is: a tool, known by its address."""
    return _ADDRESS.fullmatch(client_id) is not None


def _language(number: int) -> str:
    return Language(number).name if number in set(Language) else Language.OTHER.name
