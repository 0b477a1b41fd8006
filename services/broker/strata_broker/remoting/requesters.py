"""Clients of this broker that may wait for replies of consumers: all that have sent a heartbeat."""

from __future__ import annotations

from strata.broker.v1 import peer_pb2
from strata_broker.clients.client_commands import not_connected
from strata_broker.remoting.exchange import RemotingPeer
from strata_mq.requests import Code, RequestError
from strata_remoting import RemotingCommand, RequestCode, ResponseCode
from strata_runtime.timeouts import Timeout


class Requesters:
    """See the module docstring; a `ReplyTaker`.

    Args:
        reply_timeout_ms: for a client to take a reply.
    """

    def __init__(self, reply_timeout_ms: int) -> None:
        self._timeout_s = reply_timeout_ms / 1_000
        # The latest connection of a client and its user, by its id.
        self._clients: dict[str, tuple[RemotingPeer, str]] = {}

    def heard(self, client: RemotingPeer, user: str) -> None:
        """Note a heartbeat, and who signed it; empty: access is not controlled."""
        self._clients[client.client_id] = (client, user)

    def disconnected(self, client: RemotingPeer) -> None:
        """Forget a connection that ended; one that its client has replaced is forgotten already."""
        known = self._clients.get(client.client_id)
        if known is not None and known[0] is client:
            del self._clients[client.client_id]

    def user_of(self, client_id: str) -> str | None:
        """See `ReplyTaker.user_of`."""
        known = self._clients.get(client_id)
        return None if known is None else known[1]

    async def push(self, request: peer_pb2.PushReplyRequest) -> None:
        """See `ReplyTaker.push`."""
        client, user = self._clients.get(request.client_id, (None, ""))
        if client is None or user != request.user:
            raise not_connected(request.client_id)
        command = RemotingCommand(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields=dict(request.fields), body=request.body
        )
        try:
            async with Timeout(self._timeout_s):
                answer = await client.ask(command)
        except TimeoutError:
            raise RequestError(
                Code.REQUEST_TIMEOUT,
                f"client {request.client_id} did not take the reply within {self._timeout_s:g} s",
            ) from None
        except ConnectionError:
            raise not_connected(request.client_id) from None
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(
                Code.INTERNAL_SERVER_ERROR,
                f"client {request.client_id} refused the reply: {answer.remark}",
            )
