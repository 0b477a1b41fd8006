"""The parts of a storage node: those that `app` builds and `node` works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata_mq.commands import OwnCommand
from strata_multiraft import MultiRaft
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_seglog.ballast import Ballast
from strata_seglog.log import CommitLog
from strata_seglog.ports import Disk
from strata_state.flush import Flusher
from strata_state.ports import StateStore
from strata_storage.base.config import StorageOptions
from strata_storage.base.jobs import RunJob
from strata_storage.base.removed_replicas import RemovedReplicas
from strata_storage.group.plugins import StoragePlugin
from strata_storage.leading.pending.forwarding import QueueForwarder
from strata_storage.rows.machine import GroupMachine
from strata_storage.tiering.parts import TieringParts
from strata_storage.tiering.reading import TierMessages
from strata_storage.upkeep.retention import RetentionSource


class NodePeers(Protocol):
    """A node's knowledge of the others (`app.Peers`)."""

    @property
    def node_of(self) -> Callable[[int], str | None]:
        """Tells which node hosts a replica."""

    @property
    def grants_of(self) -> Callable[[GroupMachine], OwnCommand | None]:
        """Tells what the metadata gives a raft group and it does not own yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """Parts of a node.

    Attributes:
        node_id: its id among all nodes.
        log, disk, store: where its data is.
        raft: drives the replicas.
        flusher: makes rows durable.
        run_write: runs calls that belong to the log's writer thread.
        run_read: runs reads in the small pool of reading threads.
        run_flush: runs long work that must delay neither.
        peers: what the node knows of the others.
        plugins: what is loaded.
        tier, tier_messages: where old messages go and are read; None: there is no tier.
        forwarder: brings messages that waited to the raft group that has their queue now.
        aside: where removed replicas are put; None: nowhere, they are deleted.
        cluster_id: tells the cluster that the node belongs to; empty: none.
    """

    node_id: str
    log: CommitLog
    disk: Disk
    store: StateStore
    raft: MultiRaft
    flusher: Flusher
    run_write: RunJob
    run_read: RunJob
    run_flush: RunJob
    clock: Clock
    metrics: Metrics
    options: StorageOptions
    retention: RetentionSource
    peers: NodePeers
    ballast: Ballast | None = None
    plugins: Sequence[StoragePlugin] = ()
    tier: TieringParts | None = None
    tier_messages: TierMessages | None = None
    forwarder: QueueForwarder | None = None
    aside: RemovedReplicas | None = None
    cluster_id: Callable[[], str] = str
