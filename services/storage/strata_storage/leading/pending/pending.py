"""A leader's work on messages that wait: its resolver, timers, transactions and recalls."""

from __future__ import annotations

from dataclasses import dataclass

from strata_runtime.clock import Clock
from strata_storage.base.config import PendingOptions
from strata_storage.base.jobs import RunJob
from strata_storage.leading.appends.append import GroupAppender
from strata_storage.leading.pending.check_routes import CheckRoutes
from strata_storage.leading.pending.forwarding import QueueForwarder
from strata_storage.leading.pending.forwards import Forwards
from strata_storage.leading.pending.instruments import PendingInstruments
from strata_storage.leading.pending.recalls import Recalls
from strata_storage.leading.pending.resolver import Resolver
from strata_storage.leading.pending.timers import Timers
from strata_storage.leading.pending.transactions import GroupTransactions
from strata_storage.leading.pops.term_leases import TermLeases
from strata_storage.leading.proposer import Proposer
from strata_storage.reads.reader import LogReaders
from strata_storage.rows.machine import GroupMachine


@dataclass(frozen=True, slots=True)
class PendingPorts:
    """Ports that the node gives its leaders for messages that wait.

    Attributes:
        routes: finds a broker for a transaction check.
        forwarder: brings messages to other raft groups; None: there are no other nodes.
        run_read: runs blocking reads of rows.
        instruments: counters.
    """

    routes: CheckRoutes
    forwarder: QueueForwarder | None
    run_read: RunJob
    instruments: PendingInstruments


class Pending:
    """One leader's work on messages that wait, in one term.

    Attributes:
        resolver: decides what becomes of each.
        transactions: EndTransaction and checks.
        recalls: Recall.
        timers: delivers what is due; its `run` goes on until `end`.
    """

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        appender: GroupAppender,
        *,
        leases: TermLeases,
        readers: LogReaders,
        clock: Clock,
        options: PendingOptions,
        ports: PendingPorts,
    ) -> None:
        self.resolver = Resolver(machine, proposer, appender, options=options)
        self.transactions = GroupTransactions(
            machine,
            proposer,
            self.resolver,
            reader=readers.messages,
            routes=ports.routes,
            clock=clock,
            options=options,
            instruments=ports.instruments,
        )
        self.recalls = Recalls(machine, proposer, self.resolver, leases=leases)
        forwards = Forwards(
            machine,
            proposer,
            self.resolver,
            payloads=readers.payloads,
            forwarder=ports.forwarder,
            options=options,
            instruments=ports.instruments,
        )
        self.timers = Timers(
            machine,
            proposer,
            self.resolver,
            transactions=self.transactions,
            forwards=forwards,
            run_read=ports.run_read,
            options=options,
            instruments=ports.instruments,
        )
