"""One request and the way to answer it; handlers see nothing else of a connection."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Protocol

from strata_broker.access.principals import Principal, send_right, topic_target
from strata_broker.remoting.face_calls import FaceCaller
from strata_mq.access import Action, ResourceKind
from strata_remoting import ACCESS_KEY, Language, RemotingCommand, Serialization

_LANGUAGES = {int(each): each.name for each in Language}


class RemotingPeer(Protocol):
    """The connection of a client.

    Attributes:
        peer: `host:port` of the client.
        client_id: as its heartbeats name it; before the first one, its address.
        language: number of the client's language.
        is_gone: whether the connection has ended.
        has_room: whether `tell` would write now.
    """

    peer: str
    client_id: str
    language: int
    is_gone: bool

    @property
    def has_room(self) -> bool:
        """See the class."""

    async def answer(self, exchange: Exchange, command: RemotingCommand) -> None:
        """Write an answer and wait until the transport has taken it.

        Raises:
            ConnectionError: the client is gone, or reads too slowly.
            RequestError: TOO_MANY_REQUESTS: too many answers are unread; nothing was written, and
                a refusal still may be.
        """

    def tell(self, command: RemotingCommand) -> None:
        """Write a request that gets no answer, if there is room for it."""

    def tell_frame(self, frame: bytes) -> None:
        """Do the same with a request that was encoded once for many clients."""

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Write a request, once there is room, and return the client's answer.

        The caller limits the time, and how many wait.

        Raises:
            ConnectionError: the client is gone.
            RemotingError: the request cannot be written.
        """


class Exchange:
    """See the module docstring.

    Attributes:
        principal: who signed the request; None: not known yet.

    Args:
        request: of the client.
        client: who sent it.
        serialization: encoding of the request's header, which the answer repeats.
        size_bytes: of the request's frame.
    """

    __slots__ = ("client", "principal", "request", "serialization", "size_bytes")

    def __init__(
        self,
        request: RemotingCommand,
        client: RemotingPeer,
        serialization: Serialization,
        *,
        size_bytes: int = 0,
    ) -> None:
        self.request = request
        self.client = client
        self.principal: Principal | None = None
        self.serialization = serialization
        self.size_bytes = size_bytes

    def forget_content(self) -> None:
        """Keep no more of the request than an answer needs."""
        self.request = replace(self.request, fields={}, body=b"")

    def caller(self, group: str = "") -> FaceCaller:
        """Return who calls, as gRPC calls name it: a client of one group, or of none."""
        client = self.client
        return FaceCaller(
            headers_of(client.client_id, client.language, group),
            client.peer,
            self.principal,
            claimed=self.request.text(ACCESS_KEY, ""),
        )

    def require_group(self, group: str, *actions: Action) -> None:
        """Check that the client may do one of some things with a consumer group.

        Raises:
            AccessRefused: FORBIDDEN.
        """
        self._require(ResourceKind.GROUP, group, *actions)

    def require_topic(self, topic: str, *actions: Action) -> None:
        """Check that the client may do one of some things with a topic.

        Raises:
            AccessRefused: FORBIDDEN.
        """
        kind, (_, name) = topic_target(("", topic))
        self._require(kind, name, *actions)

    def require_send(self, topic: str) -> None:
        """Check that the client may send to a topic.

        Raises:
            AccessRefused: FORBIDDEN.
        """
        kind, (_, name), action = send_right(("", topic))
        self._require(kind, name, action)

    def may_consume(self, namespace: str, topic: str) -> bool:
        """Whether the client may consume a topic, of which it has a number and not the name.

        Clients of this protocol use the default namespace only.
        """
        principal = self.principal
        if principal is None or namespace:
            return False
        return principal.may(*topic_target(("", topic)), Action.SUB)

    def _require(self, kind: ResourceKind, name: str, *actions: Action) -> None:
        principal = self.principal
        assert principal is not None, "nobody was admitted"
        if not any(principal.may(kind, ("", name), action) for action in actions):
            raise principal.refusal(kind, ("", name), actions[0])

    async def answer(self, command: RemotingCommand) -> None:
        """Answer, unless the request wants no answer.

        Raises:
            ConnectionError, RequestError: see `RemotingPeer.answer`.
        """
        if not self.request.is_oneway:
            await self.client.answer(self, command)


Handler = Callable[[Exchange], Awaitable[RemotingCommand | None]]
"""Carries a request out; returns the answer, or None if it has answered by itself."""


def headers_of(client_id: str, language: int, group: str) -> Mapping[str, str]:
    """Return the headers that a gRPC client would send."""
    return {
        "x-mq-client-id": member_id(client_id, group),
        "x-mq-language": _LANGUAGES.get(language, Language.OTHER.name),
    }


def may_send(principal: Principal | None, topic: str) -> bool:
    """Whether a client may send to a topic."""
    return principal is not None and principal.may(*send_right(("", topic)))


def member_id(client_id: str, group: str) -> str:
    """Return the id of a client in one group.

    One client of the remoting protocol may consume with several groups; a session has one.
    """
    return f"{client_id}@{group}" if group else client_id


def client_of(member: str, group: str) -> str:
    """Return the client id in a `member_id`; other ids stay as they are."""
    return member.removesuffix(f"@{group}")
