"""Blocks in memory, shared by all consumer groups: a bounded least-recently-used cache.

A block is evicted when it was unused for the time to live, or when its bytes are needed. An evicted
block that was read ahead and never used is reported to `on_wasted`, which makes the reader's window
smaller.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from strata_runtime.clock import Clock
from strata_tier.objects.blocks import Block, BlockColumns
from strata_tier.reads.read_ahead import ReaderKey

_COLUMNS_FACTOR = 3
"""Packed columns, and the same unpacked: arrays and a list of starts."""


class BlockKey(NamedTuple):
    """Names a block."""

    object_id: int
    number: int


class _Held:
    __slots__ = ("ahead_of", "size_bytes", "used_s", "value")

    def __init__(
        self, value: Block | BlockColumns, used_s: float, ahead_of: ReaderKey | None
    ) -> None:
        self.value = value
        self.used_s = used_s
        self.ahead_of = ahead_of
        if isinstance(value, Block):
            self.size_bytes = len(value.bodies) + _COLUMNS_FACTOR * value.columns.size_bytes
        else:
            self.size_bytes = _COLUMNS_FACTOR * value.size_bytes


class BlockCache:
    """Whole blocks, and columns of blocks that are read in pieces.

    Args:
        limit_bytes: most memory.
        ttl_s: time after which an unused block goes.
        clock: for the time to live.
        on_wasted: told for whom a block was read ahead that goes unused.

    Attributes:
        size_bytes: memory in use; at most `limit_bytes`.
    """

    def __init__(
        self,
        limit_bytes: int,
        ttl_s: float,
        clock: Clock,
        *,
        on_wasted: Callable[[ReaderKey], None],
    ) -> None:
        self._limit_bytes = limit_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._on_wasted = on_wasted
        self._held: OrderedDict[BlockKey, _Held] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: BlockKey) -> bool:
        held = self._held.get(key)
        return held is not None and isinstance(held.value, Block)

    def message_count(self) -> int:
        """Return how many messages the whole blocks have; looks at each block."""
        values = [held.value for held in self._held.values()]
        blocks = [value for value in values if isinstance(value, Block)]
        return sum([block.columns.entry.message_count for block in blocks])

    def holds(self, key: BlockKey) -> bool:
        """Whether a whole block is in memory and its time is not over; that does not use it."""
        self._expire()
        return key in self

    def block(self, key: BlockKey) -> Block | None:
        """Return a whole block and note that it was used."""
        value = self._use(key)
        return value if isinstance(value, Block) else None

    def columns(self, key: BlockKey) -> BlockColumns | None:
        """Return a block's columns and note that they were used."""
        value = self._use(key)
        return value.columns if isinstance(value, Block) else value

    def put(
        self, key: BlockKey, value: Block | BlockColumns, ahead_of: ReaderKey | None = None
    ) -> None:
        """Keep a block, or columns, which replaces neither a whole block nor another's memory.

        Args:
            key: which.
            value: what was read.
            ahead_of: for whom it was read ahead; None: somebody waits for it.
        """
        self._expire()
        if isinstance(value, BlockColumns) and key in self:
            return
        held = _Held(value, self._clock.monotonic_s(), ahead_of)
        if held.size_bytes > self._limit_bytes:
            return
        self._remove(key)
        self._held[key] = held
        self.size_bytes += held.size_bytes
        while self.size_bytes > self._limit_bytes:
            self._evict()

    def clear(self) -> None:
        """Let go of everything."""
        self._held.clear()
        self.size_bytes = 0

    def _use(self, key: BlockKey) -> Block | BlockColumns | None:
        self._expire()
        held = self._held.get(key)
        if held is None:
            return None
        held.used_s = self._clock.monotonic_s()
        held.ahead_of = None
        self._held.move_to_end(key)
        return held.value

    def _expire(self) -> None:
        oldest_s = self._clock.monotonic_s() - self._ttl_s
        while self._held and next(iter(self._held.values())).used_s < oldest_s:
            self._evict()

    def _evict(self) -> None:
        held = self._remove(next(iter(self._held)))
        if held is not None and held.ahead_of is not None:
            self._on_wasted(held.ahead_of)

    def _remove(self, key: BlockKey) -> _Held | None:
        held = self._held.pop(key, None)
        if held is not None:
            self.size_bytes -= held.size_bytes
        return held
