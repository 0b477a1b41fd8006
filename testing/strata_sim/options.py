"""Size of a simulated cluster and configuration of its services.

Times are the product's where a rule gives them; limits are small, so that a short run reaches them:
flushes, new segments, expiring leases.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pydantic import Field

from strata_broker.base.access_config import AccessControlSection
from strata_broker.base.config import BrokerConfig, SessionSection
from strata_broker.base.receive_config import ReceiveSection
from strata_nameserver.base.config import NameserverConfig
from strata_sim.network import NetworkOptions
from strata_storage.base.config import StorageConfig, StorageOptions
from strata_storage.tiering.config import TierConfig

NAMESERVER_PORT = 9877
STORAGE_PORT = 10920
BROKER_PORT = 8081

TIER_URL = "memory://tier"

_MIB = 1 << 20
_SEGMENT_BYTES = 256 << 10
_CHECKPOINT_BYTES = 64 << 10


def _nameserver() -> NameserverConfig:
    return NameserverConfig(
        ballast_bytes=0,
        log_segment_bytes=_MIB,
        raft_groups_per_storage_node=1,
        replica_repair_delay_ms=20_000,
        leader_balance_delay_ms=2_000,
        default_queue_count=4,
    )


class SeamConfig(StorageConfig):
    """A storage node whose log is so small that a run of seconds meets every seam of it.

    Segments are sealed, freed and relocated, checkpoints are due all the time, and a replica that
    was away is filled from a snapshot: its entries have left the log.
    """

    log_segment_bytes: int = Field(default=_SEGMENT_BYTES, ge=64 << 10)
    max_unflushed_log_bytes: int = Field(default=_SEGMENT_BYTES, ge=64 << 10)

    def options(self) -> StorageOptions:
        """Return the options of the node's parts."""
        options = super().options()
        return replace(
            options,
            retention=replace(options.retention, checkpoint_log_bytes=_CHECKPOINT_BYTES),
        )


def _storage() -> StorageConfig:
    return SeamConfig(
        retention_interval_ms=1_000,
        relocate_live_ratio=0.9,
        recent_bytes=_MIB,
        max_flush_age_ms=5_000,
        transaction_check_interval_ms=5_000,
        ballast_bytes=0,
        refuse_appends_free_bytes=8 * _MIB,
    )


def _tier() -> TierConfig:
    return TierConfig(
        url=TIER_URL,
        default_local_retention_ms=1_000,
        flush_age_ms=500,
        upload_share=1.0,
        manifest_interval_ms=3_000,
        delete_grace_ms=1_000,
        cache_bytes=_MIB,
    )


def _broker() -> BrokerConfig:
    return BrokerConfig(
        access_control=AccessControlSection(mode="off"),
        receive=ReceiveSection(min_polling_ms=500, max_polling_ms=2_000, min_invisible_ms=1_000),
        session=SessionSection(),
    )


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A simulated cluster.

    Attributes:
        nameservers, storage_nodes, brokers: how many are there from the start.
        spare_storage_nodes: machines that may join later.
        disk_bytes: room for the log of a storage node.
        restart_s: after so long a process that ended by itself is started again.
        network: how it behaves between faults.
        nameserver, storage, broker: configuration of the services.
        tier: where storage nodes upload to; None: there is no tier.
    """

    nameservers: int = 3
    storage_nodes: int = 3
    spare_storage_nodes: int = 1
    brokers: int = 2
    disk_bytes: int = 1 << 40
    restart_s: float = 0.5
    network: NetworkOptions = field(default_factory=NetworkOptions)
    nameserver: NameserverConfig = field(default_factory=_nameserver)
    storage: StorageConfig = field(default_factory=_storage)
    broker: BrokerConfig = field(default_factory=_broker)
    tier: TierConfig | None = field(default_factory=_tier)
