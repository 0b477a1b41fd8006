"""Queues that were moved long ago cost nothing: those with a step to do are judged (rule 18)."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from strata.meta.v1 import meta_pb2 as meta
from strata_metadata import ClusterView
from strata_mq.commands import TrimCommand, TrimmedQueue
from strata_mq.commands.rare import EpochCommand, encode_open, encode_seal
from strata_mq.layout.rows import QueueRow
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_state.ports import StateError
from strata_storage.cluster.queue_moves import QueueMoveOptions, QueueMoves
from strata_storage.cluster.slot_moves import SlotMoveOptions, SlotMoves
from strata_storage.group.engine import GroupEngine
from tests.unit.storage.pending_entries import GROUP, START_MS, TOPIC_ID, Log, machine_of

MANY, DESTINATION = 1_000, 9


class CountingView(ClusterView):
    """Counts how often the epochs of a queue are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def queue_override(self, topic_id: int, queue: int) -> meta.QueueOverride | None:
        """See `ClusterView.queue_override`."""
        self.asked.append(queue)
        return super().queue_override(topic_id, queue)

    def write(self, *queues: int, epochs: Sequence[int] = (0, 1), moving_to: int = 0) -> None:
        """Have overrides of queues of the topic with these epochs."""
        homes = {0: GROUP, 1: DESTINATION}
        rows = [
            meta.QueueOverride(
                topic_id=TOPIC_ID,
                queue=queue,
                epochs=[meta.Epoch(epoch=each, raft_group=homes[each]) for each in epochs],
                moving_to=moving_to,
            )
            for queue in queues
        ]
        changes = [meta.Change(queue_override=row) for row in rows]
        self.apply(meta.WatchResponse(revision=self.version + 2, changes=changes))


class FakeTasks:
    """Notes what is begun, and does none of it."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def spawn(self, name: str, work: Coroutine[object, object, object]) -> None:
        self.begun.append(name)
        work.close()


class Moved:
    """A raft group that gave away many queues, each of them with two messages."""

    def __init__(self) -> None:
        self.log = Log()
        batch = self.log.store.new_batch()
        for queue in range(MANY):
            self.log.machine.rows.queues.put(batch, TOPIC_ID, queue, QueueRow(2, 0, 0, 0, False))
        self.log.store.write(batch)
        for queue in range(MANY):
            self.seal(queue)
        self.view, self.tasks = CountingView(), FakeTasks()
        self.view.write(*range(MANY))
        self.moves = self.queue_moves()

    @property
    def asked(self) -> set[int]:
        """Return the queues that were looked at since the last call."""
        asked, self.view.asked = set(self.view.asked), []
        return asked

    def seal(self, queue: int) -> None:
        """End the epoch of a queue."""
        self.log.add(encode_seal(EpochCommand(TOPIC_ID, queue, 0, 2, DESTINATION)))

    def trim(self, queue: int, min_offset: int) -> None:
        """Let a queue begin later."""
        self.log.trim(TrimCommand(0, START_MS, [TrimmedQueue(TOPIC_ID, queue, min_offset)]))

    def queue_moves(self) -> QueueMoves:
        """Return the moves of a node that leads the raft group."""
        leader = SimpleNamespace(ready=True)
        engine = SimpleNamespace(raft_group=GROUP, leader=leader, machine=self.log.machine)
        unused = cast(Any, None)
        return QueueMoves(
            SimpleNamespace(engines=lambda: [cast(GroupEngine, engine)]),
            self.view,
            unused,
            channels=unused,
            client=unused,
            tasks=cast(Tasks, self.tasks),
            options=QueueMoveOptions(max_moves_in_flight=MANY),
            metrics=Metrics.disabled(),
        )

    def begun(self) -> list[int]:
        """Have a turn; return the queues of which a step was begun."""
        self.tasks.begun = []
        self.moves._running.clear()
        self.moves.reconcile()
        return sorted(int(name.rpartition("-")[2]) for name in self.tasks.begun)


@pytest.fixture
def moved() -> Moved:
    """All are recorded and hold messages: nothing is to be done, as the first turn finds."""
    made = Moved()
    assert made.begun() == []
    assert made.asked == set(range(MANY))
    return made


def test_queues_that_wait_or_are_done_are_not_looked_at(moved: Moved) -> None:
    """Neither those that hold messages nor those of which the earlier epoch is forgotten."""
    for _ in range(3):
        assert moved.begun() == []
    moved.view.write(*range(MANY), epochs=[1])
    moved.begun()
    assert moved.asked == set(range(MANY))
    for _ in range(3):
        assert moved.begun() == []
    assert moved.asked == set()


def test_a_queue_that_is_trimmed_is_reported_until_it_is_recorded(moved: Moved) -> None:
    """Only that one is looked at: not when it holds messages still, again while it is drained."""
    moved.trim(5, 1)
    assert (moved.begun(), moved.asked) == ([], {5})
    assert (moved.begun(), moved.asked) == ([], set())
    moved.trim(5, 2)
    for _ in range(2):
        assert (moved.begun(), moved.asked) == ([5], {5})
    moved.view.write(5, epochs=[1])
    assert moved.begun() == []
    moved.view.asked.clear()
    assert (moved.begun(), moved.asked) == ([], set())


def test_a_queue_that_is_sealed_is_opened_elsewhere(moved: Moved) -> None:
    """Its seal is news, and it is tried again until the next epoch is recorded."""
    queue = MANY
    moved.view.write(queue, epochs=[0], moving_to=DESTINATION)
    assert moved.begun() == [queue]
    moved.seal(queue)
    for _ in range(3):
        assert moved.begun() == [queue]
    moved.view.write(queue)
    assert moved.begun() == [queue], "it is empty: its drain is reported"
    moved.view.write(queue, epochs=[1])
    assert moved.begun() == []
    moved.log.add(encode_open(EpochCommand(TOPIC_ID, queue, 2, 2, DESTINATION)))
    moved.seal(queue)
    moved.view.asked.clear()
    assert (moved.begun(), moved.asked) == ([], {queue})


def test_moves_that_fail_starve_no_other() -> None:
    """As many as there is room for are refused each time: the others have their turn."""
    moved = Moved()
    assert moved.begun() == []
    wanted = range(MANY, MANY + 20)
    moved.view.write(*wanted, epochs=[0], moving_to=DESTINATION)
    moved.moves._options = QueueMoveOptions(max_moves_in_flight=8)
    turns = [moved.begun() for _ in range(5)]
    assert turns[0] == list(range(MANY, MANY + 8))
    assert turns[1] == list(range(MANY + 8, MANY + 16))
    assert sorted(each for turn in turns for each in turn) == sorted([*wanted, *wanted])


def test_slots_that_fail_starve_no_other() -> None:
    """Four raft groups whose steps fail take all the room there is; a fifth has its turn."""
    view, tasks = ClusterView(), FakeTasks()
    engines = [
        cast(
            GroupEngine,
            SimpleNamespace(raft_group=number, leader=SimpleNamespace(ready=True, term=1)),
        )
        for number in range(1, 7)
    ]
    unused = cast(Any, None)
    moves = SlotMoves(
        SimpleNamespace(engines=lambda: engines),
        view,
        unused,
        tasks=cast(Tasks, tasks),
        options=SlotMoveOptions(max_in_flight=4),
        metrics=Metrics.disabled(),
    )
    turns = []
    for _ in range(3):
        moves.reconcile()
        turns.append(tasks.begun)
        tasks.begun = []
        moves._running.clear()
    assert turns == [
        ["slots-1", "slots-2", "slots-3", "slots-4"],
        ["slots-5", "slots-6", "slots-1", "slots-2"],
        ["slots-3", "slots-4", "slots-5", "slots-6"],
    ]


def test_moves_are_judged_anew_after_a_start(moved: Moved) -> None:
    """The rows say nothing of what was done; nor do they after a snapshot."""
    moved.view.asked.clear()
    moved.trim(7, 2)
    moved.log.machine.reload()
    assert moved.begun() == [7]
    assert moved.asked == set(range(MANY))
    assert machine_of(moved.log.store).moves.open == {(TOPIC_ID, each) for each in range(MANY)}


def test_a_queue_that_cannot_be_read_holds_up_no_other(moved: Moved) -> None:
    """The loop is permanent: what escapes it would end the node."""
    moved.trim(3, 2)
    moved.trim(7, 2)
    get = moved.log.machine.queues.get

    def damaged(topic_id: int, queue: int) -> QueueRow | None:
        if queue == 3:
            raise StateError("a block is damaged")
        return get(topic_id, queue)

    with patch.object(type(moved.log.machine.queues), "get", lambda _, *key: damaged(*key)):
        assert moved.begun() == [7]
    assert moved.begun() == [3, 7]
