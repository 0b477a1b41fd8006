"""Reads a damaged log's readable parts: which messages can be saved, where queues continue.

An entry in which only messages are damaged is saved: header and columns of its batch and every
message have checksums of their own. For any other damaged entry, the readable entries around it
bound the offsets it can have used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import (
    AppendCommand,
    CommandError,
    CommandKind,
    LostCommand,
    PartResolution,
    ResolveAction,
    ResolveCommand,
    command_kind,
    decode_resolve,
    encode_lost,
)
from strata_mq.layout import BatchError, BatchView
from strata_raft import EntryKind
from strata_seglog.errors import LogError
from strata_seglog.reader import CommitLogReader
from strata_storage.rows.append_rows import find_append, stored_runs

QueueKey = tuple[int, int]
"""(topic id, queue)."""

Taken = tuple[int, PartResolution, int]
"""(topic id, what was decided, how many offsets were taken) of one part."""


class LostMessages(NamedTuple):
    """Offsets of one queue that hold nothing any more."""

    topic_id: int
    queue: int
    first_offset: int
    last_offset: int


class Neighbours:
    """Bounds of lost offsets, from the readable entries around them.

    Args:
        log: the log.
        replica_id: whose entries.
        lost: indexes of lost ones, rising.
        saved: by index, damaged entries that count as readable.
    """

    def __init__(
        self,
        log: CommitLogReader,
        replica_id: int,
        lost: Sequence[int],
        *,
        saved: Mapping[int, Saved],
    ) -> None:
        self._saved = saved
        self._log = log
        self._replica_id = replica_id
        self._lost = lost
        # Per lost index: where each queue goes on after it, and where it stood before.
        self._after: dict[int, dict[QueueKey, int]] = {index: {} for index in lost}
        self._before: dict[int, dict[QueueKey, int]] = {index: {} for index in lost}

    def read(self) -> Neighbours:
        """Read all readable entries; return this object."""
        if not self._lost:
            return self
        ends: dict[QueueKey, int] = {}
        waiting = list(self._lost)
        passed: list[int] = []
        told: dict[QueueKey, int] = {}
        for index, command in self._commands():
            while waiting and waiting[0] < index:
                self._before[waiting[0]] = dict(ends)
                passed.append(waiting.pop(0))
            for topic_id, part, count in command:
                key = (topic_id, part.queue)
                for lost in passed[told.get(key, 0) :]:
                    self._after[lost][key] = part.base_offset
                told[key] = len(passed)
                ends[key] = part.base_offset + count
        for lost in waiting:
            self._before[lost] = dict(ends)
        return self

    def next_offsets(self, index: int) -> dict[QueueKey, int]:
        """Return where queues go on after a lost entry, as readable entries behind it say."""
        return dict(self._after[index])

    def skipped(self, index: int) -> list[LostMessages]:
        """Return offsets between the readable entries before and after a lost one."""
        before = self._before[index]
        # Nothing was ever freed: queues begin at 0.
        from_start = self._log.first_position == 0
        return [
            LostMessages(*key, before.get(key, 0), base - 1)
            for key, base in sorted(self._after[index].items())
            if (key in before or from_start) and before.get(key, 0) < base
        ]

    def fits(self, index: int, parts: Sequence[Taken]) -> bool:
        """Whether offsets that a damaged entry names lie between those of its neighbours."""
        before, after = self._before[index], self._after[index]
        for topic_id, part, count in parts:
            key = (topic_id, part.queue)
            if part.base_offset < before.get(key, 0):
                return False
            if part.base_offset + count > after.get(key, part.base_offset + count):
                return False
        return True

    def _commands(self) -> Iterator[tuple[int, list[Taken]]]:
        """Yield (index, what its parts took) of readable entries, rising."""
        for first, last in self._log.runs(self._replica_id):
            for index in range(first, last + 1):
                if index in self._saved:
                    yield index, self._saved[index].taken()
                    continue
                try:
                    frame = self._log.entry(self._replica_id, index)
                except LogError:
                    continue
                if frame is None or frame.entry_kind != EntryKind.NORMAL:
                    continue
                yield index, _taken_by(frame.payload)


@dataclass(frozen=True, slots=True)
class Saved:
    """An entry of which some messages are damaged and everything else is right."""

    payload: bytes
    command: AppendCommand
    view: BatchView
    lost: frozenset[int]

    def taken(self) -> list[Taken]:
        """Return what the parts took."""
        return _taken(self.view, self.command)

    def placeholder(self) -> tuple[bytes, ...]:
        """Return the payload of a LOST command that keeps the rest."""
        return encode_lost(LostCommand((), 0, self.lost)), self.payload

    def lost_messages(self) -> list[LostMessages]:
        """Return the offsets that the lost messages took when they were stored."""
        found = []
        for part, resolution in zip(self.view.parts, self.command.parts, strict=True):
            if part.key.kind:
                continue
            offset = resolution.base_offset
            for first, count in stored_runs(part.first, part.count, resolution):
                for ordinal in range(first, first + count):
                    if ordinal in self.lost:
                        at = offset + ordinal - first
                        found.append(LostMessages(part.key.topic_id, resolution.queue, at, at))
                offset += count
        return _merged(found)

    def lost_waiting(self) -> list[int]:
        """Return the ordinals of lost messages that were stored to wait."""
        return [
            ordinal
            for part, resolution in zip(self.view.parts, self.command.parts, strict=True)
            if part.key.kind
            for first, count in stored_runs(part.first, part.count, resolution)
            for ordinal in range(first, first + count)
            if ordinal in self.lost
        ]


def save(payload: bytes) -> Saved | None:
    """Return what is right of a damaged payload; None: that cannot be told.

    Header and columns of a batch and every message have checksums of their own. Only if one of
    the messages is the damaged part, what has none (the command before the batch) is believed.
    """
    try:
        found = find_append(payload) if payload else None
        if found is None:
            return None
        command = found.command
        view = BatchView(payload[command.batch_at :], google_crc32c.value)
    except (CommandError, BatchError, ValueError, IndexError):
        return None
    kinds = [part.key.kind for part in view.parts]
    if kinds != [part.kind for part in command.parts] or found.lost:
        return None
    lost = set()
    kept = bytearray(payload)
    for ordinal, checksum in enumerate(view.checksums(0, view.message_count)):
        start = command.batch_at + view.message_at(ordinal)
        end = start + view.lengths(ordinal, 1)[0]
        if google_crc32c.value(payload[start:end]) != checksum:
            lost.add(ordinal)
            kept[start:end] = bytes(end - start)
    return Saved(bytes(kept), command, view, frozenset(lost)) if lost else None


def _taken_by(payload: bytes) -> list[Taken]:
    """Return the offsets that an entry gave away."""
    if command_kind(payload) == CommandKind.RESOLVE:
        return _placed(decode_resolve(payload))
    found = find_append(payload)
    if found is None:
        return []
    view = BatchView(payload[found.command.batch_at :], google_crc32c.value, verify=False)
    return _taken(view, found.command)


def _taken(view: BatchView, command: AppendCommand) -> list[Taken]:
    return [
        (part.key.topic_id, resolution, part.count - len(resolution.duplicates))
        for part, resolution in zip(view.parts, command.parts, strict=True)
        if resolution.outcome == pb.OUTCOME_OK and not part.key.kind
    ]


def _placed(command: ResolveCommand) -> list[Taken]:
    offsets: dict[QueueKey, list[int]] = {}
    for item in command.items:
        if item.action is ResolveAction.DELIVER:
            offsets.setdefault((item.topic_id, item.queue), []).append(item.offset_or_due)
    return [
        (topic_id, PartResolution(queue, taken[0]), len(taken))
        for (topic_id, queue), taken in offsets.items()
    ]


def _merged(found: Sequence[LostMessages]) -> list[LostMessages]:
    merged: list[LostMessages] = []
    for each in found:
        last = merged[-1] if merged else None
        if last and last[:2] == each[:2] and last.last_offset + 1 == each.first_offset:
            merged[-1] = last._replace(last_offset=each.last_offset)
        else:
            merged.append(each)
    return merged
