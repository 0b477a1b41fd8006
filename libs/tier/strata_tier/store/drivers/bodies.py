"""Bodies of uploads as drivers need them: cut or gathered into parts of one length.

Invariant: every part but the last has exactly `part_bytes`; an empty body is one empty part.
Nothing is copied here, on the event loop: a part is a list of buffers, and a driver that needs one
piece joins them in the thread that sends them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

from strata_tier.store.ports import Body, Buffer


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a body.

    Attributes:
        buffers: its bytes, in order.
        size_bytes: how many they are.
    """

    buffers: tuple[Buffer, ...]
    size_bytes: int

    def joined(self) -> bytes:
        """Its bytes in one piece; copies unless they are that already."""
        if len(self.buffers) == 1 and isinstance(self.buffers[0], bytes):
            return self.buffers[0]
        return b"".join(self.buffers)


async def parts_in(body: Body, part_bytes: int, size_bytes: int | None) -> AsyncIterator[Part]:
    """Yield a body in parts.

    Raises:
        ValueError: a source gave another length than `size_bytes`. Raised before the last part is
            given out, so that nothing was completed with it.
    """
    if not callable(body):
        if len(body) <= part_bytes:
            yield Part((body,), len(body))
            return
        view = memoryview(body)
        for position in range(0, len(view), part_bytes):
            taken = view[position : position + part_bytes]
            yield Part((taken,), len(taken))
        return
    held: list[Buffer] = []
    held_bytes = total_bytes = 0
    async for buffer in body():
        view = memoryview(buffer)
        total_bytes += len(view)
        # A full part waits here until something follows: the last one is given out below.
        while view:
            if held_bytes == part_bytes:
                yield Part(tuple(held), held_bytes)
                held, held_bytes = [], 0
            taken = view[: part_bytes - held_bytes]
            held.append(taken)
            held_bytes += len(taken)
            view = view[len(taken) :]
    if size_bytes is not None and size_bytes != total_bytes:
        raise ValueError(f"the body has {total_bytes} bytes, {size_bytes} were promised")
    yield Part(tuple(held), held_bytes)


async def chained(first: Iterable[Part], rest: AsyncIterator[Part]) -> AsyncIterator[Part]:
    """Return parts that are there already, and those to come."""
    for part in first:
        yield part
    async for part in rest:
        yield part
