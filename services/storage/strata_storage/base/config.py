"""Options of the storage node: every limit with its unit, none read from the environment here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from strata_metadata.topic_ids import MAX_KEPT_TOPICS
from strata_runtime.config import Section
from strata_seglog.options import LogOptions
from strata_state.flush import FlushOptions
from strata_state.rocksdb_store import RocksdbOptions
from strata_storage.base.dedupe import DedupeOptions
from strata_storage.base.disk_guard import DiskGuardOptions
from strata_storage.base.disk_quota import DiskQuotaOptions
from strata_storage.base.removed_replicas import AsideOptions
from strata_storage.base.watchers import WatcherOptions

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PendingOptions:
    """Delayed and half messages of one raft group.

    Attributes:
        window: keys of the earliest ones that are read into memory at once; twice as many are
            kept.
        batch: messages that one entry delivers, drops or puts off.
        resolves_max: such decisions under way; the timer waits for them, calls are refused. Each
            of the two leaves a quarter of them to the other one.
        turn_interval_ms: pause of the timer after it did something: what comes due in it shares
            an entry.
        retry_ms: pause before what was refused, or found no queue, is tried again.
        forwards_max: messages on their way to another raft group.
        forward_bytes_max: their bytes; a single message always goes.
        forwards_unanswered_max: messages that a raft group may have that has not answered; no
            others are sent then.
        transaction_check_interval_ms: time between two checks of a half message.
        max_transaction_checks: checks before a half message is given up.
        max_transaction_age_ms: group time since it was stored after which one is given up that was
            checked less often.
        checks_in_flight_max: checks that are being read and handed to brokers.
        check_read_bytes: bytes of their messages that are read at once; a single message always is.
        uncheckable_max: half messages without a connected producer that are handled in one
            check interval; the others wait for a later interval.
    """

    window: int = 4_096
    batch: int = 1_000
    resolves_max: int = 10_000
    turn_interval_ms: int = 20
    retry_ms: int = 1_000
    forwards_max: int = 1_000
    forward_bytes_max: int = 16 * _MIB
    forwards_unanswered_max: int = 100_000
    transaction_check_interval_ms: int = 30_000
    max_transaction_checks: int = 15
    max_transaction_age_ms: int = 72 * 3_600_000
    checks_in_flight_max: int = 1_000
    check_read_bytes: int = 4 * _MIB
    uncheckable_max: int = 10_000


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Limits of one raft group's engine.

    Attributes:
        dedupe: window of known message ids.
        verify_bodies: check every message against its checksum before it is taken in.
        queue_rows_max: queue rows kept in memory.
        cq_cache_bytes: CQ rows kept in memory.
        lease_sets_max: (consumer group, queue) pairs whose leases are kept in memory while idle.
        max_waiters: parked pops, and fetches that wait.
        max_waiter_bytes: their requests, likewise.
        pop_max_messages: messages of one pop or fetch.
        pop_max_bytes: bytes of one pop or fetch.
        pop_scan_offsets: offsets that a pop with a filter looks at before others get their turn.
        pop_scan_messages: messages that it reads and gives to a filter in that time.
        pop_scan_bytes: their bytes; one message always goes.
        pop_scan_filter_steps: what the filter may cost in that time
            (`strata_mq.filters.sql.stepwise`).
        pop_filter_steps: the same for a whole pop or fetch; it ends with what it has, and the next
            one goes on from there.
        passed_write_ms: how long the way of a filter over messages that nobody wants may be
            unwritten; a new leader goes it again.
        filters_max: compiled filters kept.
        filter_characters_max: their expressions together.
        brokers_max: brokers whose last append is remembered.
        broker_row_age_ms: group time after which an idle broker's row goes (with a trim).
        parsed_max_bytes: batches that a leader proposed, kept parsed until they are applied.
        attempts_max: FIFO pops whose queues are remembered for a repeat of their attempt id.
        holder_grace_s: after a leader change nothing is released for this long (rule 25).
        expire_batch: lease sets looked at in one turn of the expiry timer.
        consumer_topics_max: topics in one answer of what a consumer group has state of.
        trim_queues_max: queues that one entry trims; about 30 us each on every replica at once.
        rehash_lag_max: messages of a queue still to be consumed at which message groups that leave
            it for another queue are held back (rule 23).
        rehash_hold_ms: for how long.
        pending: delayed and half messages.
        client_names_max: clients whose names a leader knows to be kept for traces.
        trace_max_events: events in one answer of what became of a message.
        append_straggle_ms: what a raft group may take longer than the others of one Append.
    """

    dedupe: DedupeOptions = field(default_factory=DedupeOptions)
    verify_bodies: bool = True
    queue_rows_max: int = 100_000
    cq_cache_bytes: int = 16 * 1024 * 1024
    lease_sets_max: int = 10_000
    max_waiters: int = 10_000
    max_waiter_bytes: int = 32 * 1024 * 1024
    pop_max_messages: int = 1_024
    pop_max_bytes: int = 16 * 1024 * 1024
    pop_scan_offsets: int = 4_096
    pop_scan_messages: int = 256
    pop_scan_bytes: int = 4 * 1024 * 1024
    pop_scan_filter_steps: int = 500_000
    pop_filter_steps: int = 20_000_000
    passed_write_ms: int = 1_000
    filters_max: int = 4_096
    filter_characters_max: int = 1024 * 1024
    brokers_max: int = 1_000
    broker_row_age_ms: int = 86_400_000
    parsed_max_bytes: int = 16 * 1024 * 1024
    attempts_max: int = 10_000
    holder_grace_s: float = 15.0
    expire_batch: int = 256
    consumer_topics_max: int = 10_000
    trim_queues_max: int = 500
    rehash_lag_max: int = 256
    rehash_hold_ms: int = 250
    pending: PendingOptions = field(default_factory=PendingOptions)
    client_names_max: int = 50_000
    trace_max_events: int = 1_000
    append_straggle_ms: int = 50


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """When and how messages leave the disk (rule 10).

    Attributes:
        interval_s: time between two looks.
        default_ms: retention of a topic that its source does not know.
        max_log_bytes: size of the CommitLog above which the oldest segments go early, whatever
            the retention; 0: no limit.
        checkpoint_log_bytes: log since a raft group's last checkpoint that makes a new one due.
        relocate_bytes_per_turn: live entries copied in one look, so that the oldest segments go.
        relocate_live_ratio: share of a segment that may be live for its copying to pay.
        relocate_live_ratio_full: the same while the disk is at one of its marks.
    """

    interval_s: float = 60.0
    default_ms: int = 72 * 3_600_000
    max_log_bytes: int = 0
    checkpoint_log_bytes: int = 512 * 1024 * 1024
    relocate_bytes_per_turn: int = 64 * 1024 * 1024
    relocate_live_ratio: float = 0.5
    relocate_live_ratio_full: float = 0.9


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Options of a storage node.

    Attributes:
        engine: per raft group.
        flush: when replicated state is flushed.
        rocksdb: memory of the row store.
        retention: what leaves the disk.
        disk: marks at which work is refused (rule 11).
        quota: the node's share of its disk.
        aside: how long removed replicas are kept.
        watch: streams to brokers.
        filter_steps_per_turn: what all filters together may cost in one turn of the event loop.
        reader_threads: threads that read messages from disk.
        reads_max: disk reads waiting for those threads; more are refused.
        expiry_interval_s: how often leases that ran out are looked for.
        holder_silence_s: silence after which a client's auto-renewed leases are released.
        scrub_bytes_per_s: speed of the background check of the log; 0: off.
    """

    engine: EngineOptions = field(default_factory=EngineOptions)
    flush: FlushOptions = field(default_factory=FlushOptions)
    rocksdb: RocksdbOptions = field(default_factory=RocksdbOptions)
    retention: RetentionOptions = field(default_factory=RetentionOptions)
    disk: DiskGuardOptions = field(default_factory=DiskGuardOptions)
    quota: DiskQuotaOptions = field(default_factory=DiskQuotaOptions)
    aside: AsideOptions = field(default_factory=AsideOptions)
    watch: WatcherOptions = field(default_factory=WatcherOptions)
    filter_steps_per_turn: int = 10_000
    reader_threads: int = 4
    reads_max: int = 1_000
    expiry_interval_s: float = 0.1
    holder_silence_s: float = 15.0
    scrub_bytes_per_s: int = 8 * 1024 * 1024


# Defaults are written once, where they are used.
_OPTIONS, _LOG = StorageOptions(), LogOptions()


class StorageConfig(Section):
    """The section `[storage]`: what an operator may want to change."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "dedupe_max_ids": "max_dedupe_ids",
        "kv_history_max_bytes": "max_kv_history_bytes",
        "kv_history_max_changes": "max_kv_history_changes",
        "kv_max_value_bytes": "max_kv_value_bytes",
        "kv_memory_table_max_bytes": "max_kv_memory_table_bytes",
        "removed_replica_max_bytes": "max_removed_replica_bytes",
        "transaction_checks_max": "max_transaction_checks",
        "waiters_max": "max_waiters",
        "waiters_max_bytes": "max_waiter_bytes",
        "scrub_bytes_per_second": "scrub_bytes_per_s",
        "retention_interval_s": "retention_interval_ms",
        "flush_max_age_s": "max_flush_age_ms",
        "flush_max_log_bytes": "max_unflushed_log_bytes",
    }

    log_segment_bytes: int = Field(
        default=_LOG.segment_bytes,
        ge=8 * _MIB,
        le=2_048 * _MIB,
        description="Size of a log segment.",
    )
    recent_bytes: int = Field(
        default=_LOG.recent_bytes, ge=0, description="Newest messages kept in memory for readers."
    )
    max_log_bytes: int = Field(
        default=_OPTIONS.retention.max_log_bytes,
        ge=0,
        description="Log size above which the oldest messages are deleted "
        "before their retention ends; 0: no limit.",
    )
    default_retention_ms: int = Field(
        default=_OPTIONS.retention.default_ms,
        ge=1_000,
        description="Retention of topics without one of their own.",
    )
    max_kept_topics: int = Field(
        default=MAX_KEPT_TOPICS,
        ge=100,
        description="Most topics whose settings are kept in memory; those of other topics are read "
        "from disk when they are needed.",
    )
    retention_interval_ms: int = Field(
        default=round(_OPTIONS.retention.interval_s * 1_000),
        ge=1,
        description="Time between two searches for messages that may leave the disk.",
    )
    relocate_bytes_per_turn: int = Field(
        default=_OPTIONS.retention.relocate_bytes_per_turn,
        ge=0,
        description="Most live messages copied per minute to free the oldest log segments; "
        "0: none.",
    )
    relocate_live_ratio: float = Field(
        default=_OPTIONS.retention.relocate_live_ratio,
        ge=0,
        le=1,
        description="Largest live share of a log segment at which its live messages are "
        "copied to free it.",
    )
    removed_replica_retention_ms: int = Field(
        default=_OPTIONS.aside.retention_ms,
        ge=0,
        description="Time for which a replica that was removed from this node is kept for "
        "`strata storage restore-replica`; it is deleted earlier when the disk "
        "is full.",
    )
    max_removed_replica_bytes: int = Field(
        default=_OPTIONS.aside.max_bytes,
        ge=0,
        description="Most bytes of log segments kept only for such replicas; above it the "
        "oldest replicas are deleted early, never the newest.",
    )
    dedupe_window_ms: int = Field(
        default=_OPTIONS.engine.dedupe.window_ms,
        ge=1_000,
        description="Time for which a repeated message id is found for certain; most are "
        "found for two days.",
    )
    max_dedupe_ids: int = Field(
        default=_OPTIONS.engine.dedupe.max_ids,
        ge=1_000,
        description="Most message ids in memory per raft group; older ids are looked up in rows.",
    )
    max_flush_age_ms: int = Field(
        default=round(_OPTIONS.flush.max_age_s * 1_000),
        ge=1,
        description="Age of the oldest unflushed row at which rows are flushed.",
    )
    max_unflushed_log_bytes: int = Field(
        default=_OPTIONS.flush.max_unflushed_log_bytes,
        ge=_MIB,
        description="Bytes of log since the last flush at which rows are flushed.",
    )
    max_waiters: int = Field(
        default=_OPTIONS.engine.max_waiters,
        ge=1,
        description="Most pops that wait for messages, per raft group.",
    )
    max_lite_topics: int = Field(
        default=1_000_000,
        ge=1,
        description="Most lite topics of one raft group; a new one is refused with "
        "LITE_TOPIC_QUOTA_EXCEEDED.",
    )
    max_waiter_bytes: int = Field(
        default=_OPTIONS.engine.max_waiter_bytes,
        ge=1,
        description="Most bytes of requests of the pops that wait, per raft group; the same "
        "for pulls.",
    )
    max_interests: int = Field(
        default=_OPTIONS.watch.interests_max,
        ge=1,
        description="Most pairs of topic and consumer group, per raft group, whose new "
        "messages are reported to brokers. Brokers ask for further pairs once a "
        "second.",
    )
    filter_steps_per_turn: int = Field(
        default=_OPTIONS.filter_steps_per_turn,
        ge=100,
        description="Most steps of SQL92 filters before other work gets its turn; a step is a node "
        "of an expression or 64 characters of a text, about 0.1 us.",
    )
    filter_steps_per_receive: int = Field(
        default=_OPTIONS.engine.pop_filter_steps,
        ge=1_000,
        description="The same for one receive or pull: it ends with the messages that it "
        "found, and the next one continues.",
    )
    scrub_bytes_per_s: int = Field(
        default=_OPTIONS.scrub_bytes_per_s,
        ge=0,
        description="Speed of the background check of the log; 0: off.",
    )
    refuse_appends_free_bytes: int = Field(
        default=_OPTIONS.disk.refuse_appends_free_bytes,
        ge=0,
        description="Free disk below which appends are refused.",
    )
    disk_quota_ratio: float = Field(
        default=_OPTIONS.quota.quota_ratio,
        gt=0,
        le=1,
        description="Share of its disk that this node may use with its CommitLog, consume queue "
        "and index, as quotaPercentForDiskPartition; above it appends are refused.",
    )
    logical_disk_clean_ratio: float = Field(
        default=_OPTIONS.quota.logical_clean_ratio,
        gt=0,
        le=1,
        description="Share of that quota above which the oldest messages are deleted before their "
        "retention ends, as logicalDiskSpaceCleanForciblyThreshold; it counts with a "
        "`disk_quota_ratio` below 1.",
    )
    disk_clean_ratio: float = Field(
        default=_OPTIONS.quota.clean_ratio,
        gt=0,
        le=1,
        description="Use of the whole disk above which the oldest messages are deleted before "
        "their retention ends, as diskSpaceCleanForciblyRatio; 1: never.",
    )
    disk_warning_ratio: float = Field(
        default=_OPTIONS.disk.refuse_appends_used_ratio,
        gt=0,
        le=1,
        description="Use of the whole disk above which appends are refused, as "
        "diskSpaceWarningLevelRatio; 1: only `refuse_appends_free_bytes` counts.",
    )
    ballast_bytes: int = Field(
        default=512 * _MIB,
        ge=0,
        description="Size of a file that is deleted when the disk "
        "is full, so that acks have room; 0: none.",
    )
    reader_threads: int = Field(
        default=_OPTIONS.reader_threads,
        ge=1,
        le=64,
        description="Threads that read messages from disk.",
    )

    window_ms: int = Field(
        default=10_000,
        ge=100,
        le=600_000,
        description="Length of a metric window; `observability.window_ms` of the brokers "
        "must be the same.",
    )
    pending_window: int = Field(
        default=_OPTIONS.engine.pending.window,
        ge=64,
        description="Most delayed and half messages that are kept in memory, those due "
        "first, per raft group.",
    )
    timer_interval_ms: int = Field(
        default=_OPTIONS.engine.pending.turn_interval_ms,
        ge=1,
        le=500,
        description="Time for which due messages are collected, so that one log entry "
        "delivers several.",
    )
    transaction_check_interval_ms: int = Field(
        default=_OPTIONS.engine.pending.transaction_check_interval_ms,
        ge=100,
        description="Time between two checks of an open transaction.",
    )
    max_transaction_checks: int = Field(
        default=_OPTIONS.engine.pending.max_transaction_checks,
        ge=1,
        le=1_000,
        description="Most checks of a transaction; then its message goes to the dead-letter topic.",
    )
    max_transaction_age_ms: int = Field(
        default=_OPTIONS.engine.pending.max_transaction_age_ms,
        ge=1_000,
        description="Age of an open transaction at which its message goes there with fewer checks, "
        "such as when no producer of its topic connects any more; longer than the "
        "`transaction.max_first_check_ms` of the brokers.",
    )

    max_kv_value_bytes: int = Field(
        default=_MIB,
        ge=1,
        le=4 * _MIB,
        description="Largest value of an item (plugin kv).",
    )
    max_kv_history_changes: int = Field(
        default=20_000,
        ge=2,
        description="Most changes of a table that are kept for watchers; the newest half always "
        "stays.",
    )
    max_kv_history_bytes: int = Field(
        default=64 * _MIB, ge=2, description="The same in bytes of keys and values."
    )
    max_kv_memory_table_bytes: int = Field(
        default=64 * _MIB,
        ge=1,
        description="Most bytes of keys and values of a table in memory.",
    )

    def options(self) -> StorageOptions:
        """Return the options of the node's parts."""
        return StorageOptions(
            engine=EngineOptions(
                dedupe=DedupeOptions(self.dedupe_window_ms, self.max_dedupe_ids),
                max_waiters=self.max_waiters,
                max_waiter_bytes=self.max_waiter_bytes,
                pop_scan_filter_steps=min(self.filter_steps_per_receive, 500_000),
                pop_filter_steps=self.filter_steps_per_receive,
                pending=PendingOptions(
                    window=self.pending_window,
                    turn_interval_ms=self.timer_interval_ms,
                    transaction_check_interval_ms=self.transaction_check_interval_ms,
                    max_transaction_checks=self.max_transaction_checks,
                    max_transaction_age_ms=self.max_transaction_age_ms,
                ),
            ),
            watch=WatcherOptions(interests_max=self.max_interests),
            flush=FlushOptions(self.max_unflushed_log_bytes, self.max_flush_age_ms / 1_000),
            retention=RetentionOptions(
                interval_s=self.retention_interval_ms / 1_000,
                default_ms=self.default_retention_ms,
                max_log_bytes=self.max_log_bytes,
                relocate_bytes_per_turn=self.relocate_bytes_per_turn,
                relocate_live_ratio=self.relocate_live_ratio,
                relocate_live_ratio_full=max(self.relocate_live_ratio, 0.9),
            ),
            disk=DiskGuardOptions(
                refuse_appends_free_bytes=self.refuse_appends_free_bytes,
                refuse_most_free_bytes=self.refuse_appends_free_bytes // 2,
                stop_free_bytes=self.refuse_appends_free_bytes // 8,
                refuse_appends_used_ratio=self.disk_warning_ratio,
            ),
            quota=DiskQuotaOptions(
                self.disk_quota_ratio, self.logical_disk_clean_ratio, self.disk_clean_ratio
            ),
            aside=AsideOptions(self.removed_replica_retention_ms, self.max_removed_replica_bytes),
            filter_steps_per_turn=self.filter_steps_per_turn,
            reader_threads=self.reader_threads,
            scrub_bytes_per_s=self.scrub_bytes_per_s,
        )

    def log_options(self) -> LogOptions:
        """Return the options of the log."""
        return LogOptions(
            segment_bytes=self.log_segment_bytes, recent_bytes=self.recent_bytes, name="storage"
        )
