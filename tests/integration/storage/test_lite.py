"""Lite topics in a storage node: their numbers, restarts, the limit, and the end of quiet ones."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from strata.storage.v1 import lite_pb2
from strata.storage.v1 import storage_pb2 as pb
from strata_mq.slots import FIRST_LITE_QUEUE, fifo_queue, lite_home
from strata_state.ports import RowBatch
from strata_storage.base.disk_guard import DiskMark
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.lease_calls import ResetTarget
from strata_storage.lite.group import LiteGroup
from strata_storage.lite.leader import LiteLeader
from strata_storage.lite.options import LiteOptions
from strata_storage.lite.plugin import LiteStoragePlugin
from strata_storage.lite.servicer import LiteServicer
from strata_storage.rows.ownership import Topic
from strata_testing import until
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
    small_config,
)
from tests.integration.storage.test_deliverables import look, told_by

NAMES = [f"chat-{number}" for number in range(20)]
LIFE_MS = 60_000


async def number(node: NodeUnderTest, *names: str, known_only: bool = False) -> list[int]:
    """Return the numbers of lite topics."""
    request = lite_pb2.NumberLiteTopicsRequest(
        raft_group=GROUP, topic=TOPIC, names=names, known_only=known_only
    )
    response = await node.server.handler(LiteServicer).number_lite_topics(request, CONTEXT)
    if response.HasField("refusal"):
        raise Refused(response.refusal.outcome, response.refusal.reason)
    return list(response.numbers)


async def listed(node: NodeUnderTest, *, page: int = 7) -> dict[str, lite_pb2.LiteTopic]:
    """Return all lite topics, page by page."""
    found: dict[str, lite_pb2.LiteTopic] = {}
    after, more = "", True
    while more:
        request = lite_pb2.ListLiteTopicsRequest(
            raft_group=GROUP, topic=TOPIC, after=after, max_lite_topics=page
        )
        response = await node.server.handler(LiteServicer).list_lite_topics(request, CONTEXT)
        found |= {one.name: one for one in response.lite_topics}
        after, more = response.lite_topics[-1].name if response.lite_topics else "", response.more
    return found


def leader(node: NodeUnderTest) -> LiteLeader:
    plugin = next(one for one in node.app._plugins if isinstance(one, LiteStoragePlugin))
    return plugin._group_of(GROUP).leading()


async def expire(node: NodeUnderTest) -> int:
    return await leader(node).expire(lambda topic_id: LIFE_MS)


async def test_a_name_has_one_number_for_ever(tmp_path: Path) -> None:
    """For all who ask at once, for repeats, and after a restart; its queue is the name's."""
    async with node_under_test(tmp_path) as node:
        both = await asyncio.gather(number(node, *NAMES), number(node, *NAMES[::-1]))
        assert both[0] == both[1][::-1]
        assert len(set(both[0])) == len(NAMES)
        for name, found in zip(NAMES, both[0], strict=True):
            assert found >= FIRST_LITE_QUEUE
            assert lite_home(found, TOPIC.queue_count) == fifo_queue(name, TOPIC.queue_count)
        assert await number(node, "nobody", known_only=True) == [0]
        result = await node.append([b"1", b"2"], queue=both[0][3])
        assert result.parts[0].outcome == pb.OUTCOME_OK
    async with node_under_test(tmp_path) as node:
        node.sequence = 100
        assert await number(node, *NAMES) == both[0]
        (new,) = await number(node, "new")
        assert new not in both[0]
        rows = await listed(node)
        assert list(rows) == sorted([*NAMES, "new"])
        assert (rows[NAMES[3]].number, rows[NAMES[3]].next_offset) == (both[0][3], 2)


async def test_rows_that_are_lost_come_back_from_the_log(tmp_path: Path) -> None:
    """Names, numbers, messages, and that a lite topic has ended."""
    async with node_under_test(tmp_path) as node:
        quiet, *rest = await number(node, *NAMES[:5])
        node.clock.advance(LIFE_MS + 1_000)
        for queue in rest:
            await node.append([b"%d" % queue], queue=queue)
        assert await expire(node) == 1
        before = await listed(node)
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path) as node:
        assert await listed(node) == before
        assert set(before) == set(NAMES[1:5])
        popped = await node.pop(queue=rest[0])
        assert [one.message for one in popped.messages] == [b"%d" % rest[0]]
        (anew,) = await number(node, NAMES[0])
        assert anew not in (quiet, *rest)


async def test_a_queue_that_is_no_lite_topic_takes_nothing(tmp_path: Path) -> None:
    """Neither appends nor pops: the number was never given."""
    async with node_under_test(tmp_path) as node:
        wrong = FIRST_LITE_QUEUE + 3
        result = await node.append([b"1"], queue=wrong)
        assert result.parts[0].outcome == pb.OUTCOME_WRONG_GROUP
        popped = await node.pop(queue=wrong)
        assert popped.refusal.outcome == pb.OUTCOME_WRONG_GROUP


async def test_the_limit_of_a_raft_group(tmp_path: Path) -> None:
    """A request that passes it makes no lite topic; known names are answered."""
    config = small_config(max_lite_topics=3)
    async with node_under_test(tmp_path, config=config) as node:
        known = await number(node, "a", "b")
        with pytest.raises(Refused) as refused:
            await number(node, "c", "d")
        assert refused.value.outcome == pb.OUTCOME_LITE_TOPIC_LIMIT
        assert "storage.max_lite_topics" in refused.value.reason
        assert await number(node, "a", "b") == known
        assert list(await listed(node)) == ["a", "b"]


async def test_a_full_disk_refuses_new_names_only(tmp_path: Path) -> None:
    """Messages of known lite topics can still be consumed: their numbers are answered."""
    async with node_under_test(tmp_path) as node:
        known = await number(node, "a", "b")
        node.app.node.disk_guard.mark = DiskMark.REFUSE_APPENDS
        assert await number(node, "a", "b") == known
        node.app.node.disk_guard.mark = DiskMark.REFUSE_APPENDS
        assert await number(node, "b", "c", known_only=True) == [known[1], 0]
        node.app.node.disk_guard.mark = DiskMark.REFUSE_APPENDS
        with pytest.raises(Refused) as refused:
            await number(node, "a", "c")
        assert refused.value.outcome == pb.OUTCOME_DISK_FULL
        assert list(await listed(node)) == ["a", "b"]


async def test_quiet_lite_topics_end_and_begin_anew(tmp_path: Path) -> None:
    """Those with traffic or leases stay; a name gets a new number later."""
    async with node_under_test(tmp_path) as node:
        quiet, busy, leased = await number(node, "quiet", "busy", "leased")
        for queue in (quiet, busy, leased):
            await node.append([b"%d" % queue], queue=queue)
        popped = await node.pop(queue=leased, invisible_ms=10 * LIFE_MS)
        assert len(popped.messages) == 1
        consumed = await node.pop(queue=quiet)
        lease = pb.LeaseRef(consumer_group_id=5, topic_id=TOPIC.topic_id, queue=quiet)
        one = consumed.messages[0]
        lease.offset, lease.lease_number = one.offset, one.lease_number
        lease.generation, lease.visible_at_ms = one.generation, one.visible_at_ms
        await node.ack(lease)
        node.clock.advance(LIFE_MS + 1_000)
        await node.append([b"again"], queue=busy)
        assert await expire(node) == 1
        assert list(await listed(node)) == ["busy", "leased"]
        assert (await node.append([b"late"], queue=quiet)).parts[0].outcome == (
            pb.OUTCOME_WRONG_GROUP
        )
        (anew,) = await number(node, "quiet")
        assert anew not in (quiet, busy, leased)
        assert (await node.append([b"x"], queue=anew)).parts[0].base_offset == 0
        machine = node.app.node.engine(GROUP).machine
        assert machine.rows.heads.get((5, TOPIC.topic_id, quiet)) is None
    async with node_under_test(tmp_path) as node:
        assert list(await listed(node)) == ["busy", "leased", "quiet"]
        assert await number(node, "quiet") == [anew]


async def test_the_end_leaves_no_leases_and_deletes_no_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many consumer groups there are: the few rows of each are deleted one by one.

    A change of leases that is under way keeps the lite topic.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    ranges: list[tuple[bytes, bytes]] = []
    apply = LiteGroup.apply

    def counted(group: LiteGroup, batch: RowBatch, raft_index: int, payload: bytes) -> int:
        return apply(group, _Counted(batch, ranges), raft_index, payload)

    monkeypatch.setattr(LiteGroup, "apply", counted)
    async with node_under_test(tmp_path) as node:
        numbers = await number(node, *NAMES)
        for queue in numbers:
            await node.append([b"1", b"2", b"3"], queue=queue)

        async def consume(queue: int, consumer_group_id: int) -> None:
            popped = await node.pop(
                queue=queue, consumer_group_id=consumer_group_id, invisible_ms=2 * LIFE_MS
            )
            leases = [lease_of(one, consumer_group_id) for one in popped.messages]
            if dice.random() < 0.9:
                await asyncio.gather(*(node.ack(one) for one in leases))
            elif popped.messages:
                await node.ack(leases[-1])

        node.clock.advance(LIFE_MS + 1_000)
        for queue in numbers[:10]:
            await consume(queue, dice.randrange(5, 9))
        late = [consume(dice.choice(numbers), dice.randrange(5, 9)) for _ in range(20)]
        ending = asyncio.ensure_future(expire(node))
        await asyncio.gather(ending, *late)
        ended = ending.result() + await expire(node)
        rows = node.app.node.engine(GROUP).machine.rows
        alive = {one.number for one in (await listed(node)).values()}
        assert ended == len(numbers) - len(alive) > 0
        assert {key[2] for key, _ in rows.leases.all()} <= alive
        assert not ranges
        assert {queue for _, queue, _ in rows.queues.all()} & set(numbers) == alive
        assert not {queue for _, queue, _, _ in rows.cq.all()} & (set(numbers) - alive)


async def test_a_reset_waits_for_the_end_of_a_lite_topic(tmp_path: Path) -> None:
    """Rows that came behind the end would stay forever."""
    async with node_under_test(tmp_path) as node:
        (quiet,) = await number(node, "quiet")
        await node.append([b"1"], queue=quiet)
        node.clock.advance(LIFE_MS + 1_000)
        engine = node.app.node.engine(GROUP)
        ending = asyncio.ensure_future(expire(node))
        await until(lambda: engine.leading().sets.held_queues)
        topic = Topic(TOPIC.topic_id, TOPIC.slot_base, TOPIC.queue_count)
        with pytest.raises(Refused) as refused:
            await engine.leading().leases.reset(5, topic, (quiet,), ResetTarget())
        assert refused.value.outcome == pb.OUTCOME_NOT_READY
        assert await ending == 1
        assert not [key for key in engine.machine.rows.heads.of_topic(TOPIC.topic_id)]


async def test_a_pop_with_a_filter_leaves_nothing_behind_a_lite_topic_that_ends(
    tmp_path: Path,
) -> None:
    """A consumer group that comes meanwhile begins nowhere: its position would stay forever."""
    async with node_under_test(tmp_path) as node:
        (quiet,) = await number(node, "quiet")
        await node.append([b"1"], queue=quiet)
        node.clock.advance(LIFE_MS + 1_000)
        engine = node.app.node.engine(GROUP)
        ending = asyncio.ensure_future(expire(node))
        await until(lambda: engine.leading().sets.held_queues)
        sql = pb.Filter(kind=pb.FILTER_KIND_SQL, expression="color = 'red'")
        popped = await node.pop(queue=quiet, filter=sql, start=pb.START_POSITION_LATEST)
        assert not popped.messages
        assert await ending == 1
        assert not [key for key in engine.machine.rows.heads.of_topic(TOPIC.topic_id)]


class _Counted:
    """A batch that notes which ranges are deleted."""

    def __init__(self, batch: RowBatch, ranges: list[tuple[bytes, bytes]]) -> None:
        self.put, self.delete = batch.put, batch.delete
        self._batch = batch
        self._ranges = ranges

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self._ranges.append((begin, end))
        self._batch.delete_range(begin, end)


async def test_a_bounded_number_ends_at_once(tmp_path: Path) -> None:
    """The rest ends at the next looks, which go on behind those that were looked at."""
    async with node_under_test(tmp_path) as node:
        most = LiteOptions(1).max_ended
        names = [f"n{number}" for number in range(2 * most + 50)]
        for at in range(0, len(names), most):
            await number(node, *names[at : at + most])
        node.clock.advance(LIFE_MS + 1_000)
        assert [await expire(node) for _ in range(4)] == [most, most, 50, 0]
        assert await listed(node) == {}


async def test_a_broker_that_waits_is_told_of_the_end(tmp_path: Path) -> None:
    """Its interest keeps nothing; it looks, is refused, and gets a new number for the name."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        (quiet,) = await number(node, "quiet")
        assert (await look(node, queue=quiet)).told_later
        node.clock.advance(LIFE_MS + 1_000)
        assert await expire(node) == 1
        assert await told.next() == [(GROUP, TOPIC.topic_id, 5, quiet)]
        assert not leader(node)._leader.waiters.interests
        popped = await node.pop(queue=quiet)
        assert popped.refusal.outcome == pb.OUTCOME_WRONG_GROUP
        (anew,) = await number(node, "quiet")
        assert (await look(node, queue=anew)).told_later
        await node.append([b"x"], queue=anew)
        assert await told.next() == [(GROUP, TOPIC.topic_id, 5, anew)]


async def test_a_queue_that_moves_gets_no_lite_topics(tmp_path: Path) -> None:
    """Names whose queue is sealed are refused; a queue that gets its first names stays."""
    name = "first"
    home = fifo_queue(name, TOPIC.queue_count)
    async with node_under_test(tmp_path) as node:
        engine = node.app.node.engine(GROUP)
        await engine.seal(TOPIC.topic_id, home, 2)
        with pytest.raises(Refused) as refused:
            await number(node, name)
        assert refused.value.outcome == pb.OUTCOME_WRONG_GROUP
        assert await listed(node) == {}
    async with node_under_test(tmp_path / "other") as node:
        engine = node.app.node.engine(GROUP)
        names, seal = await asyncio.gather(
            number(node, name),
            engine.seal(TOPIC.topic_id, home, 2),
            return_exceptions=True,
        )
        assert isinstance(seal, Refused) and seal.outcome == pb.OUTCOME_INVALID, seal
        assert {one.number for one in (await listed(node)).values()} == set(names)  # type: ignore[arg-type]


async def test_numbers_are_never_given_twice(tmp_path: Path) -> None:
    """In any order of new names, ends and restarts."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    given: dict[int, str] = {}
    alive: dict[str, int] = {}
    for _ in range(3):
        async with node_under_test(tmp_path) as node:
            for _ in range(12):
                names = dice.sample(NAMES, 4)
                for name, found in zip(names, await number(node, *names), strict=True):
                    assert given.setdefault(found, name) == name
                    assert alive.setdefault(name, found) == found
                if dice.random() < 0.4:
                    node.clock.advance(LIFE_MS + 1_000)
                    await expire(node)
                    alive.clear()
                assert {name: one.number for name, one in (await listed(node)).items()} == alive
