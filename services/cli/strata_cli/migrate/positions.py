"""Where consumer groups go on at the target: their positions at the source, mapped by message.

In a queue of the target a group begins at the first message that it has not consumed: a copied one
behind its position at the source, or one that a producer sent to the target. Where message groups
of several source queues share a queue of the target, copied messages after that place may have been
consumed already: they are delivered again, and none is lost.

A cursor is set as long as nobody else moves it: a group that has consumed at the target is left
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from strata_cli.migrate.plan import MigrationPlan
from strata_cli.migrate.source_rows import SourceQueue
from strata_cli.migrate.state import MigrationState
from strata_cli.migrate.target import MigrationTarget

Result = TypeVar("Result")


class Repeat(Protocol):
    """Makes calls that can be repeated."""

    async def __call__(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Make a call until it is answered; see `Copier.repeat`."""


@dataclass(frozen=True, slots=True)
class WantedCursor:
    """Where a consumer group should go on in a queue of the target.

    Attributes:
        group: its name.
        topic: of the queue.
        number: of the queue at the target.
        offset: of the first message that it gets.
    """

    group: str
    topic: str
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class SetCursors:
    """The cursors after they were set.

    Attributes:
        moved: set now.
        kept: they were right already.
        left_alone: the consumer group has moved on at the target.
    """

    moved: Sequence[WantedCursor]
    kept: int
    left_alone: Sequence[WantedCursor]


def wanted_cursors(plan: MigrationPlan, state: MigrationState) -> list[WantedCursor]:
    """Return the cursors of all consumer groups that have a position at the source."""
    begins = {
        each.queue: each.first_offset for each in state.queues() if each.first_offset is not None
    }
    groups: dict[str, dict[str, Mapping[SourceQueue, int]]] = {}
    for (group, topic), offsets in sorted(plan.positions.items()):
        # A group has no offset in a queue from which it never got a message.
        groups.setdefault(topic, {})[group] = begins | dict(offsets)
    return [
        WantedCursor(group, topic, number, offset)
        for topic, positions in groups.items()
        for number, (first, _) in sorted(state.targets(topic).items())
        for group, offset in _cursors_in(state, topic, number, first, positions).items()
    ]


def _cursors_in(
    state: MigrationState,
    topic: str,
    number: int,
    first: int,
    positions: Mapping[str, Mapping[SourceQueue, int]],
) -> dict[str, int]:
    """Return the cursor of each group in one queue of the target."""
    cursors: dict[str, int] = {}
    following = first
    for target, queue, source, count in state.runs(topic, number):
        # Between two runs are messages that nobody copied, and so nobody consumed.
        if target > following:
            break
        for group, offsets in positions.items():
            consumed = offsets.get(queue, 0) - source
            if group not in cursors and consumed < count:
                cursors[group] = target + max(0, consumed)
        following = target + count
        if len(cursors) == len(positions):
            break
    return {group: cursors.get(group, following) for group in positions}


async def set_cursors(
    plan: MigrationPlan, state: MigrationState, target: MigrationTarget, repeat: Repeat
) -> SetCursors:
    """Set the cursors of consumer groups at the target.

    Args:
        plan: says which.
        state: what is copied, and which cursors were set.
        target: has the consumer groups.
        repeat: makes a call again whose answer was lost.

    Raises:
        CliError: the target refuses, or does not answer.
    """
    wanted = await asyncio.to_thread(wanted_cursors, plan, state)
    last = await asyncio.to_thread(state.positions)
    intended = await asyncio.to_thread(state.intentions)
    moved, left_alone, kept = [], [], 0
    present: dict[str, Mapping[tuple[str, int], int]] = {}
    for one in wanted:
        if one.group not in present:
            found = await repeat(partial(target.cursors, one.group))
            present[one.group] = found or {}
        key = one.group, one.topic, one.number
        before = last.get(key)
        now = present[one.group].get((one.topic, one.number))
        if before is not None and now not in (None, before, intended.get(key)):
            left_alone.append(one)
        elif before == one.offset and now == one.offset:
            kept += 1
        else:
            await asyncio.to_thread(state.intend, *key, one.offset)
            cursor = await repeat(partial(target.set_cursor, *key, one.offset))
            await asyncio.to_thread(state.set_position, *key, cursor)
            moved.append(one)
    return SetCursors(moved, kept, left_alone)
