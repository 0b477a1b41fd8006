"""Brings one object to the store and proves that it is there. Chooses nothing.

Bodies are read from the log while the store takes them, a block at a time. Repeating an upload of
the same messages writes the same bytes under the same name, whoever does it (rule 28).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from strata_seglog.log import CommitLog
from strata_storage.base.jobs import RunJob
from strata_storage.tiering.options import UploadOptions
from strata_storage.tiering.pace import UploadPace
from strata_storage.tiering.sources import Sources
from strata_tier.base import DamagedObjectError
from strata_tier.objects import (
    Author,
    ObjectKind,
    ObjectPlan,
    ObjectRef,
    ObjectWriter,
    PlanOptions,
    QueueRuns,
    Stores,
    plan_object,
)
from strata_tier.store import Buffer


class ObjectUploads:
    """Uploads of one node.

    Args:
        stores: where objects go; repeats and budgets are in them.
        home: the folder of this cluster.
        log: the node's CommitLog.
        run_read: runs reads of the log in a thread of its own.
        pace: lets uploads rest while messages come in.
        options: sizes.
        on_stored: told of each object and its last bytes, with the index in them.
    """

    def __init__(
        self,
        stores: Stores,
        home: str,
        log: CommitLog,
        *,
        run_read: RunJob,
        pace: UploadPace,
        options: UploadOptions,
        on_stored: Callable[[ObjectRef, bytes], None],
    ) -> None:
        self._stores = stores
        self._on_stored = on_stored
        self._home = home
        self._log = log
        self._run_read = run_read
        self._pace = pace
        self._run_paced = pace.paced(run_read)
        self._options = options

    async def plan(self, raft_group: int, queues: Sequence[QueueRuns], space: str) -> ObjectPlan:
        """Cut messages into blocks and name the object."""
        author = Author(self._home, raft_group, space)
        options = PlanOptions(self._options.block_bytes)
        return await self._run_paced(
            lambda: plan_object(author, queues, options, ObjectKind.STREAM_SET)
        )

    async def upload(self, replica_id: int, plan: ObjectPlan, age_ms: int = 0) -> ObjectRef:
        """Put an object, then compare its length and its index with what was sent.

        Args:
            replica_id: whose log has the messages.
            plan: what the object holds.
            age_ms: of its oldest message.

        Raises:
            StoreError: the store did not take it, or does not show it.
            DamagedObjectError: the store shows something else.
            LogError, TierError: a message cannot be read from the log.
        """
        run = self._run_read if self._pace.is_urgent(age_ms) else self._run_paced
        upload = _Upload(self._log, replica_id, plan, run_read=run, options=self._options)
        store = self._stores.of(plan.author.space)
        await store.put(plan.key, upload.parts)
        ref, tail = upload.written()
        info = await store.head(ref.key)
        if info.size_bytes != ref.length:
            raise DamagedObjectError(
                ref.key, f"{info.size_bytes} bytes are there, {ref.length} were sent"
            )
        if await store.get(ref.key, ref.length - len(tail), len(tail)) != tail:
            raise DamagedObjectError(ref.key, "its index is not what was sent")
        self._on_stored(ref, tail)
        return ref


class _Upload:
    """The body of one object; `parts` may be opened again."""

    def __init__(
        self,
        log: CommitLog,
        replica_id: int,
        plan: ObjectPlan,
        *,
        run_read: RunJob,
        options: UploadOptions,
    ) -> None:
        self._log = log
        self._replica_id = replica_id
        self._plan = plan
        self._run_read = run_read
        self._options = options
        self._written: tuple[ObjectRef, bytes] | None = None

    async def parts(self) -> AsyncIterator[Buffer]:
        """Give the object's bytes from the start."""
        writer = ObjectWriter(self._plan)
        sources = Sources(self._log, self._replica_id, self._options.source_cache_bytes)
        yield writer.begin()
        for block in self._plan.blocks:
            columns, bodies = await self._run_read(
                partial(lambda block: writer.add(sources.read(block)), block)
            )
            yield columns
            yield bodies
        tail = b"".join(await self._run_read(writer.finish))
        self._written = writer.ref, tail
        yield tail

    def written(self) -> tuple[ObjectRef, bytes]:
        """Return the object and its last bytes; the body was given to its end."""
        assert self._written is not None, "the store did not take the body to its end"
        return self._written
