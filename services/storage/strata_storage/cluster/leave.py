"""Gives the leaderships of a node away before it stops, so that nobody waits for an election."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from strata_multiraft import LogFull, NotLeader, ReadOnly, Replica
from strata_multiraft.base import TransferFailed
from strata_raft import Role
from strata_runtime.timeouts import Timeout

_AT_ONCE = 32


async def hand_over_all(replicas: Sequence[Replica], timeout_s: float) -> None:
    """Hand over every raft group that has somebody to take it; give up after `timeout_s`."""
    led = [each for each in replicas if each.role is Role.LEADER and not each.is_sole()]
    with suppress(TimeoutError):
        async with Timeout(timeout_s):
            for first in range(0, len(led), _AT_ONCE):
                await asyncio.gather(*map(_hand_over, led[first : first + _AT_ONCE]))


async def _hand_over(replica: Replica) -> None:
    with suppress(NotLeader, TransferFailed, LogFull, ReadOnly):
        await replica.transfer_leadership()
