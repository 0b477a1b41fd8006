"""A migration over a source and a target in memory: what is made, copied, resumed and verified."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from strata_cli.errors import CliError
from strata_cli.migrate.copier import MAX_BATCH_MESSAGES, Copier, CopyOptions
from strata_cli.migrate.messages import FROM_PROPERTY
from strata_cli.migrate.migration import Migration
from strata_cli.migrate.pace import CopyPace
from strata_cli.migrate.plan import Choices
from strata_cli.migrate.source_rows import SourceGroup, SourceQueue
from strata_cli.migrate.state import MigrationState
from strata_cli.migrate.verifying import verify
from strata_testing.clock import ManualClock
from tests.unit.cli.migrate_ports import (
    Faults,
    KilledError,
    MemorySource,
    MemoryTarget,
    run,
    unlimited,
)


async def problems(target: MemoryTarget, path: Path) -> list[str]:
    """Return what a verification finds."""
    state = MigrationState(path)
    try:
        return [each.problem for each in await verify(state, target) if each.problem]
    finally:
        state.close()


def furnished(faults: Faults | None = None) -> MemorySource:
    """Return a source of two brokers, a topic of each kind, and a group with positions."""
    source = MemorySource(faults)
    for broker in ("a", "b"):
        source.add_topic(broker, "plain", 2, "NORMAL")
        source.add_topic(broker, "ordered", 2, "FIFO")
        for number in range(2):
            source.add(SourceQueue("plain", broker, number), 7, TAGS="t")
            for group in ("g1", "g2", ""):
                at = SourceQueue("ordered", broker, number)
                name = f"{group}-{broker}{number}" if group else ""
                source.add(at, 3, __SHARDINGKEY=name)
    source.groups["readers"] = SourceGroup("readers", False, 16)
    for queue, held in source.messages.items():
        source.positions["readers", queue] = len(held) // 2
    return source


async def test_queues_of_all_brokers_become_queues_of_one_topic(tmp_path: Path) -> None:
    """Each source queue has a queue of its own, in order; the group goes on where it was."""
    source, target = furnished(), MemoryTarget()
    await run(source, target, tmp_path / "s.db")
    names = ["a/0", "a/1", "b/0", "b/1"]
    assert target.topics["plain"].topic_type == "NORMAL"
    assert target.bodies("plain") == [
        [f"plain/{name}/{offset}".encode() for offset in range(7)] for name in names
    ]
    assert [target.set["readers", "plain", number] for number in range(4)] == [3] * 4
    assert target.groups["readers"].max_attempts == 17
    assert await problems(target, tmp_path / "s.db") == []


async def test_a_message_keeps_what_consumers_see(tmp_path: Path) -> None:
    """Id, tag, keys, group, born time and properties stay; its origin is added."""
    source, target = MemorySource(), MemoryTarget()
    source.add_topic("a", "t", 1)
    queue = SourceQueue("t", "a", 0)
    source.add(
        queue, TAGS="red", KEYS="k1 k2", color="grün", CLUSTER="old", MSG_REGION="r", WAIT="true"
    )
    source.add(queue, UNIQ_KEY="")
    await run(source, target, tmp_path / "s.db")
    assert target.topics["t"].topic_type == "MIXED"
    first, second = target.topics["t"].queues[0]
    system = first.system_properties
    assert (system.message_id, system.tag, list(system.keys)) == ("a-0-0", "red", ["k1", "k2"])
    assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_000
    assert system.born_host == "10.1.2.3:5000"
    assert dict(first.user_properties) == {
        "color": "grün",
        FROM_PROPERTY: "a/0/0/1700000000000",
    }
    assert second.system_properties.message_id.startswith("MIGRATED-")


def expected_groups(source: MemorySource) -> dict[str, list[bytes]]:
    """Return message group -> bodies of the topic `ordered`, in order."""
    groups: dict[str, list[bytes]] = {}
    for queue, held in source.messages.items():
        for one in held:
            if queue.topic == "ordered":
                key = one.properties.partition("__SHARDINGKEY\x01")[2].partition("\x02")[0]
                groups.setdefault(key or str(queue), []).append(one.body)
    return groups


def found_groups(target: MemoryTarget) -> dict[str, list[bytes]]:
    """Return the same of the target; a queue without a group at the source has one here."""
    groups: dict[str, list[bytes]] = {}
    for messages in target.topics["ordered"].queues:
        for one in messages:
            key = one.system_properties.message_group
            if key.startswith("remoting-queue-"):
                key = one.body.decode().rpartition("/")[0]
            groups.setdefault(key, []).append(one.body)
    return groups


def consumed_early(source: MemorySource, target: MemoryTarget) -> list[bytes]:
    """Return messages that the group has not consumed and that its cursors pass over."""
    unread = {
        one.body
        for queue, held in source.messages.items()
        for one in held[source.positions["readers", queue] :]
    }
    passed = {
        one.body
        for (_, topic, number), cursor in target.set.items()
        for one in target.topics[topic].queues[number][:cursor]
    }
    return sorted(unread & passed)


def check_whole(source: MemorySource, target: MemoryTarget) -> None:
    """Check that everything is there once, in order, and that the group loses nothing."""
    names = ["a/0", "a/1", "b/0", "b/1"]
    assert target.bodies("plain") == [
        [f"plain/{name}/{offset}".encode() for offset in range(7)] for name in names
    ]
    assert found_groups(target) == expected_groups(source)
    assert consumed_early(source, target) == []
    # In plain topics nothing is repeated either.
    assert [target.set["readers", "plain", number] for number in range(4)] == [3] * 4


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_killed_run_goes_on_from_every_call(tmp_path: Path, after: bool) -> None:
    """Killed before or after a call, and again as it resumes, it loses and repeats nothing."""
    counted = Faults()
    await run(furnished(counted), MemoryTarget(counted), tmp_path / "count.db")
    assert counted.calls > 60
    for kill_at in range(1 + 2 * after, counted.calls + 1, 5):
        faults = Faults(kill_at=kill_at, after=after)
        source, target, path = furnished(faults), MemoryTarget(faults), tmp_path / f"{kill_at}.db"
        killed = False
        try:
            await run(source, target, path)
        except* KilledError:
            killed = True
        assert killed, kill_at
        faults.kill_at = faults.calls + 5
        try:
            await run(source, target, path)
        except* KilledError:
            pass
        faults.kill_at = 0
        await run(source, target, path)
        check_whole(source, target)
        assert await problems(target, path) == []


async def test_a_busy_target_gets_no_message_twice(tmp_path: Path) -> None:
    """Calls fail at random, before or after they are carried out; the copy is the same."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for turn in range(10):
        busy = frozenset(number for number in range(400) if chance.random() < 0.2)
        faults = Faults(busy_at=busy, after=bool(turn % 2))
        source = furnished()
        target = MemoryTarget(faults)
        path = tmp_path / f"{turn}.db"
        for _ in range(200):
            try:
                await run(source, target, path)
                break
            except CliError:
                continue
        faults.busy_at = frozenset()
        check_whole(source, target)
        assert await problems(target, path) == []


async def test_an_id_that_the_source_has_twice_is_stored_once(tmp_path: Path) -> None:
    """RocketMQ keeps a producer's repeat; the target keeps one, and counts and cursors agree."""
    source, target = MemorySource(), MemoryTarget()
    target.dedupes = True
    source.add_topic("a", "t", 2, "NORMAL")
    first, second = SourceQueue("t", "a", 0), SourceQueue("t", "a", 1)
    source.add(first, 3)
    source.add(second)
    source.add(second, UNIQ_KEY="a-0-1")
    source.add(second)
    source.positions["g", second] = 2
    path = tmp_path / "s.db"
    await run(source, target, path)
    assert target.bodies("t") == [
        [b"t/a/0/0", b"t/a/0/1", b"t/a/0/2"],
        [b"t/a/1/0", b"t/a/1/2"],
    ]
    assert target.set["g", "t", 1] == 1
    state = MigrationState(path)
    assert [(each.copied, each.repeated) for each in state.queues()] == [(3, 0), (2, 1)]
    state.close()
    assert await problems(target, path) == []


async def test_a_second_round_copies_what_came_meanwhile(tmp_path: Path) -> None:
    """New messages, queues and topics are copied, and cursors follow their groups."""
    source, target, path = furnished(), MemoryTarget(), tmp_path / "s.db"
    await run(source, target, path)
    queue = SourceQueue("plain", "a", 0)
    source.add(queue, 2)
    source.positions["readers", queue] = 8
    source.add_topic("c", "plain", 1, "NORMAL")
    source.add(SourceQueue("plain", "c", 0), 2)
    source.add_topic("a", "new", 1, "NORMAL")
    await run(source, target, path)
    assert target.bodies("plain")[0][-2:] == [b"plain/a/0/7", b"plain/a/0/8"]
    assert target.bodies("plain")[4] == [b"plain/c/0/0", b"plain/c/0/1"]
    assert target.set["readers", "plain", 0] == 8
    assert target.topics["new"].queues == [[]]
    assert await problems(target, path) == []


async def test_a_group_that_consumes_at_the_target_is_left_alone(tmp_path: Path) -> None:
    """A cursor that moved since it was set is not moved back."""
    source, target, path = furnished(), MemoryTarget(), tmp_path / "s.db"
    await run(source, target, path)
    target.set["readers", "plain", 2] = 6
    again = await run(source, target, path)
    assert [(one.topic, one.number) for one in again.left_alone] == [("plain", 2)]
    assert again.moved == []
    assert target.set["readers", "plain", 2] == 6


async def test_a_cursor_whose_answer_was_lost_is_still_ours(tmp_path: Path) -> None:
    """The run that follows sets it further, and does not take it for the group's own."""
    faults = Faults()
    source, target, path = MemorySource(faults), MemoryTarget(faults), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 9)
    source.groups["g"] = SourceGroup("g", False, 16)
    source.positions["g", queue] = 2
    await run(source, target, path)
    source.positions["g", queue] = 5
    set_cursor = target.set_cursor

    async def losing(group: str, topic: str, queue: int, offset: int) -> int:
        await set_cursor(group, topic, queue, offset)
        raise KilledError

    target.set_cursor = losing  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        await run(source, target, path)
    target.set_cursor = set_cursor  # type: ignore[method-assign]
    source.positions["g", queue] = 7
    assert (await run(source, target, path)).left_alone == []
    assert target.set["g", "t", 0] == 7


async def test_a_cursor_never_passes_a_message_that_was_sent_to_the_target(tmp_path: Path) -> None:
    """Producers may move before the last messages are copied."""
    source, target, path = furnished(), MemoryTarget(), tmp_path / "s.db"
    queue = SourceQueue("plain", "a", 0)
    source.positions["readers", queue] = 7
    await run(source, target, path)
    assert target.set["readers", "plain", 0] == 7
    copy = target.topics["plain"].queues[0][0]
    native = type(copy)(topic=copy.topic, body=b"native")
    target.topics["plain"].queues[0].append(native)
    source.add(queue, 2)
    source.positions["readers", queue] = 9
    await run(source, target, path)
    assert target.bodies("plain")[0][7:] == [b"native", b"plain/a/0/7", b"plain/a/0/8"]
    assert target.set["readers", "plain", 0] == 7


async def test_following_goes_on_until_it_is_stopped(tmp_path: Path) -> None:
    """Messages that come are copied, although calls fail at random; a stop ends it in order."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    faults = Faults(busy_at=frozenset(n for n in range(10_000) if chance.random() < 0.1))
    source, target, path = MemorySource(faults), MemoryTarget(faults), tmp_path / "s.db"
    source.add_topic("a", "t", 2, "NORMAL")
    queues = [SourceQueue("t", "a", number) for number in range(2)]
    state, pauses = MigrationState(path), 0

    async def sleep(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        source.add(queues[pauses % 2])
        source.positions["g", queues[0]] = len(source.messages[queues[0]])
        if pauses == 40:
            copier.stop()
        await asyncio.sleep(0)

    copier = Copier(
        source, target, state, pace=unlimited(), options=CopyOptions(workers=2), sleep=sleep
    )
    await Migration(source, target, Choices()).follow(state, copier, 1.0)
    state.close()
    faults.busy_at = frozenset()
    assert len(target.bodies("t")[0]) > 10
    await run(source, target, path)
    assert target.bodies("t") == [[one.body for one in source.messages[each]] for each in queues]
    assert target.set["g", "t", 0] == len(source.messages[queues[0]])
    assert await problems(target, path) == []


async def test_a_refused_message_ends_the_run_or_is_noted(tmp_path: Path) -> None:
    """The error names the message; with --skip-refused all others are copied."""
    source, target, path = furnished(), MemoryTarget(), tmp_path / "s.db"
    target.refuses[b"plain/b/0/2"] = "too many properties"
    with pytest.raises(CliError, match="offset 2 of plain/b/0 cannot be copied: too many prop"):
        await run(source, target, path)
    await run(source, target, path, skips_refused=True)
    assert [len(queue) for queue in target.bodies("plain")] == [7, 7, 6, 7]
    state = MigrationState(path)
    assert state.refusals() == [(SourceQueue("plain", "b", 0), 2, "too many properties")]
    state.close()
    assert await problems(target, path) == []


async def test_more_queues_than_planned_take_no_message_groups(tmp_path: Path) -> None:
    """They would be in queues that nobody reads back."""
    source, target = furnished(), MemoryTarget()
    await target.make_topic("ordered", "FIFO", 7)
    with pytest.raises(CliError, match="7 queues at the target, and needs 4"):
        await run(source, target, tmp_path / "s.db")


async def test_verify_finds_a_lost_and_a_changed_message(tmp_path: Path) -> None:
    """Each queue has its own count and its own sum of checksums."""
    source, target, path = furnished(), MemoryTarget(), tmp_path / "s.db"
    await run(source, target, path)
    target.topics["plain"].queues[1][3].body = b"changed"
    del target.topics["plain"].queues[2][-1]
    assert await problems(target, path) == [
        "a message differs: the sums of the checksums are not equal",
        "7 messages were copied, 6 are there",
    ]


async def test_a_topic_with_messages_of_its_own_is_not_copied_into(tmp_path: Path) -> None:
    """The dry run names the problem, and the run ends before it sends."""
    source, target, path = furnished(), MemoryTarget(), tmp_path / "s.db"
    await run(source, target, path)
    outlook = await Migration(source, target, Choices()).look(None)
    assert set(outlook.problems) == {"plain", "ordered"}
    sends = len(target.sends)
    with pytest.raises(CliError, match="has messages at the target"):
        await run(source, target, tmp_path / "other.db")
    assert len(target.sends) == sends


async def test_a_dry_run_tells_all_and_changes_nothing(tmp_path: Path) -> None:
    """Topics, groups, counts, what is skipped and why; the target is not written."""
    source, target = furnished(), MemoryTarget()
    source.add_topic("a", "%RETRY%readers", 1)
    source.add(SourceQueue("%RETRY%readers", "a", 0), 5)
    source.positions["readers", SourceQueue("%RETRY%readers", "a", 0)] = 3
    source.add_topic("a", "TBW102", 8)
    source.add_topic("a", "later", 1, "DELAY")
    source.groups["TOOLS_CONSUMER"] = SourceGroup("TOOLS_CONSUMER", False, 16)
    outlook = await Migration(source, target, Choices()).look(None)
    assert {name: topic.topic_type for name, topic in outlook.plan.topics.items()} == {
        "later": "MIXED",
        "ordered": "FIFO",
        "plain": "NORMAL",
    }
    assert list(outlook.plan.groups) == ["readers"]
    assert sorted((each.kind, each.name) for each in outlook.plan.skipped) == [
        ("group", "TOOLS_CONSUMER"),
        ("topic", "%RETRY%readers"),
        ("topic", "TBW102"),
    ]
    assert outlook.retries == {"readers": 2}
    assert sum(window.end - window.begin for window in outlook.windows.values()) == 64
    assert (target.topics, target.groups) == ({}, {})


class SleepingClock(ManualClock):
    """Lets time go by while the copy sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Advance by so many seconds."""
        self.slept.append(seconds)
        self.advance(seconds)


@pytest.mark.parametrize(("messages", "size"), [(10, 0), (0, 100)])
async def test_a_copy_keeps_below_its_rates(tmp_path: Path, messages: int, size: int) -> None:
    """By a clock that only sleeping moves: as many seconds go by as the rate says, less a burst."""
    clock = SleepingClock()
    source, target = MemorySource(), MemoryTarget()
    source.add_topic("a", "t", 2, "NORMAL")
    for queue in range(2):
        source.add(SourceQueue("t", "a", queue), 50)
    total = sum(len(one.body) for held in source.messages.values() for one in held)
    began_s = clock.monotonic_s()
    await run(
        source,
        target,
        tmp_path / "s.db",
        pace=CopyPace(messages, size, clock=clock, sleep=clock.sleep),
    )
    took_s = clock.monotonic_s() - began_s
    assert sum(count for _, count in target.sends) == 100
    # The last batch may be a debt that nobody waits for.
    largest = max(count for _, count in target.sends)
    if messages:
        assert largest <= messages
        assert took_s >= (100 - largest - messages) / messages
    else:
        assert took_s >= (total - total / len(target.sends) * 2 - size) / size


def test_batches_are_smaller_than_what_one_request_may_have() -> None:
    """A request of a broker takes 1,024 messages by default."""
    assert MAX_BATCH_MESSAGES <= 1_024
