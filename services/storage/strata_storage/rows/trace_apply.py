"""Trace rows of LEASES and CLIENT_NAMES commands: written by apply, and when rows are rebuilt."""

from __future__ import annotations

from collections.abc import Sequence

from strata_mq.commands import (
    CommandKind,
    LeasesSection,
    command_kind,
    decode_dead_letter,
    decode_leases,
)
from strata_mq.layout import day_of
from strata_mq.traces import decode_client_names, trace_values
from strata_state.ports import RowBatch
from strata_state.rows import GroupRows


class TraceApply:
    """Writes the rows of one raft group."""

    __slots__ = ("_names", "_traces")

    def __init__(self, rows: GroupRows) -> None:
        self._traces = rows.traces
        self._names = rows.client_names

    def leases(
        self,
        batch: RowBatch,
        raft_index: int,
        group_time_ms: int,
        sections: Sequence[LeasesSection],
        *,
        dead_letters: bool = False,
    ) -> None:
        """Write what a LEASES command did to messages (the hot path).

        Args:
            batch: where to.
            raft_index: of the entry.
            group_time_ms: of the command.
            sections: its sections.
            dead_letters: what it deletes goes to the dead-letter topic in the same entry.
        """
        day = day_of(group_time_ms)
        for number, section in enumerate(sections):
            if section.puts or section.deletes:
                before = self._traces.prefix(day, section.topic_id, section.queue)
                behind = self._traces.entry_key(raft_index, number)
                values = trace_values(section, group_time_ms, dead_letters=dead_letters)
                for block, value in values:
                    batch.put(before + block + behind, value)

    def client_names(self, batch: RowBatch, payload: bytes) -> None:
        """Write the names of a CLIENT_NAMES command."""
        group_time_ms, names = decode_client_names(payload)
        day = day_of(group_time_ms)
        for holder, client_id in names:
            self._names.put(batch, day, holder, client_id)

    def entry(self, batch: RowBatch, raft_index: int, payload: bytes) -> None:
        """Write what any entry of kind normal tells: rows are rebuilt from the log."""
        kind = command_kind(payload)
        if kind == CommandKind.LEASES:
            self.leases(batch, raft_index, *decode_leases(payload))
        elif kind == CommandKind.DEAD_LETTER:
            leases = decode_leases(payload, decode_dead_letter(payload).leases_at)
            self.leases(batch, raft_index, *leases, dead_letters=True)
        elif kind == CommandKind.CLIENT_NAMES:
            self.client_names(batch, payload)

    def delete_before(self, batch: RowBatch, group_time_ms: int) -> None:
        """Remove what is older than the day of the oldest message that is kept."""
        day = day_of(group_time_ms)
        self._traces.delete_before(batch, day)
        self._names.delete_before(batch, day)
