"""Times DOWN add up: crash loops are repaired, restarts are not, and leaders hand the sums on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.meta.v1 import meta_pb2
from strata_nameserver.policies.down_times import DownTimes
from strata_testing import ManualClock
from tests.unit.nameserver.storage_nodes import CONFIG, Storage, storage
from tests.unit.nameserver.test_raft_groups import hosts

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver

UP, SUSPECT, DOWN = (
    meta_pb2.NODE_STATE_UP,
    meta_pb2.NODE_STATE_SUSPECT,
    meta_pb2.NODE_STATE_DOWN,
)
DELAY_MS = 1_000


class Counting:
    """One node, looked at ten times a second; what is due is written at once."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.times = DownTimes(DELAY_MS, clock)
        self.row = meta_pb2.Node(node_id="a", boot_id=1, state=UP)
        self.written: list[int] = []
        self.look()

    def look(self, *, silent: bool = True) -> int:
        """Look once, and return the sum."""
        for value_ms in self.times.look([self.row], lambda _: silent).values():
            self.written.append(value_ms)
            self.row.down_ms = value_ms
        return self.times.down_ms("a")

    def spend(self, state: meta_pb2.NodeState.ValueType, duration_ms: int) -> int:
        """Let the node be in a state, and return the sum."""
        self.row.state = state
        for _ in range(0, duration_ms, 100):
            self.clock.advance(0.1)
            self.look()
        return self.times.down_ms("a")


def test_times_down_add_up_until_the_node_is_steadily_up() -> None:
    """SUSPECT adds nothing and breaks nothing; UP for the delay in one go ends the sum."""
    counting = Counting(ManualClock())
    assert counting.spend(DOWN, 300) == 300
    assert counting.spend(UP, 900) == 300
    assert counting.spend(DOWN, 300) == 600, "900 ms UP were too little"
    assert counting.spend(UP, 500) == 600
    assert counting.spend(SUSPECT, 5_000) == 600
    assert counting.spend(UP, 400) == 600
    assert counting.spend(UP, 100) == 0
    assert counting.row.down_ms == 0, "nor does the row say otherwise"
    assert counting.spend(DOWN, 100) == 100


def test_a_new_process_is_not_the_one_that_was_up() -> None:
    """One that dies so fast that its node is never DOWN is not steadily UP either."""
    counting = Counting(ManualClock())
    counting.spend(DOWN, 300)
    for boot_id in range(2, 12):
        counting.row.boot_id = boot_id
        assert counting.spend(UP, 900) == 300
    assert counting.spend(UP, 200) == 0


def test_the_row_keeps_the_sum_in_few_steps() -> None:
    """A change of a row goes to every watcher: ten in the delay, none once the node is lost."""
    counting = Counting(ManualClock())
    assert counting.spend(DOWN, 60_000) == 60_000

    assert counting.written == list(range(100, 1_001, 100))


def test_a_new_leader_goes_on_from_the_row() -> None:
    """It invents nothing: neither its first look counts, nor time in which nobody looked."""
    clock = ManualClock()
    counting = Counting(clock)
    counting.spend(DOWN, 400)
    clock.advance(3_600)
    counting.times = DownTimes(DELAY_MS, clock)
    assert counting.look() == 400
    clock.advance(3_600)
    counting.times.reset()
    assert counting.look() == 400
    clock.advance(3_600)
    assert counting.look() == 400 + 1_000, "a look that was late counts as one second at most"
    clock.advance(0.1)
    assert counting.look(silent=False) == 1_400, "it is heard, and UP in a moment"


def test_nodes_that_are_gone_leave_memory() -> None:
    """A removed node that comes back begins anew."""
    counting = Counting(ManualClock())
    counting.spend(DOWN, 500)
    counting.times.look([], lambda _: True)
    assert counting.times.down_ms("a") == 0
    counting.row = meta_pb2.Node(node_id="a", boot_id=1, state=DOWN)
    assert counting.spend(DOWN, 200) == 100


async def four(make_nameserver: MakeNameserver) -> Storage:
    nameserver = make_nameserver(CONFIG)
    nameserver.machine.on_leader(1)
    for node_id in "abcd":
        await nameserver.metadata.register_node(storage(node_id))
    nodes = Storage(nameserver, tuple("abcd"))
    await nodes.run(10_000)
    return nodes


def places(nodes: Storage) -> dict[int, list[str]]:
    return {number: sorted(hosts(row)) for number, row in nodes.rows().items()}


async def come_back(nodes: Storage, node_id: str) -> None:
    nodes.alive |= {node_id}
    await nodes.nameserver.metadata.register_node(storage(node_id))


async def test_the_replicas_of_a_node_in_a_crash_loop_are_rebuilt(
    make_nameserver: MakeNameserver,
) -> None:
    """It dies each time before the repair delay of 5 s is over; it gets none back until steady."""
    nodes = await four(make_nameserver)
    for _ in range(20):
        nodes.alive -= {"a"}
        await nodes.run(4_500)
        await come_back(nodes, "a")
        await nodes.run(2_000)
    assert "a" not in {each for hosted in places(nodes).values() for each in hosted}
    reasons = nodes.nameserver.metadata.controller.reasons
    assert any("was DOWN for 5 s since it was" in r for n in nodes.rows() for r in reasons(n))

    await nodes.run(2_500)
    assert "a" not in {each for hosted in places(nodes).values() for each in hosted}
    await nodes.run(4_000)
    assert "a" in {each for hosted in places(nodes).values() for each in hosted}


async def test_rolling_restarts_begin_no_repair(make_nameserver: MakeNameserver) -> None:
    """Every node is away for 3 s, one after another, five times: longer in all than the delay."""
    nodes = await four(make_nameserver)
    before = places(nodes)
    for _ in range(5):
        for node_id in "abcd":
            nodes.alive -= {node_id}
            await nodes.run(3_000)
            await come_back(nodes, node_id)
            await nodes.run(1_000)
        assert places(nodes) == before


async def test_leaders_hand_the_time_down_on(make_nameserver: MakeNameserver) -> None:
    """No nameserver leads for as long as the delay; an hour without one does not count."""
    nodes = await four(make_nameserver)
    before = places(nodes)
    nodes.alive -= {"a"}
    await nodes.run(2_500)
    for term in (2, 3):
        nodes.nameserver.clock.advance(3_600)
        nodes.nameserver = nodes.nameserver.restarted()
        nodes.nameserver.machine.on_leader(term)
        await nodes.run(2_000)
        assert places(nodes) == before
    for term in (4, 5, 6):
        nodes.nameserver = nodes.nameserver.restarted()
        nodes.nameserver.machine.on_leader(term)
        await nodes.run(4_000)

    assert "a" not in {each for hosted in places(nodes).values() for each in hosted}


async def test_a_registration_keeps_the_time_down(make_nameserver: MakeNameserver) -> None:
    """The row says it to the next leader, who may come right then."""
    nodes = await four(make_nameserver)
    nodes.alive -= {"a"}
    await nodes.run(4_500)
    kept_ms = nodes.nameserver.machine.speculative.topology.nodes["a"].down_ms
    assert 2_500 <= kept_ms <= 3_500
    await come_back(nodes, "a")
    row = nodes.nameserver.machine.speculative.topology.nodes["a"]

    assert (row.state, row.down_ms) == (UP, kept_ms)
