"""Replies of consumers on their way to the clients that asked, at this broker or another one.

A producer of the remoting protocol sends a request as a message, and a consumer replies to the
producer's client id. The consumer's broker rarely has a connection with that client, and brokers
share no state. So it asks all brokers which of them has one, gives the reply to that broker, and
remembers it for the client's next replies. A broker that does not know the client says so.

A client id belongs to one user at each broker. Where access is controlled, another user may use it
at a broker that the client is not connected to, so the brokers must agree on the user before a
client gets its first reply.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from strata.broker.v1 import peer_pb2
from strata_broker.base import errors
from strata_broker.base.metrics import METRICS
from strata_broker.base.remoting_config import RemotingSection
from strata_broker.base.shares import OwnerShares
from strata_broker.clients.client_commands import not_connected
from strata_broker.clients.peers import ReplyPlace, require_ok
from strata_mq.requests import Code, RequestError
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

# The node id of this broker in a place.
_HERE = ""


class ReplyTaker(Protocol):
    """Clients of this broker that wait for replies."""

    def user_of(self, client_id: str) -> str | None:
        """Return whose client is connected here.

        Returns:
            The user; empty: access is not controlled; None: the client is not connected here.
        """

    async def push(self, request: peer_pb2.PushReplyRequest) -> None:
        """Give a client a reply, and wait until it has taken it.

        Raises:
            RequestError: NOT_FOUND: the client is not connected here, or is another user's than the
                request says; REQUEST_TIMEOUT: it does not answer; INTERNAL_SERVER_ERROR: it refused
                the reply.
        """


class ReplyPeers(Protocol):
    """The other brokers."""

    async def takers_of_replies(self, client_id: str) -> list[ReplyPlace]:
        """Return the other brokers that a client is connected to, latest first."""

    async def push_reply(
        self, node_id: str, request: peer_pb2.PushReplyRequest, timeout_s: float
    ) -> peer_pb2.PushReplyResponse | None:
        """Give a reply to a broker; None: it did not answer."""


class Replies:
    """See the module docstring. Used on the event loop only.

    Args:
        config: times and limits.
        peer_timeout_s: for a call to another broker, beside the time of the client.
        metrics: what is counted.
    """

    def __init__(self, config: RemotingSection, peer_timeout_s: float, metrics: Metrics) -> None:
        self._max_places = config.max_reply_places
        self._timeout_s = config.reply_timeout_ms / 1_000 + peer_timeout_s
        self._taker: ReplyTaker | None = None
        self._peers: ReplyPeers | None = None
        # client id -> the broker that took its last reply
        self._places: OrderedDict[str, ReplyPlace] = OrderedDict()
        metrics.declare(METRICS)
        self._limit = Limit("remoting replies", config.max_replies, "replies", metrics=metrics)
        self._shares = OwnerShares(
            "remoting replies to clients", {"client": config.max_replies_per_client}, metrics
        )
        self._bytes = Limit("remoting replies", config.max_reply_bytes, "bytes", metrics=metrics)
        self._counted = metrics.counter("strata_broker_remoting_replies_total")
        metrics.gauge("strata_broker_remoting_reply_places", lambda: len(self._places))

    def taken_by(self, taker: ReplyTaker) -> None:
        """Give replies to clients of this broker by a taker; without one there are none."""
        self._taker = taker

    def passed_by(self, peers: ReplyPeers) -> None:
        """Give replies to clients of other brokers by these."""
        self._peers = peers

    def user_of(self, client_id: str) -> str | None:
        """See `ReplyTaker.user_of`; a client that may wait for replies."""
        return None if self._taker is None else self._taker.user_of(client_id)

    async def answer(self, request: peer_pb2.PushReplyRequest) -> peer_pb2.PushReplyResponse:
        """Take a reply from another broker, for a client of this one."""
        try:
            with self._under_way(request):
                await self._push_here(request)
        except RequestError as bad:
            return peer_pb2.PushReplyResponse(status=errors.status_of(bad))
        return peer_pb2.PushReplyResponse(status=errors.ok_status())

    async def push(self, request: peer_pb2.PushReplyRequest) -> None:
        """Give a client a reply, wherever it is connected; the request's `user` is set here.

        Raises:
            RequestError: NOT_FOUND: no broker has a connection with the client; FORBIDDEN: several
                users have one with its id; REQUEST_TIMEOUT: the client or its broker does not
                answer; INTERNAL_SERVER_ERROR: the client refused it; TOO_MANY_REQUESTS.
        """
        with self._under_way(request):
            outcome = "failed"
            try:
                outcome = await self._push(request)
            except RequestError as bad:
                if bad.code is Code.NOT_FOUND:
                    outcome = "gone"
                raise
            finally:
                self._counted.add(1, {"outcome": outcome})

    @contextmanager
    def _under_way(self, request: peer_pb2.PushReplyRequest) -> Iterator[None]:
        """Count a reply in the limits.

        Raises:
            RequestError: TOO_MANY_REQUESTS.
        """
        size_bytes, client = request.ByteSize(), (("client", request.client_id),)
        if not self._shares.try_take(client):
            raise errors.too_many_requests(
                "too many replies to this client are under way (remoting.max_replies_per_client)"
            )
        try:
            with self._in_all(size_bytes):
                yield
        finally:
            self._shares.give_back(client)

    @contextmanager
    def _in_all(self, size_bytes: int) -> Iterator[None]:
        if not self._limit.try_take():
            raise errors.too_many_requests("too many replies are under way (remoting.max_replies)")
        try:
            if not self._bytes.try_take(size_bytes):
                raise errors.too_many_requests(
                    "too many bytes of replies are under way (remoting.max_reply_bytes)"
                )
            try:
                yield
            finally:
                self._bytes.give_back(size_bytes)
        finally:
            self._limit.give_back()

    async def _push(self, request: peer_pb2.PushReplyRequest) -> str:
        user, known = self.user_of(request.client_id), self._places.get(request.client_id)
        if user is None:
            if known is not None and await self._push_to_known(known, request):
                return "forwarded"
            return await self._push_to_found([], request)
        if not user or (known is not None and known.user == user):
            request.user = user
            await self._push_here(request)
            return "here"
        return await self._push_to_found([ReplyPlace(_HERE, user)], request)

    async def _push_here(self, request: peer_pb2.PushReplyRequest) -> None:
        if self._taker is None:
            raise not_connected(request.client_id)
        await self._taker.push(request)

    async def _push_to_known(self, place: ReplyPlace, request: peer_pb2.PushReplyRequest) -> bool:
        """Try the broker that took the client's last reply; whether it took this one, too."""
        if place.node_id == _HERE:
            return False
        try:
            await self._push_to(place, request)
        except RequestError as bad:
            if bad.code is Code.TOO_MANY_REQUESTS:
                raise
            self._places.pop(request.client_id, None)
            # A broker that said nothing may have given the reply to the client.
            if bad.code is Code.NOT_FOUND:
                return False
            raise
        return True

    async def _push_to_found(
        self, found: list[ReplyPlace], request: peer_pb2.PushReplyRequest
    ) -> str:
        """Ask all brokers for the client; a broker that has just lost it is passed over."""
        client_id = request.client_id
        if self._peers is not None:
            found = [*found, *await self._peers.takers_of_replies(client_id)]
        if len({place.user for place in found}) > 1:
            raise RequestError(
                Code.FORBIDDEN, f"client {client_id} belongs to several users, each at its brokers"
            )
        for place in found:
            try:
                await self._push_to(place, request)
            except RequestError as bad:
                if bad.code is Code.NOT_FOUND:
                    continue
                raise
            self._places[client_id] = place
            self._places.move_to_end(client_id)
            if len(self._places) > self._max_places:
                self._places.popitem(last=False)
            return "here" if place.node_id == _HERE else "forwarded"
        raise not_connected(client_id)

    async def _push_to(self, place: ReplyPlace, request: peer_pb2.PushReplyRequest) -> None:
        request.user = place.user
        if place.node_id == _HERE:
            await self._push_here(request)
            return
        assert self._peers is not None, "there are no other brokers"
        response = await self._peers.push_reply(place.node_id, request, self._timeout_s)
        if response is None:
            raise RequestError(Code.REQUEST_TIMEOUT, f"broker {place.node_id} did not answer")
        require_ok(response)
