"""The live clients of this broker, in the form that other brokers and operators get."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from apache.rocketmq.v2 import definition_pb2
from strata.broker.v1 import peer_pb2
from strata_broker.base.config import PeerSection
from strata_broker.base.slices import slices
from strata_broker.clients.sessions import Client, Sessions
from strata_broker.clients.telemetry import Telemetry


class ConnectedClients:
    """See the module docstring; it changes nothing.

    Args:
        sessions: of clients.
        telemetry: their streams.
        config: limits of an answer.
        connections: returns how many clients are connected; None: nobody can tell.
        replied_user: returns whose client takes replies here, by client id; empty: anybody's; None:
            it takes none.
    """

    def __init__(
        self,
        sessions: Sessions,
        telemetry: Telemetry,
        config: PeerSection,
        *,
        connections: Callable[[], int | None],
        replied_user: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._sessions = sessions
        self._telemetry = telemetry
        self._max_clients = config.max_clients_per_answer
        self._connections = connections
        self._replied_user = replied_user

    async def answer(self, request: peer_pb2.ListClientsRequest) -> peer_pb2.ListClientsResponse:
        """Return the live clients that a request asks for, by client id.

        Other work goes on while many of them are looked at.
        """
        wanted: list[Client] = []
        async for some in slices(self._known(request)):
            wanted.extend(client for client in some if _is_wanted(client, request))
        wanted.sort(key=lambda client: client.client_id)
        response = peer_pb2.ListClientsResponse(truncated=len(wanted) > self._max_clients)
        del wanted[self._max_clients :]
        async for some in slices(wanted):
            response.clients.extend(map(self._shown, some))
        return response

    def _known(self, request: peer_pb2.ListClientsRequest) -> Sequence[Client]:
        """Return the clients to choose from.

        One that takes replies has a connection, so it is there, however long it was silent:
        producers say less than a session may be silent for.
        """
        client_id = request.client_id
        if not client_id:
            return self._sessions.alive()
        if self._replied_user(client_id) is not None:
            return [self._sessions.find(client_id) or Client(client_id)]
        client = self._sessions.find_alive(client_id)
        return [] if client is None else [client]

    def count(self) -> peer_pb2.CountConnectionsResponse:
        """Return how many clients are connected."""
        return peer_pb2.CountConnectionsResponse(connections=self._connections())

    def _shown(self, client: Client) -> peer_pb2.ConnectedClient:
        group = client.consumer_group
        user = self._replied_user(client.client_id)
        shown = peer_pb2.ConnectedClient(
            client_id=client.client_id,
            client_type=definition_pb2.ClientType.ValueType(client.client_type),
            language=definition_pb2.Language.ValueType(client.language),
            version=client.version,
            hostname=client.hostname,
            address=client.address,
            namespace=_namespace_of(client),
            consumer_group=group[1] if group is not None else "",
            topics=sorted(name for _, name in client.topics),
            heard_ms=client.heard_wall_ms,
            has_stream=self._telemetry.stream_of(client.client_id) is not None,
            takes_replies=user is not None,
            user=user or "",
        )
        for (_, topic), expression in client.subscriptions.items():
            shown.subscriptions[topic].expression = expression
            kind = client.filter_types.get(topic, definition_pb2.TAG)
            shown.subscriptions[topic].type = definition_pb2.FilterType.ValueType(kind)
        return shown


def _namespace_of(client: Client) -> str:
    if client.consumer_group is not None:
        return client.consumer_group[0]
    return client.topics[0][0] if client.topics else ""


def _is_wanted(client: Client, request: peer_pb2.ListClientsRequest) -> bool:
    if request.client_id and client.client_id != request.client_id:
        return False
    if request.HasField("namespace") and _namespace_of(client) != request.namespace:
        return False
    if request.consumer_group:
        group = client.consumer_group
        if group is None or group[1] != request.consumer_group:
            return False
    if not request.topic:
        return True
    return any(topic == request.topic for _, topic in (*client.subscriptions, *client.topics))
