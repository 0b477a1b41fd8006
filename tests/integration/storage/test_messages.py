"""Messages through the storage service: append, read, lease, ack, retry, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.hashing import text_hash, unpack_message_id
from strata_runtime.metrics import Metrics
from strata_storage.base.dedupe import DedupeWindow
from strata_storage.base.disk_guard import DiskMark
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    TOPIC,
    NodeUnderTest,
    batch_of,
    lease_of,
    message_id,
    node_under_test,
    pop_request,
    small_config,
)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    async with node_under_test(tmp_path) as running:
        yield running


async def expire(node: NodeUnderTest, seconds: float) -> None:
    """Let time pass and the timer run."""
    node.clock.advance(seconds)
    engine = node.app.node.engine(GROUP)
    assert engine.leader is not None
    await node.app.node.expire_once(engine, engine.leader)
    await engine.barrier()


def bodies(response: pb.PopResponse) -> list[bytes]:
    assert not response.HasField("refusal"), response.refusal
    return [message.message for message in response.messages]


# Metrics ----------------------------------------------------------------------------------------

LOCAL = '{storage_medium="disk",storage_type="local"}'


async def test_a_node_shows_itself_under_the_names_of_rocketmq(tmp_path: Path) -> None:
    """Sizes, what is behind, the age of the oldest message, and what the disk allows."""
    async with node_under_test(tmp_path, metrics=Metrics()) as node:
        assert node.gauges("rocketmq_storage_message_reserve_time") == {}
        await node.append([b"a", b"b"], queue=1)
        node.clock.advance(60)
        await node.append([b"c"], queue=2)
        node.clock.advance(40)
        await node.app.node.retain_once()
        assert node.gauges("rocketmq_storage_message_reserve_time") == {LOCAL: 100_000}
        node.clock.advance(1)
        assert node.gauges("rocketmq_storage_message_reserve_time") == {LOCAL: 101_000}
        assert node.gauges("rocketmq_storage_size") == {LOCAL: node.app.node.log_bytes()[0]}
        await node.app.node.engine(GROUP).barrier()
        for behind in ("flush", "dispatch"):
            assert node.gauges(f"rocketmq_storage_{behind}_behind_bytes") == {LOCAL: 0}
        assert node.gauges("rocketmq_timer_dequeue_lag") == {"": 0}
        assert node.gauges("rocketmq_timer_dequeue_latency") == {"": 0}
        for mark, permission in zip(DiskMark, (6, 4, 0, 0), strict=True):
            node.app.node.disk_guard.mark = mark
            assert node.gauges("rocketmq_broker_permission") == {"": permission}


# Appends ----------------------------------------------------------------------------------------


async def test_appended_messages_are_fetched_in_order(node: NodeUnderTest) -> None:
    """Offsets of a queue go up by one per message over all batches."""
    first = await node.append([b"a", b"b"])
    second = await node.append([b"c"])
    assert [first.parts[0].base_offset, second.parts[0].base_offset] == [0, 2]
    fetched = await node.rpc.fetch(
        pb.FetchRequest(raft_group=GROUP, topic_id=7, queue=0, offset=1, max_messages=10), CONTEXT
    )
    assert [(m.offset, m.message) for m in fetched.messages] == [(1, b"b"), (2, b"c")]
    assert (fetched.min_offset, fetched.next_offset) == (0, 3)


async def test_a_queue_is_chosen_in_turn_when_none_is_named(node: NodeUnderTest) -> None:
    """Queue -1 rotates over the topic's queues."""
    queues = [(await node.append([b"x"], queue=-1)).parts[0].queue for _ in range(8)]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_repeated_batch_gets_the_first_result(node: NodeUnderTest) -> None:
    """The same (boot id, sequence) stores nothing twice, also while the first is under way."""
    first, again = await asyncio.gather(
        node.append([b"a"], sequence=5), node.append([b"a"], sequence=5)
    )
    assert first == again
    assert (await node.append([b"b"], sequence=6)).parts[0].base_offset == 1
    older = await node.append([b"c"], sequence=4)
    assert older.refusal.outcome == pb.OUTCOME_INVALID


async def test_a_known_message_id_gives_the_first_position(node: NodeUnderTest) -> None:
    """Duplicates take no offset: in one batch, in flight, and after apply."""
    one, two = message_id(b"one"), message_id(b"two")
    first, second = await asyncio.gather(
        node.append([b"1", b"1", b"2"], ids=[one, one, two]),
        node.append([b"3", b"2"], ids=[message_id(b"three"), two]),
    )
    assert [(d.ordinal, d.offset) for d in first.parts[0].duplicates] == [(1, 0)]
    assert [(d.ordinal, d.offset) for d in second.parts[0].duplicates] == [(1, 1)]
    assert second.parts[0].base_offset == 2
    third = await node.append([b"1"], ids=[one], queue=1)
    assert [(d.ordinal, d.queue, d.offset) for d in third.parts[0].duplicates] == [(0, 0, 0)]
    assert sorted(bodies(await node.pop())) == [b"1", b"2", b"3"]


async def test_a_batch_that_is_damaged_is_refused(node: NodeUnderTest) -> None:
    """A flipped byte anywhere in a batch is INVALID and stores nothing."""
    data = batch_of([b"hello", b"world"])
    for at in range(len(data)):
        damaged = data[:at] + bytes((data[at] ^ 0x55,)) + data[at + 1 :]
        request = pb.AppendRequest(
            broker_boot_id=2,
            batches=[pb.GroupBatch(raft_group=GROUP, sequence=1, batch=damaged)],
        )
        (result,) = (await node.rpc.append(request, CONTEXT)).results
        assert result.refusal.outcome == pb.OUTCOME_INVALID, at
    assert bodies(await node.pop()) == []


async def test_unknown_raft_groups_and_foreign_queues_are_refused_apart(tmp_path: Path) -> None:
    """One bad part of a request does not hurt the others."""
    async with node_under_test(tmp_path, raft_groups=(1, 2)) as node:
        request = pb.AppendRequest(
            broker_boot_id=1,
            batches=[
                pb.GroupBatch(raft_group=99, sequence=1, batch=batch_of([b"x"])),
                pb.GroupBatch(raft_group=1, sequence=1, batch=batch_of([b"a"], queue=1)),
                pb.GroupBatch(raft_group=2, sequence=1, batch=batch_of([b"b"], queue=1)),
            ],
        )
        results = (await node.rpc.append(request, CONTEXT)).results
        assert results[0].refusal.outcome == pb.OUTCOME_UNKNOWN_GROUP
        assert results[1].parts[0].outcome == pb.OUTCOME_WRONG_GROUP
        assert results[2].parts[0].outcome == pb.OUTCOME_OK


# Leases -----------------------------------------------------------------------------------------


async def test_a_leased_message_is_given_to_nobody_else_until_acked_or_expired(
    node: NodeUnderTest,
) -> None:
    """Two consumer groups each get all; inside one, a message has one holder."""
    await node.append([b"a", b"b"])
    first = await node.pop(max_messages=1)
    assert bodies(first) == [b"a"]
    assert bodies(await node.pop()) == [b"b"]
    assert bodies(await node.pop()) == []
    assert sorted(bodies(await node.pop(consumer_group_id=6))) == [b"a", b"b"]
    acked = await node.ack(lease_of(first.messages[0]))
    assert list(acked.outcomes) == [pb.OUTCOME_OK]
    await expire(node, 31)
    again = await node.pop()
    assert bodies(again) == [b"b"]
    assert again.messages[0].attempt_count == 2


async def test_an_ack_after_the_lease_ran_out_is_invalid(node: NodeUnderTest) -> None:
    """Rule 24: a late handle changes nothing; a repeated ack in time is fine."""
    await node.append([b"a", b"b"])
    popped = await node.pop()
    lease = lease_of(popped.messages[0])
    assert list((await node.ack(lease)).outcomes) == [pb.OUTCOME_OK]
    assert list((await node.ack(lease)).outcomes) == [pb.OUTCOME_OK]
    await expire(node, 31)
    late = await node.ack(lease_of(popped.messages[1]))
    assert list(late.outcomes) == [pb.OUTCOME_INVALID_HANDLE]


async def test_change_invisible_gives_a_new_handle(node: NodeUnderTest) -> None:
    """The old handle is void, 0 makes the message visible at once."""
    await node.append([b"a"])
    popped = await node.pop()
    old = lease_of(popped.messages[0])
    changed = await node.rpc.change_invisible(
        pb.ChangeInvisibleRequest(raft_group=GROUP, lease=old, invisible_ms=60_000), CONTEXT
    )
    assert list((await node.ack(old)).outcomes) == [pb.OUTCOME_INVALID_HANDLE]
    await expire(node, 31)
    assert bodies(await node.pop()) == []
    await node.rpc.change_invisible(
        pb.ChangeInvisibleRequest(raft_group=GROUP, lease=changed.lease, invisible_ms=0), CONTEXT
    )
    assert bodies(await node.pop()) == [b"a"]


async def test_a_parked_pop_is_woken_by_an_append_and_by_a_release(node: NodeUnderTest) -> None:
    """Long polls end as soon as there is something, one waiter per message."""
    waiting = [asyncio.ensure_future(node.pop(wait_ms=600_000, max_messages=1)) for _ in range(2)]
    await node.until_parked(2)
    await node.append([b"a"])
    done, pending = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    first = done.pop().result()
    assert bodies(first) == [b"a"]
    await node.rpc.change_invisible(
        pb.ChangeInvisibleRequest(
            raft_group=GROUP, lease=lease_of(first.messages[0]), invisible_ms=0
        ),
        CONTEXT,
    )
    second = await asyncio.wait_for(pending.pop(), 60)
    assert (bodies(second), second.messages[0].attempt_count) == ([b"a"], 2)


async def test_a_cancelled_pop_passes_its_wake_up_on(node: NodeUnderTest) -> None:
    """A client that goes away takes nothing with it."""
    gone = asyncio.ensure_future(node.pop(wait_ms=600_000))
    await node.until_parked(1)
    stays = asyncio.ensure_future(node.pop(wait_ms=600_000))
    await node.until_parked(2)
    gone.cancel()
    await asyncio.sleep(0)
    await node.append([b"a"])
    assert bodies(await asyncio.wait_for(stays, 60)) == [b"a"]


async def test_a_fifo_message_group_waits_for_its_first_message(node: NodeUnderTest) -> None:
    """Later messages of a message group come after the ack; other message groups go on."""
    await node.append([b"a1", b"b1", b"a2"], message_groups=["a", "b", "a"])
    first = await node.pop(fifo=True, max_messages=1)
    assert bodies(first) == [b"a1"]
    assert bodies(await node.pop(fifo=True)) == [b"b1"]
    assert bodies(await node.pop(fifo=True)) == []
    await node.ack(lease_of(first.messages[0]))
    assert bodies(await node.pop(fifo=True)) == [b"a2"]


async def test_the_same_attempt_gets_the_same_messages(node: NodeUnderTest) -> None:
    """A FIFO receive that is repeated with its attempt id finds its leases again."""
    await node.append([b"a1", b"a2", b"a3"], message_groups=["a", "a", "a"])
    attempt = text_hash("attempt-1")
    first = await node.pop(fifo=True, attempt=attempt, max_messages=2)
    again = await node.pop(fifo=True, attempt=attempt, max_messages=2)
    assert bodies(first) == bodies(again) == [b"a1", b"a2"]
    assert [m.lease_number for m in first.messages] == [m.lease_number for m in again.messages]


async def test_a_new_group_starts_where_it_asked_to(node: NodeUnderTest) -> None:
    """LATEST skips what is there, and still does after other pops."""
    await node.append([b"old"])
    latest = pb.START_POSITION_LATEST
    assert bodies(await node.pop(start=latest)) == []
    await node.append([b"new"])
    assert bodies(await node.pop(start=latest)) == [b"new"]


async def test_no_queue_starves(node: NodeUnderTest) -> None:
    """Small pops over all queues take from each in turn."""
    for queue in range(4):
        await node.append([b"%d" % queue] * 8, queue=queue)
    seen = [(await node.pop(max_messages=2)).messages[0].queue for _ in range(4)]
    assert sorted(seen) == [0, 1, 2, 3]


# Attempts and dead letters ----------------------------------------------------------------------


async def test_a_message_goes_to_the_dead_letter_topic_when_its_attempts_are_used_up(
    node: NodeUnderTest,
) -> None:
    """Copied with its id, also when nobody pops; gone from its queue."""
    identity = message_id(b"poison")
    await node.append([b"fine", b"poison"], ids=[message_id(b"fine"), identity])
    for attempt in range(1, 4):
        popped = await node.pop()
        assert [m.attempt_count for m in popped.messages] == [attempt] * len(popped.messages)
        if attempt == 1:
            await node.ack(lease_of(popped.messages[0]))
        await expire(node, 31)
    assert bodies(await node.pop()) == []
    dead_letters = pb.TopicRef(topic_id=DEAD_LETTER_TOPIC_ID, dead_letter=True)
    found = await node.rpc.pop(
        pop_request(topic=dead_letters, consumer_group_id=8, queue=GROUP), CONTEXT
    )
    assert [(m.queue, m.message) for m in found.messages] == [(GROUP, b"poison")]
    query = pb.QueryRequest(
        raft_group=GROUP,
        topic_id=DEAD_LETTER_TOPIC_ID,
        message_id=unpack_message_id(identity) or "",
    )
    assert [m.message for m in (await node.rpc.query(query, CONTEXT)).messages] == [b"poison"]
    state = await node.rpc.get_consumer_state(
        pb.GetConsumerStateRequest(raft_group=GROUP, consumer_group_id=5, topic=TOPIC), CONTEXT
    )
    assert next((q.cursor, q.in_flight, q.waiting) for q in state.queues) == (2, 0, 0)


async def test_a_consumer_can_forward_a_message_to_the_dead_letter_topic(
    node: NodeUnderTest,
) -> None:
    """Once: the handle is void afterwards."""
    await node.append([b"a"])
    lease = lease_of((await node.pop()).messages[0])
    request = pb.ForwardToDeadLetterRequest(
        raft_group=GROUP, lease=lease, dead_letter_topic_id=DEAD_LETTER_TOPIC_ID
    )
    assert not (await node.rpc.forward_to_dead_letter(request, CONTEXT)).HasField("refusal")
    again = await node.rpc.forward_to_dead_letter(request, CONTEXT)
    assert again.refusal.outcome == pb.OUTCOME_INVALID_HANDLE
    fetched = await node.rpc.fetch(
        pb.FetchRequest(
            raft_group=GROUP, topic_id=DEAD_LETTER_TOPIC_ID, queue=GROUP, max_messages=5
        ),
        CONTEXT,
    )
    assert [m.message for m in fetched.messages] == [b"a"]


async def test_auto_renewed_leases_live_as_long_as_their_holder(node: NodeUnderTest) -> None:
    """Rule 25: reports keep them; 15 s of silence, or a goodbye, releases them."""
    await node.append([b"a"])
    assert bodies(await node.pop(auto_renew=True, holder=77)) == [b"a"]

    async def report(**fields: object) -> pb.ReportClientsResponse:
        request = pb.ReportClientsRequest(broker_boot_id=1, **fields)  # type: ignore[arg-type]
        return await node.rpc.report_clients(request, CONTEXT)

    assert (await report(live=[77])).want_full
    for _ in range(20):
        assert not (await report(full=True, live=[77])).want_full
        await expire(node, 10)
    assert bodies(await node.pop()) == []
    await expire(node, 16)
    again = await node.pop(auto_renew=True, holder=78)
    assert (bodies(again), again.messages[0].attempt_count) == ([b"a"], 2)
    await expire(node, 2)
    await report(gone=[78])
    await expire(node, 0)
    assert bodies(await node.pop()) == [b"a"]


# Operators --------------------------------------------------------------------------------------


async def test_a_reset_voids_every_older_lease(node: NodeUnderTest) -> None:
    """After a reset to the start everything comes again; old handles are invalid."""
    await node.append([b"a", b"b"])
    lease = lease_of((await node.pop()).messages[0])
    reset = pb.ResetConsumerRequest(
        raft_group=GROUP, consumer_group_id=5, topic=TOPIC, earliest=True
    )
    states = (await node.rpc.reset_consumer(reset, CONTEXT)).queues
    assert [(q.cursor, q.head) for q in states] == [(0, 0)] * 4
    assert list((await node.ack(lease)).outcomes) == [pb.OUTCOME_INVALID_HANDLE]
    assert bodies(await node.pop()) == [b"a", b"b"]
    reset = pb.ResetConsumerRequest(raft_group=GROUP, consumer_group_id=5, topic=TOPIC, offset=1)
    await node.rpc.reset_consumer(reset, CONTEXT)
    assert bodies(await node.pop()) == [b"b"]


async def test_offsets_are_found_by_store_time(node: NodeUnderTest) -> None:
    """The first offset stored at or after a time, by group time."""
    times = []
    for number in range(10):
        result = await node.append([b"x"] * (number + 1))
        times.append((result.store_time_ms, result.parts[0].base_offset))
        node.clock.advance(1)
    for store_time_ms, base in times:
        for time_ms in (store_time_ms, store_time_ms - 500):
            request = pb.GetOffsetsRequest(
                raft_group=GROUP, topic=TOPIC, queues=[0], time_ms=time_ms
            )
            (queue,) = (await node.rpc.get_offsets(request, CONTEXT)).queues
            assert queue.by_time == base
    request = pb.GetOffsetsRequest(raft_group=GROUP, topic=TOPIC, queues=[0], time_ms=2**62)
    (queue,) = (await node.rpc.get_offsets(request, CONTEXT)).queues
    assert queue.by_time == queue.next_offset == 55


async def test_messages_are_found_by_id_key_and_position(node: NodeUnderTest) -> None:
    """Each kind of query finds exactly its messages."""
    identity = message_id(b"b")
    await node.append(
        [b"a", b"b", b"c"],
        ids=[message_id(b"a"), identity, message_id(b"c")],
        keys=["k1", "k2", "k1"],
    )

    async def query(**fields: object) -> list[bytes]:
        request = pb.QueryRequest(raft_group=GROUP, topic_id=7, max_messages=10, **fields)  # type: ignore[arg-type]
        return [m.message for m in (await node.rpc.query(request, CONTEXT)).messages]

    assert await query(message_id=unpack_message_id(identity)) == [b"b"]
    assert await query(key="k1") == [b"a", b"c"]
    assert await query(position=pb.QueueOffset(queue=0, offset=2)) == [b"c"]
    assert await query(key="none") == []


async def test_a_dropped_topic_takes_nothing_any_more(node: NodeUnderTest) -> None:
    """Its rows are gone and its id is dead forever."""
    await node.append([b"a"])
    await node.pop()
    await node.rpc.drop(pb.DropRequest(raft_group=GROUP, topic_id=7), CONTEXT)
    result = await node.append([b"b"])
    assert result.parts[0].outcome == pb.OUTCOME_WRONG_GROUP
    assert (await node.pop()).refusal.outcome == pb.OUTCOME_WRONG_GROUP
    rows = node.app.node.engine(GROUP).machine.rows
    assert list(rows.queues.all()) == []
    assert rows.heads.of_topic(7) == []
    assert list(rows.leases.all()) == []


async def test_a_sealed_queue_takes_no_append_and_is_still_read(node: NodeUnderTest) -> None:
    """Seal gives the end offset, again and again; an opened epoch starts where it is told."""
    await node.append([b"a"])
    seal = pb.SealRequest(raft_group=GROUP, topic_id=7, queue=0, destination_raft_group=2)
    for _ in range(2):
        assert (await node.rpc.seal(seal, CONTEXT)).end_offset == 1
    assert (await node.append([b"b"])).parts[0].outcome == pb.OUTCOME_SEALED
    assert bodies(await node.pop(known_sealed=1)) == [b"a"]
    opened = pb.OpenRequest(raft_group=GROUP, topic_id=50, queue=3, epoch=2, start_offset=10)
    await node.rpc.open(opened, CONTEXT)
    assert (await node.append([b"c"], topic_id=50, queue=3)).parts[0].base_offset == 10


async def test_too_many_parked_pops_are_refused(tmp_path: Path) -> None:
    """The limit on waiters answers at once."""
    config = small_config(max_waiters=1)
    async with node_under_test(tmp_path, config=config) as node:
        parked = asyncio.ensure_future(node.pop(wait_ms=600_000))
        await node.until_parked(1)
        refused = await node.pop(wait_ms=600_000)
        assert refused.refusal.outcome == pb.OUTCOME_TOO_MANY_WAITERS
        await node.append([b"a"])
        assert bodies(await parked) == [b"a"]


async def test_watchers_are_told_what_is_led_here(node: NodeUnderTest) -> None:
    """The first answer of a watch lists the led raft groups."""
    stream = node.rpc.watch(pb.WatchRequest(broker_boot_id=1), CONTEXT)
    assert list((await anext(stream)).led_groups) == [GROUP]


async def test_a_consumer_group_knows_the_topics_of_which_it_has_state(tmp_path: Path) -> None:
    """Rising ids, each once, over all queues; none of other groups, of dropped topics, unread."""
    async with node_under_test(tmp_path) as node:

        async def topics(consumer_group_id: int = 5) -> list[int]:
            request = pb.GetConsumerTopicsRequest(
                raft_group=GROUP, consumer_group_id=consumer_group_id
            )
            response = await node.rpc.get_consumer_topics(request, CONTEXT)
            assert not response.HasField("refusal"), response.refusal
            return list(response.topic_ids)

        assert await topics() == []
        for topic_id in (300, 7, 2**32 - 1):
            topic = pb.TopicRef(topic_id=topic_id, slot_base=0, queue_count=4)
            for queue in range(4):
                await node.append([b"x"], topic_id=topic_id, queue=queue)
            await node.pop(topic=topic)
        await node.append([b"unread"], topic_id=8)
        await node.pop(consumer_group_id=6)
        assert await topics() == [7, 300, 2**32 - 1]
        assert await topics(6) == [7]
        await node.rpc.drop(pb.DropRequest(raft_group=GROUP, topic_id=300), CONTEXT)
        assert await topics() == [7, 2**32 - 1]
        engine = node.app.node.engine(GROUP)
        engine._options = replace(engine._options, consumer_topics_max=1)
        assert await topics(6) == [7]
        request = pb.GetConsumerTopicsRequest(raft_group=GROUP, consumer_group_id=5)
        refusal = (await node.rpc.get_consumer_topics(request, CONTEXT)).refusal
        assert refusal.outcome == pb.OUTCOME_OVERLOADED


async def test_a_new_leader_knows_ids_before_it_has_read_the_log(node: NodeUnderTest) -> None:
    """Until the window of earlier terms is there, every id is looked up in its row (rule 23)."""
    identity = message_id(b"x")
    await node.append([b"x"], ids=[identity])
    leader = node.app.node.engine(GROUP).leading()
    options = leader.appends._options
    # As it is at the beginning of a term.
    leader.appends.window = DedupeWindow(options.dedupe, since_ms=leader.proposer.now_ms() + 1)
    again = await node.append([b"x", b"y"], ids=[identity, message_id(b"y")])
    assert [(each.ordinal, each.offset) for each in again.parts[0].duplicates] == [(0, 0)]
    assert again.parts[0].base_offset == 1
    history = DedupeWindow(options.dedupe)
    history.add(7, [identity], leader.proposer.now_ms())
    leader.appends.adopt(history)
    third = await node.append([b"x"], ids=[identity])
    assert [(each.ordinal, each.offset) for each in third.parts[0].duplicates] == [(0, 0)]
