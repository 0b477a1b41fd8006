"""Rows of one APPEND entry: cq, id and key rows of the messages that took offsets.

Used by apply and, with the same result, when rows are rebuilt from the log.
"""

from __future__ import annotations

from typing import NamedTuple

from strata_mq.commands import (
    AppendCommand,
    CommandKind,
    PartResolution,
    command_kind,
    decode_append,
    decode_dead_letter,
    decode_lost,
)
from strata_mq.layout import BatchView, PartView, day_of, encode_cq_row
from strata_state.ports import RowBatch
from strata_state.rows import GroupRows


class FoundAppend(NamedTuple):
    """The APPEND command inside an entry, and the ordinals whose messages a repair gave up."""

    command: AppendCommand
    lost: frozenset[int]


def find_append(payload: bytes) -> FoundAppend | None:
    """Return the APPEND in an APPEND, DEAD_LETTER or LOST payload; None: there is none.

    Raises:
        CommandError: the payload is no command.
    """
    at, lost = 0, frozenset[int]()
    kind = command_kind(payload)
    if kind == CommandKind.LOST:
        command = decode_lost(payload)
        if not command.saved_at:
            return None
        at, lost = command.saved_at, command.ordinals
        kind = CommandKind(payload[at])
    if kind == CommandKind.DEAD_LETTER:
        return FoundAppend(decode_append(payload, decode_dead_letter(payload, at).append_at), lost)
    if kind == CommandKind.APPEND:
        return FoundAppend(decode_append(payload, at), lost)
    return None


class AppendRows:
    """Writes the cq, id and key rows of one APPEND; also used when rows are rebuilt.

    Attributes:
        runs: (base offset, CQ row) of the part written last.
    """

    __slots__ = ("_batch", "_command", "_index", "_lost", "_rows", "_view", "runs")

    def __init__(
        self,
        rows: GroupRows,
        batch: RowBatch,
        view: BatchView,
        *,
        command: AppendCommand,
        index: int,
        lost: frozenset[int] = frozenset(),
    ) -> None:
        self._lost = lost
        self._rows = rows
        self._batch = batch
        self._view = view
        self._command = command
        self._index = index
        self.runs: list[tuple[int, bytes]] = []

    def write_part(self, first: int, count: int, topic_id: int, resolution: PartResolution) -> int:
        """Write the rows of the part's stored messages; return how many offsets they took.

        A message that a repair gave up has its offset and no row.
        """
        self.runs = []
        offset = resolution.base_offset
        for run_first, run_count in stored_runs(first, count, resolution):
            for kept_first, kept_count in kept_runs(run_first, run_count, self._lost):
                base = offset + kept_first - run_first
                self._write_run(kept_first, kept_count, topic_id, resolution.queue, base)
            offset += run_count
        return offset - resolution.base_offset

    def _write_run(self, first: int, count: int, topic_id: int, queue: int, base: int) -> None:
        view, command, rows = self._view, self._command, self._rows
        value = encode_cq_row(
            command.batch_at + view.message_at(first),
            self._index,
            command.store_time_ms,
            view.row_columns(first, count),
            count,
        )
        rows.cq.put(self._batch, topic_id, queue, base, value)
        self.runs.append((base, value))
        day = day_of(command.store_time_ms)
        rows.ids.put_run(self._batch, day, topic_id, view.message_ids(first, count), queue, base)
        uses = view.key_uses(first, count, base)
        if uses:
            rows.keys.put_run(self._batch, day, topic_id, queue, uses)


def stored_runs(first: int, count: int, resolution: PartResolution) -> list[tuple[int, int]]:
    """Return (ordinal in the batch, count) of the runs of a part that took offsets."""
    if not resolution.duplicates:
        return [(first, count)]
    runs = []
    start = 0
    for duplicate in resolution.duplicates:
        if duplicate.ordinal > start:
            runs.append((first + start, duplicate.ordinal - start))
        start = duplicate.ordinal + 1
    if start < count:
        runs.append((first + start, count - start))
    return runs


def kept_part_runs(
    part: PartView, resolution: PartResolution, lost: frozenset[int]
) -> list[tuple[int, int]]:
    """Return (ordinal in the batch, count) of what a part stored and no repair gave up."""
    return [
        kept
        for run in stored_runs(part.first, part.count, resolution)
        for kept in kept_runs(*run, lost)
    ]


def kept_runs(first: int, count: int, lost: frozenset[int]) -> list[tuple[int, int]]:
    """Return (ordinal in the batch, count) of what is left of a run without the lost ordinals."""
    if not lost:
        return [(first, count)]
    runs = []
    start, end = first, first + count
    for ordinal in sorted(lost):
        if start <= ordinal < end:
            if ordinal > start:
                runs.append((start, ordinal - start))
            start = ordinal + 1
    if start < end:
        runs.append((start, end - start))
    return runs
