"""Tiering of one storage node: readers for all replicas, uploads and retention where it leads.

It starts nothing by itself: the node tells it of replicas, leaders and turns of retention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from strata.storage.v1 import storage_pb2 as pb
from strata.storage.v1 import tier_pb2
from strata_mq.commands import encode_tier_pause
from strata_runtime.logs import get_logger
from strata_state.ports import StateError, StateStore
from strata_storage.base.errors import Refused
from strata_storage.base.hosted import HostedGroup
from strata_storage.base.jobs import RunJob
from strata_storage.base.node_data import NodeData
from strata_storage.base.node_runtime import NodeRuntime
from strata_storage.group.engine import GroupEngine
from strata_storage.leading.proposer import committed
from strata_storage.reads.reader import OnFailed, PayloadLog, RunRead
from strata_storage.tiering.leftovers import sweep_leftovers
from strata_storage.tiering.opening import OpenTier
from strata_storage.tiering.outside import OutsideWork, SweepPlan
from strata_storage.tiering.publisher import PUBLISH_FAILURES, Publisher
from strata_storage.tiering.reading import TieredReader, TierMessages
from strata_storage.tiering.refill import read_log_tail, refill
from strata_storage.tiering.retain import TierRetention
from strata_storage.tiering.uploader import Uploader
from strata_tier.objects import BlockEntry, ObjectRef, OpenObject
from strata_tier.ranges import MirroredTierMetadata, RowTierMetadata, TierMetadata
from strata_tier.store import StoreError

# Bytes of an object that are read at once while it is read back.
_VERIFY_REQUEST_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 64 * 1024


class _Led(NamedTuple):
    """One leader's work for the tier."""

    uploader: Uploader
    retention: TierRetention
    publisher: Publisher

    @property
    def last_failure(self) -> str:
        """Why something is not done, uploads first; empty: nothing fails."""
        parts = (self.uploader, self.retention, self.publisher)
        return next((each.last_failure for each in parts if each.last_failure), "")


class NodeTiering:
    """See the module docstring.

    Args:
        tier: what is open; None: no tier is configured, and what only the tier has is refused.
        data: of the node; its log is uploaded.
        run_long: runs long work in a thread.
        runtime: of the node; its tasks own the uploads.
    """

    def __init__(
        self, tier: OpenTier | None, data: NodeData, run_long: RunJob, *, runtime: NodeRuntime
    ) -> None:
        parts = self._parts = None if tier is None else tier.parts
        self._messages: TierMessages | None = None if tier is None else tier.messages
        self._data = data
        self._run_long = run_long
        self._tasks = runtime.tasks
        self._interval_s = runtime.options.retention.interval_s
        self._logger = get_logger("tier")
        # Raft group -> what its leader here does.
        self._led: dict[int, _Led] = {}
        self._outside = None if parts is None else OutsideWork(parts)
        # Replica id -> first index that the log should keep, because it is too large.
        self.floors: Mapping[int, int] = {}

    def reader(
        self,
        log: PayloadLog,
        replica_id: int,
        run_read: RunRead,
        on_corrupt: Callable[[int], None],
        on_failed: OnFailed,
    ) -> TieredReader:
        """Return a replica's reader; to be bound to the state of its raft group."""
        return TieredReader(
            log,
            replica_id,
            run_read,
            on_corrupt=on_corrupt,
            on_failed=on_failed,
            parts=self._parts,
            messages=self._messages,
        )

    def metadata(self, store: StateStore, raft_group: int) -> TierMetadata:
        """Return what a raft group has in the tier, to be kept as the configuration says."""
        folder = self._parts.place.json_folder if self._parts is not None else None
        if folder is None:
            return RowTierMetadata(store, raft_group)
        return MirroredTierMetadata(folder, store, raft_group)

    def is_tiered(self, topic_id: int) -> bool:
        """Whether a topic's messages are uploaded."""
        return self._parts is not None and bool(self._parts.topics.is_tiered(topic_id))

    def lead(self, engine: GroupEngine) -> None:
        """Upload for a raft group as long as its present leader leads."""
        parts, leader = self._parts, engine.leader
        if parts is None or leader is None:
            return
        uploader = Uploader(engine, leader, parts)
        publisher = Publisher(engine, uploader, parts, log=self._data.log)
        retention = TierRetention(engine, uploader, parts, verify=self._verify, publisher=publisher)
        led = _Led(uploader, retention, publisher)
        self._led[engine.raft_group] = led
        self._tasks.spawn(f"tier-{engine.raft_group}", uploader.run())
        self._tasks.spawn(f"tier-retention-{engine.raft_group}", self._retain(engine, led))

    async def _retain(self, engine: GroupEngine, led: _Led) -> None:
        """Do turns of retention until the term is over. Apart from the node's: stores hang."""
        while led.uploader.leads:
            await asyncio.sleep(self._interval_s)
            await self.retain(engine)
        if self._led.get(engine.raft_group) is led:
            del self._led[engine.raft_group]

    async def refill(self, group: HostedGroup) -> str:
        """Write index rows of a replica that only the tier can give, before it is opened.

        Returns:
            A line about the loss; empty: nothing is missing.
        """
        store, log = self._data.store, self._data.log
        read = partial(read_log_tail, store, log, group.raft_group, group.replica_id)
        return await refill(store, group.raft_group, self._messages, lambda: self._run_long(read))

    async def retain(self, engine: GroupEngine) -> None:
        """Do what retention demands of log and tier; publish what a restore needs, if it is due."""
        led = self._led.get(engine.raft_group)
        if led is None or not led.uploader.leads:
            return
        try:
            await led.uploader.rescan()
        except StateError as error:
            self._logger.info("tier waits", raft_group=engine.raft_group, reason=str(error))
            return
        # Before retention, which deletes only what the newest manifest does not name any more.
        if led.publisher.is_due():
            await led.publisher.publish()
        await led.retention.turn(led.uploader.now_ms(), self.floors.get(engine.replica_id, 0))

    async def pause(self, engine: GroupEngine, *, paused: bool) -> None:
        """Stop the uploads of a raft group, or let them go on.

        Raises:
            Refused: not the leader; there is no tier.
        """
        if self._parts is None:
            raise _no_tier()
        if engine.machine.tier.paused != paused:
            payload = encode_tier_pause(paused=paused)
            await committed(engine.leading().proposer.propose((payload,)))
            await engine.barrier()

    async def flush(self, engine: GroupEngine) -> int:
        """Upload what waits now, however young it is, and publish what a restore needs.

        Returns:
            The index of the last entry that the newest manifest covers.

        Raises:
            Refused: not the leader; there is no tier, or it is paused; the store failed.
        """
        uploader = (await self._asked(engine))[1].uploader
        if uploader.is_paused:
            raise Refused(pb.OUTCOME_INVALID, "the tier is paused: strata tier resume")
        try:
            await uploader.flush()
            led = self._led.get(engine.raft_group)
            if led is None or led.uploader is not uploader or not uploader.leads:
                raise _not_led(engine)
            return await led.publisher.publish_now()
        except PUBLISH_FAILURES as error:
            raise Refused(pb.OUTCOME_OVERLOADED, str(error)) from error

    async def replace_ranges(self, engine: GroupEngine, change: bytes) -> int:
        """Commit an object that a job outside wrote; see `OutsideWork.replace`.

        Raises:
            Refused: see there; not the leader; there is no tier.
        """
        outside, led = await self._asked(engine)
        return await outside.replace(engine, led.uploader, change)

    async def plan_sweep(self, engine: GroupEngine, old_keys: Sequence[str]) -> SweepPlan:
        """Say what a job outside may delete; see `OutsideWork.plan_sweep`.

        Raises:
            Refused: see there; not the leader; there is no tier.
        """
        outside, led = await self._asked(engine)
        try:
            before_ms = await led.publisher.deletable_before_ms()
        except StoreError as error:
            raise Refused(pb.OUTCOME_OVERLOADED, str(error)) from error
        return await outside.plan_sweep(engine, led.uploader, old_keys, before_ms=before_ms)

    async def forget(self, engine: GroupEngine, object_ids: Sequence[int]) -> int:
        """Forget objects that a job outside deleted; see `OutsideWork.forget`.

        Raises:
            Refused: see there; not the leader; there is no tier.
        """
        outside, led = await self._asked(engine)
        return await outside.forget(engine, led.uploader, object_ids)

    async def _asked(self, engine: GroupEngine) -> tuple[OutsideWork, _Led]:
        """Return who answers a job, everything committed so far applied."""
        if self._outside is None:
            raise _no_tier()
        await engine.barrier()
        led = self._led.get(engine.raft_group)
        if led is None or not led.uploader.leads:
            raise _not_led(engine)
        return self._outside, led

    def status(self, engine: GroupEngine) -> tier_pb2.TierStatus:
        """Return how a raft group that is led here stands; reads its rows."""
        tier = engine.machine.tier
        status = tier_pb2.TierStatus(
            raft_group=engine.raft_group,
            store=self._parts.place.store.name if self._parts is not None else "",
            paused=tier.paused,
            uploading_queues=len(tier.dispatch),
            queues=sum(1 for _ in tier.metadata.queues()),
        )
        for held in tier.metadata.objects():
            if held.live_ranges:
                status.objects += 1
                status.object_bytes += held.ref.length
        led = self._led.get(engine.raft_group)
        if led is not None and led.uploader.leads:
            uploader = led.uploader
            status.backlog_bytes = uploader.backlog.message_bytes
            status.oldest_ms = uploader.backlog.oldest_ms or 0
            status.last_failure = led.last_failure
        if self._parts is not None:
            for topic_id, name, cost in self._parts.topics.costs.of_raft_group(engine.raft_group):
                status.topics.add(
                    topic_id=topic_id,
                    name=name,
                    put_requests=cost.put_requests,
                    get_requests=cost.get_requests,
                    uploaded_bytes=cost.uploaded_bytes,
                    downloaded_bytes=cost.downloaded_bytes,
                )
        return status

    def backlog_bytes(self) -> int:
        """Return the bytes of messages that are known to wait."""
        return sum(led.uploader.backlog.message_bytes for led in self._led.values())

    def messages_behind(self) -> int:
        """Return how many messages wait."""
        return sum(led.uploader.backlog.messages_behind() for led in self._led.values())

    def lag_ms(self) -> int:
        """Return the age of the oldest message that waits; 0: none does."""
        if self._parts is None:
            return 0
        times = [led.uploader.backlog.oldest_ms for led in self._led.values()]
        now_ms = self._parts.work.clock.wall_ms()
        return max((now_ms - oldest for oldest in times if oldest is not None), default=0)

    def failure(self) -> str:
        """Return why uploads fail; empty: they do not."""
        failures = (led.uploader.last_failure for led in self._led.values() if led.uploader.leads)
        return next(filter(None, failures), "")

    def max_lag_ms(self) -> int:
        """Return the age that no message that waits should reach; 0: there is no tier.

        From half of it on uploads take what they need.
        """
        if self._parts is None:
            return 0
        options = self._parts.work.options
        return 2 * (options.pace.patience_ms + options.upload.flush_age_ms)

    def proofs(self) -> int:
        """Return how many objects of jobs are being read back."""
        return self._outside.proofs if self._outside is not None else 0

    def set_aside(self) -> int:
        """Return how many spaces, queues and objects failed and are left alone for a while."""
        return sum(len(led.uploader.failures) + len(led.retention) for led in self._led.values())

    def leased_keys(self) -> int:
        """Return the most names of one raft group that jobs may delete."""
        return max((len(led.uploader.leased) for led in self._led.values()), default=0)

    async def _verify(self, ref: ObjectRef) -> None:
        """Read an object whole; every piece is compared with its checksum.

        Raises:
            StoreError, TierError: it cannot be read, or is not what was committed.
        """
        assert self._parts is not None, "there is no tier"
        opened = await OpenObject.open(self._parts.place.stores.of(ref.space), ref, _TAIL_BYTES)
        run: list[BlockEntry] = []
        size = 0
        for entry in await opened.entries(0, opened.root.block_count):
            if run and size + entry.length > _VERIFY_REQUEST_BYTES:
                await opened.blocks(run)
                await asyncio.sleep(0)
                run, size = [], 0
            run.append(entry)
            size += entry.length
        if run:
            await opened.blocks(run)


def _not_led(engine: GroupEngine) -> Refused:
    reason = f"raft group {engine.raft_group} is led elsewhere, or not yet"
    return Refused(pb.OUTCOME_NOT_LEADER, reason)


def _no_tier() -> Refused:
    return Refused(pb.OUTCOME_INVALID, "this node has no tier: start it with --tier URL")


def tiering_of(
    tier: OpenTier | None, data: NodeData, run_long: RunJob, *, runtime: NodeRuntime
) -> NodeTiering:
    """Return a node's tiering, with its gauges; see `NodeTiering`."""
    tiering, metrics = NodeTiering(tier, data, run_long, runtime=runtime), runtime.metrics
    metrics.gauge("strata_storage_tier_backlog", tiering.backlog_bytes)
    metrics.gauge("strata_storage_tier_lag_ms", tiering.lag_ms)
    metrics.gauge("rocketmq_tiered_store_dispatch_latency", tiering.lag_ms)
    metrics.gauge("rocketmq_tiered_store_dispatch_behind", tiering.messages_behind)
    metrics.gauge("strata_storage_tier_proofs", tiering.proofs)
    metrics.gauge("strata_storage_tier_leased_keys", tiering.leased_keys)
    metrics.gauge("strata_storage_tier_set_aside", tiering.set_aside)
    if tier is not None:
        turns = tier.parts.work.upload_turns
        metrics.gauge("strata_storage_tier_uploads", lambda: turns.taken)
        runtime.tasks.spawn("tier-leftovers", sweep_leftovers(tier.parts))
    return tiering
