"""Moves queues to other raft groups without copying a byte (rule 18).

The leader of the raft group that holds a queue's last epoch does it all: it reads in the metadata
that the queue is to move, seals it (one committed entry with the destination), opens the next epoch
at the destination's leader, and reports to the nameserver, which only records. Every step may be
repeated; after a change of leader the move row says which steps are left.

The destination's leader is looked for before the seal, so that a queue is not closed for longer
than it takes to open it elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from strata.meta.v1 import meta_pb2 as meta
from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import AngeliaError
from strata_metadata import ClusterView, MetadataClient, MetaRefused
from strata_metadata.channels import Channels
from strata_mq.layout import MoveRow
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_state.ports import StateError
from strata_storage.base.directory import Directory
from strata_storage.base.errors import Refused
from strata_storage.cluster.rotation import in_turn
from strata_storage.group.engine import GroupEngine

_SERVICE = "/strata.storage.v1.StorageService/"


@dataclass(frozen=True, slots=True)
class QueueMoveOptions:
    """Times and limits.

    Attributes:
        interval_ms: how often moves are looked for.
        call_timeout_ms: for one call to the destination or to the nameserver.
        max_moves_in_flight: moves that this node drives at once.
    """

    interval_ms: int = 200
    call_timeout_ms: int = 2_000
    max_moves_in_flight: int = 8


class LedEngines(Protocol):
    """The part of the storage node that is needed."""

    def engines(self) -> Sequence[GroupEngine]:
        """Return all engines."""


class MoveFailed(Exception):
    """A step of a move did not work out; it is tried again."""


class _Due(NamedTuple):
    """A queue with a step to do."""

    engine: GroupEngine
    topic_id: int
    queue: int
    # Raft group that it should move to; 0: it is sealed already, or drained.
    destination: int


class QueueMoves:
    """See the module docstring.

    Args:
        node: whose leaders move queues.
        view: of the metadata: which queues should move, which moves are recorded.
        directory: where raft groups are.
        channels: to other storage nodes; owned by the caller.
        client: to the nameservers.
        tasks: owner of the moves.
        options: times and limits.
        metrics: moves.
    """

    def __init__(
        self,
        node: LedEngines,
        view: ClusterView,
        directory: Directory,
        *,
        channels: Channels,
        client: MetadataClient,
        tasks: Tasks,
        options: QueueMoveOptions,
        metrics: Metrics,
    ) -> None:
        self._node = node
        self._view = view
        self._directory = directory
        self._channels = channels
        self._client = client
        self._tasks = tasks
        self._options = options
        self._moves_total = metrics.counter("strata_storage_queue_moves_total")
        self._running: set[tuple[int, int]] = set()
        # (topic id, queue) of the step that was begun last.
        self._begun: tuple[int, int] | None = None
        self._version = -1
        self._wanted: list[tuple[tuple[int, int], int, int]] = []
        metrics.gauge("strata_storage_queue_moves", lambda: len(self._running))
        self._logger = get_logger("moves")

    async def run(self) -> None:
        """Look for moves until cancelled."""
        while True:
            self.reconcile()
            await asyncio.sleep(self._options.interval_ms / 1_000)

    def reconcile(self) -> None:
        """Start the next step of queues that have one, in turn as far as there is room."""
        room = self._options.max_moves_in_flight - len(self._running)
        if room <= 0:
            return
        due: dict[tuple[int, int], _Due] = {}
        for each in self._due():
            due.setdefault((each.topic_id, each.queue), each)
        waiting = [key for key in in_turn(due, self._begun) if key not in self._running]
        for key in waiting[:room]:
            self._begun = key
            self._running.add(key)
            self._tasks.spawn(f"move-{key[0]}-{key[1]}", self._perform(due[key]))

    def _due(self) -> Iterator[_Due]:
        led = {
            engine.raft_group: engine
            for engine in self._node.engines()
            if engine.leader is not None and engine.leader.ready
        }
        for engine in led.values():
            moves = engine.machine.moves
            moves.renew(self._view.version, self._view.queue_override)
            for key in list(moves.open):
                try:
                    is_due = self._is_opening(engine, *key) or self._is_drained(engine, *key)
                except StateError as error:
                    self._logger.info(
                        "queue move waits", topic=key[0], queue=key[1], reason=str(error)
                    )
                    continue
                if is_due:
                    yield _Due(engine, *key, 0)
                else:
                    moves.rest(key, self._view.queue_override(*key))
        for key, source, destination in self._wanted_moves():
            at_source = led.get(source)
            if at_source is not None and key not in at_source.machine.moves:
                yield _Due(at_source, *key, destination)

    def _wanted_moves(self) -> Sequence[tuple[tuple[int, int], int, int]]:
        """Return ((topic id, queue), from, to) of the moves that the metadata wants."""
        if self._version != self._view.version:
            self._version = self._view.version
            self._wanted = [
                ((row.topic_id, row.queue), row.epochs[-1].raft_group, row.moving_to)
                for row in self._view.queue_overrides()
                if row.moving_to and row.epochs
            ]
        return self._wanted

    def _is_opening(self, engine: GroupEngine, topic_id: int, queue: int) -> bool:
        """Whether a sealed queue's next epoch is not recorded yet."""
        override = self._view.queue_override(topic_id, queue)
        move = engine.machine.moves.get((topic_id, queue))
        if override is None or move is None:
            return False
        return all(each.epoch <= move.epoch for each in override.epochs)

    def _is_drained(self, engine: GroupEngine, topic_id: int, queue: int) -> bool:
        """Whether a sealed queue holds no message any more and is still the oldest epoch."""
        override = self._view.queue_override(topic_id, queue)
        row = engine.machine.queues.get(topic_id, queue)
        move = engine.machine.moves.get((topic_id, queue))
        if override is None or move is None or len(override.epochs) < 2:
            return False
        is_oldest = override.epochs[0].epoch == move.epoch
        return is_oldest and (row is None or row.min_offset == row.next_offset)

    # One move -----------------------------------------------------------------------------------

    async def _perform(self, due: _Due) -> None:
        engine, topic_id, queue, destination = due
        result = "ok"
        try:
            if destination:
                leader = await self._leader_of(destination)
                await engine.seal(topic_id, queue, destination)
                await engine.barrier()
                await self._open(engine, topic_id, queue, leader)
            elif self._is_opening(engine, topic_id, queue):
                leader = await self._leader_of(self._move(engine, topic_id, queue).destination)
                await self._open(engine, topic_id, queue, leader)
            else:
                await self._report_drained(engine, topic_id, queue)
        except (MoveFailed, Refused, StateError, MetaRefused, AngeliaError) as error:
            result = "failed"
            self._logger.info("queue move waits", topic=topic_id, queue=queue, reason=str(error))
            await asyncio.sleep(self._options.interval_ms / 1_000)
        finally:
            self._running.discard((topic_id, queue))
            self._moves_total.add(1, {"result": result})

    def _move(self, engine: GroupEngine, topic_id: int, queue: int) -> MoveRow:
        """Return where a sealed queue goes, as it is applied now.

        Raises:
            MoveFailed: it is led elsewhere by now, or the queue is sealed no more.
        """
        move = engine.machine.moves.get((topic_id, queue))
        if engine.leader is None or move is None:
            raise MoveFailed("leadership was lost, or the queue came back")
        return move

    async def _leader_of(self, raft_group: int) -> str:
        """Return the endpoint of a raft group's leader.

        Raises:
            MoveFailed: nobody says to be it.
        """
        for endpoint in self._directory.endpoints_of_group(raft_group):
            try:
                status = await self._channels.get(endpoint).call(
                    _SERVICE + "GetStatus",
                    pb.GetStatusRequest(),
                    pb.GetStatusResponse,
                    timeout_s=self._options.call_timeout_ms / 1_000,
                )
            except AngeliaError:
                continue
            if any(each.leader and each.raft_group == raft_group for each in status.replicas):
                return endpoint
        raise MoveFailed(f"raft group {raft_group} has no leader that answers")

    async def _open(self, engine: GroupEngine, topic_id: int, queue: int, endpoint: str) -> None:
        move = self._move(engine, topic_id, queue)
        row = engine.machine.queues.get(topic_id, queue)
        response = await self._channels.get(endpoint).call(
            _SERVICE + "Open",
            pb.OpenRequest(
                raft_group=move.destination,
                topic_id=topic_id,
                queue=queue,
                epoch=move.epoch + 1,
                start_offset=move.end_offset,
                queue_count=row.queue_count if row is not None else 0,
            ),
            pb.OpenResponse,
            timeout_s=self._options.call_timeout_ms / 1_000,
        )
        if response.refusal.outcome:
            raise MoveFailed(response.refusal.reason)
        opened = meta.Epoch(
            epoch=move.epoch + 1, start_offset=move.end_offset, raft_group=move.destination
        )
        await self._client.call(
            "ReportQueueMoved",
            meta.ReportQueueMovedRequest(topic_id=topic_id, queue=queue, opened=opened),
            meta.ReportQueueMovedResponse,
        )
        self._logger.info("queue moved", topic=topic_id, queue=queue, to=move.destination)

    async def _report_drained(self, engine: GroupEngine, topic_id: int, queue: int) -> None:
        if not self._is_drained(engine, topic_id, queue):
            return
        epoch = self._move(engine, topic_id, queue).epoch
        await self._client.call(
            "ReportQueueDrained",
            meta.ReportQueueDrainedRequest(topic_id=topic_id, queue=queue, epoch=epoch),
            meta.ReportQueueDrainedResponse,
        )
