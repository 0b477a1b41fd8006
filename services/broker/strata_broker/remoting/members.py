"""Members of consumer groups that are connected here by the remoting protocol.

Remoting consumers divide queues among themselves: each asks for the list of members and takes its
part. So a change of the list is told to all members at once (NOTIFY_CONSUMER_IDS_CHANGED). Each of
them then asks for the list: changes that follow one another quickly, as in a rollout of consumers,
are told together, and the list is encoded once until it changes. A member is gone when its
connection ends, when it says so, or after a time without a heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from strata_broker.base.errors import too_many_requests
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.requests import language_of
from strata_broker.remoting.answers import json_body
from strata_broker.remoting.exchange import RemotingPeer, headers_of, member_id
from strata_broker.remoting.heartbeats import RemotingSubscription
from strata_broker.remoting.subscription_room import HeldSubscriptions, SubscriptionRoom
from strata_remoting import RemotingCommand, RequestCode, Serialization, encode_frame
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics


class GroupMember:
    """One client in one consumer group.

    Attributes:
        client: its connection.
        client_id: as its heartbeat names it.
        subscriptions: by topic.
        heard_s: monotonic time of the last heartbeat.
        held: room that its subscriptions take.
    """

    __slots__ = ("client", "client_id", "heard_s", "held", "subscriptions")

    def __init__(self, client: RemotingPeer, client_id: str, held: HeldSubscriptions) -> None:
        self.client = client
        self.held = held
        self.client_id = client_id
        self.subscriptions: Mapping[str, RemotingSubscription] = {}
        self.heard_s = 0.0


class _Group:
    """Members of one consumer group.

    Attributes:
        name: of the consumer group.
        members: by client id.
        oldest_s: no member was heard of before; it may be earlier than that.
        client_ids: in order; None: the members have changed.
        listing: they as a body in JSON; None: likewise.
        pause: ends when members may be told of a change again; None: they may be now.
        is_told: whether members know of all changes.
    """

    __slots__ = ("client_ids", "is_told", "listing", "members", "name", "oldest_s", "pause")

    def __init__(self, name: str, now_s: float) -> None:
        self.name = name
        self.members: dict[str, GroupMember] = {}
        self.oldest_s = now_s
        self.client_ids: Sequence[str] | None = None
        self.listing: bytes | None = None
        self.pause: asyncio.TimerHandle | None = None
        self.is_told = True

    def changed(self) -> None:
        """Take in that another client is, or is no more, a member."""
        self.client_ids = self.listing = None


class RemotingMembers:
    """See the module docstring. Used on the event loop only.

    A member has a session too (`Sessions`), which counts as connected while it is a member: that is
    how operators see it, and where the number of clients has its limit.

    Args:
        sessions: of all clients of this broker.
        clock: monotonic time.
        member_timeout_ms: time without a heartbeat after which a member is gone.
        notice_pause_ms: shortest time between two notices to the members of a group.
        room: of subscriptions.
        metrics: how many there are.
    """

    def __init__(
        self,
        sessions: Sessions,
        clock: Clock,
        *,
        member_timeout_ms: int,
        notice_pause_ms: int,
        room: SubscriptionRoom,
        metrics: Metrics,
    ) -> None:
        self._room = room
        self._sessions = sessions
        self._clock = clock
        self._timeout_s = member_timeout_ms / 1000
        self._notice_pause_s = notice_pause_ms / 1000
        # Those that have members.
        self._groups: dict[str, _Group] = {}
        metrics.gauge(
            "strata_broker_remoting_members",
            lambda: sum(len(group.members) for group in self._groups.values()),
        )

    def heard(
        self,
        client: RemotingPeer,
        client_id: str,
        group: str,
        subscriptions: Mapping[str, RemotingSubscription],
    ) -> None:
        """Note a heartbeat of a member; its session is there already.

        Raises:
            RequestError: TOO_MANY_REQUESTS: there is no room for its subscriptions.
        """
        now_s = self._clock.monotonic_s()
        member = self._member(client_id, group)
        held = self._held(member, client, client_id, subscriptions)
        joined = self._groups.get(group)
        if joined is None:
            joined = self._groups[group] = _Group(group, now_s)
        is_new = member is None
        if member is None:
            member = joined.members[client_id] = GroupMember(client, client_id, held)
            joined.changed()
            self._open_session(member, group)
        member.client, member.held = client, held
        changed = is_new or member.subscriptions != subscriptions
        member.subscriptions = subscriptions
        member.heard_s = now_s
        if changed:
            self._show(member, group)
            self._tell(joined)

    def left(self, client_id: str, group: str) -> None:
        """Forget a member that said goodbye."""
        if self._forget(client_id, group) and (rest := self._groups.get(group)) is not None:
            self._tell(rest)

    def disconnected(self, client: RemotingPeer, groups: Iterable[str]) -> None:
        """Forget the members of a connection that ended."""
        for group in groups:
            member = self._member(client.client_id, group)
            # A client that has connected anew is not gone.
            if member is not None and member.client is client:
                self.left(client.client_id, group)

    def has(self, client: RemotingPeer, group: str) -> bool:
        """Whether a connection is that of a member."""
        self._forget_silent(group)
        member = self._member(client.client_id, group)
        return member is not None and member.client is client

    def client_ids(self, group: str) -> Sequence[str]:
        """Return the ids of a group's members, in order."""
        self._forget_silent(group)
        found = self._groups.get(group)
        if found is None:
            return []
        if found.client_ids is None:
            found.client_ids = sorted(found.members)
        return found.client_ids

    def listing(self, group: str) -> bytes:
        """Return the body that lists them for clients; empty: there are none."""
        client_ids = self.client_ids(group)
        found = self._groups.get(group)
        if found is None:
            return b""
        if found.listing is None:
            found.listing = json_body({"consumerIdList": client_ids})
        return found.listing

    def subscription(self, client_id: str, group: str, topic: str) -> RemotingSubscription | None:
        """Return the subscription of a member to a topic; None: it told of none."""
        member = self._member(client_id, group)
        return None if member is None else member.subscriptions.get(topic)

    def peers(self, group: str) -> dict[str, str]:
        """Return the addresses of a group's members, by client id."""
        found = self._groups.get(group)
        members = {} if found is None else found.members
        return {name: member.client.peer for name, member in members.items()}

    def clients(self, group: str) -> list[RemotingPeer]:
        """Return the connections of a group's members."""
        found = self._groups.get(group)
        return [] if found is None else [member.client for member in found.members.values()]

    def tell(self, group: str, command: RemotingCommand) -> None:
        """Write a request that gets no answer to all members of a group."""
        told = self._groups.get(group)
        if told is not None:
            frame = encode_frame(command, Serialization.JSON)
            for member in told.members.values():
                member.client.tell_frame(frame)

    def _member(self, client_id: str, group: str) -> GroupMember | None:
        found = self._groups.get(group)
        return None if found is None else found.members.get(client_id)

    def _held(
        self,
        member: GroupMember | None,
        client: RemotingPeer,
        client_id: str,
        subscriptions: Mapping[str, RemotingSubscription],
    ) -> HeldSubscriptions:
        """Return the room of a member's subscriptions of now.

        Raises:
            RequestError: TOO_MANY_REQUESTS; the member, if there is one, stays as it is.
        """
        before = None if member is None else member.held
        if member is not None and member.client is client and member.subscriptions == subscriptions:
            return member.held
        held = self._room.try_hold(client_id, client.peer, subscriptions, before)
        if held is None:
            raise too_many_requests(
                "there is no room for the subscriptions of this client "
                "(remoting.max_subscription_bytes, and the same _per_client and _per_address)"
            )
        return held

    def _forget_silent(self, group: str) -> None:
        """Forget members without a heartbeat; most calls look at none of them."""
        oldest_s = self._clock.monotonic_s() - self._timeout_s
        found = self._groups.get(group)
        if found is None or found.oldest_s >= oldest_s:
            return
        for member in [one for one in found.members.values() if one.heard_s < oldest_s]:
            self.left(member.client_id, group)
        heard_s = [member.heard_s for member in found.members.values()]
        found.oldest_s = min(heard_s, default=oldest_s)

    def _forget(self, client_id: str, group: str) -> bool:
        found = self._groups.get(group)
        member = None if found is None else found.members.pop(client_id, None)
        if found is None or member is None:
            return False
        self._room.give_back(member.held)
        found.changed()
        if not found.members:
            del self._groups[group]
            if found.pause is not None:
                found.pause.cancel()
        session = self._sessions.find(member_id(client_id, group))
        if session is not None:
            session.open_calls -= 1
            self._sessions.terminated(session.client_id)
        return True

    def _open_session(self, member: GroupMember, group: str) -> None:
        session = self._sessions.find(member_id(member.client_id, group))
        if session is not None:
            session.open_calls += 1

    def _show(self, member: GroupMember, group: str) -> None:
        session = self._sessions.find(member_id(member.client_id, group))
        if session is None:
            return
        language = headers_of("", member.client.language, "")["x-mq-language"]
        session.language = language_of(language)
        for topic, subscription in member.subscriptions.items():
            self._sessions.subscribed(session, ("", group), ("", topic), subscription.expression)

    def _tell(self, group: _Group) -> None:
        """Tell all members that there are others now, or have other subscriptions."""
        group.is_told = False
        if group.pause is None:
            self._notify(group)

    def _notify(self, group: _Group) -> None:
        group.pause = None
        if group.is_told:
            return
        group.is_told = True
        loop = asyncio.get_running_loop()
        group.pause = loop.call_later(self._notice_pause_s, self._notify, group)
        told = RemotingCommand(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields={"consumerGroup": group.name}
        ).oneway()
        self.tell(group.name, told)
