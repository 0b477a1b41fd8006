"""Merges small objects of one raft group, and deletes objects that nobody will ever commit.

`strata_tier.ranges.compaction` decides which objects are merged; here the new object is written,
read back whole, and proposed. The replaced objects are deleted like any other object without a live
range.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from strata_runtime.logs import get_logger
from strata_storage.group.engine import GroupEngine
from strata_storage.tiering.parts import TieringParts
from strata_storage.tiering.uploader import Uploader
from strata_tier.objects import DEFAULT_SPACE, ObjectRef
from strata_tier.ranges import CompactionOutput, CompactionPlan, plan_compaction
from strata_tier.upkeep import CompactOptions, delete_orphans, write_output

Verify = Callable[[ObjectRef], Awaitable[None]]
"""Reads an object whole and compares all its checksums; raises StoreError or TierError."""


class Compactor:
    """Compacts for one leader in one term.

    Args:
        engine: of the raft group.
        uploader: decides on the tier's rows in turn with this.
        parts: of the node.
        verify: reads objects back.
    """

    def __init__(
        self, engine: GroupEngine, uploader: Uploader, parts: TieringParts, *, verify: Verify
    ) -> None:
        self._metadata = engine.machine.tier.metadata
        self._raft_group = engine.raft_group
        self._uploader = uploader
        self._place = parts.place
        self._topics = parts.topics
        self._work = parts.work
        self._verify = verify
        self._looked_for_orphans_s: float | None = None
        self._logger = get_logger("tier")

    async def turn(self) -> None:
        """Do one compaction, if that is for nodes to do, and look for orphans now and then.

        Raises:
            Refused: the raft group does not take the entry.
            StoreError, TierError: a store failed, or an input is damaged.
        """
        if self._uploader.is_paused:
            return
        if self._work.options.compacts:
            # Reads the whole tier state, which may be large.
            plan = await self._work.run_read(
                partial(plan_compaction, self._metadata, self._work.options.compaction)
            )
            if plan is not None:
                await self._compact(plan)
        await self._delete_orphans()

    async def _compact(self, plan: CompactionPlan) -> None:
        async with self._work.upload_turns:
            for output in plan.outputs:
                await self._write(output)
        self._work.instruments.objects.add(len(plan.inputs), {"result": "compacted"})

    async def _write(self, output: CompactionOutput) -> None:
        options = CompactOptions(self._work.options.upload.block_bytes)
        change = await write_output(
            self._place.stores,
            self._metadata,
            self._place.home,
            self._raft_group,
            output,
            options,
            self._uploader.now_ms(),
        )
        # The objects that it replaces are deleted soon.
        await self._verify(change.ref)
        await self._uploader.replace(change.ref, change.ranges)

    def _spaces(self) -> set[str]:
        """Return the spaces that this raft group may have written to. Reads all objects."""
        held = {each.ref.space for each in self._metadata.objects()}
        return {DEFAULT_SPACE, *self._topics.spaces.named, *held}

    async def _delete_orphans(self) -> None:
        now_s = self._work.clock.monotonic_s()
        looked_s, interval_s = self._looked_for_orphans_s, self._work.options.orphans_interval_s
        if looked_s is not None and now_s - looked_s < interval_s:
            return
        self._looked_for_orphans_s = now_s
        keys: list[str] = []
        for space in await self._work.run_read(self._spaces):
            keys += await delete_orphans(
                self._place.stores.of(space),
                self._metadata,
                self._place.home,
                self._raft_group,
                self._work.clock.wall_ms(),
                self._work.options.retention,
            )
        if keys:
            self._logger.info("orphans were deleted", raft_group=self._raft_group, count=len(keys))
            self._work.instruments.objects.add(len(keys), {"result": "orphaned"})
