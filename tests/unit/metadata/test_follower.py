"""A sink is kept up to date from whichever source answers, and never goes back."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from strata.meta.v1 import meta_pb2
from strata_angelia.inproc import InprocNetwork
from strata_metadata import (
    ClusterView,
    MetadataCache,
    MetadataFollower,
    MetadataFollowerOptions,
    WatchOptions,
)
from strata_metadata.follower import MetadataSink, MetadataSources
from strata_runtime.metrics import Metrics
from strata_state.metadata import MetadataStoreError, Row
from strata_testing import until
from strata_testing.leaping_loop import LoopClock
from strata_testing.metadata_store import MemoryMetadataStore

if TYPE_CHECKING:
    from tests.unit.metadata.conftest import Source

from tests.unit.metadata.conftest import topic

OPTIONS = MetadataFollowerOptions(
    first_response_timeout_ms=60,
    silence_timeout_ms=100,
    fallback_after_ms=50,
    went_back_after_ms=20,
    first_retry_ms=1,
    max_retry_ms=4,
)
# Where no source is to be left because it is slow.
PATIENT = replace(OPTIONS, first_response_timeout_ms=30_000, silence_timeout_ms=30_000)


class Sink(ClusterView):
    """A view that remembers the revisions it went through."""

    def __init__(self) -> None:
        super().__init__()
        self.revisions: list[int] = []
        self.snapshots = 0

    def apply(self, response: meta_pb2.WatchResponse) -> None:
        super().apply(response)
        self.snapshots += response.snapshot
        if response.revision and self.revisions[-1:] != [response.revision]:
            self.revisions.append(response.revision)


@asynccontextmanager
async def following(
    network: InprocNetwork,
    sink: MetadataSink,
    endpoints: Sequence[str],
    fallbacks: Sequence[str] = (),
    *,
    options: MetadataFollowerOptions = OPTIONS,
) -> AsyncIterator[MetadataFollower]:
    follower = MetadataFollower(
        MetadataSources(endpoints, network.channel, lambda: fallbacks),
        sink,
        options=options,
        clock=LoopClock(),
        random=lambda: 0.0,
        metrics=Metrics.disabled(),
    )
    task = asyncio.ensure_future(follower.run())
    try:
        yield follower
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_snapshot_in_parts_is_taken_in_at_once(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """Five rows come in three responses; the sink sees one revision and one snapshot."""
    sources[0].tell(9, *(topic(f"t{n}", n + 1) for n in range(5)))
    sink = Sink()
    async with following(network, sink, [sources[0].endpoint]):
        await until(lambda: sink.revision == 9)
        sources[0].tell(10, topic("t5", 6))
        await until(lambda: sink.revision == 10)

    assert (sink.revisions, sink.snapshots) == ([9, 10], 1)
    assert all(sink.retention_ms(topic_id) for topic_id in range(1, 7))


async def test_a_snapshot_that_breaks_off_counts_for_nothing(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """The next source begins anew, or goes on from the last revision that counted."""
    half = [
        meta_pb2.WatchResponse(
            snapshot=number == 0, snapshot_revision=9, changes=[topic(f"x{number}", 50 + number)]
        )
        for number in range(2)
    ]
    sources[1].tell(5, topic("t0", 1))
    sink = Sink()
    endpoints = [source.endpoint for source in sources[:2]]
    async with following(network, sink, endpoints):
        await until(lambda: sink.revision == 5)
        for part in half:
            sink.apply(part)
        assert (sink.revision, sink.retention_ms(50), sink.retention_ms(1)) == (5, None, 1_000)
        sources[1].tell(6, topic("t1", 2))
        await until(lambda: sink.revision == 6)

    assert [sink.retention_ms(topic_id) for topic_id in (1, 2, 50, 51)] == [
        1_000,
        1_000,
        None,
        None,
    ]


async def test_a_lost_source_is_replaced_and_resumed(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """The next one is asked for what came after the last revision; nothing comes twice."""
    for source in sources[:2]:
        source.tell(3, topic("t0", 1))
    sink = Sink()
    endpoints = [source.endpoint for source in sources[:2]]
    async with following(network, sink, endpoints, options=PATIENT):
        await until(lambda: sink.revision == 3)
        await sources[0].stop()
        await until(lambda: bool(sources[1].watches))
        sources[1].tell(4, topic("t1", 2))
        await until(lambda: sink.revision == 4)

    assert (sink.revisions, sink.snapshots) == ([3, 4], 1)
    assert sources[1].watches[0] == 3


async def test_a_source_that_knows_less_is_left(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """A revision never goes back: one that lags is asked again only after the others."""
    sources[0].tell(5, topic("t0", 1))
    sources[1].tell(4, topic("t0", 1))
    sources[2].tell(5, topic("t0", 1))
    sink = Sink()
    async with following(network, sink, [source.endpoint for source in sources]):
        await until(lambda: sink.revision == 5)
        await sources[0].stop()
        await until(lambda: bool(sources[2].watches))
        sources[2].tell(6, topic("t1", 2))
        await until(lambda: sink.revision == 6)

    assert sink.revisions == [5, 6]
    assert sources[1].watches == [5]


async def test_nameservers_that_went_back_are_told_and_not_followed(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """An old state in a nameserver's folder: told once, with both revisions, and never taken in.

    When it knows more than the sink everything is taken in anew: its revision 6 is another change
    than the one that the sink knows.
    """
    sources[0].tell(6, topic("t0", 1), topic("t1", 2))
    sink = Sink()
    endpoint = sources[0].endpoint
    with structlog.testing.capture_logs() as lines:
        async with following(network, sink, [endpoint]) as follower:
            await until(lambda: sink.revision == 6)
            assert follower.trouble == ""
            await sources[0].go_back_to(4, topic("t0", 1))
            await until(lambda: bool(follower.trouble))
            asked = len(sources[0].watches)
            await until(lambda: len(sources[0].watches) > asked + 3)
            assert (sink.revision, sink.retention_ms(2)) == (6, 1_000)
            assert f"{endpoint} leads with revision 4, 6 is known" in follower.trouble
            sources[0].tell(7, topic("other", 3))
            await until(lambda: sink.revision == 7)
            assert follower.trouble == ""
    assert [line["event"] for line in lines] == ["nameservers went back"]
    assert [sink.retention_ms(topic_id) for topic_id in (1, 2, 3)] == [1_000, None, 1_000]
    assert sink.revisions == [6, 7]


async def test_nameservers_that_went_back_and_overtook_are_found_out(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """The same revision with another stamp is another change: told, and all is taken in anew."""
    sources[0].tell(6, topic("t0", 1), topic("t1", 2), stamp=11)
    sink = Sink()
    with structlog.testing.capture_logs() as lines:
        async with following(network, sink, [sources[0].endpoint]):
            await until(lambda: sink.revision == 6)
            await sources[0].go_back_to(6, topic("t0", 1), topic("other", 3), stamp=12)
            await until(lambda: sink.retention_ms(3) == 1_000)
            sources[0].tell(7, topic("next", 4), stamp=13)
            await until(lambda: sink.revision == 7)
    assert [line["event"] for line in lines] == ["nameservers went back"]
    assert [sink.retention_ms(topic_id) for topic_id in (1, 2, 4)] == [1_000, None, 1_000]
    assert sink.snapshots == 2


def test_a_cache_remembers_the_stamp() -> None:
    """A process that was away finds out, too."""
    store = MemoryMetadataStore()
    cache = MetadataCache(store, WatchOptions(), Metrics.disabled())
    cache.apply(meta_pb2.WatchResponse(revision=3, changes=[topic("t0")], stamp=5))
    again = MetadataCache(store, WatchOptions(), Metrics.disabled())
    assert (again.revision, again.stamp) == (3, 5)


async def test_a_nameserver_without_a_leader_may_lag(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """One that is cut off from the others knows less and is no sign of anything."""
    sources[0].tell(6, topic("t0", 1))
    sources[1].tell(4, topic("t0", 1))
    sources[1].leads = False
    sink = Sink()
    endpoints = [source.endpoint for source in sources[:2]]
    async with following(network, sink, endpoints) as follower:
        await until(lambda: sink.revision == 6)
        await sources[0].stop()
        await until(lambda: len(sources[1].watches) > 20)
        assert follower.trouble == ""


async def test_a_silent_source_is_left(network: InprocNetwork, sources: list[Source]) -> None:
    """A nameserver that accepts and says nothing, as one that is stopped does."""
    sources[0].paused.clear()
    sources[1].tell(2, topic("t0", 1))
    sink = Sink()
    async with following(network, sink, [source.endpoint for source in sources[:2]]):
        await until(lambda: sink.revision == 2)

    assert len(sources[0].watches) == 1


async def test_fallbacks_serve_while_no_nameserver_answers(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """The newest of them wins; the nameservers take over when they return."""
    nameserver, older, newer = sources
    older.tell(4, topic("t0", 1))
    newer.tell(6, topic("t0", 1), topic("t1", 2))
    await nameserver.stop()
    sink = Sink()
    fallbacks = [newer.endpoint, older.endpoint]
    async with following(network, sink, [nameserver.endpoint], fallbacks):
        await until(lambda: sink.revision == 6)
        nameserver.tell(7, topic("t0", 1), topic("t1", 2), topic("t2", 3))
        await nameserver.start()
        await until(lambda: sink.revision == 7)
        asked = len(newer.watches)
        await asyncio.sleep(0.1)
        assert len(newer.watches) == asked

    assert sink.revisions == [6, 7]


async def test_a_cache_survives_and_serves(network: InprocNetwork, sources: list[Source]) -> None:
    """Opened again over the same store it knows the same, and tells it to its sinks at once."""
    sources[0].tell(3, topic("t0", 1), topic("t1", 2))
    store = MemoryMetadataStore()
    cache = MetadataCache(store, WatchOptions(), Metrics.disabled())
    cache.apply(await next_of(sources[0].cache))
    cache.apply(
        meta_pb2.WatchResponse(
            revision=5,
            changes=[
                meta_pb2.Change(deleted=True, topic=meta_pb2.Topic(name="t0")),
                meta_pb2.Change(slots=meta_pb2.SlotRange(slot_count=4_096, raft_group=7)),
            ],
        )
    )
    cache.sync()
    view = ClusterView()
    again = MetadataCache(store, WatchOptions(), Metrics.disabled(), sinks=[view])

    assert again.revision == view.revision == 5
    assert await again.snapshot() == await cache.snapshot()
    assert (view.retention_ms(1), view.retention_ms(2)) == (None, 1_000)
    assert (view.slot_owner(0), view.slot_owner(4_095)) == (7, 7)


class FullStore(MemoryMetadataStore):
    """A store with room for so many batches.

    Attributes:
        room: batches that it takes yet.
        refused: batches that it did not take.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.refused = 0

    def write(self, puts: Sequence[Row], deletes: Sequence[bytes] = ()) -> None:
        if not self.room:
            self.refused += 1
            raise MetadataStoreError("No space left on device")
        self.room -= 1
        super().write(puts, deletes)


async def test_what_a_full_disk_refuses_is_asked_for_again(
    network: InprocNetwork, sources: list[Source]
) -> None:
    """Half a snapshot, and a change after it: neither counts anywhere until it is written."""
    sources[0].tell(6, *(topic(f"t{n}", n + 1) for n in range(5)))
    store, view = FullStore(room=2), ClusterView()
    cache = MetadataCache(store, WatchOptions(), Metrics.disabled(), sinks=[view])
    with structlog.testing.capture_logs() as lines:
        async with following(network, cache, [sources[0].endpoint], options=PATIENT):
            await until(lambda: store.refused > 3)
            assert (cache.revision, view.revision, cache.changes_taken) == (0, 0, 4)
            store.room = 1_000
            await until(lambda: view.revision == 6)
            assert (await cache.snapshot()) == (await sources[0].cache.snapshot())
            store.room = 0
            refused, taken = store.refused, cache.changes_taken
            sources[0].tell(7, topic("t5", 6))
            await until(lambda: store.refused > refused + 3)
            assert (cache.revision, view.revision, cache.changes_taken) == (6, 6, taken)
            assert view.retention_ms(6) is None
            store.room = 1_000
            await until(lambda: view.revision == 7)
            assert (await cache.snapshot()) == (await sources[0].cache.snapshot())
    assert [line["reason"] for line in lines] == ["No space left on device"] * 2
    assert {line["event"] for line in lines} == {"metadata cannot be kept, it is tried again"}


def test_a_cache_syncs_what_it_took_in_and_nothing_else() -> None:
    """Replicas are hosted because of these rows: a power loss must not take them back."""
    synced: list[int] = []

    class NotingStore(MemoryMetadataStore):
        def sync(self) -> None:
            synced.append(len(list(self.scan(b"", b"\xff"))))

    store = NotingStore()
    cache = MetadataCache(store, WatchOptions(), Metrics.disabled())
    cache.sync()
    assert synced == []
    cache.apply(meta_pb2.WatchResponse(revision=2, snapshot=True, changes=[topic("t", 1)]))
    cache.sync()
    cache.sync()
    assert synced == [len(list(store.scan(b"", b"\xff")))]


async def next_of(cache: MetadataCache) -> meta_pb2.WatchResponse:
    revision, rows = await cache.snapshot()
    return meta_pb2.WatchResponse(revision=revision, snapshot=True, changes=rows)


async def test_a_snapshot_replaces_what_a_cache_knew() -> None:
    """Rows that are not in it are gone, in the store as well."""
    store = MemoryMetadataStore()
    cache = MetadataCache(store, WatchOptions(), Metrics.disabled())
    cache.apply(meta_pb2.WatchResponse(revision=2, changes=[topic("old", 1)]))
    cache.apply(meta_pb2.WatchResponse(revision=9, snapshot=True, changes=[topic("new", 2)]))

    assert [row.topic.name for row in (await cache.snapshot())[1]] == ["new"]
    assert cache.revision == 9


async def test_random_losses_lose_nothing(network: InprocNetwork, sources: list[Source]) -> None:
    """Sources that come, go and lag: in the end the sink has every row, in rising revisions."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chooser = random.Random(seed)
    sink = Sink()
    history: list[meta_pb2.Change] = []
    told = [0, 0, 0]
    running = [True, True, True]
    async with following(network, sink, [source.endpoint for source in sources]):
        for _ in range(150):
            number = chooser.randrange(3)
            match chooser.randrange(4):
                case 0 if sum(running) > 1 or not running[number]:
                    await (sources[number].stop() if running[number] else sources[number].start())
                    running[number] = not running[number]
                case 1:
                    history.append(topic(f"t{len(history)}", len(history) + 1))
                case _:
                    news = history[told[number] :]
                    if news:
                        sources[number].tell(len(history), *news)
                        told[number] = len(history)
            await asyncio.sleep(chooser.choice([0, 0, 0.002]))
        for number, source in enumerate(sources):
            if history[told[number] :]:
                source.tell(len(history), *history[told[number] :])
            if not running[number]:
                await source.start()
        await until(lambda: sink.revision == len(history))

    assert sink.revisions == sorted(sink.revisions), f"seed {seed}"
    assert all(sink.retention_ms(n + 1) for n in range(len(history))), f"seed {seed}"
