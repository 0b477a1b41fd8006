"""How long a start may wait for the replay of a log: as long as it gets on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from strata_multiraft import Replica
from strata_runtime.logs import get_logger
from strata_runtime.timeouts import Timeout


class Replaying(Protocol):
    """The part of a starting node that is needed."""

    def replicas(self) -> Mapping[int, Replica]:
        """Return the replicas by raft group."""

    async def until_ready(self, raft_group: int) -> None:
        """Wait until a raft group is led here, or is read-only."""


async def until_led(node: Replaying, raft_group: int, limit_s: float) -> None:
    """Wait until a raft group is led here, however long its log is, as long as it gets on.

    Args:
        node: that starts.
        raft_group: which; this node has its only replica.
        limit_s: without a single entry applied, of whichever raft group: they take turns.

    Raises:
        TimeoutError: nothing was applied for so long.
    """
    logger = get_logger("storage")
    applied = -1
    while True:
        before, applied = applied, sum(each.applied_index for each in node.replicas().values())
        if before == applied:
            raise TimeoutError(
                f"raft group {raft_group} has no leader, and nothing was applied for {limit_s:g} s"
            )
        with suppress(TimeoutError):
            async with Timeout(limit_s):
                await node.until_ready(raft_group)
                return
        replica = node.replicas()[raft_group]
        logger.warning(
            "the log is being replayed",
            raft_group=raft_group,
            applied_index=replica.applied_index,
            last_index=replica.last_index,
        )
