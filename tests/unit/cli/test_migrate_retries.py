"""Retries that wait at the source: copied if a person wants it, each try by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from strata.meta.v1 import meta_pb2
from strata_broker.metadata.topic_rows import TopicRow
from strata_broker.remoting.shown import ShownQueue, pulled_message
from strata_cli.migrate.migration import Migration
from strata_cli.migrate.plan import Choices
from strata_cli.migrate.source_rows import SourceGroup, SourceQueue
from strata_cli.migrate.state import MigrationState
from strata_cli.migrate.verifying import verify
from strata_remoting import Store, decode_properties
from tests.unit.cli.migrate_ports import Faults, KilledError, MemorySource, MemoryTarget, run

RETRIES = "%RETRY%readers"
QUEUES = [SourceQueue(RETRIES, broker, 0) for broker in ("a", "b")]
WITH_RETRIES = Choices(with_retries=True)


def retrying(faults: Faults | None = None) -> MemorySource:
    """Return a source whose group has tried one message several times at both of its brokers."""
    source = MemorySource(faults)
    for queue in QUEUES:
        source.add_topic(queue.broker, "orders", 1, "NORMAL")
        source.add_topic(queue.broker, RETRIES, 1)
        source.add_topic(queue.broker, "%RETRY%readers_orders", 1)
        source.add(SourceQueue("orders", queue.broker, 0), 2)
        source.add(queue, 4, UNIQ_KEY="ID", RETRY_TOPIC="orders", __SHARDINGKEY="key")
        held = source.messages[queue]
        held[:] = [replace(one, reconsume_times=one.queue_offset + 1) for one in held]
    source.groups["readers"] = SourceGroup("readers", False, 16)
    source.positions["readers", QUEUES[0]] = 2
    return source


async def test_retries_stay_at_the_source_unless_they_are_asked_for(tmp_path: Path) -> None:
    """They are of use to consumers of the remoting protocol only."""
    source, target = retrying(), MemoryTarget()
    await run(source, target, tmp_path / "s.db")
    assert set(target.topics) == {"orders"}
    outlook = await Migration(source, target, Choices()).look(None)
    reasons = {each.name: each.reason for each in outlook.plan.skipped}
    assert "--retries" in reasons[RETRIES]
    assert outlook.retries == {"readers": 2}


async def test_every_try_that_waits_is_copied(tmp_path: Path) -> None:
    """All have one id at the source, and the target keeps an id once; consumers see the same."""
    source, target, path = retrying(), MemoryTarget(), tmp_path / "s.db"
    target.dedupes = True
    await run(source, target, path, choices=WITH_RETRIES)
    assert target.bodies(RETRIES) == [
        [b"%b/a/0/%d" % (RETRIES.encode(), offset) for offset in (2, 3)],
        [b"%b/b/0/%d" % (RETRIES.encode(), offset) for offset in range(4)],
    ]
    assert (target.set["readers", RETRIES, 0], target.set["readers", RETRIES, 1]) == (0, 0)
    topic = target.topics[RETRIES]
    assert topic.topic_type == "MIXED", "the broker's own retries are delayed"
    row = TopicRow(meta_pb2.Topic(name=RETRIES, topic_id=1, queue_count=2))
    for number, messages in enumerate(topic.queues):
        for at, message in enumerate(messages):
            assert not message.system_properties.message_group, "it would be in another queue"
            shown = pulled_message(message, ShownQueue(row, number, number), Store.of("h", 1))
            properties = decode_properties(shown.properties)
            assert properties["UNIQ_KEY"] == "ID"
            assert properties["RETRY_TOPIC"] == "orders"
            assert properties["__SHARDINGKEY"] == "key"
            assert shown.reconsume_times == at + (3 if number == 0 else 1)
    ids = {one.system_properties.message_id for queue in topic.queues for one in queue}
    assert len(ids) == 6


async def test_retries_of_groups_that_pop_stay(tmp_path: Path) -> None:
    """Their topics are named after group and topic; leases take their place at the target."""
    source, target = retrying(), MemoryTarget()
    outlook = await Migration(source, target, WITH_RETRIES).look(None)
    assert [each.name for each in outlook.plan.skipped] == ["%RETRY%readers_orders"]
    await run(source, target, tmp_path / "s.db", choices=WITH_RETRIES)
    assert set(target.topics) == {"orders", RETRIES}


async def test_a_later_run_goes_on_with_retries_that_became_due(tmp_path: Path) -> None:
    """The cursor follows the position at the source, and a repeat copies nothing again."""
    source, target, path = retrying(), MemoryTarget(), tmp_path / "s.db"
    target.dedupes = True
    await run(source, target, path, choices=WITH_RETRIES)
    source.positions["readers", QUEUES[0]] = 4
    source.positions["readers", QUEUES[1]] = 1
    source.add(QUEUES[0], 2, UNIQ_KEY="ID", RETRY_TOPIC="orders")
    await run(source, target, path, choices=WITH_RETRIES)
    assert [len(queue) for queue in target.topics[RETRIES].queues] == [4, 4]
    assert (target.set["readers", RETRIES, 0], target.set["readers", RETRIES, 1]) == (2, 1)
    state = MigrationState(path)
    assert [each.problem for each in await verify(state, target) if each.problem] == []
    state.close()


async def test_a_copy_of_retries_may_be_killed_anywhere(tmp_path: Path) -> None:
    """The next run loses and doubles nothing, at any call."""
    faults = Faults()
    await run(retrying(faults), MemoryTarget(faults), tmp_path / "w.db", choices=WITH_RETRIES)
    for kill_at in range(1, faults.calls + 1, 7):
        for after in (False, True):
            path = tmp_path / f"{kill_at}-{after}.db"
            counted = Faults(kill_at=kill_at, after=after)
            source, target = retrying(counted), MemoryTarget(counted)
            target.dedupes = True
            try:
                await run(source, target, path, choices=WITH_RETRIES)
            except* KilledError:
                pass
            await run(source, target, path, choices=WITH_RETRIES)
            assert [len(queue) for queue in target.topics[RETRIES].queues] == [2, 4], kill_at
            assert target.set["readers", RETRIES, 0] == 0
