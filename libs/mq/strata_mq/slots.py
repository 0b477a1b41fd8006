"""Placement of queues and messages: slots, the queue of a message group, rendezvous hashing.

Pure arithmetic (rules 19 and 23); the results are part of the stored layout and never change.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from zlib import crc32

from strata_mq.layout.hashing import text_hash
from strata_mq.layout.id_times import block_of

SLOT_COUNT = 4096

FIRST_LITE_QUEUE = 1 << 20
"""Queues of a topic of type LITE that have this number or a higher one are its lite topics."""

MAX_QUEUE = (1 << 31) - 1
"""Highest number of a queue: clients get it as a signed number of 32 bits."""

_LENGTH = struct.Struct(">I")
_WORD_MASK = (1 << 64) - 1
# Odd constants with well spread bits: the finisher of a 64-bit multiply-and-shift mixer.
_SPREAD = 0x9E3779B97F4A7C15
_MIX_FIRST = 0xBF58476D1CE4E5B9
_MIX_SECOND = 0x94D049BB133111EB


def slot_base(namespace: str, topic: str, checksum: Callable[[bytes], int]) -> int:
    """Return `checksum(namespace, topic) mod 4096`.

    Args:
        namespace: "" is the default one.
        topic: Name without namespace.
        checksum: CRC32C; injected because this package uses only the standard library. Each
            field goes in as u32 length and UTF-8, so that ("a", "bc") and ("ab", "c") differ.
    """
    fields = (namespace.encode(), topic.encode())
    return checksum(b"".join(_LENGTH.pack(len(field)) + field for field in fields)) % SLOT_COUNT


def slot_of(base: int, queue: int) -> int:
    """Return the slot of a queue: neighbouring queues have neighbouring slots."""
    return (base + queue) % SLOT_COUNT


def fifo_queue(message_group: str, queue_count: int) -> int:
    """Return the one queue of a message group, whatever raft group holds it (rule 23)."""
    return queue_of_hash(text_hash(message_group), queue_count)


def queue_of_hash(group_hash: int, queue_count: int) -> int:
    """Return the same for the hash of a message group."""
    return group_hash % queue_count


def priority_queue(priority: int, queue_count: int) -> int:
    """Return the one queue of a priority, 0 or more: the last one takes all that are higher.

    RocketMQ's rule (`SendMessageProcessor` of 5.4 and later).
    """
    return min(priority, queue_count - 1)


def lite_queue(turn: int, home: int, queue_count: int) -> int:
    """Return the number of the lite topic that is the `turn`-th of its parent's queue.

    Args:
        turn: counts the lite topics whose names choose the same queue, from 0 on.
        home: that queue.
        queue_count: of the parent topic, which never changes.
    """
    return FIRST_LITE_QUEUE + turn * queue_count + home


def lite_home(queue: int, queue_count: int) -> int:
    """Return the queue of a parent topic that a lite topic's name chose, by its number."""
    return (queue - FIRST_LITE_QUEUE) % queue_count


def preferred_group(message_id: bytes, raft_groups: tuple[int, ...]) -> int:
    """Return the raft group of a message that may go to any queue (docs/adr/0073).

    Successive messages of one client prefer the same one, so that messages which arrive together
    are one raft entry, not one for each raft group. A repeat has its id, so it prefers the same.

    Args:
        message_id: 17 bytes.
        raft_groups: at least one, by number.

    Raises:
        ValueError: there is no raft group.
    """
    block = block_of(message_id)
    if block is None:
        return rendezvous(message_id, raft_groups)
    return _preferred_by_block(block, raft_groups)


def rendezvous(key: bytes, candidates: Sequence[int]) -> int:
    """Return the candidate that `key` prefers; the order of the candidates does not matter.

    Taking a candidate away moves only the keys that preferred it.

    Raises:
        ValueError: there is no candidate.
    """
    if not candidates:
        raise ValueError("rendezvous needs at least one candidate")
    if len(candidates) == 1:
        return candidates[0]
    seed = crc32(key)
    best, best_score = candidates[0], -1
    for candidate in candidates:
        score = (seed ^ (candidate * _SPREAD)) & _WORD_MASK
        score = ((score ^ (score >> 30)) * _MIX_FIRST) & _WORD_MASK
        score = ((score ^ (score >> 27)) * _MIX_SECOND) & _WORD_MASK
        score ^= score >> 31
        if score > best_score or (score == best_score and candidate > best):
            best, best_score = candidate, score
    return best


# Clients that send at once have a block each; one entry takes about 200 bytes.
_preferred_by_block = lru_cache(maxsize=4096)(rendezvous)


def striped_slots(raft_groups: Sequence[int]) -> list[int]:
    """Return the raft group of each of the 4,096 slots: slot i -> raft_groups[i mod n].

    Stripes of one slot spread the queues of a topic evenly, because those have neighbouring slots.

    Raises:
        ValueError: there is no raft group.
    """
    if not raft_groups:
        raise ValueError("slots need at least one raft group")
    return [raft_groups[slot % len(raft_groups)] for slot in range(SLOT_COUNT)]


def slot_runs(slots: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the runs of equal raft groups in a slot map: (first slot, slot count, raft group)."""
    runs = []
    first = 0
    for raft_group, run in groupby(slots):
        count = sum(1 for _ in run)
        runs.append((first, count, raft_group))
        first += count
    return runs
