"""Fills the dedupe window of a new leader from the newest entries of its log (rule 23).

Blocks; runs in a reading thread. Bounded by bytes read, by age and by the size of the window.
"""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout import BatchView
from strata_raft import EntryKind
from strata_seglog.errors import MissingEntry
from strata_seglog.frames import StoredFrame
from strata_seglog.log import CommitLog
from strata_storage.base.dedupe import DedupeOptions, DedupeWindow
from strata_storage.rows.append_rows import find_append, kept_part_runs

_ENTRIES_PER_STEP = 64
_READ_BYTES = 4 * 1024 * 1024


class _Ids(NamedTuple):
    topic_id: int
    ids: list[bytes]
    store_time_ms: int


def load_window(
    log: CommitLog, replica_id: int, last_index: int, now_ms: int, options: DedupeOptions
) -> DedupeWindow:
    """Read entries from `last_index` back and return a window that knows their ids.

    It begins with the oldest append that was read; what is older is looked up in rows.

    Raises:
        CorruptFrame, ReadFailed, MissingEntry: an entry cannot be read.
    """
    found = log.replica(replica_id)
    first_index = (found.first_index or 1) if found is not None else 1
    steps: list[list[_Ids]] = []
    read_bytes = known = 0
    since_ms = now_ms
    while last_index >= first_index and read_bytes < options.rebuild_max_bytes:
        step, size, oldest_ms = _read_step(
            log, replica_id, max(first_index, last_index - _ENTRIES_PER_STEP + 1), last_index
        )
        steps.append(step)
        read_bytes += size
        known += sum(len(run.ids) for run in step)
        last_index -= _ENTRIES_PER_STEP
        since_ms = min(since_ms, oldest_ms + 1 if oldest_ms else since_ms)
        if known >= options.max_ids or (oldest_ms and oldest_ms < now_ms - options.window_ms):
            break
    if last_index < first_index == 1:
        # There never was another entry.
        since_ms = 0
    window = DedupeWindow(options, since_ms=since_ms)
    for step in reversed(steps):
        for run in step:
            window.add(run.topic_id, run.ids, run.store_time_ms)
    return window


def _read_step(
    log: CommitLog, replica_id: int, first: int, last: int
) -> tuple[list[_Ids], int, int]:
    """Return (ids, bytes read, oldest store time; 0: none) of entries first .. last."""
    runs: list[_Ids] = []
    size = 0
    while first <= last:
        index = first
        for frame in log.entries(replica_id, first, last, _READ_BYTES):
            runs += _ids_of(frame)
            size += len(frame.payload)
            first = frame.index + 1
        if first == index:
            raise MissingEntry(f"replica {replica_id} has no entry {index}")
    return runs, size, runs[0].store_time_ms if runs else 0


def _ids_of(frame: StoredFrame) -> list[_Ids]:
    found = find_append(frame.payload) if frame.entry_kind == EntryKind.NORMAL else None
    if found is None:
        return []
    command, lost = found
    view = BatchView(frame.payload[command.batch_at :], google_crc32c.value, verify=False)
    return [
        _Ids(part.key.topic_id, view.message_ids(first, count), command.store_time_ms)
        for part, resolution in zip(view.parts, command.parts, strict=True)
        if resolution.outcome == pb.OUTCOME_OK
        for first, count in kept_part_runs(part, resolution, lost)
    ]
