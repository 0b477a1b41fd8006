"""Members of consumer groups that are connected here by the remoting protocol.

Remoting consumers divide queues among themselves: each asks for the list of members and takes its
part. So a change of the list is told to all members at once (NOTIFY_CONSUMER_IDS_CHANGED). A member
is gone when its connection ends, when it says so, or after a time without a heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.requests import language_of
from strata_broker.remoting.exchange import RemotingPeer, headers_of, member_id
from strata_broker.remoting.heartbeats import RemotingSubscription
from strata_remoting import RemotingCommand, RequestCode
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics


class GroupMember:
    """One client in one consumer group.

    Attributes:
        client: its connection.
        client_id: as its heartbeat names it.
        subscriptions: by topic.
        heard_s: monotonic time of the last heartbeat.
    """

    __slots__ = ("client", "client_id", "heard_s", "subscriptions")

    def __init__(self, client: RemotingPeer, client_id: str) -> None:
        self.client = client
        self.client_id = client_id
        self.subscriptions: Mapping[str, RemotingSubscription] = {}
        self.heard_s = 0.0


class RemotingMembers:
    """See the module docstring. Used on the event loop only.

    A member has a session too (`Sessions`), which counts as connected while it is a member: that is
    how operators see it, and where the number of clients has its limit.

    Args:
        sessions: of all clients of this broker.
        clock: monotonic time.
        member_timeout_ms: time without a heartbeat after which a member is gone.
        metrics: how many there are.
    """

    def __init__(
        self, sessions: Sessions, clock: Clock, *, member_timeout_ms: int, metrics: Metrics
    ) -> None:
        self._sessions = sessions
        self._clock = clock
        self._timeout_s = member_timeout_ms / 1000
        # group -> client id -> member
        self._groups: dict[str, dict[str, GroupMember]] = {}
        metrics.gauge(
            "strata_broker_remoting_members",
            lambda: sum(len(members) for members in self._groups.values()),
        )

    def heard(
        self,
        client: RemotingPeer,
        client_id: str,
        group: str,
        subscriptions: Mapping[str, RemotingSubscription],
    ) -> None:
        """Note a heartbeat of a member; its session is there already."""
        members = self._groups.setdefault(group, {})
        member = members.get(client_id)
        is_new = member is None
        if member is None:
            member = members[client_id] = GroupMember(client, client_id)
            self._open_session(member, group)
        member.client = client
        changed = is_new or member.subscriptions != subscriptions
        member.subscriptions = subscriptions
        member.heard_s = self._clock.monotonic_s()
        if changed:
            self._show(member, group)
            self._tell(group)

    def left(self, client_id: str, group: str) -> None:
        """Forget a member that said goodbye."""
        if self._forget(client_id, group):
            self._tell(group)

    def disconnected(self, client: RemotingPeer, groups: Iterable[str]) -> None:
        """Forget the members of a connection that ended."""
        for group in groups:
            member = self._groups.get(group, {}).get(client.client_id)
            # A client that has connected anew is not gone.
            if member is not None and member.client is client:
                self.left(client.client_id, group)

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of a group's members, in order."""
        oldest_s = self._clock.monotonic_s() - self._timeout_s
        members = self._groups.get(group, {})
        for member in [one for one in members.values() if one.heard_s < oldest_s]:
            self.left(member.client_id, group)
        return sorted(members)

    def subscription(self, client_id: str, group: str, topic: str) -> RemotingSubscription | None:
        """Return the subscription of a member to a topic; None: it told of none."""
        member = self._groups.get(group, {}).get(client_id)
        return None if member is None else member.subscriptions.get(topic)

    def peers(self, group: str) -> dict[str, str]:
        """Return the addresses of a group's members, by client id."""
        return {name: member.client.peer for name, member in self._groups.get(group, {}).items()}

    def tell(self, group: str, command: RemotingCommand) -> None:
        """Write a request that gets no answer to all members of a group."""
        for member in self._groups.get(group, {}).values():
            member.client.tell(command)

    def _forget(self, client_id: str, group: str) -> bool:
        members = self._groups.get(group, {})
        if members.pop(client_id, None) is None:
            return False
        if not members:
            del self._groups[group]
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

    def _tell(self, group: str) -> None:
        """Tell all members that there are others now."""
        told = RemotingCommand(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields={"consumerGroup": group}
        ).oneway()
        self.tell(group, told)
