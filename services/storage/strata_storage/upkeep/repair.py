"""`strata log repair`: makes a storage node's log whole again and names the loss (rule 8).

A raft group without another voter has no copy elsewhere. The damaged part is given up, explicitly:
every damaged entry gets a placeholder with the same index, a LOST command that keeps the messages
whose bytes are right and skips the offsets of the others, so that no offset is used twice. Rows are
rebuilt from the log at the next start.

It runs with the node stopped. It does not know how frames lie on the disk (`strata_seglog.repair`).
The reasons for this way: docs/adr/0011-log-repair.md.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from strata_mq.commands import (
    DELIVER_BYTES_MIN,
    RESOLVE_HEAD_BYTES,
    LostCommand,
    NextOffset,
    encode_lost,
)
from strata_mq.layout import PendingRef, PinState
from strata_raft import EntryKind
from strata_seglog.errors import Corruption
from strata_seglog.frames import FLAG_MOVED, Frame, FrameKind, hard_state_frame
from strata_seglog.index import ReplicaLog
from strata_seglog.log import CommitLog
from strata_seglog.options import LogOptions
from strata_seglog.ports import Disk
from strata_seglog.repair import Damage, DamagedEntry, OfflineLog, RepairError, fill
from strata_seglog.segments import Segment
from strata_state.ports import StateStore
from strata_state.rows import GroupRows
from strata_storage.upkeep.checkpoint import encode_checkpoint
from strata_storage.upkeep.salvage import LostMessages, Neighbours, Saved, save

# Bytes of the shortest APPEND of one message, and what each more message adds at least: how many
# offsets an entry of a known length can have used.
_APPEND_BYTES_MIN = 32 + 16 + 32 + 20
_MESSAGE_BYTES_MIN = 51
_FRAMES_PER_WRITE = 8

METADATA_RAFT_GROUP = 0
"""The nameserver's; its log is repaired too."""


@dataclass(slots=True)
class GivenUp:
    """The part of one entry that a repair gives up.

    Attributes:
        raft_group, replica_id, index: which.
        segment, position: where it stood.
        saved_messages: messages of it that stay.
        lost: offsets that are lost, as far as they are known.
        lost_waiting: messages that are lost and had no offset yet, as far as they are known.
        complete: that is all of it.
    """

    raft_group: int
    replica_id: int
    index: int
    segment: str
    position: int
    saved_messages: int = 0
    lost: list[LostMessages] = field(default_factory=list)
    lost_waiting: int = 0
    complete: bool = False


@dataclass(slots=True)
class RepairPlan:
    """Plan of a repair; empty `damages` and `unsealed`: the log is whole.

    Attributes:
        damages: runs of bytes that become holes.
        unsealed: segments that get a new footer.
        given_up: what is lost by name.
        frames: to be appended first.
        stale_groups: raft groups whose rows must be rebuilt.
        segment_bytes: length of the log's segments.
        open_checkpoints: by base of a segment without a footer, checkpoints begun before it.
    """

    damages: list[Damage]
    unsealed: list[Segment]
    given_up: list[GivenUp] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    stale_groups: set[int] = field(default_factory=set)
    segment_bytes: int = 0
    open_checkpoints: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to repair."""
        return not self.damages and not self.unsealed


def plan_repair(disk: Disk, store: StateStore, raft_group: int | None = None) -> RepairPlan:
    """Find out what is damaged and what can be saved; changes nothing.

    Args:
        disk: the CommitLog's folder.
        store: the rows; an empty one if they are lost.
        raft_group: repair only what is this raft group's alone; None: everything.

    Raises:
        RepairError: a raft group has neither rows nor a readable checkpoint.
        OSError: the disk cannot be read.
    """
    log = OfflineLog(disk)
    try:
        damages, others = log.damages(), set[str]()
        if raft_group is not None:
            others = {each.segment for each in damages if not _is_of(log, each, raft_group)}
            damages = [each for each in damages if _is_of(log, each, raft_group)]
        # A footer is written from all frames of a segment: only where none is damaged any more.
        unsealed = [each for each in log.unsealed() if each.name not in others]
        plan = RepairPlan(
            damages,
            unsealed,
            segment_bytes=log.segment_bytes,
            open_checkpoints=log.open_checkpoints,
        )
        for replica_id, replica in sorted(log.replicas().items()):
            if not replica.removed and raft_group in (None, replica.raft_group):
                _ReplicaRepair(log, store, plan, replica_id=replica_id, replica=replica).plan()
        return plan
    finally:
        log.close()


def carry_out(plan: RepairPlan, disk: Disk, store: StateStore) -> None:
    """Do what was planned. A repair that was cut off is done by planning and calling again.

    Raises:
        LogError, StateError, OSError: the disk refused.
    """
    if plan.is_empty:
        return
    if plan.frames:
        options = LogOptions(segment_bytes=plan.segment_bytes, recent_bytes=0)
        log = CommitLog.open(disk, options, report=_known)
        try:
            for first in range(0, len(plan.frames), _FRAMES_PER_WRITE):
                log.write_and_sync(plan.frames[first : first + _FRAMES_PER_WRITE])
        finally:
            log.close()
    batch = store.new_batch()
    for raft_group in plan.stale_groups:
        GroupRows(store, raft_group).unfinished.set(batch)
    store.write(batch)
    store.flush()
    fill(disk, plan.damages, plan.unsealed, open_checkpoints=plan.open_checkpoints)


class _ReplicaRepair:
    """Plans the repair of one replica."""

    def __init__(
        self,
        log: OfflineLog,
        store: StateStore,
        plan: RepairPlan,
        *,
        replica_id: int,
        replica: ReplicaLog,
    ) -> None:
        self._log = log
        self._plan = plan
        self._replica_id = replica_id
        self._replica = replica
        # None: entries of the metadata raft group hold no messages and have rows elsewhere.
        self._rows: GroupRows | None = None
        if replica.raft_group != METADATA_RAFT_GROUP:
            self._rows = GroupRows(store, replica.raft_group)

    def plan(self) -> None:
        """Add to the plan what this replica needs."""
        damaged = [
            (damage, entry)
            for damage in self._plan.damages
            for entry in damage.entries
            if entry.replica_id == self._replica_id
        ]
        suspected = [each for each in self._plan.damages if self._replica_id in each.suspects]
        damaged += self._lost_end(suspected)
        own = [
            each
            for each in self._plan.damages
            if each.header is not None and each.header.replica_id == self._replica_id
        ]
        checkpoint = self._log.checkpoint_index(self._replica_id)
        if not (damaged or suspected or own or checkpoint is None):
            return
        lost = {entry.index: (damage, entry) for damage, entry in damaged if entry.lost}
        saved = self._saved([entry for _, entry in lost.values()])
        unknown = sorted(lost.keys() - saved) if self._rows is not None else ()
        known = Neighbours(self._log, self._replica_id, unknown, saved=saved).read()
        for index in sorted(lost):
            self._write_placeholder(*lost[index], saved.get(index), known)
        self._checkpoint(checkpoint or 0, lost.keys())
        self._end(suspected)

    def _lost_end(self, suspected: Sequence[Damage]) -> list[tuple[Damage, DamagedEntry]]:
        """Return entries that were applied and that the log does not reach any more."""
        if not suspected or self._rows is None:
            return []
        replica = self._replica
        applied = self._rows.applied.get()
        return [
            (
                suspected[-1],
                DamagedEntry(self._replica_id, replica.raft_group, index, applied.term),
            )
            for index in range(replica.last_index + 1, applied.raft_index + 1)
        ]

    def _saved(self, lost: Sequence[DamagedEntry]) -> dict[int, Saved]:
        """Return by index the entries of which something can be saved."""
        saved: dict[int, Saved] = {}
        if self._rows is None:
            return saved
        around = Neighbours(
            self._log, self._replica_id, sorted(e.index for e in lost), saved={}
        ).read()
        for entry in lost:
            found = save(entry.payload) if entry.entry_kind == EntryKind.NORMAL else None
            if found is not None and around.fits(entry.index, found.taken()):
                saved[entry.index] = found
        return saved

    def _write_placeholder(
        self, damage: Damage, entry: DamagedEntry, saved: Saved | None, known: Neighbours
    ) -> None:
        """Plan the frame that takes a damaged entry's place."""
        given_up = GivenUp(
            entry.raft_group, entry.replica_id, entry.index, damage.segment, damage.position
        )
        self._plan.given_up.append(given_up)
        kind, payload = EntryKind.NO_OP, tuple[bytes, ...]()
        if saved is not None:
            given_up.saved_messages = saved.view.message_count - len(saved.lost)
            given_up.lost, given_up.complete = saved.lost_messages(), True
            self._give_up_waiting(given_up, saved.lost_waiting())
            kind, payload = EntryKind.NORMAL, saved.placeholder()
        elif entry.entry_kind == EntryKind.NORMAL and self._rows is not None:
            kind, payload = EntryKind.NORMAL, self._lost_command(damage, entry, known, given_up)
        flags = FLAG_MOVED if entry.index <= self._replica.last_index else 0
        self._plan.frames.append(
            Frame(
                FrameKind.ENTRY,
                entry.replica_id,
                entry.raft_group,
                entry.term,
                entry.index,
                kind,
                flags,
                payload,
            )
        )

    def _lost_command(
        self, damage: Damage, entry: DamagedEntry, known: Neighbours, given_up: GivenUp
    ) -> tuple[bytes, ...]:
        next_offsets = known.next_offsets(entry.index)
        rows = self._rows
        if rows is not None and self._rows_reach(entry.index):
            # Exact: whoever applies the log from its beginning must come to the same offsets.
            given_up.lost, given_up.complete = _indexed(rows, entry.index), True
            given_up.lost_waiting = sum(
                pin.state is PinState.PENDING
                for _, pin in rows.pins.scan(PendingRef(entry.index, 0), entry.index)
            )
            for topic_id, queue, row in rows.queues.all():
                next_offsets.setdefault((topic_id, queue), row.next_offset)
            advance = 0
        else:
            given_up.lost = known.skipped(entry.index)
            advance = _offsets_max(len(entry.payload) or damage.end - damage.position)
        named = [NextOffset(*key, base) for key, base in sorted(next_offsets.items())]
        return (encode_lost(LostCommand(named, advance, frozenset())),)

    def _give_up_waiting(self, given_up: GivenUp, ordinals: Sequence[int]) -> None:
        """Name what is lost of messages that were stored to wait."""
        pins = None if self._rows is None else self._rows.pins
        for ordinal in ordinals:
            pin = None if pins is None else pins.get(PendingRef(given_up.index, ordinal))
            if pin is None:
                given_up.complete = self._rows_reach(given_up.index)
            elif pin.state is PinState.PENDING:
                given_up.lost_waiting += 1
            else:
                at = pin.offset
                given_up.lost.append(LostMessages(pin.topic_id, pin.queue, at, at))

    def _rows_reach(self, index: int) -> bool:
        """Whether the rows are whole and know what an entry did."""
        rows = self._rows
        return (
            rows is not None
            and rows.applied.get().raft_index >= index
            and not rows.unfinished.is_set()
        )

    def _checkpoint(self, checkpoint: int, lost: Collection[int]) -> None:
        """Plan a checkpoint of the rows as they are, and that they are rebuilt from it.

        Raises:
            RepairError: the rows are gone, and the log does not go back to its newest checkpoint.
        """
        rows, replica = self._rows, self._replica
        if rows is None:
            return
        if self._rows_reach(1):
            self._plan.frames += encode_checkpoint(
                rows.checkpoint(), replica.raft_group, self._replica_id, rows.applied.get()
            )
            self._plan.stale_groups.add(replica.raft_group)
        elif checkpoint + 1 < self._first_index(lost):
            raise RepairError(
                f"raft group {replica.raft_group}: its checkpoint is damaged and its rows are "
                "gone; put the state folder back, or replace the replica"
            )

    def _first_index(self, lost: Collection[int]) -> int:
        """Return from where on the log has every entry, stand-ins included."""
        first = self._replica.last_index + 1
        runs = [*self._log.runs(self._replica_id), *((index, index) for index in lost)]
        for low, high in sorted(runs, key=lambda run: run[1], reverse=True):
            if high >= first - 1:
                first = min(first, low)
        return first

    def _end(self, suspected: Sequence[Damage]) -> None:
        """Plan a new term; and, where newest entries may be lost, offsets that stay unused."""
        replica = self._replica
        term = max(replica.term, replica.last_term, *(f.term for f in self._plan.frames), 0) + 1
        length = sum(each.end - each.position for each in suspected)
        if length and self._rows is not None:
            mine = [each for each in self._plan.frames if each.replica_id == self._replica_id]
            last_index = max([replica.last_index, *(each.index for each in mine)])
            command = LostCommand((), _offsets_max(length), frozenset())
            self._plan.frames.append(
                Frame(
                    FrameKind.ENTRY,
                    self._replica_id,
                    replica.raft_group,
                    term,
                    last_index + 1,
                    EntryKind.NORMAL,
                    payload=(encode_lost(command),),
                )
            )
        self._plan.frames.append(
            hard_state_frame(self._replica_id, replica.raft_group, term, 0, replica.commit)
        )


def _indexed(rows: GroupRows, index: int) -> list[LostMessages]:
    """Return the offsets of messages that an entry stored, or placed."""
    return [
        LostMessages(topic_id, queue, base, base + row.count - 1)
        for topic_id, queue, base, row in rows.cq.all()
        if index in (row.raft_index, row.offset_index)
    ]


def _offsets_max(length: int) -> int:
    """Return how many offsets an entry, or several, of so many bytes can have used."""
    stored = (length - _APPEND_BYTES_MIN) // _MESSAGE_BYTES_MIN
    placed = (length - RESOLVE_HEAD_BYTES) // DELIVER_BYTES_MIN
    return max(0, stored, placed)


def _is_of(log: OfflineLog, damage: Damage, raft_group: int) -> bool:
    replicas = log.replicas()
    owners = {entry.raft_group for entry in damage.entries}
    owners |= {replicas[each].raft_group for each in damage.suspects}
    if damage.header is not None:
        owners.add(damage.header.raft_group)
    return owners == {raft_group}


def _known(_: Corruption) -> None:
    """Damage is reported by the plan."""
