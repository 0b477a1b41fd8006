"""Live clients, as brokers report them (rule 25). One for all raft groups of a node.

A node that stood still heard no report meanwhile: this time is no silence of clients and brokers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from strata_runtime.stalls import OwnStalls
from strata_storage.base.key_index import KeyIndex
from strata_storage.leading.brokers import Brokers


class _Reporter:
    """A broker that reports clients.

    Attributes:
        clients: it has these.
        heard_at_s: its last report came then; stalls before are subtracted.
        number: of its last report, among those of all brokers.
    """

    __slots__ = ("clients", "heard_at_s", "number")

    def __init__(self) -> None:
        self.clients: set[int] = set()
        self.heard_at_s = 0.0
        self.number = 0


class _Goodbye(NamedTuple):
    """When a client said goodbye, and the number of the report that said so."""

    at_s: float
    number: int


class Holders:
    """Clients by broker.

    A client lives as long as some broker that has it reports; brokers report every few seconds. A
    report costs what it changes: clients that stay with a broker are not looked at, their last sign
    of life is the broker's.

    Args:
        silence_s: a client that no broker reported for this long is dead.
        stalls: of this process.
        goodbye_s: so long after a goodbye its broker has given back what it did not deliver.
        max_brokers: brokers remembered.
        max_clients: clients remembered that brokers have, clients seen beside that, and clients
            that said goodbye.
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
        # By boot id; the one whose report is the oldest comes first.
        self._brokers: OrderedDict[int, _Reporter] = OrderedDict()
        self._reports = 0
        # Client -> boot ids of the brokers that have it.
        self._brokers_of: KeyIndex[int] = KeyIndex()
        self._stalls = stalls
        # Client -> when it took a lease, or was last reported by a broker that took it off its
        # list; stalls before are subtracted.
        self._seen_at_s: OrderedDict[int, float] = OrderedDict()
        # A report of a broker that has the client voids its goodbye.
        self._gone: OrderedDict[int, _Goodbye] = OrderedDict()
        # The brokers themselves, as far as they are connected.
        self.brokers = Brokers(stalls)

    @property
    def stalled_s(self) -> float:
        """Return the length of all stalls of this node, in seconds."""
        return self._stalls.total_s

    def __len__(self) -> int:
        """Return the clients that brokers have, or those seen beside that if they are more."""
        return max(len(self._brokers_of), len(self._seen_at_s))

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
        reporter = self._brokers.get(broker_boot_id)
        if reporter is None:
            if not full:
                return True
            reporter = self._brokers[broker_boot_id] = _Reporter()
            if len(self._brokers) > self._max_brokers:
                self._forget_broker(next(iter(self._brokers)))
        self._brokers.move_to_end(broker_boot_id)
        self._reports += 1
        there = set(live).difference(silent)
        left = reporter.clients - there if full else reporter.clients.intersection(silent)
        for client in left:
            self._leave(broker_boot_id, client)
        for client in there - reporter.clients:
            self._brokers_of.add(client, broker_boot_id)
        reporter.clients |= there
        for client in gone:
            self._leave(broker_boot_id, client)
            self._seen_at_s.pop(client, None)
            if not self._said_goodbye(client):
                # Its first goodbye counts; brokers repeat what was not confirmed.
                self._gone[client] = _Goodbye(now_s, self._reports)
        reporter.heard_at_s, reporter.number = now_s - self._stalls.total_s, self._reports
        self._keep_limits(now_s)
        return False

    def _leave(self, broker_boot_id: int, client: int) -> None:
        """Take a client off a broker's list; it was last seen when the broker reported before."""
        reporter = self._brokers[broker_boot_id]
        if client not in reporter.clients:
            return
        self._said_goodbye(client)
        reporter.clients.remove(client)
        self._brokers_of.discard(client, broker_boot_id)
        if reporter.number:
            self._seen(client, reporter.heard_at_s)

    def _seen(self, client: int, at_s: float) -> None:
        self._seen_at_s[client] = max(at_s, self._seen_at_s.get(client, at_s))
        self._seen_at_s.move_to_end(client)

    def _said_goodbye(self, client: int) -> _Goodbye | None:
        """Return a client's goodbye; forget one after which a broker reported the client."""
        goodbye = self._gone.get(client)
        if goodbye is None:
            return None
        numbers = [self._brokers[each].number for each in self._brokers_of.of(client)]
        if max(numbers, default=0) <= goodbye.number:
            return goodbye
        del self._gone[client]
        return None

    def _keep_limits(self, now_s: float) -> None:
        # Stalls may still be added to the last seconds, so not only just dead ones are kept.
        long_dead_s = now_s - self._stalls.total_s - 2 * self._silence_s
        while next(iter(self._brokers.values())).heard_at_s < long_dead_s:
            # A broker that starts again has another boot id: the old one never reports again.
            self._forget_broker(next(iter(self._brokers)))
        seen, most = self._seen_at_s, self._max_clients
        while seen and (len(seen) > most or next(iter(seen.values())) < long_dead_s):
            seen.popitem(last=False)
        if len(self._brokers_of) > most:
            for boot_id, reporter in self._brokers.items():
                while reporter.clients and len(self._brokers_of) > most:
                    self._brokers_of.discard(reporter.clients.pop(), boot_id)
        while len(self._gone) > most:
            self._gone.popitem(last=False)

    def _forget_broker(self, boot_id: int) -> None:
        for client in tuple(self._brokers[boot_id].clients):
            self._leave(boot_id, client)
        del self._brokers[boot_id]

    def touch(self, client: int, now_s: float) -> None:
        """Take in that a client just took a lease: it lives, whatever brokers said before."""
        self._seen(client, now_s - self._stalls.total_s)
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
        goodbye = self._said_goodbye(client)
        if goodbye is None or now_s - goodbye.at_s >= self._goodbye_s:
            return now_s
        return goodbye.at_s - self._goodbye_s

    def is_dead(self, client: int, now_s: float, *, silent_too: bool) -> bool:
        """Whether a client said goodbye or, with `silent_too`, was not reported for long."""
        if self._said_goodbye(client) is not None:
            return True
        if not silent_too:
            return False
        seen_at_s = self._seen_at_s.get(client)
        for boot_id in self._brokers_of.of(client):
            heard_at_s = self._brokers[boot_id].heard_at_s
            seen_at_s = heard_at_s if seen_at_s is None else max(seen_at_s, heard_at_s)
        return seen_at_s is None or now_s - self._stalls.total_s - seen_at_s >= self._silence_s
