"""Outside of a node's driver: threads for its log, and the other nodes."""

from __future__ import annotations

from typing import NamedTuple

from strata_multiraft.base.ports import NodeOf, SnapshotFetcher, Transport
from strata_multiraft.driver.outbox import place_nowhere
from strata_runtime.blocking import RunBlocking


class LogThreads(NamedTuple):
    """Threads for the log's blocking calls; each runs one call at a time, and all in order.

    Attributes:
        writes: runs what writes (`writer.WriterThread`).
        reads: for catch-up and snapshots, so that they do not hold up writes; it must take every
            call. None: the writer's.
    """

    writes: RunBlocking
    reads: RunBlocking | None = None


class PeerLinks(NamedTuple):
    """The way to other nodes.

    Attributes:
        transport: sends messages; None: there are no other nodes.
        node_of: gives the node id of a replica id, by which messages are placed.
        fetcher: gets snapshots; None: none are installed here.
    """

    transport: Transport | None = None
    node_of: NodeOf = place_nowhere
    fetcher: SnapshotFetcher | None = None
