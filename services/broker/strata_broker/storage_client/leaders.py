"""The leader of each raft group, as far as a broker can know.

Role: one belief per raft group. Its sources, the strongest first: a node's own report on its watch
stream, the leader that a refusal names, the order of the replicas in the metadata. Invariants: a
belief is only a hint, and a wrong one costs a call; a node that was just silent is only believed to
lead if it says so itself; all waiters for a raft group are notified at once when a node says that
it leads now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import OVERLOADED, UNAVAILABLE
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.metadata.metadata import MetadataView
from strata_runtime.clock import Clock

OnLeader = Callable[[int, str], None]
"""Told (raft group, node id) when a node says that it leads the raft group now."""

_NOBODY: frozenset[int] = frozenset()


class LeaderMap:
    """See the module docstring. Used on the event loop only."""

    def __init__(self, view: MetadataView, config: StorageClientSection, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._distrust_s = config.distrust_ms / 1000
        self._believed: dict[int, str] = {}
        # node -> last report of its watch stream
        self._led: dict[str, frozenset[int]] = {}
        # Nodes that were silent and not heard since -> until when refusals that name them are void
        self._silent_until_s: dict[str, float] = {}
        self._listeners: list[OnLeader] = []
        # raft group -> waiters for a leader
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        # Raised whenever another node says that it leads a raft group.
        self.version = 0
        # Returns the known problem of a raft group; empty: none.
        self.why: Callable[[int], str] = lambda raft_group: ""

    def node_of(self, raft_group: int) -> str | None:
        """Return the node to ask; None: the raft group is unknown."""
        node = self._believed.get(raft_group)
        if node is None:
            node = self._first_choice(raft_group)
            if node is not None:
                self._believed[raft_group] = node
        return node

    def leader_of(self, raft_group: int) -> str:
        """Return the node that says it leads the raft group, "" if none does; for operators."""
        node = self._believed.get(raft_group, "")
        return node if raft_group in self._led.get(node, _NOBODY) else ""

    def claimed(self) -> dict[int, str]:
        """Return raft group -> node that says it leads; if several do, the one that is believed."""
        claims = {raft_group: node for node, led in self._led.items() for raft_group in led}
        for raft_group in claims:
            if believed := self.leader_of(raft_group):
                claims[raft_group] = believed
        return claims

    def explain(self, raft_group: int) -> str:
        """Return the raft group's name for a text to a client, with its known problem."""
        return self.why(raft_group) or f"raft group {raft_group}"

    def has_other_replicas(self, raft_group: int) -> bool:
        """Whether another node may lead the raft group when the one that was asked is silent."""
        row = self._view.raft_group(raft_group)
        return row is not None and len(row.replicas) + len(row.leaving) > 1

    async def wait_for_other(self, raft_group: int, former: str, timeout_s: float) -> str:
        """Wait until a node that is not the former leader leads; return it, "" if none does."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        while (leader := self.leader_of(raft_group)) in ("", former):
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.setdefault(raft_group, []).append(waiter)
            try:
                done, _ = await asyncio.wait((waiter,), timeout=ends_s - loop.time())
            finally:
                if not waiter.done():
                    self._forget_waiter(raft_group, waiter)
            if not done:
                return ""
        return leader

    def _forget_waiter(self, raft_group: int, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters[raft_group]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[raft_group]

    def on_leader(self, listener: OnLeader) -> None:
        """Call back whenever a node says that it leads a raft group now."""
        self._listeners.append(listener)

    # Learned from calls

    def refused(self, raft_group: int, asked: str, leader: str) -> None:
        """Learn from a refusal: it names the leader, or "" and the next replica is asked.

        A node that names itself keeps the call: it leads but is not ready yet.
        """
        self.answered(asked)
        if leader == asked:
            self._believed[raft_group] = asked
            return
        led = self._led.get(asked, _NOBODY)
        if raft_group in led:
            self._led[asked] = led - {raft_group}
            self.version += 1
        if leader and not self._is_silent(leader):
            self._believed[raft_group] = leader
        else:
            self._try_next(raft_group, asked)

    def failed(self, raft_group: int, asked: str, code: str) -> None:
        """A call has no answer (`AngeliaError.code`): the next replica is asked.

        A node that has too much to do is there and is asked again; one that cannot be reached
        is asked for none of its raft groups.
        """
        if code == OVERLOADED:
            self.answered(asked)
        elif code == UNAVAILABLE:
            self._distrust(asked)
            self._leave(asked)
        else:
            self.silent(raft_group, asked)

    def silent(self, raft_group: int, asked: str) -> None:
        """A call was not answered in time: the next replica is asked."""
        self._distrust(asked)
        self._try_next(raft_group, asked)

    def answered(self, node_id: str) -> None:
        """A call was answered: the node can be reached."""
        if self._silent_until_s:
            self._silent_until_s.pop(node_id, None)

    # Reported by nodes

    def leads(self, node_id: str, raft_groups: Iterable[int]) -> None:
        """Learn the complete list of raft groups that a node leads now.

        Only new entries of a node's list count: a node that was cut off keeps naming raft groups
        that have another leader since.
        """
        led = frozenset(raft_groups)
        before = self._led.get(node_id, _NOBODY)
        self._led[node_id] = led
        self.version += led != before
        self.answered(node_id)
        for raft_group in before - led:
            if self._believed.get(raft_group) == node_id:
                self._try_next(raft_group, node_id)
        for raft_group in led - before:
            self._believed[raft_group] = node_id
            for listener in self._listeners:
                listener(raft_group, node_id)
            for waiter in self._waiters.pop(raft_group, ()):
                if not waiter.done():
                    waiter.set_result(None)

    def lost(self, node_id: str) -> None:
        """A node's watch stream broke: its raft groups have no known leader now."""
        self._distrust(node_id)
        self.version += self._led.pop(node_id, None) is not None
        self._leave(node_id)

    def forget(self, node_id: str) -> None:
        """A node is no member any more."""
        self.lost(node_id)
        self._silent_until_s.pop(node_id, None)

    # Choosing

    def _leave(self, node_id: str) -> None:
        for raft_group in [one for one, node in self._believed.items() if node == node_id]:
            self._try_next(raft_group, node_id)

    def _try_next(self, raft_group: int, asked: str) -> None:
        """Believe in the replica after the one that was asked, unless a better source exists."""
        if self._believed.get(raft_group, asked) != asked:
            return
        claimant = self._claimant(raft_group, asked)
        if claimant:
            self._believed[raft_group] = claimant
            return
        nodes = self._candidates(raft_group)
        if not nodes:
            self._believed.pop(raft_group, None)
            return
        first = nodes.index(asked) + 1 if asked in nodes else 0
        turned = nodes[first:] + nodes[:first]
        self._believed[raft_group] = self._best(turned)

    def _claimant(self, raft_group: int, but: str) -> str:
        """Return another node whose last word was that it leads the raft group."""
        for node_id, led in self._led.items():
            if raft_group in led and node_id != but and not self._is_silent(node_id):
                return node_id
        return ""

    def _first_choice(self, raft_group: int) -> str | None:
        claimant = self._claimant(raft_group, "")
        if claimant:
            return claimant
        nodes = self._candidates(raft_group)
        return self._best(nodes) if nodes else None

    def _candidates(self, raft_group: int) -> list[str]:
        """Return the nodes that may lead: the preferred one first, learners not at all."""
        row = self._view.raft_group(raft_group)
        if row is None:
            return []
        nodes = [replica.node_id for replica in row.replicas if not replica.learner]
        nodes += [replica.node_id for replica in row.leaving if replica.node_id not in nodes]
        if row.preferred_leader_node_id in nodes:
            nodes.remove(row.preferred_leader_node_id)
            nodes.insert(0, row.preferred_leader_node_id)
        return nodes

    def _best(self, nodes: list[str]) -> str:
        """Return the first node that can be reached and is not down; else just the first."""
        for node_id in nodes:
            if not self._is_silent(node_id) and not self._is_down(node_id):
                return node_id
        return nodes[0]

    def _distrust(self, node_id: str) -> None:
        self._silent_until_s[node_id] = self._clock.monotonic_s() + self._distrust_s

    def _is_silent(self, node_id: str) -> bool:
        until_s = self._silent_until_s.get(node_id)
        if until_s is None:
            return False
        if self._clock.monotonic_s() < until_s:
            return True
        del self._silent_until_s[node_id]
        return False

    def _is_down(self, node_id: str) -> bool:
        node = self._view.node(node_id)
        return node is None or node.state == meta_pb2.NODE_STATE_DOWN
