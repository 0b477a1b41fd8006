"""A node is registered, beats, and registers again when it is not known."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.inproc import InprocNetwork
from strata_metadata import (
    MetadataClient,
    MetadataClientOptions,
    NodePresence,
    PresenceOptions,
)
from strata_metadata.rows import ROW_FORMAT
from strata_runtime.metrics import Metrics
from strata_testing import until

if TYPE_CHECKING:
    from tests.unit.metadata.conftest import Source


OPTIONS = PresenceOptions(interval_ms=2, timeout_ms=40, register_timeout_ms=50, retry_ms=2)


def presence_of(
    kind: meta_pb2.NodeKind.ValueType, network: InprocNetwork, sources: list[Source]
) -> NodePresence:
    client = MetadataClient(
        [sources[0].endpoint],
        network.channel,
        MetadataClientOptions(try_timeout_ms=10, first_retry_ms=1, max_retry_ms=2),
        random=lambda: 0.0,
        metrics=Metrics.disabled(),
    )
    node = meta_pb2.Node(node_id="n", kind=kind, boot_id=3)
    return NodePresence(client, node, OPTIONS, metrics=Metrics.disabled())


def _since_registration(source: Source) -> list[str]:
    """Return what followed the last registration; it only grows unless there is another one."""
    last = len(source.calls) - source.calls[::-1].index("register")
    return source.calls[last:]


@pytest.fixture
def presence(network: InprocNetwork, sources: list[Source]) -> NodePresence:
    return presence_of(meta_pb2.NODE_KIND_STORAGE, network, sources)


@contextlib.asynccontextmanager
async def running(presence: NodePresence) -> AsyncIterator[None]:
    task = asyncio.ensure_future(presence.run())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_first_heartbeat_is_complete(
    presence: NodePresence, sources: list[Source]
) -> None:
    """Registered once; the next heartbeats are deltas."""
    async with running(presence):
        await until(lambda: len(sources[0].calls) >= 4)

    assert presence.registered.is_set()
    assert sources[0].calls[:4] == ["register", "full", "delta", "delta"]


async def test_a_lost_heartbeat_makes_the_next_one_complete(
    presence: NodePresence, sources: list[Source]
) -> None:
    """Its deltas may be lost with it."""
    async with running(presence):
        await until(lambda: len(sources[0].calls) >= 3)
        assert sources[0].calls[2:] == ["delta"] * (len(sources[0].calls) - 2)
        sources[0].paused.clear()
        before = len(sources[0].calls)
        await until(lambda: "full" in sources[0].calls[before:])
        assert sources[0].calls[before] == "delta", "the one that is lost"
        sources[0].paused.set()

    assert sources[0].calls.count("register") == 1


async def test_a_forgotten_broker_registers_again(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """NOT_FOUND from a heartbeat: it was silent for too long."""
    async with running(presence_of(meta_pb2.NODE_KIND_BROKER, network, sources)):
        await until(lambda: len(sources[0].calls) >= 3)
        sources[0].status = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_NOT_FOUND)
        await until(lambda: sources[0].calls.count("register") >= 2)


async def test_a_broker_that_stays_unknown_registers_with_pauses(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """Its registrations are written, but no heartbeat finds it: each round waits for its turn."""
    sources[0].status = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_NOT_FOUND)
    async with running(presence_of(meta_pb2.NODE_KIND_BROKER, network, sources)):
        await asyncio.sleep(5.5 * OPTIONS.retry_ms / 1_000)

    assert sources[0].calls == ["register", "full"] * 6


async def test_a_row_that_an_older_leader_wrote_is_written_again(
    presence: NodePresence, sources: list[Source]
) -> None:
    """It lacks what that version did not know; the node goes on with its heartbeats."""
    async with running(presence):
        await until(lambda: len(sources[0].calls) >= 3)
        sources[0].row_format = 0
        await until(lambda: sources[0].calls.count("register") >= 2)
        sources[0].row_format = ROW_FORMAT
        before = len(sources[0].calls)
        await until(lambda: len(sources[0].calls) >= before + 3)


async def test_a_process_beside_another_one_of_its_node_says_so_and_asks_on(
    presence: NodePresence, sources: list[Source], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its row is the other one's, which is heard; once that has ended it is registered again."""
    async with running(presence):
        await until(lambda: len(sources[0].calls) >= 3)
        before = len(sources[0].calls)
        sources[0].registration_status = meta_pb2.MetaStatus(
            outcome=meta_pb2.META_OUTCOME_CONFLICT, reason="another process is heard"
        )
        sources[0].is_replaced = True
        await until(lambda: sources[0].calls[before:].count("register") >= 3)
        told = capsys.readouterr()
        assert (told.out + told.err).count("another process is heard") == 1, "once a minute"
        sources[0].registration_status = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK)
        sources[0].is_replaced = False
        await until(lambda: _since_registration(sources[0]).count("delta") >= 2)
        assert _since_registration(sources[0])[0] == "full"


async def test_a_removed_storage_node_stays_out(
    presence: NodePresence, sources: list[Source]
) -> None:
    """An operator took it away; it is silent until its process is started again."""
    running_presence = asyncio.ensure_future(presence.run())
    await until(lambda: len(sources[0].calls) >= 3)
    sources[0].status = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_NOT_FOUND)
    async with asyncio.timeout(30):
        await running_presence

    assert sources[0].calls.count("register") == 1


async def test_it_goes_on_trying_without_a_nameserver(
    presence: NodePresence, sources: list[Source]
) -> None:
    """A node that starts first waits for its nameservers."""
    await sources[0].stop()
    async with running(presence):
        await asyncio.sleep(0.02)
        assert not presence.registered.is_set()
        await sources[0].start()
        async with asyncio.timeout(30):
            await presence.registered.wait()
