"""Requests of outside jobs to a raft group's leader: commit an object, list deletable objects.

Jobs move bytes, list and delete; the leader decides which objects are committed or deleted (rule
28). An object serves only after it was read back whole and holds exactly the contents of the ranges
that it replaces; a deletion follows a committed drop, or concerns an object that nobody committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import TierChangeCommand, encode_tier_change
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.tiering.parts import TieringParts
from strata_storage.tiering.uploader import Uploader
from strata_tier.base import TierError
from strata_tier.objects import (
    QUEUE_FOLDER,
    SET_FOLDER,
    ForgetObjects,
    ObjectKind,
    ObjectRef,
    ReplaceRanges,
    TieredObject,
    TieredRange,
    decode_change,
    encode_change,
    parse_object_key,
)
from strata_tier.ranges import TierMetadata, plan_deletes, replaceable, standing_for
from strata_tier.store import ObjectNotFoundError, ObjectTooShortError, StoreError
from strata_tier.upkeep import AuditOptions, AuditReport, verify_object

# Looked up before others get their turn.
_RANGES_PER_TURN = 200
_FOLDERS = {ObjectKind.STREAM_SET: SET_FOLDER, ObjectKind.ONE_QUEUE: QUEUE_FOLDER}


class SweepPlan(NamedTuple):
    """Objects that a job may delete.

    Attributes:
        doomed: objects of which nothing is left, the oldest drops first.
        orphan_keys: what nobody committed.
        valid_ms: by when, after the call, deletions have ended.
    """

    doomed: Sequence[TieredObject]
    orphan_keys: Sequence[str]
    valid_ms: int


class OutsideWork:
    """Jobs' side of one node, for all raft groups that are led here.

    Args:
        parts: of tiering.

    Attributes:
        proofs: objects that are being read back now.
    """

    def __init__(self, parts: TieringParts) -> None:
        self._place = parts.place
        self._topics = parts.topics
        self._work = parts.work
        self._options = parts.work.options.outside
        self.proofs = 0

    # Objects that a job wrote ------------------------------------------------------------------

    async def replace(self, engine: GroupEngine, uploader: Uploader, data: bytes) -> int:
        """Commit an object that a job wrote in place of others.

        Args:
            engine: of a raft group that is led here, everything committed applied.
            uploader: of its leader.
            data: a `ReplaceRanges`; its time is that of the last commit it was planned on.

        Returns:
            Ranges that were replaced; 0: all of them came too late, and nothing changed.

        Raises:
            Refused: OUTCOME_INVALID, it is no change, not of this raft group, or not what readers
                have now; OUTCOME_OVERLOADED, to be asked again; else as `Uploader.propose`.
        """
        if uploader.is_paused:
            raise Refused(pb.OUTCOME_INVALID, "the tier is paused: strata tier resume")
        change = self._decoded(engine.raft_group, data)
        metadata = engine.machine.tier.metadata
        standing = await _planned_on(metadata, change)
        ranges = list(standing)
        if not ranges:
            return 0
        if uploader.leased.holds(change.ref.key):
            raise Refused(pb.OUTCOME_OVERLOADED, f"{change.ref.key} is being deleted by a sweep")
        await self._prove(change.ref, ranges)
        try:
            count = await uploader.replace(change.ref, ranges)
        except TierError as error:
            # Rows changed meanwhile, or a sweep began: to be decided anew.
            raise Refused(pb.OUTCOME_OVERLOADED, str(error)) from error
        if count:
            emptied = {old.object_id for new in ranges for old in standing[new]}
            self._work.instruments.objects.add(len(emptied), {"result": "compacted"})
        return count

    def _decoded(self, raft_group: int, data: bytes) -> ReplaceRanges:
        """Return a change, if it is one that this raft group may be asked for."""
        try:
            change = decode_change(data)
        except TierError as error:
            raise Refused(pb.OUTCOME_INVALID, str(error)) from error
        if not isinstance(change, ReplaceRanges):
            raise Refused(pb.OUTCOME_INVALID, "a job may only replace ranges")
        ref, most = change.ref, self._options.ranges_max
        if not 0 < len(change.ranges) <= most:
            reason = f"the call has {len(change.ranges)} ranges; it may have 1 to {most}"
            raise Refused(pb.OUTCOME_INVALID, reason)
        if len({(each.topic_id, each.queue) for each in change.ranges}) < len(change.ranges):
            raise Refused(pb.OUTCOME_INVALID, f"{ref.key}: a queue is named twice")
        home = self._place.home
        is_named_right = (
            parse_object_key(home, raft_group, ref.key) == ref.object_id
            and ref.key.startswith(f"{home}/{_FOLDERS[ref.kind]}/")
            and ref.raft_group == raft_group
        )
        if not is_named_right:
            reason = f"{ref.key} is no object of raft group {raft_group} of {home}"
            raise Refused(pb.OUTCOME_INVALID, reason)
        return change

    async def _prove(self, ref: ObjectRef, ranges: Sequence[TieredRange]) -> None:
        """Read an object whole and compare it with its checksums and with what ranges say."""
        if self.proofs >= self._options.proofs_at_once:
            reason = f"{self.proofs} objects are being read back"
            raise Refused(pb.OUTCOME_OVERLOADED, reason)
        self.proofs += 1
        try:
            store, report = self._place.stores.of(ref.space), AuditReport(self._place.home)
            await verify_object(store, ref, ranges, AuditOptions(), report)
        except (TierError, ObjectNotFoundError, ObjectTooShortError) as error:
            self._work.instruments.objects.add(1, {"result": "damaged"})
            raise Refused(pb.OUTCOME_INVALID, str(error)) from error
        except StoreError as error:
            raise Refused(pb.OUTCOME_OVERLOADED, str(error)) from error
        finally:
            self.proofs -= 1

    # Deletions ----------------------------------------------------------------------------------

    async def plan_sweep(
        self,
        engine: GroupEngine,
        uploader: Uploader,
        old_keys: Sequence[str],
        *,
        before_ms: int,
    ) -> SweepPlan:
        """Say what a job may delete now; nothing is committed under these names meanwhile.

        Args:
            engine: as `replace`.
            uploader: likewise.
            old_keys: listed in the raft group's own folders before the call, all of them too old
                to be uploads; others are left out.
            before_ms: group time; what was dropped later may be named by a manifest as live.

        Raises:
            Refused: OUTCOME_INVALID, too many keys; OUTCOME_OVERLOADED, to be asked again.
        """
        self._check_count(len(old_keys))
        metadata = engine.machine.tier.metadata
        options = self._work.options.retention
        # Reads all objects, of which there may be many.
        dead = await self._work.run_read(
            partial(plan_deletes, metadata, uploader.now_ms(), options)
        )
        swept = [
            held for held in dead if held.dropped_at_ms < before_ms and self._is_for_jobs(held)
        ][: self._options.keys_max]
        async with uploader.turn:
            # As it is now: nothing is on its way to be committed while the turn is held.
            doomed = [held for held in swept if metadata.object(held.ref.object_id) == held]
            orphans = self._orphans(engine, uploader, old_keys)
            uploader.leased.lease([*(held.ref.key for held in doomed), *orphans])
        return SweepPlan(doomed, orphans, self._options.lease_ms)

    async def forget(
        self, engine: GroupEngine, uploader: Uploader, object_ids: Sequence[int]
    ) -> int:
        """Forget dropped objects that a job deleted; return how many there were to forget.

        Raises:
            Refused: OUTCOME_INVALID, too many; else as `Uploader.propose`.
        """
        self._check_count(len(object_ids))
        metadata, now_ms = engine.machine.tier.metadata, uploader.now_ms()
        grace_ms = self._work.options.retention.grace_ms
        async with uploader.turn:
            found = map(metadata.object, dict.fromkeys(object_ids))
            forgotten = [
                held.ref.object_id
                for held in found
                if held is not None
                and held.dropped_at_ms
                and held.dropped_at_ms + grace_ms <= now_ms
                and self._is_for_jobs(held)
            ]
            if forgotten:
                data = encode_change(ForgetObjects(forgotten, now_ms))
                try:
                    await uploader.propose(encode_tier_change(TierChangeCommand(False, data)))
                except TierError as error:
                    raise Refused(pb.OUTCOME_OVERLOADED, str(error)) from error
        self._work.instruments.objects.add(len(forgotten), {"result": "deleted"})
        return len(forgotten)

    def _orphans(
        self, engine: GroupEngine, uploader: Uploader, old_keys: Sequence[str]
    ) -> list[str]:
        """Return what nobody committed, or will.

        While uploads do not get on, one that began long ago is still to be committed.
        """
        if uploader.is_paused or uploader.last_failure:
            return []
        metadata, home = engine.machine.tier.metadata, self._place.home
        ids = {key: parse_object_key(home, engine.raft_group, key) for key in old_keys}
        return [
            key
            for key, object_id in ids.items()
            if object_id is not None and metadata.object(object_id) is None
        ]

    def _is_for_jobs(self, held: TieredObject) -> bool:
        """Whether a job deletes an object: not those of a home that was restored from.

        Nor those of a space with a store or credentials of its own, which jobs do not have: all of
        them are left to storage nodes.
        """
        is_own = held.ref.key.startswith(f"{self._place.home}/")
        return is_own and held.ref.space not in self._topics.spaces.named

    def _check_count(self, count: int) -> None:
        if count > self._options.keys_max:
            reason = f"the call has {count} objects; it may have {self._options.keys_max}"
            raise Refused(pb.OUTCOME_INVALID, reason)


async def _planned_on(
    metadata: TierMetadata, change: ReplaceRanges
) -> dict[TieredRange, list[TieredRange]]:
    """Return the ranges that may still be put in place, each with those that stand there.

    A commit after the plan was made is not part of the plan: a job that is run again would write
    and replace the same objects once more.

    Raises:
        Refused: OUTCOME_INVALID, a range holds other messages than those.
    """
    found: dict[TieredRange, list[TieredRange]] = {}
    for first in range(0, len(change.ranges), _RANGES_PER_TURN):
        for new in replaceable(metadata, change.ranges[first : first + _RANGES_PER_TURN]):
            olds = standing_for(metadata, new)
            held = [metadata.object(old.object_id) for old in olds]
            if all(each and each.committed_at_ms <= change.group_time_ms for each in held):
                _check_same(metadata, change.ref, new, olds)
                found[new] = olds
        await asyncio.sleep(0)
    return found


def _check_same(
    metadata: TierMetadata, ref: ObjectRef, new: TieredRange, olds: Sequence[TieredRange]
) -> None:
    """Check that a range holds as much as those that it is to replace, and in their space.

    Raises:
        Refused: OUTCOME_INVALID, it does not.
    """
    full = [old for old in olds if old.message_count]
    held = (
        sum([old.message_count for old in olds]),
        sum([old.bodies_bytes for old in olds]),
        full[0].min_time_ms if full else 0,
        full[-1].max_time_ms if full else 0,
    )
    found = (new.message_count, new.bodies_bytes, new.min_time_ms, new.max_time_ms)
    where = f"{ref.key}: topic {new.topic_id} queue {new.queue} from offset {new.first_offset}"
    if found != held:
        reason = f"{where}: {found[0]} messages of {found[1]} bytes, readers have {held[0]} of "
        raise Refused(pb.OUTCOME_INVALID, f"{reason}{held[1]}, or of other times")
    for old in olds:
        known = metadata.object(old.object_id)
        if known is None or known.ref.space != ref.space:
            raise Refused(pb.OUTCOME_INVALID, f"{where}: it lies in another space")
