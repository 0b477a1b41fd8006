"""Limits of tiering, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata_mq.tier_policy import TierLevel
from strata_storage.tiering.pace import PaceOptions
from strata_storage.tiering.set_aside import SetAsideOptions
from strata_tier.ranges import CompactionOptions, TierRetentionOptions


@dataclass(frozen=True, slots=True)
class UploadOptions:
    """When an object is made, and how.

    Attributes:
        object_bytes: messages of one object.
        flush_age_ms: age of the oldest message that waits at which an object is made of less.
        ranges_max: queues of one object; all of them are in one entry, 24 bytes each.
        ranges_per_entry: ranges that one entry commits or replaces; each is looked up when the
            entry is applied, and everything else waits for that.
        block_bytes: messages of one block, the unit of a read.
        check_interval_ms: pause between two scans of what waits.
        retry_ms: pause before a failed upload is repeated; it doubles with every failure ...
        retry_max_ms: ... up to this.
        rows_per_turn: consume queue rows looked at before others get their turn.
        source_cache_bytes: columns and payloads of log entries kept while an object is written.
        max_uploads: objects of a node that are written at once, each of another raft group.
        set_aside: for how long spaces whose store fails, and queues whose messages cannot be read,
            are left out of objects while others have something to upload.
        unreadable_per_step: queues with unreadable messages that are left out of an object at once;
            with more of them the upload pauses before it is repeated.
    """

    object_bytes: int = 64 * 1024 * 1024
    flush_age_ms: int = 30_000
    ranges_max: int = 100_000
    ranges_per_entry: int = 1_000
    block_bytes: int = 1024 * 1024
    check_interval_ms: int = 1_000
    retry_ms: int = 2_000
    retry_max_ms: int = 30_000
    rows_per_turn: int = 500
    source_cache_bytes: int = 32 * 1024 * 1024
    max_uploads: int = 2
    set_aside: SetAsideOptions = field(default_factory=SetAsideOptions)
    unreadable_per_step: int = 8


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """When the log gives up what the tier has.

    Attributes:
        retention_ms: of topics that name no local retention.
        verify_bytes_per_turn: objects read back whole in one turn of retention before the log
            gives up what they hold.
        queues_per_command: of one entry that names queues.
        manifest_interval_ms: how often the derived manifest is written, if there is something new.
        set_aside: for how long retention and compaction leave objects and spaces alone that failed.
        failures_per_space: failures of one space in one turn after which its other objects wait for
            a later turn; each may last as long as the repeats of the store.
    """

    retention_ms: int = 3_600_000
    verify_bytes_per_turn: int = 2 * 1024 * 1024 * 1024
    queues_per_command: int = 1_000
    manifest_interval_ms: int = 300_000
    set_aside: SetAsideOptions = field(
        default_factory=lambda: SetAsideOptions(pause_ms=60_000, pause_max_ms=3_600_000)
    )
    failures_per_space: int = 3


@dataclass(frozen=True, slots=True)
class OutsideOptions:
    """Limits of outside jobs' calls to leaders.

    Attributes:
        proofs_at_once: objects that a node reads back at once for jobs; more are refused as
            overloaded, to be asked again.
        ranges_max: of one object that is to be committed in one call.
        keys_max: objects named in one call of a sweep.
        lease_ms: how long after a call a sweep may delete what it was told; nothing is committed
            under these names before.
        leased_keys_max: names of one raft group that such calls hold at once.
    """

    proofs_at_once: int = 2
    ranges_max: int = 20_000
    keys_max: int = 1_000
    lease_ms: int = 300_000
    leased_keys_max: int = 100_000


@dataclass(frozen=True, slots=True)
class TieringOptions:
    """All of tiering.

    Attributes:
        upload: when objects are made.
        local: what leaves the log and the store.
        default_level: of topics that name none.
        retention: when objects are deleted.
        pace: how much of the time uploads may take.
        compaction: when small objects are put together.
        compacts: whether storage nodes do that; else it is left to a job outside.
        outside: what jobs may ask for.
        orphans_interval_s: how often it is looked for objects that nobody committed.
        leftovers_interval_s: how often it is looked for what broken uploads left behind.
        leftovers_age_ms: age from which an upload that did not end counts as broken.
        part_bytes: `StoreOptions.part_bytes`, to know how many requests an upload takes.
    """

    upload: UploadOptions = field(default_factory=UploadOptions)
    local: LocalOptions = field(default_factory=LocalOptions)
    default_level: TierLevel = TierLevel.NOT_IN_DISK
    retention: TierRetentionOptions = field(default_factory=TierRetentionOptions)
    pace: PaceOptions = field(default_factory=PaceOptions)
    compaction: CompactionOptions = field(default_factory=CompactionOptions)
    compacts: bool = True
    outside: OutsideOptions = field(default_factory=OutsideOptions)
    orphans_interval_s: float = 21_600.0
    leftovers_interval_s: float = 3_600.0
    leftovers_age_ms: int = 86_400_000
    part_bytes: int = 16 * 1024 * 1024
