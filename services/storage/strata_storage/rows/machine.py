"""The state machine of one replica: committed entries become rows, evaluating nothing (rule 1).

Every replica runs it, leader or not. It asserts what the leader promised
(`base_offset == next_offset`); a mismatch raises and the driver stops this replica. All rows of
one `apply` call and the applied row are one batch of the store, so they are durable together.

It does not know what a leader has in flight; a leader follows it through `AppliedListener`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from strata_mq.commands import (
    CommandKind,
    DropCommand,
    DropKind,
    EpochCommand,
    LeasesSection,
    LostCommand,
    RehashCommand,
    command_kind,
    decode_append,
    decode_dead_letter,
    decode_drop,
    decode_leases,
    decode_lost,
    decode_open,
    decode_own,
    decode_rehash,
    decode_resolve,
    decode_retract,
    decode_seal,
    decode_trim,
)
from strata_mq.layout import (
    AppliedRow,
    ConfigurationRow,
    HeadRow,
    MoveRow,
    PendingKey,
    QueueRow,
)
from strata_raft.membership import decode_configuration
from strata_raft.types import Configuration, Entry, EntryKind
from strata_state.flush import Flusher
from strata_state.ports import RowBatch, StateStore
from strata_state.rows import GroupRows
from strata_storage.base.applied_listener import AppliedListener
from strata_storage.base.config import EngineOptions
from strata_storage.rows.append_apply import AppendApply
from strata_storage.rows.consume_queues import ConsumeQueues
from strata_storage.rows.dropped_ids import DroppedIds
from strata_storage.rows.machine_plugins import PLUGIN_KINDS, MachinePlugins
from strata_storage.rows.moves import Moves
from strata_storage.rows.ownership import Ownership, Topic
from strata_storage.rows.pending_apply import PendingApply
from strata_storage.rows.queue_states import QueueStates
from strata_storage.rows.tier_state import TIER_KINDS, TierState
from strata_storage.rows.trace_apply import TraceApply
from strata_storage.rows.traffic import Traffic
from strata_storage.rows.trim_apply import TrimApply
from strata_tier.ranges import RowTierMetadata, TierMetadata

Ordinals = frozenset[int]
_NONE: Ordinals = frozenset()
# Kinds above DEAD_LETTER that look at no rows of the entries before them.
_OFTEN = (CommandKind.RESOLVE, CommandKind.KV_WRITE)

OpenTierMetadata = Callable[[StateStore, int], TierMetadata]
"""Opens what a raft group has in the tier."""


class GroupMachine:
    """`strata_multiraft.base.ports.StateMachine` of one raft group's queues.

    Attributes:
        state: applied index, its term, the group time and the low index.
        ownership: slots and queues that this raft group owns.
        queues: rows of its queues.
        consume_queues: where messages are.
        moves: (topic, queue) -> where a sealed queue went.
        tier: what of its messages is in the tier.
        plugins: parts of it that are not of the core.
        worked_index: newest applied entry that is no trim; at a start, the applied one.
        parsed: batches that this replica proposed as leader, until they are applied.
        generation: raised when a snapshot replaced the rows.
    """

    def __init__(
        self,
        store: StateStore,
        raft_group: int,
        flusher: Flusher,
        *,
        options: EngineOptions,
        on_leader: Callable[[int], None],
        on_follower: Callable[[int, int], None],
        tier_metadata: OpenTierMetadata = RowTierMetadata,
    ) -> None:
        self.raft_group = raft_group
        self.rows = GroupRows(store, raft_group)
        self._traces = TraceApply(self.rows)
        self._store = store
        self._flusher = flusher
        self._on_leader = on_leader
        self._on_follower = on_follower
        self.state = self.rows.applied.get()
        self.ownership = Ownership(self.rows)
        self.queues = QueueStates(self.rows.queues, options.queue_rows_max)
        self.consume_queues = ConsumeQueues(self.rows.cq, options.cq_cache_bytes)
        self.dropped = DroppedIds(self.rows.tombstones)
        self.tier = TierState(
            tier_metadata(store, raft_group),
            self.rows.tier,
            self.state.raft_index,
            dropped=self.dropped,
        )
        self.plugins = MachinePlugins()
        self.generation = 0
        self.moves = self._read_moves()
        self._low_index = self.state.low_index
        self._configuration = self._read_configuration()
        self.listener: AppliedListener | None = None
        self._pending = PendingApply(
            self.rows, self.queues, self.consume_queues, dropped=self.dropped
        )
        self.traffic = Traffic()
        self._appends = AppendApply(
            self.rows,
            self.queues,
            self.consume_queues,
            pending=self._pending,
            dropped=self.dropped,
            traffic=self.traffic,
            parsed_max_bytes=options.parsed_max_bytes,
        )
        self.parsed = self._appends.parsed
        self._trims = TrimApply(
            self.rows,
            self.queues,
            self.consume_queues,
            pending=self._pending,
            traces=self._traces,
            plugins=self.plugins,
            dropped=self.dropped,
            broker_row_age_ms=options.broker_row_age_ms,
        )
        self.worked_index = self.state.raft_index
        # News for the listener once the rows are in the store.
        self._sealed: list[tuple[int, int]] = []
        self._dropped: list[DropCommand] = []
        flusher.opened(raft_group, self.state.raft_index)

    def applied_index(self) -> int:
        """Return the index of the last entry whose rows are in the store."""
        return self.state.raft_index

    def applied_term(self) -> int:
        """Return the term of that entry."""
        return self.state.term

    @property
    def pending_bound(self) -> PendingKey:
        """Key below which no message waits."""
        return self._pending.bound.key

    @property
    def low_index(self) -> int:
        """Smallest raft index that is still needed, as the last trim said; 0: unknown."""
        return self.state.low_index

    @property
    def trimmed_day(self) -> int:
        """Day before which rows that expire by day are gone; 0: unknown."""
        return self._trims.day

    def persisted_index(self) -> int:
        """Return the applied index that survives a crash (rule 6)."""
        return self._flusher.persisted_index(self.raft_group)

    def settle(self) -> None:
        """Bring into the store what only memory has; not while a snapshot is being installed.

        Raises:
            StateError: the store failed.
        """
        self.plugins.settle(self.state.raft_index)

    def configuration(self) -> tuple[int, Configuration] | None:
        """Return (index of the entry, who belongs to the raft group) as applied; None: no change.

        See `strata_multiraft.base.ports.StateMachine`.
        """
        return self._configuration

    def _read_configuration(self) -> tuple[int, Configuration] | None:
        row = self.rows.configuration.get()
        return None if row is None else (row.raft_index, decode_configuration((row.payload,)))

    def reload(self) -> None:
        """Take in rows that a snapshot put in the place of the old ones."""
        self.generation += 1
        self.state = self.rows.applied.get()
        self._forget()
        self.plugins.reload()
        self._flusher.opened(self.raft_group, self.state.raft_index)

    def on_leader(self, term: int) -> None:
        """Tell the engine that this replica leads."""
        self._on_leader(term)

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        """Tell the engine that this replica follows."""
        self.parsed.clear()
        self._on_follower(term, leader_replica_id)

    def owns_queue(self, topic: Topic, queue: int) -> bool:
        """Whether a queue of a topic with slots is this raft group's (rule 17).

        By its slot, unless it is told otherwise; or it was opened here as an epoch of a moved one.
        """
        return self.ownership.owns(topic, queue, self.queues.get(topic.topic_id, queue))

    def serves_queue(self, topic: Topic, queue: int) -> bool:
        """Whether pops and offset calls for a queue are answered here.

        More than appends: a sealed epoch is read until it is drained (rule 18).
        """
        if topic.is_dead_letter:
            return queue == self.raft_group
        row = self.queues.get(topic.topic_id, queue)
        return row is not None or self.ownership.owns(topic, queue, row)

    def sealed_of(self, topic_id: int, queues: Iterable[int]) -> list[tuple[int, MoveRow]]:
        """Return which of a topic's queues are sealed here, and where they went."""
        moves = self.moves
        return [(queue, moves[topic_id, queue]) for queue in queues if (topic_id, queue) in moves]

    def sealed_of_topic(self, topic_id: int) -> list[tuple[int, MoveRow]]:
        """Return all of a topic's queues that are sealed here, and where they went."""
        return [(queue, move) for (topic, queue), move in self.moves.items() if topic == topic_id]

    def queues_here(self, topic: Topic) -> Sequence[int]:
        """Return the queues of a topic that "any queue" means here, in order.

        Those of the slots, and those that stayed when their slots left; one that was moved here
        is asked for by its number. In a dead-letter topic it is the queue with this raft group's
        number (rule 26).
        """
        if topic.is_dead_letter:
            return (self.raft_group,)
        by_slots = self.ownership.slots.queues(topic.slot_base, topic.queue_count)
        if self.ownership.is_plain(topic.topic_id):
            return by_slots
        places = self.ownership.places_of(topic.topic_id)
        follow = [queue for queue in by_slots if queue not in places]
        own = [queue for queue in follow if self.owns_queue(topic, queue)]
        return sorted((*own, *(queue for queue, is_here in places.items() if is_here)))

    def apply(self, entries: Sequence[Entry]) -> None:
        """Write the rows of committed entries, in order.

        Raises:
            ApplyError: an entry contradicts the rows.
            StateError: the store failed.
            CommandError, BatchError: an entry's payload is no command.
            In every case `applied_index` says what is in the store, and nothing above it is.
        """
        first = 0
        for at, entry in enumerate(entries):
            if _is_rare(entry):
                # It looks at rows: those of the entries before it must be in the store.
                self._apply_run(entries[first:at])
                self._apply_run(entries[at : at + 1])
                first = at + 1
        self._apply_run(entries[first:])

    def _apply_run(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        batch = self._store.new_batch()
        group_time_ms = self.state.group_time_ms
        done = False
        try:
            for entry in entries:
                if entry.kind == EntryKind.NORMAL:
                    group_time_ms = max(group_time_ms, self._apply(batch, entry))
                elif entry.kind == EntryKind.CONFIGURATION:
                    row = ConfigurationRow(entry.index, b"".join(entry.payload))
                    self.rows.configuration.put(batch, row)
                    self._configuration = (entry.index, decode_configuration(entry.payload))
            last = entries[-1]
            state = AppliedRow(last.index, last.term, group_time_ms, self._low_index)
            self.rows.applied.put(batch, state)
            self._store.write(batch)
            self.plugins.written()
            done = True
        finally:
            if not done:
                self._forget()
        self.state = state
        if not _is_trim(last):
            self.worked_index = last.index
        self._tell(last.index)

    def _forget(self) -> None:
        """Memory ran ahead of the store: rows are read again."""
        self._appends.forget()
        self._pending.forget()
        self.plugins.forget()
        self.queues.forget()
        self.consume_queues.forget()
        self.tier.forget(self.state.raft_index)
        self.ownership = Ownership(self.rows)
        # The same object: others look at it.
        self.dropped.reload()
        self.moves = self._read_moves()
        self._low_index = self.state.low_index
        self._configuration = self._read_configuration()
        self._trims.forget()
        self.worked_index = self.state.raft_index
        self._sealed, self._dropped = [], []

    def _read_moves(self) -> Moves:
        return Moves({(topic_id, queue): row for topic_id, queue, row in self.rows.moves.all()})

    def _tell(self, index: int) -> None:
        appended, self._appends.appended = self._appends.appended, {}
        pending = self._pending.written()
        trimmed, self._trims.trimmed = self._trims.trimmed, []
        sealed, self._sealed = self._sealed, []
        dropped, self._dropped = self._dropped, []
        self.moves.trimmed(trimmed)
        listener = self.listener
        if listener is None:
            return
        listener.on_applied(index)
        if pending:
            listener.on_pending(pending)
        for topic_id, queue in appended:
            listener.on_appended(topic_id, queue)
        for row in trimmed:
            listener.on_trimmed(*row)
        for topic_id, queue in sealed:
            listener.on_sealed(topic_id, queue)
        for command in dropped:
            listener.on_dropped(command.what, command.dropped_id)

    def _apply(self, batch: RowBatch, entry: Entry) -> int:
        """Write one command's rows; return its group time, 0 if it has none."""
        head = entry.payload[0]
        kind = command_kind(head)
        if kind == CommandKind.APPEND:
            return self._appends.append(batch, entry, decode_append(head))
        if kind == CommandKind.LEASES:
            group_time_ms, sections = decode_leases(head)
            self._leases(batch, sections)
            self._traces.leases(batch, entry.index, group_time_ms, sections)
            return group_time_ms
        if kind == CommandKind.DEAD_LETTER:
            return self._dead_letter(batch, entry, 0)
        if kind == CommandKind.RESOLVE:
            resolve = decode_resolve(head)
            self._appends.appended.update(
                dict.fromkeys(self._pending.resolve(batch, entry.index, resolve))
            )
            return resolve.group_time_ms
        if kind == CommandKind.RETRACT:
            retract = decode_retract(head)
            self._pending.retract(batch, entry.index, retract)
            return retract.group_time_ms
        if kind in PLUGIN_KINDS:
            return self.plugins.apply(batch, kind, entry.index, head)
        if kind == CommandKind.LOST:
            return self._lost(batch, entry, decode_lost(head))
        if kind in TIER_KINDS:
            self.tier.apply(batch, kind, entry.index, head)
        else:
            self._apply_rare(batch, kind, head)
        return 0

    def _apply_rare(self, batch: RowBatch, kind: CommandKind, head: bytes) -> None:
        if kind == CommandKind.OWN:
            self.ownership.change(batch, decode_own(head), self.dropped)
        elif kind == CommandKind.SEAL:
            self._seal(batch, decode_seal(head))
        elif kind == CommandKind.OPEN:
            self._open(batch, decode_open(head))
        elif kind == CommandKind.TRIM:
            trim = decode_trim(head)
            self._trims.apply(batch, trim, self.state.group_time_ms)
            self._low_index = max(self._low_index, trim.low_index)
        elif kind == CommandKind.DROP:
            self._drop(batch, decode_drop(head))
        elif kind == CommandKind.CLIENT_NAMES:
            self._traces.client_names(batch, head)
        elif kind == CommandKind.REHASH:
            self._rehash(batch, decode_rehash(head))

    def _is_dropped(self, topic_id: int, consumer_group_id: int = 0) -> bool:
        """Whether no row may come back: what was decided before a drop comes behind it, too."""
        consumer_group = (DropKind.CONSUMER_GROUP, consumer_group_id)
        return (DropKind.TOPIC, topic_id) in self.dropped or consumer_group in self.dropped

    def _seal(self, batch: RowBatch, command: EpochCommand) -> None:
        topic_id, queue = command.topic_id, command.queue
        if self._is_dropped(topic_id):
            return
        row = self._queue(topic_id, queue)
        self.queues.put(batch, topic_id, queue, row._replace(sealed=True))
        move = MoveRow(command.epoch, command.offset, command.other_raft_group)
        self.rows.moves.put(batch, topic_id, queue, move)
        self.moves.seal((topic_id, queue), move)
        self._sealed.append((topic_id, queue))

    def _open(self, batch: RowBatch, command: EpochCommand) -> None:
        topic_id, queue = command.topic_id, command.queue
        if self._is_dropped(topic_id):
            return
        start = command.offset
        state = QueueRow(start, start, 0, command.epoch, False, command.queue_count)
        self.queues.put(batch, topic_id, queue, state)
        self.ownership.opened(batch, topic_id, queue)
        # The queue came back: it is not elsewhere any more.
        self.rows.moves.delete(batch, topic_id, queue)
        self.moves.forget((topic_id, queue))

    def _rehash(self, batch: RowBatch, command: RehashCommand) -> None:
        topic_id, queue, queue_count = command
        if not self._is_dropped(topic_id):
            row = self._queue(topic_id, queue)
            self.queues.put(batch, topic_id, queue, row._replace(queue_count=queue_count))

    # Appends ------------------------------------------------------------------------------------

    def _dead_letter(self, batch: RowBatch, entry: Entry, at: int, lost: Ordinals = _NONE) -> int:
        head = entry.payload[0]
        dead_letter = decode_dead_letter(head, at)
        group_time_ms, sections = decode_leases(head, dead_letter.leases_at)
        self._leases(batch, sections)
        self._traces.leases(batch, entry.index, group_time_ms, sections, dead_letters=True)
        append = decode_append(head, dead_letter.append_at)
        return max(group_time_ms, self._appends.append(batch, entry, append, lost))

    def _lost(self, batch: RowBatch, entry: Entry, command: LostCommand) -> int:
        """Write what a repair saved of an entry; offsets that it may have used stay unused."""
        head, at, group_time_ms = entry.payload[0], command.saved_at, 0
        if at and head[at] == CommandKind.DEAD_LETTER:
            group_time_ms = self._dead_letter(batch, entry, at, command.ordinals)
        elif at:
            append = decode_append(head, at)
            group_time_ms = self._appends.append(batch, entry, append, command.ordinals)
        else:
            self._pending.lose(batch, entry.index)
        named = {(topic_id, queue) for topic_id, queue, _ in command.next_offsets}
        for topic_id, queue, next_offset in command.next_offsets:
            self._appends.go_on_at(batch, topic_id, queue, next_offset)
        if command.advance:
            for topic_id, queue, row in list(self.rows.queues.all()):
                if (topic_id, queue) not in named:
                    next_offset = row.next_offset + command.advance
                    self._appends.go_on_at(batch, topic_id, queue, next_offset)
        return group_time_ms

    def _queue(self, topic_id: int, queue: int) -> QueueRow:
        return self.queues.get(topic_id, queue) or QueueRow(0, 0, 0, 0, False)

    # Consumers ----------------------------------------------------------------------------------

    def _leases(self, batch: RowBatch, sections: Sequence[LeasesSection]) -> None:
        heads, leases = self.rows.heads, self.rows.leases
        for section in sections:
            if self._is_dropped(section.topic_id, section.consumer_group_id):
                continue
            key = (section.consumer_group_id, section.topic_id, section.queue)
            prefix = leases.prefix(key)
            if section.clear:
                leases.delete_all(batch, key)
            if section.head_changed:
                heads.put(batch, key, HeadRow(section.head, section.generation))
            elif section.forget:
                heads.delete(batch, key)
            for offset, row in section.puts:
                batch.put(prefix + offset, row)
            for offset in section.deletes:
                batch.delete(prefix + offset)

    # Drop -----------------------------------------------------------------------------------------

    def _drop(self, batch: RowBatch, command: DropCommand) -> None:
        rows = self.rows
        if command.what == DropKind.TOPIC:
            self.queues.drop_topic(batch, command.dropped_id)
            self.consume_queues.drop_topic(batch, command.dropped_id)
            self.tier.drop_topic(batch, command.dropped_id)
            self.plugins.drop_topic(batch, command.dropped_id)
            rows.moves.delete_topic(batch, command.dropped_id)
            rows.retracted.delete_topic(batch, command.dropped_id)
            self.ownership.drop_topic(batch, command.dropped_id)
            self.moves.drop_topic(command.dropped_id)
            for key in rows.heads.of_topic(command.dropped_id):
                rows.heads.delete(batch, key)
                rows.leases.delete_stored(batch, key)
        else:
            rows.heads.delete_group(batch, command.dropped_id)
            rows.leases.delete_group(batch, command.dropped_id)
        self.dropped.add(batch, command.what, command.dropped_id, self.state.group_time_ms)
        self._dropped.append(command)


def _is_rare(entry: Entry) -> bool:
    if entry.kind != EntryKind.NORMAL:
        return False
    kind = entry.payload[0][0]
    return kind > CommandKind.DEAD_LETTER and kind not in _OFTEN


def _is_trim(entry: Entry) -> bool:
    return entry.kind == EntryKind.NORMAL and entry.payload[0][0] == CommandKind.TRIM
