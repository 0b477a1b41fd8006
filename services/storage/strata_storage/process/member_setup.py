"""Records that a storage node of a cluster is made of; see `member`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import Channel, Server
from strata_metadata import (
    MetadataClientOptions,
    MetadataFollowerOptions,
    PresenceOptions,
    WatchOptions,
)
from strata_state.metadata import MetadataStore
from strata_state.rocksdb_store import SharedBlockCache
from strata_storage.cluster.queue_moves import QueueMoveOptions
from strata_storage.cluster.reconciler import ReconcilerOptions
from strata_storage.cluster.slot_moves import SlotMoveOptions
from strata_storage.group.node_plugins import StoragePlugin
from strata_storage.process.app import NodeStores
from strata_storage.tiering.config import TierConfig
from strata_storage.tiering.opening import DEFAULT_HOME
from strata_tier.store import MemoryBucket


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """Identity of the node.

    Attributes:
        node_id: from its data folder.
        boot_id: drawn at random when the process started.
        rack: failure domain; empty: none.
        machine: what it shares with other nodes; empty: it is a machine of its own.
        machine_nodes: storage nodes that the machine starts together.
        cluster: that the process belongs to; None: that of whoever takes it in.
    """

    node_id: str
    boot_id: int
    rack: str = ""
    machine: str = ""
    machine_nodes: int = 1
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True)
class MemberStores:
    """Stores in place of a node's files.

    Attributes:
        node: its log and rows.
        metadata: the copy of the metadata; None: RocksDB.
    """

    node: NodeStores = field(default_factory=NodeStores)
    metadata: MetadataStore | None = None


@dataclass(frozen=True, slots=True)
class MemberSetup:
    """Parts of a node beside its core.

    Attributes:
        tier: the section `[tier]`; None: there is no tier.
        plugins: their commands and rows.
        buckets: of a tier at `memory://NAME`.
        tier_home: folder of the tier's objects if `tier` names none.
        shown_elsewhere: a broker of the same process shows how the metadata is followed and how
            the cluster does; these metrics would be there twice.
        block_cache: shared with other storage nodes of the process; None: the node has its own.
    """

    tier: TierConfig | None = None
    plugins: Sequence[StoragePlugin] = ()
    buckets: dict[str, MemoryBucket] = field(default_factory=dict)
    tier_home: str = DEFAULT_HOME
    shown_elsewhere: bool = False
    block_cache: SharedBlockCache | None = None


@dataclass(frozen=True, slots=True)
class MemberNetwork:
    """How the node is reached and whom it reaches.

    Attributes:
        servers: serve the same services; Angelia tcp first. Started and stopped by the member.
        nameservers: endpoints of all nameservers.
        open_channel: makes a channel to an endpoint.
        advertised: endpoints that others are told, in the order of `servers`; empty: those that
            the servers listen on.
    """

    servers: Sequence[Server]
    nameservers: Sequence[str]
    open_channel: Callable[[str], Channel]
    advertised: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """Times and limits beside those of the storage node itself.

    Attributes:
        register_wait_ms: how long the first start waits for a nameserver.
        metadata_sync_ms: how often the copy of the metadata is made durable.
        hand_over_ms: how long a stop may take to give leaderships away.
        needs_all_replicas: a replica that cannot be hosted ends the start, which tells why.
        watch: limits of the read-only metadata service.
        client, follower, presence: of the traffic with nameservers.
        reconciler, moves, slot_moves: of the work for raft groups led here.
    """

    register_wait_ms: int = 10_000
    metadata_sync_ms: int = 5_000
    hand_over_ms: int = 2_000
    needs_all_replicas: bool = False
    watch: WatchOptions = field(default_factory=WatchOptions)
    client: MetadataClientOptions = field(default_factory=MetadataClientOptions)
    follower: MetadataFollowerOptions = field(default_factory=MetadataFollowerOptions)
    presence: PresenceOptions = field(default_factory=PresenceOptions)
    reconciler: ReconcilerOptions = field(default_factory=ReconcilerOptions)
    moves: QueueMoveOptions = field(default_factory=QueueMoveOptions)
    slot_moves: SlotMoveOptions = field(default_factory=SlotMoveOptions)
