"""Limits and times of the plugin in a storage node."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata_kv.options import TableOptions
from strata_storage.base.config import StorageConfig
from strata_storage.kv.shares import StreamLimits

_FOLLOWERS = StreamLimits(most=2_048, per_client=256, per_owner=1_024)
_DUMPS = StreamLimits(most=4, per_client=2, per_owner=3)


@dataclass(frozen=True, slots=True)
class KvOptions:
    """Limits of one storage node.

    Attributes:
        tables: limits of a table and of a request.
        max_batches_in_flight: write batches decided and not yet applied, per raft group.
        followers: streams that tell changes, per raft group; a broker has 1,000 at most by default.
        dumps: exports under way, per raft group; each holds files of the store.
        max_items: of one answer.
        max_bytes: of one answer to a read, except that one item always goes.
        max_current_bytes: of items that stood in the way of the writes of one batch, likewise.
        expiry_interval_ms: how often items are looked for whose time is over.
        expiry_batch: items that one entry ends.
        max_unread_items: items that are to end and cannot be read; with further ones it is waited.
        unread_retry_ms: group time after which they are looked at again.
    """

    tables: TableOptions = field(default_factory=TableOptions)
    max_batches_in_flight: int = 1_024
    followers: StreamLimits = _FOLLOWERS
    dumps: StreamLimits = _DUMPS
    max_items: int = 1_000
    max_bytes: int = 4 * 1024 * 1024
    max_current_bytes: int = 16 * 1024 * 1024
    expiry_interval_ms: int = 200
    expiry_batch: int = 500
    max_unread_items: int = 10_000
    unread_retry_ms: int = 1_000

    @classmethod
    def of(cls, config: StorageConfig) -> KvOptions:
        """Return those of a node's configuration."""
        tables = TableOptions(
            max_value_bytes=config.max_kv_value_bytes,
            history_max_changes=config.max_kv_history_changes,
            history_max_bytes=config.max_kv_history_bytes,
            memory_table_max_bytes=config.max_kv_memory_table_bytes,
        )
        return cls(tables=tables)
