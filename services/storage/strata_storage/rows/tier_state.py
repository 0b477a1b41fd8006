"""A raft group's tier contents, as applied: the tier's commands become rows (rules 1 and 28).

Every replica has this state; nothing here talks to a store. `TierMetadata` lists the contents of
each object; beside it are kept the uploads under way, and per queue the *local offset*: below it
the log may free messages. Invariant: local offset <= commit offset, so messages that the log may
free are in the tier.

An entry that was decided on other rows than it meets is *stale*: it changes nothing, on every
replica alike, and its proposer learns so from `stale`. No message depends on it, so it is no reason
to stop a replica: messages that were not uploaded wait in the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence
from typing import NamedTuple

from strata_mq.commands import (
    CommandKind,
    DropKind,
    LocalQueue,
    decode_tier_change,
    decode_tier_dispatch,
    decode_tier_local,
    decode_tier_pause,
)
from strata_mq.layout import OffsetRange
from strata_state.ports import RowBatch
from strata_state.tier_rows import TierRows
from strata_storage.base.errors import ApplyError
from strata_storage.base.key_index import KeyIndex
from strata_tier.base import TierError
from strata_tier.objects import decode_change
from strata_tier.ranges import ChangeError, TierMetadata

TIER_KINDS = frozenset(
    (
        CommandKind.TIER_DISPATCH,
        CommandKind.TIER_CHANGE,
        CommandKind.TIER_LOCAL,
        CommandKind.TIER_PAUSE,
    )
)

# Local offsets in memory: as many as queue rows usually are.
_QUEUES_MAX = 100_000


class StaleEntry(NamedTuple):
    """An entry that changed nothing."""

    raft_index: int
    reason: str


class StaleEntryError(TierError):
    """A leader's proposal changed nothing: it was decided on other rows than it met."""

    def __init__(self, stale: StaleEntry) -> None:
        super().__init__(f"entry {stale.raft_index} came too late: {stale.reason}")


class TierState:
    """Applied rows of one raft group that are about the tier.

    Args:
        metadata: what is in which object.
        rows: what else is to be known.
        raft_index: of the last entry that the rows hold.
        dropped: (what, id) of what was dropped.

    Attributes:
        metadata: as given.
        dispatch: what is being uploaded, or is to be: ranges of one object; empty: nothing.
        paused: nothing is uploaded.
        is_used: anything was ever dispatched.
        stale: the last entry that changed nothing since this node started.
    """

    def __init__(
        self,
        metadata: TierMetadata,
        rows: TierRows,
        raft_index: int,
        *,
        dropped: Container[tuple[int, int]] = (),
    ) -> None:
        self.metadata = metadata
        self._rows = rows
        self._dropped = dropped
        self._local: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._local_by_topic: KeyIndex[tuple[int, int]] = KeyIndex()
        self.dispatch: Sequence[OffsetRange] = ()
        self.paused = False
        self.is_used = False
        self.stale: StaleEntry | None = None
        self.forget(raft_index)

    def commit_offset(self, topic_id: int, queue: int) -> int | None:
        """Return the offset up to which a queue is in the tier; None: nothing of it ever was."""
        known = self.metadata.queue(topic_id, queue) if self.is_used else None
        return None if known is None else known.commit_offset

    def local_offset(self, topic_id: int, queue: int) -> int:
        """Return the offset below which the log may lack a queue's messages; 0: nowhere."""
        if not self.is_used:
            return 0
        key = topic_id, queue
        found = self._local.get(key)
        if found is None:
            found = self._rows.local.get(*key)
            self._keep_local(key, found)
        return found

    def _keep_local(self, key: tuple[int, int], offset: int) -> None:
        self._local[key] = offset
        self._local_by_topic.add(key[0], key)
        if len(self._local) > _QUEUES_MAX:
            evicted, _ = self._local.popitem(last=False)
            self._local_by_topic.discard(evicted[0], evicted)

    def forget(self, raft_index: int) -> None:
        """Memory ran ahead of the store, or the store was replaced: rows are read again.

        Args:
            raft_index: of the last entry that the rows hold.
        """
        self.metadata.reload(raft_index)
        self._local.clear()
        self._local_by_topic.clear()
        self.dispatch = self._rows.dispatch.get()
        self.paused = self._rows.paused.is_set()
        self.is_used = bool(self.dispatch) or next(self.metadata.queues(), None) is not None

    # Apply --------------------------------------------------------------------------------------

    def apply(self, batch: RowBatch, kind: CommandKind, raft_index: int, payload: bytes) -> None:
        """Write the rows of a command of one of `TIER_KINDS`, alone in its batch.

        Raises:
            ApplyError: it is no command.
        """
        stale = ""
        if kind == CommandKind.TIER_DISPATCH:
            stale = self._set_dispatch(batch, decode_tier_dispatch(payload))
        elif kind == CommandKind.TIER_CHANGE:
            stale = self._change(batch, raft_index, payload)
        elif kind == CommandKind.TIER_LOCAL:
            stale = self._set_local(batch, decode_tier_local(payload))
        elif kind == CommandKind.TIER_PAUSE:
            self.paused = decode_tier_pause(payload)
            self._rows.paused.put(batch, paused=self.paused)
        if stale:
            self.stale = StaleEntry(raft_index, stale)

    def drop_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Follow a DROP; what the tier has of the topic goes by a change of its own."""
        self._rows.local.delete_topic(batch, topic_id)
        for key in self._local_by_topic.pop(topic_id):
            del self._local[key]

    # Each returns why the command is stale; empty: it is not, and its rows are written.

    def _set_dispatch(self, batch: RowBatch, ranges: Sequence[OffsetRange]) -> str:
        if ranges and self.dispatch:
            return "an object is dispatched while another one is being uploaded"
        self._rows.dispatch.put(batch, ranges)
        self.dispatch = ranges
        self.is_used = True
        return ""

    def _change(self, batch: RowBatch, raft_index: int, payload: bytes) -> str:
        command = decode_tier_change(payload)
        if command.change:
            try:
                change = decode_change(command.change)
            except TierError as error:
                raise ApplyError(str(error)) from error
            try:
                self.metadata.apply(batch, change, raft_index)
            except ChangeError as error:
                return str(error)
            self.is_used = True
        if command.ends_dispatch:
            self._rows.dispatch.put(batch, ())
            self.dispatch = ()
        return ""

    def _set_local(self, batch: RowBatch, queues: Sequence[LocalQueue]) -> str:
        for topic_id, queue, offset in queues:
            known = self.metadata.queue(topic_id, queue)
            if known is None or offset > known.commit_offset:
                return (
                    f"the log may give up topic {topic_id} queue {queue} up to {offset}, the tier "
                    f"has it up to {known.commit_offset if known else 'nowhere'}"
                )
        for topic_id, queue, offset in queues:
            if (DropKind.TOPIC, topic_id) in self._dropped:
                # Decided before the drop was applied: no row may come back.
                continue
            self._rows.local.put(batch, topic_id, queue, offset)
            self._keep_local((topic_id, queue), offset)
        return ""
