"""Asks all brokers about clients: a client is connected to one or several brokers.

Brokers share no state, so a client's broker is found by asking all live brokers at once, within a
short time. A broker that does not answer is skipped: its clients will soon be on another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from google.protobuf.message import Message

from strata.broker.v1 import peer_pb2
from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base.config import PeerSection
from strata_broker.clients.client_commands import ClientCommands, not_connected
from strata_broker.clients.connected_clients import ConnectedClients
from strata_broker.metadata.metadata import MetadataView, Name
from strata_broker.storage_client.channels import NodeChannels
from strata_mq.requests import Code, RequestError
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics

SERVICE = "strata.broker.v1.PeerService"

_CODES = frozenset(map(int, Code))

Response = TypeVar("Response", bound=Message)


class ReplyPlace(NamedTuple):
    """Where a client takes replies.

    Attributes:
        node_id: of the broker that has a connection with it.
        user: whose client it is there; empty: access is not controlled.
    """

    node_id: str
    user: str


class BrokerPeers:
    """See the module docstring.

    Args:
        node_id: of this broker, which is asked without a call.
        view: knows the brokers.
        channels: to them.
        clients: of this broker.
        commands: to clients of this broker.
        config: times and limits.
        metrics: what is counted.
    """

    def __init__(
        self,
        node_id: str,
        view: MetadataView,
        channels: NodeChannels,
        *,
        clients: ConnectedClients,
        commands: ClientCommands,
        config: PeerSection,
        metrics: Metrics,
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._channels = channels
        self._clients = clients
        self._commands = commands
        self._timeout_s = config.call_timeout_ms / 1000
        self._command_timeout_s = self._timeout_s + config.command_timeout_ms / 1000
        self._calls = asyncio.Semaphore(config.max_calls)
        self._failed = metrics.counter("strata_broker_peer_failures_total")
        self._log = get_logger("broker")

    async def members(self, group: Name) -> list[peer_pb2.ConnectedClient]:
        """Return the live members of a consumer group on all brokers, by client id."""
        return await self.clients(
            peer_pb2.ListClientsRequest(namespace=group[0], consumer_group=group[1])
        )

    async def clients(self, request: peer_pb2.ListClientsRequest) -> list[peer_pb2.ConnectedClient]:
        """Return the live clients of all brokers that a request asks for, by client id."""
        found: dict[str, peer_pb2.ConnectedClient] = {}
        for _, response in await self._ask_all(request):
            # An answer may have thousands of them.
            await asyncio.sleep(0)
            for client in response.clients:
                known = found.get(client.client_id)
                if known is None or _tells_more(client, known):
                    found[client.client_id] = client
        return [found[client_id] for client_id in sorted(found)]

    async def connections(self, node_ids: Sequence[str]) -> list[int | None]:
        """Return how many clients are connected to other brokers; None: no answer, or unknown."""
        answers = await asyncio.gather(
            *(
                self._call(
                    node_id,
                    "CountConnections",
                    peer_pb2.CountConnectionsRequest(),
                    peer_pb2.CountConnectionsResponse,
                    self._timeout_s,
                )
                for node_id in node_ids
            )
        )
        return [
            answer.connections if answer is not None and answer.HasField("connections") else None
            for answer in answers
        ]

    async def command(
        self, client_id: str, command: peer_pb2.ClientCommand.ValueType, message: bytes = b""
    ) -> peer_pb2.CommandClientResponse:
        """Send a command to a client, wherever it is connected; return its answer.

        Raises:
            RequestError: NOT_FOUND: no broker has a stream of the client; REQUEST_TIMEOUT: the
                client or its broker does not answer; TOO_MANY_REQUESTS.
        """
        answers = await self._ask_all(peer_pb2.ListClientsRequest(client_id=client_id))
        holders = [
            node_id
            for node_id, response in answers
            if any(client.has_stream for client in response.clients)
        ]
        if not holders:
            raise not_connected(client_id)
        if self._node_id in holders:
            return await self._commands.command(client_id, command, message)
        request = peer_pb2.CommandClientRequest(
            client_id=client_id, command=command, message=message
        )
        response = await self._call(
            holders[0],
            "CommandClient",
            request,
            peer_pb2.CommandClientResponse,
            self._command_timeout_s,
        )
        if response is None:
            raise RequestError(Code.REQUEST_TIMEOUT, f"broker {holders[0]} did not answer")
        return response

    async def takers_of_replies(self, client_id: str) -> list[ReplyPlace]:
        """See `ReplyPeers.takers_of_replies`."""
        found: list[tuple[int, ReplyPlace]] = []
        for node_id, response in await self._ask_all(
            peer_pb2.ListClientsRequest(client_id=client_id)
        ):
            if node_id != self._node_id:
                found.extend(
                    (one.heard_ms, ReplyPlace(node_id, one.user))
                    for one in response.clients
                    if one.takes_replies
                )
        return [place for _, place in sorted(found, reverse=True)]

    async def push_reply(
        self, node_id: str, request: peer_pb2.PushReplyRequest, timeout_s: float
    ) -> peer_pb2.PushReplyResponse | None:
        """See `ReplyPeers.push_reply`. Replies have a limit of their own."""
        return await self._call_now(
            node_id, "PushReply", request, peer_pb2.PushReplyResponse, timeout_s
        )

    async def sync_lite(self, request: peer_pb2.SyncLiteRequest) -> None:
        """Tell the other brokers of a subscription of lite topics; failures are counted."""
        others = [node.node_id for node in self._others()]
        answers = await asyncio.gather(
            *(
                self._call(node_id, "SyncLite", request, peer_pb2.SyncLiteResponse, self._timeout_s)
                for node_id in others
            )
        )
        for node_id, answer in zip(others, answers, strict=True):
            if answer is not None and int(answer.status.code) != Code.OK:
                self._log.info(
                    "subscription refused by a broker",
                    node_id=node_id,
                    reason=answer.status.message,
                )

    async def tell_reset(self, request: peer_pb2.TellResetRequest) -> None:
        """See `ResetPeers.tell_reset`."""
        response_type, timeout_s = peer_pb2.TellResetResponse, self._timeout_s
        await asyncio.gather(
            *(
                self._call(node.node_id, "TellReset", request, response_type, timeout_s)
                for node in self._others()
            )
        )

    async def await_revision(self, revision: int, timeout_s: float) -> None:
        """See `RevisionPeers.await_revision`."""
        request = peer_pb2.AwaitRevisionRequest(revision=revision)
        response_type = peer_pb2.AwaitRevisionResponse
        await asyncio.gather(
            *(
                self._call(node.node_id, "AwaitRevision", request, response_type, timeout_s)
                for node in self._others()
            )
        )

    async def _ask_all(
        self, request: peer_pb2.ListClientsRequest
    ) -> list[tuple[str, peer_pb2.ListClientsResponse]]:
        """Return (node id, answer) of this broker and of those that answer."""
        others = [node.node_id for node in self._others()]
        self._channels.forget_others(others)
        await self._channels.close_replaced()
        answers = await asyncio.gather(
            *(
                self._call(
                    node_id,
                    "ListClients",
                    request,
                    peer_pb2.ListClientsResponse,
                    self._timeout_s,
                )
                for node_id in others
            )
        )
        given = zip(others, answers, strict=True)
        return [
            (self._node_id, await self._clients.answer(request)),
            *((node_id, answer) for node_id, answer in given if answer is not None),
        ]

    def _others(self) -> Iterable[meta_pb2.Node]:
        for node in self._view.nodes(meta_pb2.NODE_KIND_BROKER):
            if node.node_id != self._node_id and node.state != meta_pb2.NODE_STATE_DOWN:
                yield node

    async def _call(
        self,
        node_id: str,
        rpc: str,
        request: Message,
        response_type: type[Response],
        timeout_s: float,
    ) -> Response | None:
        """Call a broker when few calls are under way; None: it did not answer."""
        async with self._calls:
            return await self._call_now(node_id, rpc, request, response_type, timeout_s)

    async def _call_now(
        self,
        node_id: str,
        rpc: str,
        request: Message,
        response_type: type[Response],
        timeout_s: float,
    ) -> Response | None:
        """Call a broker; None: it did not answer."""
        try:
            return await self._channels.to(node_id).call(
                f"/{SERVICE}/{rpc}", request, response_type, timeout_s=timeout_s
            )
        except AngeliaError as failure:
            self._failed.add(1, {"code": failure.code})
            self._log.info("broker not asked", node_id=node_id, reason=failure.reason)
            return None

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()


def _tells_more(one: peer_pb2.ConnectedClient, other: peer_pb2.ConnectedClient) -> bool:
    """Whether a broker knows more of a client than another one: it has a stream, or heard last."""
    return (one.has_stream, one.heard_ms) > (other.has_stream, other.heard_ms)


def require_ok(
    response: peer_pb2.CommandClientResponse | peer_pb2.PushReplyResponse,
) -> None:
    """Accept an answer in which the client and its broker say OK.

    Raises:
        RequestError: the status in the answer is another one.
    """
    code = int(response.status.code)
    if code != Code.OK:
        known = Code(code) if code in _CODES else Code.INTERNAL_SERVER_ERROR
        raise RequestError(known, response.status.message)
