"""Merges small objects of one raft group, and deletes objects that nobody will ever commit.

`strata_tier.ranges.compaction` decides which objects are merged; here the new object is written,
read back whole, and proposed. The replaced objects are deleted like any other object without a live
range.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from strata_runtime.logs import get_logger
from strata_storage.group.engine import GroupEngine
from strata_storage.tiering.parts import TieringParts
from strata_storage.tiering.set_aside import SetAside
from strata_storage.tiering.uploader import Uploader
from strata_tier.base import DamagedObjectError, TierError
from strata_tier.objects import DEFAULT_SPACE, ObjectRef, TieredObject
from strata_tier.ranges import CompactionOutput, CompactionPlan, plan_compaction
from strata_tier.store import StoreError, StoreMissingError
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
        options, clock = parts.work.options.local.set_aside, parts.work.clock
        self._spaces: SetAside[str] = SetAside(options, clock)
        # Spaces whose orphans could not be deleted: only to be seen.
        self._unlisted: SetAside[str] = SetAside(options, clock)
        # Objects that cannot be read, or whose merged object cannot be committed.
        self._inputs: SetAside[int] = SetAside(options, clock)
        self._looked_for_orphans_s: float | None = None
        self._logger = get_logger("tier")

    def __len__(self) -> int:
        """Return how many objects and spaces failed and are left alone for a while."""
        return len(self._inputs) + len(self._spaces) + len(self._unlisted)

    @property
    def last_failure(self) -> str:
        """Why something was not compacted or cleaned up; empty: nothing fails."""
        return self._inputs.reason or self._spaces.reason or self._unlisted.reason

    async def turn(self) -> None:
        """Do one compaction, if that is for nodes to do, and look for orphans now and then.

        A space whose store fails, and an object that cannot be read, are left alone for a while;
        everything else goes on.

        Raises:
            Refused: the raft group does not take the entry.
        """
        if self._uploader.is_paused:
            return
        await self._delete_orphans()
        if self._work.options.compacts:
            # Reads the whole tier state, which may be large.
            options = self._work.options.compaction
            plan = await self._work.run_read(
                partial(plan_compaction, self._metadata, options, self._is_aside)
            )
            if plan is not None:
                await self._compact(plan)

    def _is_aside(self, held: TieredObject) -> bool:
        return self._spaces.holds(held.ref.space) or self._inputs.holds(held.ref.object_id)

    async def _compact(self, plan: CompactionPlan) -> None:
        inputs = {held.ref.object_id: held for held in plan.inputs}
        left: set[int] = set()
        async with self._work.upload_turns:
            for output in plan.outputs:
                read = {each.object_id for queue in output.queues for each in queue.ranges}
                if any(self._is_aside(inputs[each]) for each in read):
                    left |= read
                    continue
                try:
                    await self._write(output)
                except (StoreError, TierError) as error:
                    left |= read
                    self._leave_out(output, [inputs[each].ref for each in read], error)
        self._work.instruments.objects.add(len(inputs.keys() - left), {"result": "compacted"})

    def _leave_out(
        self, output: CompactionOutput, inputs: Sequence[ObjectRef], error: StoreError | TierError
    ) -> None:
        """Leave out of the next plans what failed, or the same one would be made every turn."""
        key = error.key if isinstance(error, StoreError | DamagedObjectError) else ""
        # A store that is a folder of another puts the folder before it.
        named = [ref for ref in inputs if key.endswith(ref.key)]
        is_of_space = isinstance(error, StoreMissingError) or not named
        if isinstance(error, StoreError) and is_of_space:
            is_news = [self._spaces.add(output.space, str(error))]
        else:
            is_news = [self._inputs.add(ref.object_id, str(error)) for ref in named or inputs]
        self._failed("compaction", output.space, error, is_news=any(is_news))

    def _failed(self, work: str, space: str, error: Exception, *, is_news: bool) -> None:
        self._work.instruments.failures.add(1, {"work": work})
        if is_news:
            self._logger.warning(
                f"{work} is repeated later",
                raft_group=self._raft_group,
                space=space,
                reason=str(error),
            )

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
        self._spaces.remove(output.space)

    def _all_spaces(self) -> set[str]:
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
        for space in await self._work.run_read(self._all_spaces):
            try:
                keys += await delete_orphans(
                    self._place.stores.of(space),
                    self._metadata,
                    self._place.home,
                    self._raft_group,
                    self._work.clock.wall_ms(),
                    self._work.options.retention,
                )
            except StoreError as error:
                is_news = self._unlisted.add(space, str(error))
                self._failed("deletion of orphans", space, error, is_news=is_news)
            else:
                self._unlisted.remove(space)
        if keys:
            self._logger.info("orphans were deleted", raft_group=self._raft_group, count=len(keys))
            self._work.instruments.objects.add(len(keys), {"result": "orphaned"})
