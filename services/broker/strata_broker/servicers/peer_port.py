"""`strata.broker.v1.PeerService` on a port for brokers only, where processes have certificates."""

from __future__ import annotations

from strata.broker.v1 import peer_pb2
from strata_angelia.ports import CallContext, Server
from strata_broker.base import errors
from strata_broker.clients.client_commands import ClientCommands
from strata_broker.clients.connected_clients import ConnectedClients
from strata_broker.clients.group_resets import GroupResets
from strata_broker.clients.replies import Replies
from strata_broker.metadata.shown_revisions import ShownRevisions
from strata_broker.receives.lite_subscriptions import LiteSubscriptions
from strata_broker.servicers.peer_lite import take_lite
from strata_mq.requests import RequestError

_SERVICE = peer_pb2.DESCRIPTOR.services_by_name["PeerService"]


class PeerPortServicer:
    """See the module docstring. The server has checked that the caller is a broker.

    Args:
        clients: of this broker.
        commands: to them.
        lite: their subscriptions of lite topics.
        replies: of consumers, to them.
        resets: of consumer groups, told to them.
        shown: waits for revisions of the metadata.
    """

    def __init__(
        self,
        clients: ConnectedClients,
        commands: ClientCommands,
        lite: LiteSubscriptions,
        *,
        replies: Replies,
        resets: GroupResets,
        shown: ShownRevisions,
    ) -> None:
        self._clients = clients
        self._commands = commands
        self._lite = lite
        self._replies = replies
        self._resets = resets
        self._shown = shown

    def register(self, server: Server) -> None:
        """Serve every RPC on a server that has not started."""
        server.register(_SERVICE, self)

    async def list_clients(
        self, request: peer_pb2.ListClientsRequest, context: CallContext
    ) -> peer_pb2.ListClientsResponse:
        """List clients that are alive."""
        return await self._clients.answer(request)

    async def count_connections(
        self, request: peer_pb2.CountConnectionsRequest, context: CallContext
    ) -> peer_pb2.CountConnectionsResponse:
        """Count the clients that are connected."""
        return self._clients.count()

    async def command_client(
        self, request: peer_pb2.CommandClientRequest, context: CallContext
    ) -> peer_pb2.CommandClientResponse:
        """Send a command to a client of this broker."""
        try:
            return await self._commands.command(request.client_id, request.command, request.message)
        except RequestError as bad:
            return peer_pb2.CommandClientResponse(status=errors.status_of(bad))

    async def sync_lite(
        self, request: peer_pb2.SyncLiteRequest, context: CallContext
    ) -> peer_pb2.SyncLiteResponse:
        """Take a subscription that another broker was told."""
        return await take_lite(self._lite, request)

    async def push_reply(
        self, request: peer_pb2.PushReplyRequest, context: CallContext
    ) -> peer_pb2.PushReplyResponse:
        """Give a reply to a client of this broker."""
        return await self._replies.answer(request)

    async def tell_reset(
        self, request: peer_pb2.TellResetRequest, context: CallContext
    ) -> peer_pb2.TellResetResponse:
        """Tell clients of this broker of a reset of their consumer group."""
        return await self._resets.answer(request)

    async def await_revision(
        self, request: peer_pb2.AwaitRevisionRequest, context: CallContext
    ) -> peer_pb2.AwaitRevisionResponse:
        """Answer when this broker knows a revision of the metadata, or after a short time."""
        return await self._shown.answer(request)
