"""A migration as a whole: plan, make, copy, set cursors; once, or again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from strata_cli.errors import CliError
from strata_cli.migrate.connections import SourceUnreachableError
from strata_cli.migrate.copier import Copier
from strata_cli.migrate.plan import (
    Choices,
    MigrationPlan,
    PlannedGroup,
    PlannedTopic,
    plan_of,
    retrying,
)
from strata_cli.migrate.positions import SetCursors, set_cursors
from strata_cli.migrate.source import MigrationSource, Retained
from strata_cli.migrate.source_rows import BrokerDescription, SourceQueue
from strata_cli.migrate.state import MigrationState, QueueState
from strata_cli.migrate.target import MigrationTarget, TargetBusyError
from strata_runtime.tasks import first_failure

_WINDOWS_AT_ONCE = 32
_MOST_FAILED_ROUNDS = 60
_LEAST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class MigrationOutlook:
    """The effects of a run, before it is made.

    Attributes:
        plan: what is made.
        windows: what each source queue holds.
        made: names of topics and groups that the target has already.
        problems: why a topic cannot be copied as it is.
        retries: consumer group -> messages in its retry topics that it has not consumed.
    """

    plan: MigrationPlan
    windows: Mapping[SourceQueue, Retained]
    made: frozenset[tuple[str, str]]
    problems: Mapping[str, str]
    retries: Mapping[str, int]


class Migration:
    """See the module docstring.

    Args:
        source: what is copied.
        target: where it goes.
        choices: of a person.
    """

    def __init__(self, source: MigrationSource, target: MigrationTarget, choices: Choices) -> None:
        self._source = source
        self._target = target
        self._choices = choices

    async def look(self, state: MigrationState | None) -> MigrationOutlook:
        """Return what a run would do; changes nothing.

        Raises:
            CliError: the source or the target cannot be asked.
        """
        rows = await self._source.describe()
        plan = await self._plan(rows, state)
        topics = plan.topics.values()
        windows = await self._windows([queue for topic in topics for queue in topic.queues])
        made: set[tuple[str, str]] = set()
        problems: dict[str, str] = {}
        for topic in topics:
            present = await self._target.topic(topic.name)
            if present is not None:
                made.add(("topic", topic.name))
            problem = await self._problem(topic, state)
            if problem:
                problems[topic.name] = problem
        for group in plan.groups:
            if await self._target.cursors(group) is not None:
                made.add(("group", group))
        retries = {}
        for group, queues in retrying(rows).items():
            waiting = await self._windows([queue for queue, _ in queues])
            left = sum(max(0, waiting[queue].end - offset) for queue, offset in queues)
            if left:
                retries[group] = left
        return MigrationOutlook(plan, windows, frozenset(made), problems, retries)

    async def run(self, state: MigrationState, copier: Copier) -> SetCursors:
        """Make what is missing, copy what the source holds now, set cursors.

        Returns:
            The cursors; none were set if the copier was stopped.

        Raises:
            CliError: the source or the target refused or failed; a repeat goes on from there.
        """
        try:
            return await self._run(state, copier)
        except (SourceUnreachableError, TargetBusyError):
            if not copier.stopping:
                raise
            # All that is noted is at the target; the next run does the rest.
            return SetCursors((), 0, ())

    async def _run(self, state: MigrationState, copier: Copier) -> SetCursors:
        repeat = copier.repeat
        plan = await repeat(partial(self._whole_plan, state))
        for topic in plan.topics.values():
            await repeat(partial(self._prepare, topic, state))
        for group in plan.groups.values():
            await repeat(partial(self._make_group, group))
        await copier.copy(plan)
        if copier.stopping:
            return SetCursors((), 0, ())
        # Positions may have moved while messages were copied; all of those messages are there.
        latest = await repeat(partial(self._whole_plan, state))
        copied = {group for group, _ in plan.positions} | set(plan.groups)
        positions = {key: offsets for key, offsets in latest.positions.items() if key[0] in copied}
        copied_plan = MigrationPlan(plan.topics, plan.groups, plan.skipped, positions)
        return await set_cursors(copied_plan, state, self._target, repeat)

    async def follow(self, state: MigrationState, copier: Copier, pause_s: float) -> SetCursors:
        """Run again and again until the copier is stopped.

        Args:
            state: of the migration.
            copier: copies.
            pause_s: between two rounds.

        Returns:
            The cursors of the last whole round.

        Raises:
            CliError: see `run`; or one side could not be reached in too many rounds.
        """
        last, failures = SetCursors((), 0, ()), 0
        while True:
            try:
                this = await self.run(state, copier)
            except (SourceUnreachableError, TargetBusyError):
                # A server that restarts is no reason to stop following.
                failures += 1
                if failures == _MOST_FAILED_ROUNDS:
                    raise
                await copier.pause(max(pause_s, _LEAST_PAUSE_S))
                continue
            if copier.stopping:
                return last
            last, failures = this, 0
            await copier.pause(pause_s)

    async def _plan(
        self, rows: Sequence[BrokerDescription], state: MigrationState | None
    ) -> MigrationPlan:
        if state is None:
            return plan_of(rows, self._choices, {}, {})
        known = {each.queue: each.number for each in await asyncio.to_thread(state.queues)}
        return plan_of(rows, self._choices, known, await asyncio.to_thread(state.types))

    async def _whole_plan(self, state: MigrationState) -> MigrationPlan:
        """Return the plan of all that the source holds.

        Raises:
            SourceUnreachableError: a broker is missing; without it consumer groups have no position
                in its queues, and would begin anew there.
        """
        rows = await self._source.describe()
        plan = await self._plan(rows, state)
        queues = [queue for topic in plan.topics.values() for queue in topic.queues]
        gone = {queue.broker for queue in queues} - {row.broker.name for row in rows}
        if gone:
            raise SourceUnreachableError(
                f"the nameserver knows no master of broker {min(gone)}, whose queues are copied"
            )
        return plan

    async def _problem(self, topic: PlannedTopic, state: MigrationState | None) -> str:
        """Return why a topic of the target cannot take the copy; "": it can."""
        if state is not None and topic.name in await asyncio.to_thread(state.types):
            return ""
        present = await self._target.topic(topic.name)
        if present is None:
            return ""
        if any(end for _, end in present.ends.values()):
            return "the topic has messages at the target, and this migration did not copy them"
        if present.topic_type not in (topic.topic_type, "MIXED"):
            return f"the topic is {present.topic_type} at the target, and needs {topic.topic_type}"
        if topic.has_message_groups and present.queue_count > topic.queue_count:
            return (
                f"the topic has {present.queue_count} queues at the target, and needs "
                f"{topic.queue_count}: message groups would be elsewhere"
            )
        return ""

    async def _prepare(self, topic: PlannedTopic, state: MigrationState) -> None:
        """Make a topic at the target, or give it more queues, and note where its queues begin.

        Raises:
            CliError: it cannot take the copy.
        """
        problem = await self._problem(topic, state)
        if problem:
            raise CliError(f"topic {topic.name}: {problem}", "refused")
        present = await self._target.topic(topic.name)
        if present is None:
            await self._target.make_topic(topic.name, topic.topic_type, topic.queue_count)
        elif present.queue_count < topic.queue_count:
            await self._target.grow_topic(topic.name, topic.queue_count)
        await asyncio.to_thread(state.add_topic, topic.name, topic.topic_type, topic.queues)
        known = await asyncio.to_thread(state.targets, topic.name)
        count = max(topic.queue_count, present.queue_count if present else 0)
        for number in range(count):
            if number not in known:
                await asyncio.to_thread(state.begin_target, topic.name, number, 0)

    async def _make_group(self, group: PlannedGroup) -> None:
        """Make a consumer group, unless it exists.

        Raises:
            CliError: the target refuses.
        """
        if await self._target.cursors(group.name) is not None:
            return
        try:
            await self._target.make_group(group)
        except CliError:
            # Another run, of other topics, may have made it in between.
            if await self._target.cursors(group.name) is None:
                raise

    async def _windows(self, queues: Sequence[SourceQueue]) -> dict[SourceQueue, Retained]:
        """Return what queues hold; so many are asked at once."""
        windows: dict[SourceQueue, Retained] = {}
        for first in range(0, len(queues), _WINDOWS_AT_ONCE):
            some = queues[first : first + _WINDOWS_AT_ONCE]
            try:
                async with asyncio.TaskGroup() as asked:
                    tasks = [asked.create_task(self._source.window(queue)) for queue in some]
            except BaseExceptionGroup as failures:
                raise first_failure(failures) from None
            windows |= {queue: task.result() for queue, task in zip(some, tasks, strict=True)}
        return windows


def totals(queues: Sequence[QueueState]) -> dict[str, Any]:
    """Return the sums over all source queues."""
    return {
        "messages": sum(each.copied for each in queues),
        "bytes": sum(each.bytes for each in queues),
        "repeated": sum(each.repeated for each in queues),
        "refused": sum(each.refused for each in queues),
        "expired": sum(each.expired for each in queues),
    }
