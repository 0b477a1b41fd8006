"""Gives up and takes slots as the metadata rows say, without a byte copied (rule 17).

    nameserver                 leader of the old raft group          leader of the new one
    SlotMove{slots}        ->  revoke, in one entry
    SlotRange rows change  <-  report: revoked, and the queues that stay
                           ->                                        grant, in one entry
    SlotMove row goes      <-                                        report: granted

Queues with state stay where they are and continue without a pause. No other queue may begin to have
state here while the raft group looks for the queues with state; until the new raft group has
granted the slots nobody owns them, and brokers repeat refused requests. Every step follows from
rows alone, so a new leader, or a new nameserver, continues where the old one stopped.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from strata.meta.v1 import meta_pb2 as meta
from strata_angelia.ports import AngeliaError
from strata_metadata import ClusterView, MetadataClient, MetaRefused
from strata_mq.slots import FIRST_LITE_QUEUE, slot_of
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_runtime.timeouts import Timeout
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.cluster.queue_moves import LedEngines
from strata_storage.cluster.rotation import in_turn
from strata_storage.cluster.slot_plan import (
    Queue,
    first_slots,
    grants_of,
    kept_in,
    revocation_of,
    revoked,
)
from strata_storage.group.engine import GroupEngine
from strata_storage.rows.machine import GroupMachine

# Keys of rows looked at before other tasks get their turn.
_KEYS_PER_TURN = 200


@dataclass(frozen=True, slots=True)
class SlotMoveOptions:
    """Times and limits.

    Attributes:
        interval_ms: how often raft groups are looked at, beside every change of the metadata.
        max_in_flight: raft groups whose slots change at once on this node.
        max_kept_queues: queues that stay when slots are revoked by one entry; a single slot may
            have more.
    """

    interval_ms: int = 200
    max_in_flight: int = 4
    max_kept_queues: int = 2_000


class MoveWaits(Exception):
    """A step cannot be done yet; it is tried again."""


class SlotMoves:
    """See the module docstring.

    Args:
        node: whose leaders give up and take slots.
        view: of the metadata.
        client: to the nameservers.
        tasks: owner of the steps.
        options: times and limits.
        metrics: steps.
    """

    def __init__(
        self,
        node: LedEngines,
        view: ClusterView,
        client: MetadataClient,
        *,
        tasks: Tasks,
        options: SlotMoveOptions,
        metrics: Metrics,
    ) -> None:
        self._node = node
        self._view = view
        self._client = client
        self._tasks = tasks
        self._options = options
        self._running: set[int] = set()
        # Raft group of the step that was begun last.
        self._begun: int | None = None
        # Raft group -> (term, version of the metadata) at which nothing was left to do.
        self._settled: dict[int, tuple[int, int]] = {}
        self._moves_total = metrics.counter("strata_storage_slot_moves_total")
        metrics.gauge("strata_storage_slot_moves", lambda: len(self._running))
        self._logger = get_logger("moves")

    async def run(self) -> None:
        """Look after slots until cancelled."""
        while True:
            version = self._view.version
            self.reconcile()
            with suppress(TimeoutError):
                async with Timeout(self._options.interval_ms / 1_000):
                    await self._view.changed_since(version)

    def reconcile(self) -> None:
        """Start what is to be done for raft groups led here, in turn as far as there is room."""
        engines = {engine.raft_group: engine for engine in self._node.engines()}
        for raft_group in in_turn(engines, self._begun):
            engine = engines[raft_group]
            leader = engine.leader
            if leader is None or not leader.ready or raft_group in self._running:
                continue
            if self._settled.get(raft_group) == (leader.term, self._view.version):
                continue
            if len(self._running) >= self._options.max_in_flight:
                return
            self._begun = raft_group
            self._running.add(raft_group)
            self._tasks.spawn(f"slots-{raft_group}", self._perform(engine, leader.term))

    # One raft group -----------------------------------------------------------------------------

    async def _perform(self, engine: GroupEngine, term: int) -> None:
        raft_group, version = engine.raft_group, self._view.version
        result = "ok"
        try:
            _check_leads(engine, term)
            await self._give_up(engine)
            _check_leads(engine, term)
            await self._take(engine)
            _check_leads(engine, term)
            self._settled[raft_group] = (term, version)
        except (MoveWaits, Refused, StateError, MetaRefused, AngeliaError) as error:
            result = "failed"
            self._logger.info("slots wait", raft_group=raft_group, reason=str(error))
            await asyncio.sleep(self._options.interval_ms / 1_000)
        finally:
            self._running.discard(raft_group)
            self._moves_total.add(1, {"result": result})

    async def _give_up(self, engine: GroupEngine) -> None:
        """Revoke slots that should go, report what is revoked."""
        move = self._view.slot_move(engine.raft_group)
        if move is None or not move.slots:
            return
        slots = revoked(engine.machine.ownership, move)
        if not slots:
            # Nobody owns slots from the revocation to the report: first see that it will be taken.
            await self._report_revoked(move, [], [])
            await self._revoke(engine, move)
            slots = revoked(engine.machine.ownership, move)
        if engine.leader is None:
            raise MoveWaits("leadership was lost")
        kept = kept_in(self._view, engine.machine.ownership, slots)
        await self._report_revoked(move, slots, kept)
        self._logger.info(
            "slots revoked",
            raft_group=engine.raft_group,
            to=move.to_raft_group,
            slots=len(slots),
            kept_queues=len(kept),
        )

    async def _revoke(self, engine: GroupEngine, move: meta.SlotMove) -> None:
        """Give up slots of a move, as many as the limit on queues allows."""
        machine, leader = engine.machine, engine.leading()
        ownership = machine.ownership
        ownership.closing = frozenset(move.slots)
        try:
            # Appends that were let in before must be in the rows before the rows are read.
            leader.sets.flush_kept()
            await leader.proposer.settled()
            await engine.barrier()
            with_state = await self._queues_with_state(machine, frozenset(move.slots))
            slots = first_slots(move.slots, with_state, self._options.max_kept_queues)
            kept = chain.from_iterable(with_state[slot] for slot in slots if slot in with_state)
            if engine.leader is not leader or machine.ownership is not ownership:
                # Meanwhile queues may have begun to have state.
                raise MoveWaits("leadership was lost while queues were looked at")
            await engine.own(revocation_of(self._view, ownership, slots, kept))
        finally:
            ownership.closing = frozenset()

    async def _queues_with_state(
        self, machine: GroupMachine, slots: frozenset[int]
    ) -> dict[int, set[Queue]]:
        """Return the queues of slots that have a row or a consumer group's head, by slot.

        Those that were opened here as a later epoch are here whatever becomes of their slots.

        Raises:
            MoveWaits: rows of a topic whose slots are not known here.
        """
        found: defaultdict[int, set[Queue]] = defaultdict(set)
        for number, (topic_id, queue) in enumerate(_keys(machine), 1):
            if number % _KEYS_PER_TURN == 0:
                await asyncio.sleep(0)
            if queue >= FIRST_LITE_QUEUE:
                # A lite topic is here with the queue of its parent, which has a row.
                continue
            topic = self._view.topic(topic_id)
            if topic is None:
                raise MoveWaits(f"topic {topic_id} is new, or deleted and not dropped yet")
            slot = slot_of(topic.slot_base, queue)
            if not topic.is_dead_letter and slot in slots:
                row = machine.queues.get(topic_id, queue)
                if row is None or not row.epoch:
                    found[slot].add((topic_id, queue))
        return found

    async def _take(self, engine: GroupEngine) -> None:
        """Grant slots that have come, report those that are granted."""
        command = grants_of(self._view, engine.machine)
        if command is not None:
            await engine.own(command)
        for move in list(self._view.slot_moves()):
            if move.to_raft_group != engine.raft_group:
                continue
            slots = [slot for slot in move.revoked_slots if slot in engine.machine.ownership.slots]
            if slots:
                await self._client.call(
                    "ReportSlotsGranted",
                    meta.ReportSlotsGrantedRequest(
                        from_raft_group=move.from_raft_group,
                        began_at_revision=move.began_at_revision,
                        slots=slots,
                    ),
                    meta.ReportSlotsGrantedResponse,
                )
                self._logger.info("slots granted", raft_group=engine.raft_group, slots=len(slots))

    async def _report_revoked(
        self, move: meta.SlotMove, slots: list[int], kept: list[Queue]
    ) -> None:
        await self._client.call(
            "ReportSlotsRevoked",
            meta.ReportSlotsRevokedRequest(
                from_raft_group=move.from_raft_group,
                began_at_revision=move.began_at_revision,
                slots=slots,
                kept=[meta.QueueRef(topic_id=topic_id, queue=queue) for topic_id, queue in kept],
            ),
            meta.ReportSlotsRevokedResponse,
        )


def _check_leads(engine: GroupEngine, term: int) -> None:
    """Let a step pass as long as the leader goes on that it was begun for.

    Raises:
        MoveWaits: it does not; rows of another replica's leader may be newer than those here.
    """
    if engine.leader is None or engine.leader.term != term:
        raise MoveWaits("leadership was lost")


def _keys(machine: GroupMachine) -> Iterator[Queue]:
    """Iterate the queues that have a row, or a head of a consumer group; some come twice."""
    heads = ((topic_id, queue) for _, topic_id, queue in machine.rows.heads.all_keys())
    return chain(machine.rows.queues.all_keys(), heads)
