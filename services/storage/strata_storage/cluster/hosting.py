"""The replicas that this node hosts: always those of the metadata rows, level-triggered.

Nobody sends commands. After every change of the rows the hosted replicas are compared with the
wanted ones; a missing replica is hosted, an unwanted one is put aside and its replica id ends
(rules 8, 32). Removal takes a row of this node's cluster, and one that is newer than the row that
last wanted the replica: nameservers that were restored to an earlier time remove nothing. A raft
group without a known row is left alone. A replica that cannot be hosted for a moment is tried again
(rule 40).

Invariant: the copy of the metadata is durable before a replica is hosted because of it. Else a
power loss could leave the replica and an earlier copy, by which it would be removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from strata.meta.v1 import meta_pb2 as meta
from strata_angelia.cluster_id import ClusterId
from strata_metadata import ClusterView
from strata_multiraft import LogFull, Overloaded
from strata_runtime.errors import StrataError
from strata_runtime.logs import get_logger
from strata_runtime.timeouts import Timeout
from strata_seglog.errors import LogError, ReadFailed
from strata_state.metadata import MetadataStoreError
from strata_state.ports import DamagedRowsError, StateError
from strata_storage.base.errors import Refused
from strata_storage.base.hosted import HostedGroup
from strata_storage.cluster.unhosted import MissingReplica, Unhosted
from strata_storage.upkeep.checkpoint import CheckpointError

_RETRY_S = 1.0
# A ValueError: the replica ended here (`ReplicaEnded`), or cannot be read as what it should be.
_FOR_GOOD = (ValueError, LogError, CheckpointError, DamagedRowsError)
_FOR_NOW = (ReadFailed, StateError, OSError, Overloaded, Refused)


class ReplicaRefused(StrataError):
    """A replica that the metadata wants here cannot be hosted."""


class Host(Protocol):
    """Hosts replicas: the storage node."""

    def hosted(self) -> Mapping[int, HostedGroup]:
        """Return the hosted replicas by raft group."""

    def leftovers(self) -> dict[int, int]:
        """Return raft groups by replica id of what the log has and nobody hosts."""

    async def host_beside(self, group: HostedGroup) -> None:
        """Host a replica; what blocks runs in a thread."""

    def taken_back(self) -> Mapping[int, int]:
        """Return replicas that an operator took back, with the revision that let them go."""

    async def remove(self, raft_group: int, revision: int) -> None:
        """Put a hosted replica aside and end it."""

    async def forget(self, raft_group: int, replica_id: int, revision: int) -> None:
        """Put aside what is left of a replica that is not hosted, and end it."""


def wanted_replicas(rows: Iterable[meta.RaftGroup], node_id: str) -> dict[int, HostedGroup]:
    """Return the replicas that a node should host, by raft group.

    A replica that is wanted no more is among the leaving ones until it is in no configuration for
    good: until then its vote may be needed.
    """
    wanted: dict[int, HostedGroup] = {}
    for row in rows:
        for replica in (*row.leaving, *row.replicas):
            if replica.node_id == node_id:
                wanted[row.raft_group] = hosted_group(row, replica.replica_id)
    return wanted


def hosted_group(row: meta.RaftGroup, replica_id: int) -> HostedGroup:
    """Return what a node must know to host a replica of a row."""
    initial = frozenset(row.initial_replica_ids)
    return HostedGroup(
        row.raft_group,
        replica_id,
        {replica.replica_id: replica.node_id for replica in (*row.leaving, *row.replicas)},
        initial_voters=initial if replica_id in initial else frozenset(),
    )


class Hosting:
    """Keeps the hosted replicas in step with the metadata.

    Args:
        host: who hosts.
        view: of the metadata.
        node_id: of this node.
        keep_rows: makes the rows that `view` shows durable, or raises MetadataStoreError: not yet;
            None: they are kept elsewhere.
        cluster: that the process belongs to; None: the rows are taken for its own.
        ends_the_start: a refused replica ends the start of its process, which tells it.
    """

    def __init__(
        self,
        host: Host,
        view: ClusterView,
        node_id: str,
        *,
        keep_rows: Callable[[], Awaitable[None]] | None = None,
        cluster: ClusterId | None = None,
        ends_the_start: bool = False,
    ) -> None:
        self._host = host
        self._view = view
        self._node_id = node_id
        self._keep_rows = keep_rows
        self._cluster = cluster
        self._ends_the_start = ends_the_start
        # As of the last comparison with the rows.
        self._wanted: Mapping[int, HostedGroup] = {}
        self._unhosted = Unhosted()
        # Replica id -> raft group: of earlier boots, and those that could not be hosted.
        self._leftovers = host.leftovers()
        # Replica id -> revision of the newest row that wanted it here, or was overruled.
        self._wanted_at = dict(host.taken_back())
        # Set, and replaced, whenever the hosted replicas were compared with the rows.
        self._compared = asyncio.Event()
        self._logger = get_logger("hosting")

    def refused(self) -> list[int]:
        """Return replicas that are wanted here and cannot be hosted; not those tried again."""
        return list(self._unhosted.refused())

    def missing(self) -> dict[int, MissingReplica]:
        """Return by raft group the replicas that are wanted here and not hosted."""
        hosted = self._host.hosted()
        return {
            raft_group: self._unhosted.missing(group)
            for raft_group, group in self._wanted.items()
            if raft_group not in hosted or hosted[raft_group].replica_id != group.replica_id
        }

    async def run(self) -> None:
        """Follow the rows until cancelled."""
        while True:
            version = self._view.version
            try:
                await self.settle()
            except LogFull as error:
                self._logger.warning("hosting waits", reason=str(error))
                await asyncio.sleep(_RETRY_S)
            else:
                self._compared.set()
                self._compared = asyncio.Event()
                with suppress(TimeoutError):
                    async with Timeout(self._unhosted.due_in_s(_now_s())):
                        await self._view.changed_since(version)

    async def until_hosted(self, replica_ids: Collection[int]) -> None:
        """Wait until these replicas are hosted; `run` hosts them, as soon as the rows have them.

        It waits on while a replica is tried again; the log says why.

        Raises:
            ReplicaRefused: one cannot be hosted.
        """
        while not {*replica_ids} <= {each.replica_id for each in self._host.hosted().values()}:
            reasons = self._unhosted.refused()
            refused = sorted({*replica_ids} & {*reasons})
            if refused:
                raise ReplicaRefused(
                    f"replica {refused[0]} cannot be hosted: {reasons[refused[0]]}"
                )
            await self._compared.wait()

    async def settle(self) -> None:
        """Remove what is wanted no more, host what is missing.

        Raises:
            LogFull: a removal, or the rows that want a replica, could not be written down; to be
                called again.
        """
        wanted = self._wanted = wanted_replicas(self._view.raft_groups(), self._node_id)
        self._note_wanted(wanted)
        self._unhosted.keep(wanted)
        for raft_group, hosted in list(self._host.hosted().items()):
            revision = self._unwanted_since(wanted, raft_group, hosted.replica_id)
            if revision is not None:
                await self._host.remove(raft_group, revision)
                self._wanted_at.pop(hosted.replica_id, None)
        for replica_id, raft_group in list(self._leftovers.items()):
            revision = self._unwanted_since(wanted, raft_group, replica_id)
            if revision is not None:
                await self._host.forget(raft_group, replica_id, revision)
                del self._leftovers[replica_id]
                self._wanted_at.pop(replica_id, None)
                self._unhosted.drop(raft_group, replica_id)
        here = self._host.hosted()
        lacking = [group for raft_group, group in wanted.items() if raft_group not in here]
        for group in self._unhosted.to_try(lacking, _now_s()):
            await self._try_host(group)

    def _note_wanted(self, wanted: Mapping[int, HostedGroup]) -> None:
        for raft_group, group in wanted.items():
            row = self._view.raft_group(raft_group)
            assert row is not None, "it was wanted by a row"
            before = self._wanted_at.get(group.replica_id, 0)
            self._wanted_at[group.replica_id] = max(before, row.revision)

    def _unwanted_since(
        self, wanted: Mapping[int, HostedGroup], raft_group: int, replica_id: int
    ) -> int | None:
        """Return the revision of the row that wants another replica, or none, here; None: none."""
        row = self._view.raft_group(raft_group)
        if row is None or not row.replicas or not self._are_rows_ours():
            return None
        if raft_group in wanted and wanted[raft_group].replica_id == replica_id:
            return None
        wanted_at = self._wanted_at.get(replica_id)
        if wanted_at is not None and row.revision <= wanted_at:
            self._logger.warning(
                "replica stays: the metadata is older than what wanted it",
                raft_group=raft_group,
                replica_id=replica_id,
                revision=row.revision,
                wanted_at=wanted_at,
            )
            return None
        return row.revision

    def _are_rows_ours(self) -> bool:
        """Whether the rows are of the cluster that this node's replicas belong to (rule 32)."""
        if self._cluster is None:
            return True
        return bool(self._cluster.value) and self._view.cluster_id == self._cluster.value

    async def _keep(self) -> None:
        """Make the rows durable that want a replica.

        Raises:
            LogFull: they are not.
        """
        if self._keep_rows is None:
            return
        try:
            await self._keep_rows()
        except MetadataStoreError as error:
            raise LogFull(str(error)) from error

    async def _try_host(self, group: HostedGroup) -> None:
        raft_group, replica_id = group.raft_group, group.replica_id
        await self._keep()
        try:
            await self._host.host_beside(group)
        except (*_FOR_GOOD, *_FOR_NOW) as error:
            self._failed(group, error)
        else:
            self._unhosted.drop(raft_group)
            self._leftovers.pop(replica_id, None)
            self._logger.info("replica hosted", raft_group=raft_group)

    def _failed(self, group: HostedGroup, error: Exception) -> None:
        raft_group, replica_id, reason = group.raft_group, group.replica_id, str(error)
        # Where it is wanted no more, what there is of it goes.
        self._leftovers[replica_id] = raft_group
        if _is_for_now(error):
            if self._unhosted.put_off(group, reason, _now_s()):
                self._logger.warning(
                    "replica is not hosted, it is tried again",
                    raft_group=raft_group,
                    replica_id=replica_id,
                    reason=reason,
                )
            return
        # Only another replica id helps; the nameserver's repair gives one (rule 8).
        self._unhosted.refuse(group, reason)
        if not self._ends_the_start:
            self._logger.warning("replica cannot be hosted", raft_group=raft_group, reason=reason)


def _is_for_now(error: Exception) -> bool:
    """Whether the next try may succeed: nothing is known to be damaged (rule 40)."""
    return isinstance(error, _FOR_NOW) and not isinstance(error, DamagedRowsError)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
