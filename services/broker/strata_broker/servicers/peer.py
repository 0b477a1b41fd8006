"""`strata.broker.v1.PeerService`: calls of other brokers. It only translates."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from strata.broker.v1 import peer_pb2
from strata_angelia.cluster_id import CLUSTER_HEADER, ClusterId, own
from strata_angelia.methods import rpcs_of
from strata_broker.base import errors
from strata_broker.base.failures import Methods
from strata_broker.base.parsing import parse
from strata_broker.clients.client_commands import ClientCommands
from strata_broker.clients.connected_clients import ConnectedClients
from strata_broker.clients.group_resets import GroupResets
from strata_broker.clients.replies import Replies
from strata_broker.metadata.shown_revisions import ShownRevisions
from strata_broker.receives.lite_subscriptions import LiteSubscriptions
from strata_broker.servicers.peer_lite import take_lite
from strata_edge.ports import CallError, CallInfo
from strata_mq.requests import RequestError

_SERVICE = peer_pb2.DESCRIPTOR.services_by_name["PeerService"]


class BrokerPeerServicer:
    """See the module docstring. A broker of another cluster is refused (rule 32).

    Args:
        clients: of this broker.
        commands: to them.
        lite: their subscriptions of lite topics.
        replies: of consumers, to them.
        resets: of consumer groups, told to them.
        shown: waits for revisions of the metadata.
        cluster: that this broker belongs to; None: it is not checked.
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
        cluster: ClusterId | None = None,
    ) -> None:
        self._cluster = own(cluster)
        self._lite = lite
        self._replies = replies
        self._resets = resets
        self._shown = shown
        self._clients = clients
        self._commands = commands

    def register(self, edge: Methods) -> None:
        """Serve every RPC on an edge."""
        for rpc in rpcs_of(_SERVICE, self):
            edge.add_unary(rpc.path, rpc.function)

    async def list_clients(self, data: bytes, info: CallInfo) -> bytes:
        """List clients that are alive."""
        self._check_cluster(info)
        try:
            request = parse(peer_pb2.ListClientsRequest, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", "not a ListClientsRequest") from error
        return (await self._clients.answer(request)).SerializeToString()

    async def count_connections(self, data: bytes, info: CallInfo) -> bytes:
        """Count the clients that are connected."""
        self._check_cluster(info)
        return self._clients.count().SerializeToString()

    async def command_client(self, data: bytes, info: CallInfo) -> bytes:
        """Send a command to a client of this broker."""
        self._check_cluster(info)
        try:
            request = parse(peer_pb2.CommandClientRequest, data)
            response = await self._commands.command(
                request.client_id, request.command, request.message
            )
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", "not a CommandClientRequest") from error
        except RequestError as bad:
            response = peer_pb2.CommandClientResponse(status=errors.status_of(bad))
        return response.SerializeToString()

    async def sync_lite(self, data: bytes, info: CallInfo) -> bytes:
        """Take a subscription that another broker was told."""
        self._check_cluster(info)
        try:
            request = parse(peer_pb2.SyncLiteRequest, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", "not a SyncLiteRequest") from error
        return (await take_lite(self._lite, request)).SerializeToString()

    async def push_reply(self, data: bytes, info: CallInfo) -> bytes:
        """Give a reply to a client of this broker."""
        self._check_cluster(info)
        try:
            request = parse(peer_pb2.PushReplyRequest, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", "not a PushReplyRequest") from error
        return (await self._replies.answer(request)).SerializeToString()

    async def tell_reset(self, data: bytes, info: CallInfo) -> bytes:
        """Tell clients of this broker of a reset of their consumer group."""
        self._check_cluster(info)
        try:
            request = parse(peer_pb2.TellResetRequest, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", "not a TellResetRequest") from error
        return (await self._resets.answer(request)).SerializeToString()

    async def await_revision(self, data: bytes, info: CallInfo) -> bytes:
        """Answer when this broker knows a revision of the metadata, or after a short time."""
        self._check_cluster(info)
        try:
            request = parse(peer_pb2.AwaitRevisionRequest, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", "not an AwaitRevisionRequest") from error
        return (await self._shown.answer(request)).SerializeToString()

    def _check_cluster(self, info: CallInfo) -> None:
        if not self._cluster.agrees(info.metadata.get(CLUSTER_HEADER, "")):
            raise CallError("FAILED_PRECONDITION", self._cluster.value)
