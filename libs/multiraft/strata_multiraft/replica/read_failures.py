"""Failed reads of the log: reported, and retried after a pause (rule 40).

A system error (a single EIO, no descriptors or memory left) says nothing about the bytes on the
disk: only a wrong checksum makes a replica damaged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strata_multiraft.base.options import MultiRaftOptions
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_seglog.errors import ReadFailed


class ReadFailures:
    """Counts failed reads of one node and gives them their pause.

    Args:
        options: `read_retry_ms`.
        metrics: where they show.
    """

    def __init__(self, options: MultiRaftOptions, metrics: Metrics) -> None:
        self._pause_s = options.read_retry_ms / 1000
        self._total = metrics.counter("strata_raft_reads_failed_total")
        self._logger = get_logger("multiraft")

    def retry(
        self, purpose: str, raft_group: int, error: ReadFailed, again: Callable[[], None]
    ) -> None:
        """Report a read that failed and call `again` after a pause.

        Args:
            purpose: what was read for: "apply" or "catch-up".
            raft_group: whose entries.
            error: what the disk said.
            again: tries again, on the event loop.
        """
        self._total.add(1, {"purpose": purpose})
        self._logger.warning(
            "entries were not read, they are tried again",
            purpose=purpose,
            raft_group=raft_group,
            reason=str(error),
        )
        asyncio.get_running_loop().call_later(self._pause_s, again)
