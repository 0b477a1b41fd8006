"""Producer groups as heartbeats tell of them: who is there, but not which topics they send to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from strata_broker.remoting.exchange import RemotingPeer

MaySend = Callable[[str], bool]
"""Whether a client may send to a topic."""

# Every Java consumer has a producer of this name, which sends no transactional messages.
_INNER_PRODUCER = "CLIENT_INNER_PRODUCER"


class HeardProducers:
    """See the module docstring. Used on the event loop only.

    A heartbeat is bounded in its groups, so a connection is bounded here.
    """

    def __init__(self) -> None:
        self._rights: dict[RemotingPeer, MaySend] = {}
        self._groups: dict[RemotingPeer, set[str]] = {}
        # A dictionary for its order.
        self._clients: dict[str, dict[RemotingPeer, None]] = {}

    @property
    def exist(self) -> bool:
        """Whether any producer with a group is connected."""
        return bool(self._clients)

    def heard(self, client: RemotingPeer, groups: Iterable[str], may_send: MaySend) -> None:
        """Note the groups of a heartbeat; those that it leaves out are gone."""
        wanted = set(groups) - {_INNER_PRODUCER}
        for group in self._groups.get(client, set()) - wanted:
            self.left(client, group)
        if wanted:
            self._groups[client] = wanted
            self._rights[client] = may_send
        for group in wanted:
            self._clients.setdefault(group, {})[client] = None

    def left(self, client: RemotingPeer, group: str) -> None:
        """Forget a group of a connection."""
        groups = self._groups.get(client, set())
        if group not in groups:
            return
        groups.remove(group)
        del self._clients[group][client]
        if not self._clients[group]:
            del self._clients[group]
        if not groups:
            del self._groups[client], self._rights[client]

    def disconnected(self, client: RemotingPeer) -> None:
        """Forget a connection that ended."""
        for group in tuple(self._groups.get(client, ())):
            self.left(client, group)

    def senders(self, group: str, topic: str) -> Sequence[RemotingPeer]:
        """Return the connections of a group that may send to a topic."""
        return [client for client in self._clients.get(group, ()) if self._rights[client](topic)]
