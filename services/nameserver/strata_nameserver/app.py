"""The object graph of a nameserver: log, rows, raft group, service.

    CommitLog (nameserver/log) --- MultiRaft: one replica of the metadata raft group
                                        |
    metadata store (nameserver/meta) --- MetadataMachine --- WatchHub
                                        |
                                   Metadata --- MetaServicer, registered at an Angelia server

Tasks: the driver's own, and `housekeeping`, which makes the rows durable in a thread now and then
and frees the log before them; the raft log holds what a power failure takes from the rows.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import Server
from strata_multiraft.node import MultiRaft, MultiRaftOptions, Replica, ReplicaSpec
from strata_multiraft.writer import WriterThread
from strata_nameserver.config import NameserverConfig
from strata_nameserver.errors import MetaError
from strata_nameserver.machine import MetadataMachine
from strata_nameserver.metadata import Metadata
from strata_nameserver.metrics import METRICS
from strata_nameserver.servicers.meta import MetaServicer
from strata_nameserver.watch import WatchHub
from strata_runtime.clock import Clock
from strata_runtime.errors import one_line
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import OnFatal, Tasks
from strata_seglog.errors import WriteFailed
from strata_seglog.log import CommitLog
from strata_seglog.metrics import METRICS as LOG_METRICS
from strata_seglog.options import LogOptions
from strata_seglog.ports import Disk
from strata_seglog.real_disk import RealDisk
from strata_state.metadata import MetadataStore
from strata_state.metadata_rocksdb import MetadataStoreOptions, RocksDbMetadataStore

METADATA_RAFT_GROUP = 0
"""Raft groups of queues are numbered from 1 by the nameserver itself."""

SERVICE = meta_pb2.DESCRIPTOR.services_by_name["MetaService"]

_READY_TIMEOUT_S = 30.0
# Entries are applied as soon as they are durable, so hardly any is read back.
_RECENT_BYTES = 1024 * 1024
# The largest command is that of the first storage node: one row for each of 4,096 slots.
_MAX_COMMAND_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class NameserverIdentity:
    """Who this nameserver is; lives in the data folder (rule 8).

    Attributes:
        node_id: its id among all nodes.
        replica_id: of its replica of the metadata raft group; never used again.
        voters: replica ids of all nameservers.
        boot_id: drawn at random when the process starts.
    """

    node_id: str
    replica_id: int
    voters: frozenset[int]
    boot_id: int = 0


@dataclass(slots=True)
class _Running:
    """What exists between start and stop."""

    log: CommitLog
    store: MetadataStore
    writer: WriterThread
    raft: MultiRaft
    hub: WatchHub
    machine: MetadataMachine
    metadata: Metadata
    tasks: Tasks = field(kw_only=True)


class NameserverApp:
    """One nameserver; a `strata_runtime.lifecycle.Service`.

    Args:
        config: limits.
        identity: who it is.
        folder: `nameserver` of the data folder.
        server: where its service is registered; started and stopped here.
        clock: time.
        metrics: where its metrics show.
        on_fatal: told when the process must end (a failed log sync, rule 7).
        disk: the log's folder; None: the real one under `folder`.
    """

    name = "nameserver"

    def __init__(
        self,
        config: NameserverConfig,
        identity: NameserverIdentity,
        folder: Path,
        server: Server,
        *,
        clock: Clock,
        metrics: Metrics,
        on_fatal: OnFatal,
        disk: Disk | None = None,
    ) -> None:
        metrics.declare((*METRICS, *LOG_METRICS))
        self._config = config
        self._identity = identity
        self._folder = folder
        self._server = server
        self._clock = clock
        self._metrics = metrics
        self._on_fatal = on_fatal
        self._disk = disk
        self._running: _Running | None = None
        self._logger = get_logger("nameserver")

    @property
    def metadata(self) -> Metadata:
        """The service behind the RPCs; only between start and stop."""
        assert self._running is not None, "the nameserver does not run"
        return self._running.metadata

    async def start(self) -> None:
        """Open the log and the rows, win the election, serve. A failed start leaves nothing.

        Raises:
            TimeoutError: the metadata raft group has no ready leader within 30 s.
            LogError, MetadataStoreError, OSError: log or rows cannot be opened.
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
        running.hub.close()
        await self._server.stop(grace_s)
        await running.tasks.stop()
        await running.raft.stop()
        await running.writer(running.log.close)
        await running.writer(running.store.close)
        running.writer.close()

    async def _start(self) -> None:
        writer = WriterThread("nameserver-log")
        try:
            log, store = await writer(self._open)
        except BaseException:
            writer.close()
            raise
        hub = WatchHub(store, self._config, self._metrics)
        machine = MetadataMachine(store, hub, self._config, self._metrics)
        raft = MultiRaft(
            log,
            self._clock,
            MultiRaftOptions(
                max_raft_groups=1,
                max_proposals_in_flight=self._config.max_changes_in_flight,
                max_proposal_bytes=_MAX_COMMAND_BYTES,
                max_write_bytes=self._config.log_segment_bytes // 4,
            ),
            self._metrics,
            writer,
            on_fatal=self._on_fatal,
        )
        identity = self._identity
        replica = raft.add_replica(
            ReplicaSpec(METADATA_RAFT_GROUP, identity.replica_id, identity.voters), machine
        )
        metadata = Metadata(replica, machine, hub, self._config, self._clock, self._metrics)
        tasks = Tasks("nameserver", self._on_fatal, max_tasks=4)
        self._running = _Running(log, store, writer, raft, hub, machine, metadata, tasks=tasks)
        await raft.start()
        tasks.spawn("housekeeping", self._keep_house(self._running, replica))
        self._server.register(SERVICE, MetaServicer(metadata))
        endpoint = await self._server.start()
        await self._until_ready(replica, machine)
        await self._register_itself(metadata, endpoint)

    def _open(self) -> tuple[CommitLog, MetadataStore]:
        log_folder = self._folder / "log"
        log_folder.mkdir(parents=True, exist_ok=True)
        log = CommitLog.open(
            self._disk or RealDisk(log_folder),
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
            store = RocksDbMetadataStore(self._folder / "meta", MetadataStoreOptions())
        except BaseException:
            log.close()
            raise
        return log, store

    async def _until_ready(self, replica: Replica, machine: MetadataMachine) -> None:
        """Wait for the end of the election when there is no one else to elect.

        A read-only nameserver serves what it has: reads and watches.
        """
        if replica.read_only:
            self._logger.error("metadata is read-only", reason=replica.read_only)
        elif len(self._identity.voters) == 1:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                await machine.leading.wait()

    async def _register_itself(self, metadata: Metadata, endpoint: str) -> None:
        identity = self._identity
        node = meta_pb2.Node(
            node_id=identity.node_id,
            kind=meta_pb2.NODE_KIND_NAMESERVER,
            endpoints=[endpoint],
            boot_id=identity.boot_id,
        )
        try:
            await metadata.register_node(node)
        except MetaError as error:
            self._logger.warning("nameserver is not in the list of nodes", reason=error.reason)

    async def _keep_house(self, running: _Running, replica: Replica) -> None:
        """Sync the rows now and then; free log segments whose entries they hold durably."""
        machine, identity = running.machine, self._identity
        while True:
            await asyncio.sleep(self._config.sync_interval_ms / 1_000)
            with suppress(MetaError):  # it could not be registered
                running.metadata.heartbeat(identity.node_id, identity.boot_id)
            if machine.persisted_index() == machine.applied_index():
                continue
            await asyncio.to_thread(machine.sync)
            # The newest entry stays: from it recovery knows where the log ended.
            low = {replica.replica_id: min(machine.persisted_index() + 1, replica.last_index)}
            try:
                await running.writer(partial(running.log.free_before, low))
            except WriteFailed as error:
                self._logger.warning("old log segments stay", reason=one_line(error))
