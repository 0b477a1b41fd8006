"""Compares a copy with what was read at the source: counts and checksums, queue by queue.

The sums of the source were noted when its messages were read, so the source may be gone by now. The
target is read anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from strata_cli.migrate.messages import added, digest_of, origin_of
from strata_cli.migrate.source_rows import SourceQueue
from strata_cli.migrate.state import MigrationState, QueueState
from strata_cli.migrate.target import MigrationTarget


@dataclass(slots=True)
class Sum:
    """Copied messages of one source queue, as the target has them."""

    messages: int = 0
    digest: int = 0


@dataclass(frozen=True, slots=True)
class VerifiedQueue:
    """A source queue and what the target has of it.

    Attributes:
        copied: by the state.
        found: at the target.
        problem: what is wrong; "": counts and checksums match.
    """

    copied: QueueState
    found: int
    problem: str


async def verify(state: MigrationState, target: MigrationTarget) -> list[VerifiedQueue]:
    """Read the target and compare.

    Raises:
        CliError: the target cannot be read.
    """
    queues = await asyncio.to_thread(state.queues)
    verified: list[VerifiedQueue] = []
    for topic in sorted({each.queue.topic for each in queues}):
        sums = await _sums(state, target, topic)
        verified += [
            _compared(each, sums.get(each.queue, Sum()))
            for each in queues
            if each.queue.topic == topic
        ]
    return verified


async def _sums(
    state: MigrationState, target: MigrationTarget, topic: str
) -> Mapping[SourceQueue, Sum]:
    sums: dict[SourceQueue, Sum] = {}
    for number, (first, read_to) in (await asyncio.to_thread(state.targets, topic)).items():
        offset = first
        while offset < read_to:
            scanned = await target.scan(topic, number, offset)
            for at, message in scanned.messages:
                origin = origin_of(message)
                if at < read_to and origin is not None:
                    found = sums.setdefault(SourceQueue(topic, origin.broker, origin.queue), Sum())
                    found.messages += 1
                    found.digest = added(found.digest, digest_of(message))
            if scanned.resume_offset <= offset:
                break
            offset = scanned.resume_offset
    return sums


def _compared(copied: QueueState, found: Sum) -> VerifiedQueue:
    problem = ""
    if found.messages != copied.copied:
        problem = f"{copied.copied} messages were copied, {found.messages} are there"
    elif found.digest != copied.digest:
        problem = "a message differs: the sums of the checksums are not equal"
    return VerifiedQueue(copied, found.messages, problem)
