"""How a replica leaves a storage node: it falls silent, is put aside, and its id ends (rule 32).

The order matters: what is put aside must be all that was ever acknowledged, so the replica writes
nothing any more; and the end of its id, after which the log gives its segments up, is written once
the files stand aside durably. A crash in between leaves a replica that nobody hosts; it is removed
again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from strata_multiraft import LogFull, MultiRaft
from strata_multiraft.replica import removed_frame
from strata_runtime.logs import get_logger
from strata_seglog.errors import DiskFull, WriteFailed
from strata_seglog.put_aside import segments_of
from strata_state.ports import StateError
from strata_storage.base.errors import ReplicaEnded
from strata_storage.base.jobs import NodeThreads
from strata_storage.base.node_data import NodeData
from strata_storage.base.node_runtime import NodeRuntime
from strata_storage.base.removed_replicas import RemovedReplica
from strata_storage.upkeep.group_snapshots import drop_rows


class Removals:
    """See the module docstring.

    Args:
        data: of the node; without a place to put replicas aside they are deleted at once.
        raft: drives the replicas.
        threads: of the node.
        runtime: of the node.
        cluster_id: tells the cluster that the node belongs to; empty: none.
    """

    def __init__(
        self,
        data: NodeData,
        raft: MultiRaft,
        threads: NodeThreads,
        *,
        runtime: NodeRuntime,
        cluster_id: Callable[[], str],
    ) -> None:
        self._log = data.log
        self._store = data.store
        self._aside = data.aside
        self._raft = raft
        self._threads = threads
        self._clock = runtime.clock
        self._cluster_id = cluster_id
        # (raft group, replica id) of replicas that ended and whose rows could not be dropped yet.
        self._undropped: set[tuple[int, int]] = set()
        metrics = runtime.metrics
        self._removed_total = metrics.counter("strata_storage_removed_replicas_total")
        self._logger = get_logger("storage")
        metrics.gauge("strata_storage_removed_replicas", self._count)
        metrics.gauge("strata_storage_removed_bytes", self._held_bytes)

    def taken_back(self) -> dict[int, int]:
        """Return replicas that an operator took back, with the revision that let them go."""
        return {} if self._aside is None else self._aside.taken_back()

    def check(self, raft_group: int, replica_id: int) -> None:
        """See that a replica may be hosted; it is about to be.

        Raises:
            ReplicaEnded: it was removed from this node.
        """
        found = self._log.replicas().get(replica_id)
        if found is None or not found.removed:
            # `claim_rows` drops rows of others, in a thread; nobody else may do so from now on.
            self._undropped = {each for each in self._undropped if each[0] != raft_group}
            return
        way_back = ""
        if self._aside is not None and self._aside.path(replica_id).is_dir():
            way_back = f"; strata storage restore-replica {replica_id} takes it back"
        raise ReplicaEnded(f"replica {replica_id} was removed from this node{way_back}")

    async def remove(self, raft_group: int, replica_id: int, revision: int) -> None:
        """End a replica that is hosted; its rows are the caller's to drop.

        Args:
            raft_group: whose replica.
            replica_id: which one.
            revision: of the metadata row that wants it no more.

        Raises:
            LogFull: it could not be written down; to be called again.
        """
        put_aside = partial(self._put_aside, raft_group, replica_id, revision)
        await self._raft.remove_replica(raft_group, put_aside)

    async def forget(self, raft_group: int, replica_id: int, revision: int) -> None:
        """End what is left of a replica that is not hosted: its frames pin segments (rule 10).

        Raises:
            LogFull: it could not be written down; to be called again.
        """
        await self._put_aside(raft_group, replica_id, revision)
        await self._raft.write_control([removed_frame(replica_id, raft_group)])
        self.drop_rows(raft_group, replica_id)

    def drop_rows(self, raft_group: int, replica_id: int) -> None:
        """Drop the rows of a replica that ended; where the store fails, `clean` tries it again.

        Until then they are nobody's: whoever is hosted next takes none of them (`claim_rows`).
        """
        try:
            drop_rows(self._store, raft_group, replica_id)
        except StateError as error:
            self._logger.warning("rows stay", raft_group=raft_group, reason=str(error))
            self._undropped.add((raft_group, replica_id))
        else:
            self._undropped.discard((raft_group, replica_id))

    async def clean(self, *, disk_is_low: bool) -> None:
        """Delete what was put aside long ago, or stands in the way, and rows that stayed."""
        for raft_group, replica_id in list(self._undropped):
            self.drop_rows(raft_group, replica_id)
        aside = self._aside
        if aside is None:
            return
        try:
            now_ms = self._clock.wall_ms()
            gone = await self._threads.disk(
                lambda: aside.clean(now_ms, disk_is_low=disk_is_low, is_in_log=self._has)
            )
        except OSError as error:
            self._logger.warning("removed replicas stay", reason=str(error))
            return
        for each in gone:
            if not each.is_back:
                self._removed_total.add(1, {"result": "deleted"})
                self._logger.warning(
                    "a removed replica was deleted",
                    raft_group=each.raft_group,
                    replica_id=each.replica_id,
                    disk_is_low=disk_is_low,
                )

    def _has(self, replica_id: int) -> bool:
        """Whether the log has a replica whose id has not ended. Any thread may ask."""
        found = self._log.replica(replica_id)
        return found is not None and not found.removed

    async def _put_aside(self, raft_group: int, replica_id: int, revision: int) -> None:
        aside = self._aside
        if aside is None:
            return

        def put() -> bool:
            # In the writer's thread: no segment is freed meanwhile.
            names = segments_of(self._log, replica_id)
            if names:
                aside.put(self._note(raft_group, replica_id, revision), names)
            return bool(names)

        try:
            is_kept = await self._threads.write(put)
        except (DiskFull, WriteFailed, OSError) as error:
            raise LogFull(f"replica {replica_id} cannot be put aside: {error}") from error
        self._removed_total.add(1, {"result": "put_aside" if is_kept else "empty"})
        self._logger.warning(
            "replica removed",
            raft_group=raft_group,
            replica_id=replica_id,
            revision=revision,
            put_aside=is_kept,
        )

    def _note(self, raft_group: int, replica_id: int, revision: int) -> RemovedReplica:
        held = self._log.replicas()[replica_id]
        return RemovedReplica(
            replica_id,
            raft_group,
            self._cluster_id(),
            revision,
            self._clock.wall_ms(),
            held.first_index,
            held.last_index,
            held.term,
            held.vote,
            held.commit,
        )

    def _count(self) -> int:
        return 0 if self._aside is None else self._aside.count

    def _held_bytes(self) -> int:
        return 0 if self._aside is None else self._aside.held_bytes
