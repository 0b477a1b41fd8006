"""Choice of objects to delete: dropped objects after a grace time, and uncommitted ones. Pure.

Retention moves the min offsets of the queues, and these decide which ranges are dropped (rule 10).
Deletion follows a committed drop (rule 28): first the ranges leave the tier state, so that no
reader can find them, then the object is deleted, and last its row. The grace time serves restores
that read an older manifest and readers that began before the drop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from strata_tier.objects.state import TieredObject
from strata_tier.ranges.metadata import TierMetadata
from strata_tier.store.ports import ObjectInfo


@dataclass(frozen=True, slots=True)
class TierRetentionOptions:
    """Limits of a sweep.

    Attributes:
        grace_ms: how long a dropped object stays in its store.
        orphan_ms: age after which an object that nobody committed is taken for given up; longer
            than any upload, and than a raft group may be without a leader.
        deletes_max: objects deleted by one sweep.
    """

    grace_ms: int = 3_600_000
    orphan_ms: int = 2 * 86_400_000
    deletes_max: int = 1_000


def plan_deletes(
    metadata: TierMetadata, now_ms: int, options: TierRetentionOptions
) -> list[TieredObject]:
    """Decide which dropped objects may be deleted now, the oldest drops first.

    All of them: a caller leaves out what it must not touch, and then takes `deletes_max`.
    """
    dead = [
        held
        for held in metadata.objects()
        if held.dropped_at_ms and held.dropped_at_ms + options.grace_ms <= now_ms
    ]
    dead.sort(key=lambda held: held.dropped_at_ms)
    return dead


def plan_orphans(
    infos: Iterable[ObjectInfo],
    known_keys: frozenset[str],
    now_ms: int,
    options: TierRetentionOptions,
) -> list[str]:
    """Decide which objects in a raft group's own folder nobody will ever commit.

    An upload that is repeated puts its object again, which makes it young: so what is old and not
    in the tier state was given up, by a crash or by a leader that lost its office.

    Args:
        infos: of `names.object_folders`.
        known_keys: of all objects in the tier state, dropped ones too.
        now_ms: by the clock that stamped `infos`.
        options: limits.
    """
    orphans = [
        info.key
        for info in infos
        if info.key not in known_keys and info.modified_ms + options.orphan_ms <= now_ms
    ]
    return orphans[: options.deletes_max]
