"""The object graph of a nameserver: log, rows, raft group, services.

    CommitLog (nameserver/log) --- MultiRaft: one replica of the metadata raft group
                                        |                       |
    metadata store (nameserver/meta) --- MetadataMachine    Quorum: the other nameservers
                                        |         |
                                   Metadata    WatchHub
                                        |
                              Controller, MetaServicer

Tasks: the driver's own; `controller`; `access`, which makes the first admin and the first cluster
key; `disk`, which refuses changes in time; `housekeeping`, which makes the rows durable in a thread
now and then and frees the log before them (the raft log holds what a power failure takes from the
rows); and those of `quorum.Quorum` when there are other nameservers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import Server
from strata_angelia.serving import serve
from strata_metadata.errors import MetaRefused
from strata_metadata.identity import look_up_node
from strata_metadata.rows import ROW_FORMAT
from strata_metadata.servicer import META_SERVICE
from strata_metadata.watch import WatchHub
from strata_multiraft import LogThreads
from strata_multiraft.driver import MultiRaft, MultiRaftOptions, Replica, ReplicaSpec, WriterThread
from strata_nameserver.base.admin_keys import AdminKeyFiles
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.leading.access_keeper import AccessKeeper
from strata_nameserver.leading.metadata import Metadata
from strata_nameserver.membership.cluster import NameserverCluster
from strata_nameserver.membership.identity import NameserverIdentity
from strata_nameserver.process.disk_watch import DiskWatch
from strata_nameserver.process.health import NameserverHealth
from strata_nameserver.process.metrics import METRICS
from strata_nameserver.servicers.meta import Leader, MetaAnswers, MetaServicer
from strata_nameserver.state.draft import applied_state
from strata_nameserver.state.machine import MetadataMachine
from strata_nameserver.state.snapshots import MetadataSnapshots
from strata_runtime.blocking import run_to_end
from strata_runtime.closing import close_all
from strata_runtime.errors import one_line
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.logs import get_logger
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import Tasks
from strata_runtime.timeouts import Timeout
from strata_seglog.errors import WriteFailed
from strata_seglog.log import CommitLog
from strata_seglog.metrics import METRICS as LOG_METRICS
from strata_seglog.options import LogOptions
from strata_seglog.ports import Disk
from strata_seglog.real_disk import RealDisk
from strata_state.metadata import MetadataStore
from strata_state.metadata_rocksdb import MetadataStoreOptions, RocksDbMetadataStore

if TYPE_CHECKING:
    from strata_nameserver.process.quorum import Quorum

__all__ = ["NameserverApp", "NameserverCluster", "NameserverIdentity"]

METADATA_RAFT_GROUP = 0
"""Raft groups of queues are numbered from 1 by the nameserver itself."""

_READY_TIMEOUT_S = 30.0
# Entries are applied as soon as they are durable, so hardly any is read back.
_RECENT_BYTES = 1024 * 1024
# The largest command names the queues that stay when a slot goes: 30 bytes for each.
_MAX_COMMAND_BYTES = 1024 * 1024


@dataclass(slots=True)
class _Running:
    """The parts that exist between start and stop."""

    disk: Disk
    log: CommitLog
    store: MetadataStore
    writer: WriterThread
    reader: WriterThread
    hub: WatchHub
    machine: MetadataMachine
    servicer: MetaServicer
    quorum: Quorum | None
    tasks: Tasks
    raft: MultiRaft | None = None
    replica: Replica | None = None
    disk_watch: DiskWatch | None = None
    health: NameserverHealth | None = None
    access_keeper: AccessKeeper | None = None


@dataclass(frozen=True, slots=True)
class NameserverStores:
    """Where a nameserver keeps what it keeps.

    Attributes:
        disk: in place of the log's folder; None: the real one.
        rows: the metadata; None: RocksDB.
        admin_keys: files with keys of admins; None: no admin is made.
    """

    disk: Disk | None = None
    rows: MetadataStore | None = None
    admin_keys: AdminKeyFiles | None = None


class NameserverApp:
    """One nameserver; a `strata_runtime.lifecycle.Service`.

    Args:
        config: limits.
        identity: who it is.
        folder: `nameserver` of the data folder.
        server: where its service is registered; started and stopped here.
        runtime: what the process gives it; it must end when a log sync fails (rule 7).
        stores: what it keeps elsewhere than under `folder`; None: nothing.
        cluster: the other nameservers; None: this process is the whole cluster.
        cluster_id: what the process knows of its cluster; None: what `identity` says.
    """

    name = "nameserver"

    def __init__(
        self,
        config: NameserverConfig,
        identity: NameserverIdentity,
        folder: Path,
        *,
        server: Server,
        runtime: Runtime,
        stores: NameserverStores | None = None,
        cluster: NameserverCluster | None = None,
        cluster_id: ClusterId | None = None,
    ) -> None:
        stores, metrics = stores or NameserverStores(), runtime.metrics
        metrics.declare((*METRICS, *LOG_METRICS))
        self._config = config
        self._identity = identity
        self._folder = folder
        self._server = server
        self._runtime = runtime
        self._clock = runtime.clock
        self._metrics = metrics
        self._on_fatal = runtime.on_fatal
        self._disk = stores.disk
        self._cluster = cluster
        self._cluster_id = cluster_id or ClusterId(identity.cluster_id)
        self._store = stores.rows
        self._admin_keys = stores.admin_keys
        self._running: _Running | None = None
        self._logger = get_logger("nameserver")

    @property
    def metadata(self) -> Metadata:
        """The service behind the RPCs; only between start and stop."""
        assert self._running is not None, "the nameserver does not run"
        return self._running.servicer.metadata

    @property
    def is_leader(self) -> bool:
        """Whether this nameserver decides now."""
        return self._running is not None and self._running.machine.leading.is_set()

    @property
    def revision(self) -> int:
        """Revision of the rows here; 0 when it does not run."""
        return self._running.machine.revision if self._running is not None else 0

    async def snapshot(self) -> tuple[int, list[meta_pb2.Change]]:
        """Return the revision and all rows as they stand here; revision 0: it does not run.

        Raises:
            MetaRefused: see `WatchHub.snapshot`.
        """
        return (0, []) if self._running is None else await self._running.hub.snapshot()

    @property
    def replica(self) -> Replica | None:
        """The replica of the metadata raft group here; None before it takes part."""
        return self._running.replica if self._running is not None else None

    @property
    def first_log_index(self) -> int:
        """Index of the oldest entry in the log here; 0 when it takes no part."""
        replica = self._running.replica if self._running is not None else None
        return replica.first_index if replica is not None else 0

    @property
    def voters(self) -> frozenset[int]:
        """Replica ids that vote in the metadata raft group, as known here."""
        replica = self.replica
        return replica.configuration.voters if replica is not None else frozenset()

    def health(self) -> Health:
        """Return how the nameserver does."""
        running = self._running
        if running is None or running.health is None:
            problem = Problem(
                "nameservers", "", "FORMING", Severity.DOWN, "they have not found each other yet"
            )
            return Health(serves=False, problems=(problem,))
        return running.health.health()

    async def start(self) -> None:
        """Open the log and the rows, join the others or lead alone, serve.

        Among others it returns when the cluster is formed; there may be no leader yet. A failed
        start leaves nothing.

        Raises:
            TimeoutError: alone, it does not lead within 30 s.
            FormationError: the nameservers do not belong together.
            LogError, MetadataStoreError, OSError: log or rows cannot be opened.
        ConfigError: the given keys of the first admin cannot be read.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop(0)
            raise

    async def stop(self, grace_s: float) -> None:
        """Answer what is under way, close streams, log and rows."""
        running, self._running = self._running, None
        if running is None:
            return
        raft, quorum, writer = running.raft, running.quorum, running.writer
        await close_all(
            "nameserver",
            running.hub.close,
            lambda: self._server.stop(grace_s),
            running.tasks.stop,
            *(() if raft is None else (raft.stop,)),
            *(() if quorum is None else (quorum.stop,)),
            # All reads have ended before log and rows are closed.
            lambda: asyncio.to_thread(running.reader.close),
            lambda: writer(running.log.close),
            lambda: writer(running.store.close),
            lambda: asyncio.to_thread(writer.close),
        )

    async def _start(self) -> None:
        running = self._running = await self._opened()
        quorum = running.quorum
        voters = self._identity.voters
        serve(self._server, META_SERVICE, running.servicer, running.servicer.answers)
        if quorum is None:
            await self._join(running, voters)
            endpoint = await self._server.start()
            await self._until_ready(running)
            await self._settle_access(running)
            await self._register_itself(running, endpoint)
            return
        quorum.register(self._server)
        await self._server.start()
        await self._join(running, await quorum.form())

    async def _opened(self) -> _Running:
        """Open log and rows; nothing runs yet."""
        writer = WriterThread("nameserver-log")
        try:
            disk, log, store = await run_to_end(self._open, run=writer, undo=_close)
        except BaseException:
            writer.close()
            raise
        hub = WatchHub(
            store,
            applied_state(store).counters.revision,
            self._config.watch_options(),
            metrics=self._metrics,
            is_fresh=self._follows_a_leader,
            cluster=self._cluster_id,
            full_nameservers=self._full_nameservers,
            stamp=applied_state(store).counters.stamp,
        )
        return _Running(
            disk,
            log,
            store,
            writer,
            WriterThread("nameserver-read"),
            hub,
            MetadataMachine(store, hub, self._config, metrics=self._metrics),
            MetaServicer(self._cluster_id, partial(look_up_node, store), MetaAnswers(self._leader)),
            self._quorum(),
            Tasks("nameserver", self._on_fatal, max_tasks=5),
        )

    def _quorum(self) -> Quorum | None:
        if self._cluster is None:
            return None
        # A process that is the whole cluster starts without loading the transport.
        from strata_nameserver.process.quorum import Quorum

        return Quorum(
            self._cluster,
            self._identity,
            self._cluster_id,
            config=self._config,
            runtime=self._runtime,
        )

    async def _join(self, running: _Running, voters: frozenset[int]) -> None:
        """Take part in the metadata raft group and answer calls."""
        quorum, machine = running.quorum, running.machine
        raft = running.raft = MultiRaft(
            running.log,
            self._clock,
            MultiRaftOptions.for_log(
                self._config.log_segment_bytes,
                max_raft_groups=1,
                max_proposals_in_flight=self._config.max_changes_in_flight,
                max_proposal_bytes=_MAX_COMMAND_BYTES,
            ),
            metrics=self._metrics,
            threads=LogThreads(running.writer, running.reader),
            on_fatal=self._on_fatal,
            peers=None if quorum is None else quorum.peering.links,
            random_ticks=self._runtime.random_between,
        )
        if quorum is not None:
            quorum.attach(raft)
        replica = running.replica = raft.add_replica(
            ReplicaSpec(METADATA_RAFT_GROUP, self._identity.replica_id, voters),
            machine,
            MetadataSnapshots(running.store, machine, running.hub),
        )
        metadata = Metadata(
            replica,
            machine,
            running.hub,
            config=self._config,
            clock=self._clock,
            metrics=self._metrics,
            random_bytes=self._runtime.random_bytes,
        )
        keeper = running.access_keeper = self._new_access_keeper(running, metadata)
        await keeper.check()
        await raft.start()
        running.tasks.spawn("access", keeper.run())
        running.tasks.spawn("housekeeping", self._keep_house(running, raft, replica))
        running.tasks.spawn("controller", metadata.controller.run())
        disk = running.disk_watch = DiskWatch(
            running.disk,
            raft,
            self._config.refuse_changes_free_bytes,
            ballast_bytes=self._config.ballast_bytes,
            metrics=self._metrics,
        )
        await disk.check()
        running.tasks.spawn("disk", disk.run())
        if quorum is not None:
            quorum.directory.disk_is_full = lambda: disk.is_full
        health = running.health = NameserverHealth(
            replica,
            machine,
            metadata.reports,
            disk=disk,
            config=self._config,
            clock=self._clock,
            metrics=self._metrics,
            others_full=quorum.directory.full if quorum is not None else tuple,
        )
        running.tasks.spawn("health", health.run())
        running.servicer.serve(metadata)
        if quorum is not None:
            await quorum.start(replica, machine, metadata)

    def _new_access_keeper(self, running: _Running, metadata: Metadata) -> AccessKeeper:
        quorum = running.quorum
        return AccessKeeper(
            running.machine,
            metadata.access,
            self._admin_keys,
            call_leader=quorum.call_leader if quorum is not None else None,
            audit=self._runtime.audit,
            clock=self._clock,
        )

    def _open(self) -> tuple[Disk, CommitLog, MetadataStore]:
        disk = self._disk or _real_disk(self._folder / "log")
        log = CommitLog.open(
            disk,
            LogOptions(
                segment_bytes=self._config.log_segment_bytes,
                recent_bytes=_RECENT_BYTES,
                name="nameserver",
            ),
            report=lambda corruption: self._logger.error("log corrupted", what=str(corruption)),
            metrics=self._metrics,
            clock=self._clock,
        )
        try:
            store = self._store or RocksDbMetadataStore(
                self._folder / "meta", MetadataStoreOptions()
            )
        except BaseException:
            log.close()
            raise
        return disk, log, store

    def _leader(self) -> Leader:
        """Return node id and address of the leader, as far as they are known."""
        running = self._running
        if running is None or running.replica is None or running.quorum is None:
            return "", ""
        directory = running.quorum.directory
        node_id = directory.node_of(running.replica.leader_replica_id) or ""
        return node_id, directory.endpoint_of(node_id) or ""

    def _follows_a_leader(self) -> bool:
        running = self._running
        return (
            running is not None
            and running.replica is not None
            and running.replica.leader_replica_id != 0
        )

    def _full_nameservers(self) -> list[str]:
        """Return the nameservers whose disk is full, as far as it is known here."""
        running = self._running
        if running is None:
            return []
        own = running.disk_watch is not None and running.disk_watch.is_full
        others = running.quorum.directory.full() if running.quorum is not None else []
        return [self._identity.node_id, *others] if own else others

    async def _until_ready(self, running: _Running) -> None:
        """Wait for the end of the election: there is no one else to elect.

        A read-only nameserver serves what it has: reads and watches.
        """
        assert running.replica is not None
        if running.replica.read_only:
            self._logger.error("metadata is read-only", reason=running.replica.read_only)
            return
        async with Timeout(_READY_TIMEOUT_S):
            await running.machine.leading.wait()

    async def _settle_access(self, running: _Running) -> None:
        """Make the first admin and the first cluster key before anybody is served."""
        if running.access_keeper is None or not running.machine.leading.is_set():
            return
        try:
            await running.access_keeper.step()
        except MetaRefused as error:
            # For instance: the disk is full. The task tries again.
            self._logger.warning("access control is not complete", reason=error.reason)

    async def _register_itself(self, running: _Running, endpoint: str) -> None:
        identity = self._identity
        node = meta_pb2.Node(
            node_id=identity.node_id,
            kind=meta_pb2.NODE_KIND_NAMESERVER,
            endpoints=[endpoint],
            boot_id=identity.boot_id,
            metadata_replica_id=identity.replica_id,
            row_format=ROW_FORMAT,
        )
        try:
            await running.servicer.metadata.register_node(node)
        except MetaRefused as error:
            self._logger.warning("nameserver is not in the list of nodes", reason=error.reason)

    async def _keep_house(self, running: _Running, raft: MultiRaft, replica: Replica) -> None:
        """Sync the rows now and then; free log segments whose entries they hold durably."""
        machine = running.machine
        # Alone, the newest entry is enough: from it recovery knows where the log ended.
        kept_entries = self._config.max_kept_log_entries if running.quorum is not None else 0
        while True:
            await asyncio.sleep(self._config.sync_interval_ms / 1_000)
            if machine.persisted_index() == machine.applied_index() or replica.installing:
                continue
            await run_to_end(machine.sync)
            newest = min(machine.persisted_index() + 1, replica.last_index)
            low = {replica.replica_id: max(0, newest - kept_entries)}
            try:
                await running.writer(partial(running.log.free_before, low))
            except WriteFailed as error:
                self._logger.warning("old log segments stay", reason=one_line(error))
            else:
                raft.log_trimmed()


def _close(opened: tuple[Disk, CommitLog, MetadataStore]) -> None:
    _, log, store = opened
    try:
        log.close()
    finally:
        store.close()


def _real_disk(folder: Path) -> Disk:
    folder.mkdir(parents=True, exist_ok=True)
    return RealDisk(folder)
