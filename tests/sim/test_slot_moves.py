"""A move of slots goes on whoever dies when, and clients lose nothing (rule 17).

A whole cluster in virtual time. The slot that moves holds a queue with messages, which must stay,
and one that gets its first message during the move, which must be in one of the two raft groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import google_crc32c
import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_metadata import ClusterView
from strata_mq.slots import slot_base
from strata_nameserver.state.topology import Topology
from strata_sim.client import LOST, Delivered, Refused, SimClient
from strata_sim.cluster import SimCluster
from strata_sim.history import History, check
from strata_sim.hosts import NameserverHost, StorageHost
from strata_sim.invariants.slot_owners import OneOwnerPerSlot
from strata_sim.network import NetworkOptions
from strata_sim.options import ClusterOptions
from strata_testing import until

SLOT = slot_base("", "old", google_crc32c.value)
# A topic whose only queue is in the same slot.
LATE = next(
    name
    for name in (f"late-{number}" for number in count())
    if slot_base("", name, google_crc32c.value) == SLOT
)
TOPICS = ("old", LATE)
DEAD_S = 1.5
LIMIT_S = 30.0


class Run:
    """A cluster in which a slot moves while two clients send to its queues."""

    def __init__(self, seed: int) -> None:
        # A lost answer to a receive would hide the messages for longer than this run reads.
        network = NetworkOptions(reset_share=0)
        self.cluster = SimCluster(seed, ClusterOptions(network=network, tier=None))
        self.history = History()
        self.invariant = OneOwnerPerSlot()
        self.failures: list[str] = []
        self.source = self.target = 0
        self._sending = True

    # Looking inside

    def nameserver(self) -> NameserverHost | None:
        """Return the one that leads."""
        hosts = self.cluster.nameservers
        return next((h for h in hosts if h.app is not None and h.app.is_leader), None)

    def topology(self) -> Topology:
        leader = self.nameserver()
        if leader is None or leader.app is None:
            return Topology()
        return leader.app.metadata.controller._machine.speculative.topology

    def move(self) -> meta_pb2.SlotMove | None:
        return self.topology().slot_moves.get(self.source)

    def leader_of(self, raft_group: int) -> StorageHost | None:
        """Return the storage node that leads a raft group and is ready."""
        for host in self.cluster.storage:
            replica = host.replicas().get(raft_group)
            if replica is not None and replica.is_ready_leader():
                return host
        return None

    def owns(self, raft_group: int) -> bool:
        host = self.leader_of(raft_group)
        if host is None or host.app is None:
            return False
        return SLOT in host.app.app.node.engine(raft_group).machine.ownership.slots

    def view(self) -> ClusterView:
        """Return the newest copy of the metadata at a storage node."""
        views = [host.app.view for host in self.cluster.storage if host.app is not None]
        return max(views, key=lambda view: view.revision)

    # Steps of the test

    async def until(self, holds: Callable[[], object], step_s: float = 0.0005) -> None:
        await until(holds, LIMIT_S, step_s=step_s)

    async def send(self, client: SimClient, topic: str) -> None:
        message_id = client.new_message_id()
        body = message_id.encode()
        self.history.attempt(topic, message_id, body, topic)
        try:
            offset = await client.send(topic, message_id, body, topic)
        except (Refused, *LOST) as failure:
            self.failures.append(f"{self.cluster.now_s:.3f} {topic}: {failure!r}")
        else:
            self.history.answer(message_id, offset)

    async def keep_sending(self, topic: str) -> None:
        client = self.cluster.client()
        while self._sending:
            await self.send(client, topic)
            await asyncio.sleep(0.003)

    async def watch_owners(self) -> None:
        while self._sending:
            await asyncio.sleep(0.01)
            for violation in self.invariant.check(self.cluster.hosts):
                self.cluster.trace.violation(violation)

    async def begin(self) -> None:
        """Start everything, put messages into one of the two queues."""
        await self.cluster.start()
        client = self.cluster.client()
        for topic in TOPICS:
            await client.create_topic(topic, fifo=True, queue_count=1)
            await client.create_group(f"{topic}-readers", fifo=True)
        for _ in range(3):
            await self.send(client, "old")
        self.source = self.view().slot_owner(SLOT)
        self.target = self.source % 3 + 1

    async def ask(self) -> None:
        """Ask for the move until it has begun."""
        client = self.cluster.client()
        request = admin_pb2.MoveSlotsRequest(
            first_slot=SLOT, slot_count=1, to_raft_group=self.target
        )
        while True:
            try:
                answer = await client.admin("MoveSlots", request)
            except LOST:
                # The nameserver has not heard yet that somebody leads the target.
                await asyncio.sleep(0.1)
                continue
            moving = admin_pb2.MoveSlotsResponse.FromString(answer)
            if moving.moves or not moving.left:
                return
            # Nor that somebody leads the source: such slots are left, to be asked for again.
            await asyncio.sleep(0.1)

    async def read(self, topic: str) -> None:
        """Read a topic to its end and note what came."""
        client = self.cluster.client()
        (name,) = await client.broker_names(topic)
        empty = 0
        while empty < 3:
            found: list[Delivered] = []
            try:
                found = await client.receive(topic, name, f"{topic}-readers", poll_s=1)
            except (Refused, *LOST):
                continue
            empty = 0 if found else empty + 1
            for each in found:
                self.history.deliver(
                    f"{topic}-readers", topic, each.message_id, each.body, each.queue, each.offset
                )
                await client.ack(topic, f"{topic}-readers", each)

    def run(self, interfere: Callable[[Run], Awaitable[None]] | None = None) -> None:
        """Run it all and check what came of it."""
        self.cluster.run(self._scenario(interfere))
        assert self.cluster.trace.violations == []
        assert list(check(self.history)) == []
        stored = {topic: 0 for topic in TOPICS}
        for positions in self.history.deliveries.values():
            for topic, _, _ in positions:
                stored[topic] += 1
        assert min(stored.values()) > 20, "hardly any load"

    async def _scenario(self, interfere: Callable[[Run], Awaitable[None]] | None) -> None:
        await self.begin()
        async with asyncio.TaskGroup() as group:
            for topic in TOPICS:
                group.create_task(self.keep_sending(topic))
            group.create_task(self.watch_owners())
            # The move may be over before its answer has come.
            asked = group.create_task(self.ask())
            if interfere is not None:
                await interfere(self)
            await asked
            await self.until(lambda: self.nameserver() and self.move() is None, 0.01)
            await self.until(lambda: self.owns(self.target) and not self.owns(self.source), 0.01)
            await asyncio.sleep(0.5)
            self._sending = False
        self._check_rows()
        for topic in TOPICS:
            await self.read(topic)

    def _check_rows(self) -> None:
        """The queue with messages stayed; the other one is where its row, or its slot, is."""
        assert self.topology().slot_owners[SLOT] == self.target
        overrides = {(row.topic_id, row.queue): row for row in self.view().queue_overrides()}
        epochs = [list(row.epochs) for row in overrides.values()]
        assert [meta_pb2.Epoch(raft_group=self.source)] in epochs
        assert all(each == [meta_pb2.Epoch(raft_group=self.source)] for each in epochs)


STEPS: dict[str, Callable[[Run], bool]] = {
    "begun": lambda run: run.move() is not None,
    "revoked": lambda run: run.leader_of(run.source) is not None and not run.owns(run.source),
    "recorded": lambda run: bool((move := run.move()) and move.revoked_slots),
    "granted": lambda run: run.owns(run.target),
}
PARTIES: dict[str, Callable[[Run], NameserverHost | StorageHost | None]] = {
    "nameserver": lambda run: run.nameserver(),
    "source": lambda run: run.leader_of(run.source),
    "target": lambda run: run.leader_of(run.target),
}


def test_a_move_is_no_error_for_clients() -> None:
    """Between the two raft groups nobody owns the slot: brokers repeat what is refused."""
    run = Run(1)
    run.run()
    assert run.failures == []


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("step", STEPS)
def test_a_move_goes_on_when_a_party_dies(step: str, party: str) -> None:
    """Killed at the step and started again later; no slot has two owners, nothing is lost."""

    async def kill(run: Run) -> None:
        await run.until(lambda: STEPS[step](run))
        host = PARTIES[party](run)
        assert host is not None
        host.kill()
        await asyncio.sleep(DEAD_S)
        host.start()

    Run(2).run(kill)
