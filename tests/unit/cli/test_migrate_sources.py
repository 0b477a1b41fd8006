"""Sources that delete, skip, fall silent or lose messages while they are copied."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from strata_cli.errors import CliError
from strata_cli.main import run as main
from strata_cli.migrate.connections import RemotingConnections, SourceUnreachableError
from strata_cli.migrate.copier import MAX_BATCH_MESSAGES, Copier, CopyOptions
from strata_cli.migrate.migration import Migration
from strata_cli.migrate.pace import CopyPace
from strata_cli.migrate.plan import Choices
from strata_cli.migrate.source import PulledBatch, RocketMqSource
from strata_cli.migrate.source_rows import BrokerDescription, SourceGroup, SourceQueue
from strata_cli.migrate.state import BatchProgress, MigrationState
from strata_remoting import RemotingCommand, RequestCode, ResponseCode
from strata_testing.clock import ManualClock
from tests.unit.cli.migrate_ports import MemorySource, MemoryTarget, run

_INNER_BATCH = 0x80


async def test_messages_that_the_source_deleted_are_counted(tmp_path: Path) -> None:
    """The copy goes on with the messages that are left; the others count as expired."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 2)
    await run(source, target, path)
    source.add(queue, 6)
    del source.messages[queue][:5]
    await run(source, target, path)
    assert target.bodies("t")[0][2:] == [b"t/a/0/5", b"t/a/0/6", b"t/a/0/7"]
    state = MigrationState(path)
    assert [(each.copied, each.expired) for each in state.queues()] == [(5, 3)]
    state.close()


async def test_a_source_that_gives_nothing_is_asked_again(tmp_path: Path) -> None:
    """Nothing is passed over: the run waits, or ends with the place, and a repeat goes on."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 5)
    source.silent = 4
    await run(source, target, path)
    assert len(target.bodies("t")[0]) == 5
    source.add(queue, 5)
    source.silent = 1_000
    with pytest.raises(CliError, match="up to offset 10, and its broker gives none at 5"):
        await run(source, target, path)
    source.silent = 0
    await run(source, target, path)
    assert target.bodies("t")[0] == [b"t/a/0/%d" % offset for offset in range(10)]


async def test_a_source_that_skips_is_not_followed(tmp_path: Path) -> None:
    """RocketMQ answers a failed look-up with an offset in its next file, far behind the end."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 5)
    pull, skips = source.pull, [3]

    async def skipping(queue: SourceQueue, offset: int, count: int) -> PulledBatch:
        if offset in skips:
            skips.remove(offset)
            return PulledBatch([], 300_000, await source.window(queue))
        return await pull(queue, offset, count)

    source.pull = skipping  # type: ignore[method-assign]
    await run(source, target, path)
    source.add(queue, 2)
    await run(source, target, path)
    assert skips == []
    assert target.bodies("t")[0] == [b"t/a/0/%d" % offset for offset in range(7)]


async def test_messages_that_are_missing_within_a_pull_are_counted(tmp_path: Path) -> None:
    """Nobody may take the copy for whole."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 6)
    del source.messages[queue][2:4]
    await run(source, target, path)
    state = MigrationState(path)
    assert [(each.copied, each.expired) for each in state.queues()] == [(4, 2)]
    state.close()


async def test_many_refusals_are_noted_batch_by_batch(tmp_path: Path) -> None:
    """A queue full of messages that cannot be copied is not held in memory."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 3 * MAX_BATCH_MESSAGES)
    held = source.messages[queue]
    held[:] = [replace(one, system_flag=_INNER_BATCH) for one in held]
    source.most_pulled = 100
    noted: list[int] = []
    advance = MigrationState.advance

    def noting(state: MigrationState, queue: SourceQueue, done: BatchProgress) -> None:
        noted.append(len(done.refusals))
        advance(state, queue, done)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MigrationState, "advance", noting)
        await run(source, target, path, skips_refused=True)
    assert noted == [MAX_BATCH_MESSAGES] * 3


async def test_a_queue_that_became_shorter_ends_the_round(tmp_path: Path) -> None:
    """A broker may lose what it had not flushed, between the begin of a round and a pull."""
    source, target, path = MemorySource(), MemoryTarget(), tmp_path / "s.db"
    source.add_topic("a", "t", 1, "NORMAL")
    queue = SourceQueue("t", "a", 0)
    source.add(queue, 9)
    pull = source.pull

    async def losing(queue: SourceQueue, offset: int, count: int) -> PulledBatch:
        del source.messages[queue][4:]
        return await pull(queue, offset, count)

    source.pull = losing  # type: ignore[method-assign]
    await run(source, target, path)
    source.pull = pull  # type: ignore[method-assign]
    source.add(queue, 2)
    await run(source, target, path)
    assert target.bodies("t")[0] == [b"t/a/0/%d" % offset for offset in range(6)]


class RestartingSource(MemorySource):
    """A source whose broker b restarts: its name is gone for some looks at the nameserver.

    Attributes:
        looks: at the nameserver so far.
        gone_at: numbers of the looks that do not find b.
    """

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.gone_at: frozenset[int] = frozenset()

    async def describe(self) -> Sequence[BrokerDescription]:
        """See `MigrationSource`."""
        self.looks += 1
        rows = await super().describe()
        return [row for row in rows if row.broker.name != "b" or self.looks not in self.gone_at]


@pytest.mark.parametrize("look", [3, 4], ids=["before the copy", "after it"])
async def test_a_broker_that_restarts_moves_no_cursor_back(tmp_path: Path, look: int) -> None:
    """Without it the nameserver tells no position in its queues: it is asked again."""
    source, target, path = RestartingSource(), MemoryTarget(), tmp_path / "s.db"
    queues = [SourceQueue("t", broker, 0) for broker in ("a", "b")]
    source.groups["g"] = SourceGroup("g", False, 16)
    for queue in queues:
        source.add_topic(queue.broker, "t", 1, "NORMAL")
        source.add(queue, 5)
        source.positions["g", queue] = 3
    await run(source, target, path)
    assert [target.set["g", "t", number] for number in range(2)] == [3, 3]
    source.positions["g", queues[1]] = 4
    source.gone_at = frozenset((look,))
    await run(source, target, path)
    assert [target.set["g", "t", number] for number in range(2)] == [3, 4]
    source.gone_at = frozenset(range(100))
    with pytest.raises(SourceUnreachableError, match="no master of broker b"):
        await run(source, target, path)
    assert [target.set["g", "t", number] for number in range(2)] == [3, 4]


class NoAnswers(RemotingConnections):
    """A nameserver whose brokers come and go.

    Attributes:
        brokers: that it knows.
    """

    def __init__(self) -> None:
        super().__init__(1.0)
        self.brokers: list[str] = []

    async def call(
        self, address: str, code: int, fields: Mapping[str, object], body: bytes = b""
    ) -> RemotingCommand:
        """See `RemotingConnections`."""
        table = {
            name: {"cluster": "c", "brokerAddrs": {"0": "10.0.0.1:10911"}} for name in self.brokers
        }
        assert code in (RequestCode.GET_BROKER_CLUSTER_INFO, *BROKERS_OWN)
        text = json.dumps({"brokerAddrTable": table})
        return RemotingCommand(ResponseCode.SUCCESS, 1, {}, text.encode())


BROKERS_OWN = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
)


async def test_a_source_whose_brokers_all_restart_is_not_reached() -> None:
    """Following goes on then; where there never was a broker, nothing can be copied."""
    connections = NoAnswers()
    source = RocketMqSource(connections, ["10.0.0.1:9876"])
    with pytest.raises(CliError, match="nothing can be copied") as never:
        await source.describe()
    assert never.value.code == "not_found"
    connections.brokers = ["a"]
    assert [row.broker.name for row in await source.describe()] == ["a"]
    with pytest.raises(SourceUnreachableError, match="no master of broker b"):
        await source.window(SourceQueue("t", "b", 0))
    connections.brokers = []
    for _ in range(2):
        with pytest.raises(SourceUnreachableError, match="knows no master"):
            await source.describe()


async def test_a_stop_ends_the_wait_for_the_pace(tmp_path: Path) -> None:
    """A low rate may mean hours until the next message: Ctrl-C ends the run before."""
    source, target = MemorySource(), MemoryTarget()
    source.add_topic("a", "t", 1, "NORMAL")
    source.add(SourceQueue("t", "a", 0), 3)
    waits = asyncio.Event()

    async def sleep(_: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    pace = CopyPace(0.001, 0, clock=ManualClock(), sleep=sleep)
    state = MigrationState(tmp_path / "s.db")
    copier = Copier(source, target, state, pace=pace, options=CopyOptions())
    running = asyncio.ensure_future(Migration(source, target, Choices()).run(state, copier))
    await waits.wait()
    copier.stop()
    assert (await running).moved == ()
    assert len(target.bodies("t")[0]) == 1
    state.close()


@pytest.mark.parametrize("address", ["a..b:9876", "127.0.0.1:99999", "127.0.0.1:²", "host", ""])
def test_what_is_no_address_is_a_wrong_command_line(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told before anything is asked; of several addresses each is looked at."""
    for given in (address, f"127.0.0.1:9876;{address}") if address else (address,):
        assert main(["migrate", "plan", given, "--endpoint", "127.0.0.1:1"]) == 2
        told = capsys.readouterr().err
        assert "HOST:PORT" in told
        assert "a mistake in strata" not in told


@pytest.mark.parametrize("rate", ["nan", "inf", "-1"])
@pytest.mark.parametrize("option", ["--max-messages-per-s", "--max-bytes-per-s"])
def test_a_rate_is_a_number(
    option: str, rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a number would be no limit at all."""
    command = ["migrate", "run", "127.0.0.1:9", option, rate, "--state", str(tmp_path / "s.db")]
    assert main(command) == 2
    assert "are 0 or more" in capsys.readouterr().err
