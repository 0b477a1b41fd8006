"""Damaged frames, found by the scrub and by reads, and their effect on a replica (rule 8).

A replica that lost a live frame takes no part any more: it gives up the leadership, neither votes
nor acks, and is reported in heartbeats, so that the nameserver has another replica made from the
healthy ones. Its intact messages stay readable. The only voter of a raft group goes on: nobody
could replace it; the damaged messages are refused one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata_multiraft import Replica
from strata_multiraft.base import damage_reason
from strata_runtime.logs import get_logger
from strata_seglog.errors import CorruptFrame, LogError
from strata_seglog.log import CommitLog
from strata_storage.base.jobs import RunJob

_SUSPECTS_MAX = 1_000


class DamageWatch:
    """Watches over the frames of the hosted replicas.

    Args:
        log: the node's.
        replicas: hosted replicas by raft group.
        run_long: runs the scrub in a thread.
    """

    def __init__(self, log: CommitLog, replicas: Mapping[int, Replica], run_long: RunJob) -> None:
        self._log = log
        self._replicas = replicas
        self._run_long = run_long
        # (raft group, index) of entries that a read could not use.
        self._suspects: set[tuple[int, int]] = set()
        self._logger = get_logger("damage")

    def suspect(self, raft_group: int, raft_index: int) -> None:
        """Take in that bytes of an entry were damaged, or its segment was freed meanwhile."""
        if len(self._suspects) < _SUSPECTS_MAX:
            self._suspects.add((raft_group, raft_index))

    async def scan(self, max_bytes: int) -> None:
        """Check the next part of the log and what reads complained about.

        Args:
            max_bytes: of the log; 0: none.
        """
        suspects, self._suspects = self._suspects, set()
        for raft_group, raft_index in suspects:
            await self._check(raft_group, raft_index)
        if max_bytes:
            try:
                await self._run_long(lambda: self._log.scrub_step(max_bytes))
            except LogError as error:
                # The disk did not read; that is not damage yet.
                self._logger.warning("scrub waits", reason=str(error))
        if self._log.is_damaged:
            # Found by the scrub, or by any read since the last time.
            found = self._log.replicas()
            for replica in list(self._replicas.values()):
                known = found.get(replica.replica_id)
                if known is not None and known.damaged and not replica.installing:
                    self._fail(replica, known.damaged)

    async def _check(self, raft_group: int, raft_index: int) -> None:
        replica = self._replicas.get(raft_group)
        if replica is None:
            return
        replica_id = replica.replica_id
        try:
            await self._run_long(
                lambda: list(self._log.entries(replica_id, raft_index, raft_index, 1))
            )
        except CorruptFrame as error:
            # A snapshot may have put another entry there, or be about to.
            if self._replicas.get(raft_group) is replica and not replica.installing:
                self._fail(replica, str(error))
        except LogError as error:
            self._logger.warning("not read", raft_group=raft_group, reason=str(error))

    def _fail(self, replica: Replica, reason: str) -> None:
        if replica.read_only or replica.is_sole():
            return
        self._logger.error("replica is damaged", raft_group=replica.raft_group, reason=reason)
        replica.fail(damage_reason(replica.replica_id, reason))


def damaged_replicas(replicas: Mapping[int, Replica]) -> Sequence[int]:
    """Return ids of replicas that take no part any more and can be replaced."""
    return [
        replica.replica_id
        for replica in replicas.values()
        if replica.read_only and not replica.is_sole()
    ]
