"""The timer of a leader: never early, in order, in batches, quiet while nothing is due (rule 4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from strata_mq.commands.pending import ResolveAction, ResolveItem
from strata_mq.layout.batch import PartKind
from strata_mq.layout.pending_rows import pending_key
from strata_mq.layout.rows import RowKind
from strata_state.ports import StateError
from strata_storage.base.config import PendingOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.pending.resolver import Waiting
from tests.unit.storage.waiting_leader import (
    GROUP,
    QUICK,
    TOPIC_ID,
    LeaderUnderTest,
    id_of,
    let_pass,
    proposed,
    running,
    start,
    turns,
)

# Delivering -------------------------------------------------------------------------------------


async def test_a_message_is_delivered_at_its_time_and_not_before() -> None:
    """One millisecond early nothing is proposed."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        leader.wait_for(b"later", 1_000)
        await let_pass(leader, 0.999)
        assert proposed(leader) == []
        await let_pass(leader, 0.001)
        (item,) = proposed(leader)
        assert item.action is ResolveAction.DELIVER
        leader.commit()
    assert leader.next_offsets() == {0: 1}
    assert leader.count("delivered") == 1


async def test_messages_come_in_the_order_of_their_times() -> None:
    """Messages may be sent in any order; those of equal times come as they were sent."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        for number, delay_ms in enumerate((500, 100, 300, 100, 200)):
            leader.wait_for(b"%d" % number, delay_ms, queue=1)
        await let_pass(leader, 1)
        items = proposed(leader)
        assert [item.key for item in items] == sorted(item.key for item in items)
        assert [item.offset_or_due for item in items] == [0, 1, 2, 3, 4]
        leader.commit()
    assert leader.next_offsets() == {1: 5}


async def test_an_earlier_message_wakes_the_timer() -> None:
    """It sleeps for a message due in an hour when one due in a second arrives."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        leader.wait_for(b"hour", 3_600_000)
        await turns()
        leader.clock.now_s = 1
        # Not woken by the test: by what became pending.
        leader.wait_for(b"second", 0)
        await turns()
        (item,) = proposed(leader)
        assert item.row is not None
        assert item.row.message_id == id_of(b"second")
        leader.commit()


async def test_an_idle_timer_does_nothing() -> None:
    """With messages that wait it reads no row and proposes nothing until one is due."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        leader.wait_for(b"later", 60_000)
        await turns()
        reads: list[bytes] = []
        leader.store.get = reads.append  # type: ignore[method-assign, assignment]
        await turns()
        assert (reads, leader.replica.proposed) == ([], [])


async def test_what_is_due_at_once_goes_in_batches() -> None:
    """No entry has more messages than a batch; what is in flight is limited too."""
    options = PendingOptions(batch=10, resolves_max=26, window=64, turn_interval_ms=0)
    leader = LeaderUnderTest(options)
    async with running(leader):
        leader.submit([b"%d" % number for number in range(45)], leader.now_ms(), PartKind.DELAYED)
        leader.commit()
        sizes = []
        for _ in range(3):
            await turns()
            sizes.append([len(command.items) for command in leader.resolves()])
            leader.commit()
        assert sizes == [[10, 10], [10, 10], [5]]
    assert sum(leader.next_offsets().values()) == 45


async def test_what_waited_before_this_leader_is_found() -> None:
    """A new leader reads the rows, more than its window holds, and delivers all in order."""
    leader = LeaderUnderTest(PendingOptions(window=8, batch=5, turn_interval_ms=0))
    for number in range(50):
        leader.wait_for(b"%d" % number, (number * 37) % 50, queue=0)
    found: list[ResolveItem] = []
    async with running(leader):
        leader.clock.now_s = 1
        leader.timers.wake()
        for _ in range(30):
            await turns()
            found += proposed(leader)
            leader.commit()
    assert [item.key for item in found] == sorted(item.key for item in found)
    assert leader.next_offsets() == {0: 50}


async def test_a_refused_entry_is_tried_again() -> None:
    """Nothing is lost and nothing is delivered twice."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        leader.wait_for(b"later", 1_000)
        leader.replica.is_full = True
        await let_pass(leader, 1)
        assert proposed(leader) == []
        leader.replica.is_full = False
        await turns()
        assert len(proposed(leader)) == 1
        leader.commit()
    assert sum(leader.next_offsets().values()) == 1


async def test_what_is_due_and_waits_is_told() -> None:
    """Nothing before its time; then how many there are and how late the first one is."""
    leader = LeaderUnderTest(QUICK)
    leader.wait_for(b"first", 1_000)
    leader.wait_for(b"second", 1_200)
    leader.wait_for(b"third", 9_000)
    async with running(leader):
        await turns()
        assert (leader.timers.due(), leader.timers.overdue_ms()) == (0, 0)
        # The timer does not look before it is woken.
        leader.clock.now_s = 1.5
        assert (leader.timers.due(), leader.timers.overdue_ms()) == (2, 500)
        leader.timers.wake()
        await turns()
        leader.commit()
        assert (leader.timers.due(), leader.timers.overdue_ms()) == (0, 0)


async def test_rows_that_cannot_be_read_are_tried_again() -> None:
    """A damaged row stops the timer for a while, not for good."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        leader.wait_for(b"first", 1_000)
        leader.wait_for(b"second", 1_000)
        get, failures = leader.store.get, [StateError("damaged")]

        def fail_once(key: bytes) -> bytes | None:
            if failures:
                raise failures.pop()
            return get(key)

        leader.store.get = fail_once  # type: ignore[method-assign]
        await let_pass(leader, 1)
        await turns()
        assert len(proposed(leader)) == 2
        leader.commit()
    assert sum(leader.next_offsets().values()) == 2


def failing(leader: LeaderUnderTest, kind: RowKind, at: int) -> Callable[[], None]:
    """Let the read number `at` of rows of a kind fail, from 1; return what ends that."""
    get, reads = leader.store.get, 0

    def fail(key: bytes) -> bytes | None:
        nonlocal reads
        if key[4] == kind:
            reads += 1
            if reads == at:
                raise StateError("damaged")
        return get(key)

    leader.store.get = fail  # type: ignore[method-assign]
    return lambda: setattr(leader.store, "get", get)


async def test_a_row_that_cannot_be_read_delays_no_other_message() -> None:
    """Those before it and behind it are delivered at once."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        for body in (b"before", b"damaged", b"behind"):
            leader.wait_for(body, 1_000)
        failing(leader, RowKind.PENDING, 2)
        leader.clock.now_s = 1
        checks, forwards = leader.timers.decide(sorted(leader.became), leader.now_ms())
        found = [item.row.message_id for item in proposed(leader) if item.row is not None]
        assert (found, checks, forwards) == ([id_of(b"before"), id_of(b"behind")], [], [])
        leader.commit()


async def test_rows_that_stay_unreadable_do_not_stop_the_others() -> None:
    """A whole batch of them is put aside for a while; what is due behind it goes out meanwhile."""
    options = PendingOptions(batch=2, window=8, turn_interval_ms=0, retry_ms=1_000)
    leader = LeaderUnderTest(options)
    async with running(leader):
        for number in range(7):
            leader.wait_for(b"%d" % number, 1_000 + number)
        get = leader.store.get
        damaged = {pending_key(GROUP, key) for key in sorted(leader.became)[:3]}

        def get_undamaged(key: bytes) -> bytes | None:
            if key in damaged:
                raise StateError("damaged")
            return get(key)

        leader.store.get = get_undamaged  # type: ignore[method-assign]
        await let_pass(leader, 1.5)
        found = [item.row.message_id for item in proposed(leader) if item.row is not None]
        assert found == [id_of(b"%d" % number) for number in range(3, 7)]
        leader.commit()
        assert (len(leader.timers), leader.timers.due(), leader.timers.overdue_ms()) == (3, 3, 500)
        damaged.clear()
        await let_pass(leader, 0.5)
        assert proposed(leader) == [], "they rest"
        await let_pass(leader, 0.5)
        found = [item.row.message_id for item in proposed(leader) if item.row is not None]
        assert found == [id_of(b"%d" % number) for number in range(3)]
        leader.commit()
        assert (len(leader.timers), leader.timers.due(), leader.timers.overdue_ms()) == (0, 0, 0)
    assert sum(leader.next_offsets().values()) == 7


async def test_more_unreadable_rows_than_there_is_room_for_are_not_lost() -> None:
    """The timer pauses then; all of them are delivered when they can be read again."""
    options = PendingOptions(batch=2, window=4, turn_interval_ms=0, retry_ms=1)
    leader = LeaderUnderTest(options)
    async with running(leader):
        for number in range(20):
            leader.wait_for(b"%d" % number, 1_000)
        get, is_broken = leader.store.get, True

        def get_later(key: bytes) -> bytes | None:
            if is_broken and key[4] == RowKind.PENDING:
                raise StateError("input/output error")
            return get(key)

        leader.store.get = get_later  # type: ignore[method-assign]
        await let_pass(leader, 1)
        assert proposed(leader) == []
        assert len(leader.timers._unreadable) <= 4
        is_broken = False

        async def delivers() -> bool:
            await let_pass(leader, 0.01)
            leader.commit()
            return sum(leader.next_offsets().values()) == 20

        async with asyncio.timeout(10):
            while not await delivers():
                pass
    assert leader.count("delivered") == 20


async def test_a_check_that_was_decided_is_sent_although_another_row_is_damaged() -> None:
    """Else it would count as being on its way without end, and at last no check would be made."""
    leader = LeaderUnderTest(QUICK)
    producer = await Producer(leader).connect(TOPIC_ID)
    async with running(leader):
        for number in range(2):
            leader.half(b"%d" % number)
        failing(leader, RowKind.PENDING, 2)
        await let_pass(leader, 6)
        leader.commit()
        await turns()
        assert [body for _, _, body in await producer.take()] == [b"0", b"1"]
        assert leader.transactions.checks_in_flight == 0


async def test_queues_that_cannot_be_read_do_not_end_deliveries() -> None:
    """Their decisions are undone and made again; nobody waits without end."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        half = leader.half()
        leader.wait_for(b"due", 1_000, queue=1)
        leader.machine.queues.forget()
        end = failing(leader, RowKind.QUEUE, 1)
        commit = await start(leader.transactions.commit(half, TOPIC_ID))
        await let_pass(leader, 1)
        end()
        with pytest.raises(Refused, match="cannot be read"):
            await commit
        await turns()
        leader.commit()
        assert leader.resolver.room == QUICK.resolves_max
    assert leader.next_offsets() == {1: 1}


async def test_waiting_messages_are_counted_by_kind() -> None:
    """From the rows at the start, then by what comes and goes; put off ones are counted once."""
    leader = LeaderUnderTest(QUICK)
    leader.wait_for(b"before", 60_000)
    half = leader.half()
    counts = leader.timers.counts

    def counted() -> tuple[int, int]:
        return counts.of(PartKind.DELAYED), counts.of(PartKind.HALF)

    async with running(leader):
        assert counted() == (1, 1)
        leader.wait_for(b"after", 1_000)
        assert counted() == (2, 1)
        await let_pass(leader, 1)
        leader.commit()
        assert counted() == (1, 1)
        await let_pass(leader, 5)
        leader.commit()
        assert counted() == (1, 1)
        rollback = await start(leader.transactions.roll_back(half, TOPIC_ID))
        leader.commit()
        await rollback
        assert counted() == (1, 0)


async def test_lateness_is_recorded_for_delayed_messages_only() -> None:
    """The histogram counts what was delivered, not what was committed."""
    leader = LeaderUnderTest(QUICK)
    late_ms = leader.metrics.histogram("strata_storage_late_ms")
    async with running(leader):
        leader.wait_for(b"later", 1_000)
        half = leader.half()
        commit = await start(leader.transactions.commit(half, TOPIC_ID))
        await let_pass(leader, 1.5)
        leader.commit()
        await commit
    assert late_ms.count() == 1


# Checks -----------------------------------------------------------------------------------------


class Producer:
    """A broker that holds a producer: its watch stream."""

    def __init__(
        self, leader: LeaderUnderTest, boot_id: int = 1, *, reports_checks: bool = False
    ) -> None:
        self._leader = leader
        self.boot_id = boot_id
        self.updates = leader.watchers.updates(boot_id, reports=reports_checks)

    async def connect(self, *topic_ids: int) -> Producer:
        await anext(self.updates)
        self.report(*topic_ids)
        return self

    def report(self, *topic_ids: int, guesses: bool = False) -> None:
        self._leader.routes.reported(
            self.boot_id, topic_ids, self._leader.clock.now_s, guesses=guesses
        )

    async def take(self) -> list[tuple[int, bool, bytes]]:
        """Return (number, exhausted, message) of the checks that wait."""
        if not self._leader.watchers.checks_waiting:
            return []
        update = await anext(self.updates)
        return [(check.number, check.exhausted, check.message) for check in update.checks]


async def test_a_half_is_checked_at_its_times_and_then_exhausted() -> None:
    """First when it is due, then in intervals, so often as configured; then it is told as over."""
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, max_transaction_checks=3))
    producer = await Producer(leader).connect(TOPIC_ID)
    got = []
    async with running(leader):
        half = leader.half(b"half")
        for wait_s in (6, 30, 30, 30, 30):
            await let_pass(leader, wait_s - 0.1)
            assert leader.resolves() == []
            await let_pass(leader, 0.1)
            # Nothing is asked before it is written that it was.
            assert await producer.take() == []
            leader.commit()
            await turns()
            got += await producer.take()
            leader.commit()
            producer.report(TOPIC_ID)
        waiting = leader.resolver.find(half)
    assert got == [
        (1, False, b"half"),
        (2, False, b"half"),
        (3, False, b"half"),
        (3, True, b"half"),
        (3, True, b"half"),
    ]
    assert isinstance(waiting, Waiting)
    assert waiting.row.checks == 3


async def test_a_check_that_nobody_can_answer_does_not_count() -> None:
    """Without a producer the half waits; when one comes it still has all its checks."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        half = leader.half()
        producer = await Producer(leader).connect(TOPIC_ID + 1)
        for _ in range(3):
            await let_pass(leader, 30)
            leader.commit()
            producer.report(TOPIC_ID + 1)
        assert await producer.take() == []
        waiting = leader.resolver.find(half)
        assert isinstance(waiting, Waiting)
        assert waiting.row.checks == 0
        producer.report(TOPIC_ID)
        await let_pass(leader, 30)
        leader.commit()
        await turns()
        assert await producer.take() == [(1, False, b"half")]


async def test_a_guess_does_not_count() -> None:
    """A broker that knows producers without topics gets the message; its checks are all left."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        half = leader.half(b"half")
        producer = await Producer(leader).connect()
        producer.report(TOPIC_ID + 1, guesses=True)
        for _ in range(3):
            await let_pass(leader, 30)
            leader.commit()
            await turns()
            assert await producer.take() == [(1, False, b"half")]
            producer.report(TOPIC_ID + 1, guesses=True)
        waiting = leader.resolver.find(half)
        assert isinstance(waiting, Waiting)
        assert waiting.row.checks == 0
        assert leader.transactions.checks_in_flight == 0


async def test_a_check_of_a_half_that_was_not_written_is_not_sent() -> None:
    """Leadership is lost before the check is committed: the next leader asks."""
    leader = LeaderUnderTest(QUICK)
    producer = await Producer(leader).connect(TOPIC_ID)
    async with running(leader):
        leader.half()
        await let_pass(leader, 6)
        assert len(proposed(leader)) == 1
        leader.lose()
        await turns()
        assert await producer.take() == []
        assert leader.transactions.checks_in_flight == 0


async def test_checks_in_flight_are_limited() -> None:
    """Checks that do not fit are looked at again soon, and not counted."""
    leader = LeaderUnderTest(
        PendingOptions(turn_interval_ms=0, checks_in_flight_max=2, retry_ms=100)
    )
    producer = await Producer(leader).connect(TOPIC_ID)
    async with running(leader):
        for number in range(3):
            leader.half(b"%d" % number)
        await let_pass(leader, 6)
        items = proposed(leader)
        assert [item.checks for item in items] == [0, 0, 0]
        assert items[2].offset_or_due == leader.now_ms() + 100
        leader.commit()
        await turns()
        assert [item.checks for item in proposed(leader)] == [1, 1]
        await let_pass(leader, 0.1)
        leader.commit()
        await turns()
        assert len(await producer.take()) == 3
        leader.commit()
        rows = leader.machine.rows.pending
        found = [rows.get(key) for key in list(rows.keys())]
        assert [row and row.checks for row in found] == [1, 1, 1]


async def test_a_message_that_is_given_back_wakes_the_timer() -> None:
    """Nothing else may become due in this raft group for days."""
    leader = LeaderUnderTest(QUICK)
    async with running(leader):
        leader.wait_for(b"later", 1_000)
        (key,) = leader.became
        # As if a forward had it.
        leader.timers._window._heap.clear()
        await let_pass(leader, 1)
        await turns()
        assert proposed(leader) == []
        leader.timers._forwards.on_returned(key)
        await turns()
        (item,) = proposed(leader)
        assert (item.key, item.action) == (key, ResolveAction.DELIVER)
        leader.commit()
