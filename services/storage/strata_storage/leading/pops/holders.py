"""Live clients, as brokers report them (rule 25). One for all raft groups of a node.

A node that stood still heard no report meanwhile: this time is no silence of clients and brokers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from strata_runtime.stalls import OwnStalls
from strata_storage.leading.brokers import Brokers


class Holders:
    """Clients by broker.

    A client lives as long as some broker that has it reports; brokers report every few seconds.

    Args:
        silence_s: a client that no broker reported for this long is dead.
        stalls: of this process.
        goodbye_s: so long after a goodbye its broker has given back what it did not deliver.
        max_brokers: brokers remembered.
        max_clients: clients remembered, of all brokers, and clients that said goodbye.
    """

    def __init__(
        self,
        silence_s: float,
        stalls: OwnStalls,
        *,
        goodbye_s: float = 1.0,
        max_brokers: int = 1_000,
        max_clients: int = 1_000_000,
    ) -> None:
        self._silence_s = silence_s
        self._goodbye_s = goodbye_s
        self._max_brokers = max_brokers
        self._max_clients = max_clients
        # Broker boot id -> the clients it has.
        self._brokers: OrderedDict[int, set[int]] = OrderedDict()
        self._stalls = stalls
        # Client -> when a broker last reported it, for clients a broker took off its list too;
        # stalls before are subtracted.
        self._seen_at_s: OrderedDict[int, float] = OrderedDict()
        # Client -> when it said goodbye.
        self._gone: OrderedDict[int, float] = OrderedDict()
        # The brokers themselves, as far as they are connected.
        self.brokers = Brokers(stalls)

    @property
    def stalled_s(self) -> float:
        """Return the length of all stalls of this node, in seconds."""
        return self._stalls.total_s

    def __len__(self) -> int:
        return len(self._seen_at_s)

    def report(
        self,
        broker_boot_id: int,
        live: Iterable[int],
        gone: Iterable[int],
        silent: Iterable[int],
        now_s: float,
        *,
        full: bool,
    ) -> bool:
        """Take in a broker's report.

        Args:
            broker_boot_id: whose.
            live: clients that it has, or with `full` all of them.
            gone: clients that said goodbye to it.
            silent: clients that it has no more; another one may.
            now_s: by the monotonic clock.
            full: forget those it had before.

        Returns:
            Whether a full list is wanted from it.
        """
        clients = self._brokers.get(broker_boot_id)
        if clients is None:
            if not full:
                return True
            clients = self._brokers[broker_boot_id] = set()
            if len(self._brokers) > self._max_brokers:
                self._brokers.popitem(last=False)
        self._brokers.move_to_end(broker_boot_id)
        if full:
            clients.clear()
        clients.update(live)
        clients.difference_update(silent)
        for client in gone:
            clients.discard(client)
            self._seen_at_s.pop(client, None)
            # Its first goodbye counts; brokers repeat what was not confirmed.
            self._gone.setdefault(client, now_s)
        seen_at_s = now_s - self._stalls.total_s
        for client in clients:
            self._seen_at_s[client] = seen_at_s
            self._seen_at_s.move_to_end(client)
            self._gone.pop(client, None)
        for remembered in (self._seen_at_s, self._gone):
            while len(remembered) > self._max_clients:
                remembered.popitem(last=False)
        return False

    def touch(self, client: int, now_s: float) -> None:
        """Take in that a client just took a lease: it lives, whatever brokers said before."""
        self._seen_at_s[client] = now_s - self._stalls.total_s
        self._gone.pop(client, None)

    def is_nobody_there(self, broker_boot_id: int, client: int | None, now_s: float) -> bool:
        """Whether the broker of a pop, or the client that would hold its leases, has gone."""
        if self.brokers.is_lost(broker_boot_id, now_s):
            return True
        return client is not None and self.is_dead(client, now_s, silent_too=True)

    def settled_s(self, client: int, now_s: float) -> float:
        """Return since when nothing is settled of what a dead client took; `now_s`: all is.

        An answer may be on its way when a client says goodbye: what was taken just before may have
        been given to nobody, and its broker is about to say so.
        """
        gone_at_s = self._gone.get(client)
        if gone_at_s is None or now_s - gone_at_s >= self._goodbye_s:
            return now_s
        return gone_at_s - self._goodbye_s

    def is_dead(self, client: int, now_s: float, *, silent_too: bool) -> bool:
        """Whether a client said goodbye or, with `silent_too`, was not reported for long."""
        if client in self._gone:
            return True
        if not silent_too:
            return False
        seen_at_s = self._seen_at_s.get(client)
        return seen_at_s is None or now_s - self._stalls.total_s - seen_at_s >= self._silence_s
