"""Reads of a topic straight from the tier: what is planned, what is read, and how little of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata_placement.source import tier
from strata_placement.source.options import SourceOptions
from strata_placement.source.plan import QueueSpan
from strata_placement.source.runs import DataLossError, SourceError, StoredRun
from strata_placement.source.tier import TierPiece, TierTopic
from strata_state.metadata_keys import topic_key
from strata_tier.objects.archive import Description, encode_archive
from strata_tier.objects.names import ManifestName, metadata_key
from strata_tier.objects.state import DropRanges
from strata_tier.ranges.manifest import manifest_of
from strata_tier.store.opening import open_store
from strata_tier.store.ports import ObjectStore
from tests.unit.tier.objects import HOME, RAFT_GROUP, Message, Tier, put_manifest, queue_of

TOPIC_ID = 3
OPTIONS = SourceOptions((), "orders", tier="posix:///unused")


class Sent(Message):
    """A message whose bytes are as a broker stores them: its system properties come first."""

    @property
    def stored(self) -> bytes:
        """See `Message`."""
        properties = definition_pb2.SystemProperties(tag=self.tag or None)
        head = definition_pb2.Message(system_properties=properties)
        body = definition_pb2.Message(body=super().stored)
        return head.SerializeToString() + body.SerializeToString()


class CountingStore:
    """A store that counts the bytes that are read of it; everything else passes through."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.bytes_read = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        """Return bytes of an object."""
        data = await self._store.get(key, position, length)
        self.bytes_read += len(data)
        return data

    async def close(self) -> None:
        """Nothing: the test looks into it afterwards."""


def tag_of(offset: int) -> str:
    """The tag of every message: runs of one hundred, so that blocks have few of them."""
    return f"tag-{offset // 100}"


@pytest.fixture
def filled() -> Tier:
    """Two queues of 1,000 messages in five objects, in blocks of about 20 messages."""
    filled = Tier(block_bytes=20 * 1_000)

    async def fill() -> None:
        for first in range(0, 1_000, 200):
            offsets = range(first, first + 200)
            await filled.add(
                queue_of(
                    [
                        Sent(TOPIC_ID, queue, offset, tag_of(offset), 1_000, 10_000 + offset)
                        for offset in offsets
                    ]
                )
                for queue in (0, 1)
            )

    asyncio.run(fill())
    return filled


Read = Callable[[SourceOptions, QueueSpan], tuple[list[StoredRun], int]]


@pytest.fixture
def read(filled: Tier) -> Read:
    """Read a span; return its runs and the bytes that were read of the store."""

    def read(options: SourceOptions, span: QueueSpan) -> tuple[list[StoredRun], int]:
        store = CountingStore(filled.store)

        async def opened(_: str) -> ObjectStore:
            return store  # type: ignore[return-value]

        pieces = TierTopic(options, pieces_of(filled)).pieces(span)
        return list(tier.scan(options, span, pieces, opened)), store.bytes_read

    return read


def pieces_of(filled: Tier) -> list[TierPiece]:
    """Return everything that the tier state names."""
    metadata = filled.metadata
    pieces = []
    for (topic_id, queue), _ in metadata.queues():
        for tiered in metadata.ranges(topic_id, queue):
            held = metadata.object(tiered.object_id)
            assert held is not None
            pieces.append(TierPiece(held.ref, tiered))
    return pieces


def offsets_of(runs: list[StoredRun]) -> list[int]:
    """Return the offsets of runs."""
    return [offset for run in runs for offset in run.offsets]


def test_a_span_is_read_whole_and_no_more(read: Read) -> None:
    """Every message of the span comes once, in order, with its bytes and its time."""
    runs, _ = read(OPTIONS, QueueSpan(1, 190, 777))
    assert offsets_of(runs) == list(range(190, 777))
    for run in runs:
        assert run.queue == 1
        for offset, time_ms, message in zip(*run[1:], strict=True):
            assert time_ms == 10_000 + offset
            assert message == Sent(TOPIC_ID, 1, offset, tag_of(offset), 1_000).stored


def test_filters_read_less(read: Read) -> None:
    """A tag, a time and a part of the offsets are given exactly, and cost a part of the bytes."""
    whole = QueueSpan(0, 0, 1_000)
    _, everything = read(OPTIONS, whole)
    tagged, by_tag = read(replace(OPTIONS, tag="tag-4 || tag-8"), whole)
    assert offsets_of(tagged) == [*range(400, 500), *range(800, 900)]
    timed, by_time = read(replace(OPTIONS, begin_ms=10_250, end_ms=10_310), whole)
    assert offsets_of(timed) == list(range(250, 310))
    few, by_offset = read(OPTIONS, QueueSpan(0, 500, 530))
    assert offsets_of(few) == list(range(500, 530))
    assert max(by_tag, by_time, by_offset) < everything / 2


def test_times_plan_fewer_offsets(filled: Tier) -> None:
    """Objects that hold nothing of the time are not even opened; all queues are told of."""
    topic = TierTopic(replace(OPTIONS, queues=frozenset({1})), pieces_of(filled))
    assert topic.spans() == [QueueSpan(1, 0, 1_000)]
    assert topic.spans(10_450, 10_460) == [QueueSpan(1, 400, 600)]
    assert topic.spans(20_000) == [QueueSpan(1, 1_000, 1_000)]


def test_nothing_is_given_behind_a_hole(filled: Tier) -> None:
    """Messages of a later epoch wait for the rest of the earlier one."""
    pieces = [piece for piece in pieces_of(filled) if piece.tiered.first_offset != 400]
    spans = TierTopic(OPTIONS, pieces).spans()
    assert spans == [QueueSpan(0, 0, 400), QueueSpan(1, 0, 400)]


def test_what_was_trimmed_is_a_loss(filled: Tier) -> None:
    """Offsets that the tier gave up are an error; who allows it goes on behind them."""
    filled.apply(DropRanges([(TOPIC_ID, 0, 400)], 5_000))
    span = QueueSpan(0, 350, 450)
    with pytest.raises(DataLossError, match="offsets 350 to 399 are not in the tier any more"):
        TierTopic(OPTIONS, pieces_of(filled)).pieces(span)
    allowed = TierTopic(replace(OPTIONS, fail_on_data_loss=False), pieces_of(filled))
    assert [piece.tiered.first_offset for piece in allowed.pieces(span)] == [400]


def test_the_newest_manifest_says_what_there_is(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A bucket alone is enough: its metadata knows the topic, its manifest the objects."""
    options = replace(OPTIONS, tier=f"posix://{tmp_path_factory.mktemp('tier')}")

    async def fill() -> None:
        bucket = Tier(await open_store(options.tier))
        await bucket.add([queue_of([Sent(TOPIC_ID, 0, offset) for offset in range(5)])])
        name = ManifestName(RAFT_GROUP, 2, 1)
        await put_manifest(bucket.store, manifest_of(bucket.metadata, HOME, name, 90, 9_000))
        row = meta_pb2.Topic(topic_id=TOPIC_ID, name="orders").SerializeToString()
        rows = encode_archive(Description(HOME, -1, 40, 0, 1, 1), [(topic_key("", "orders"), row)])
        await bucket.store.put(metadata_key(HOME, 40), b"".join(rows))
        await bucket.store.close()

    asyncio.run(fill())
    with TierTopic.open(options) as topic:
        (span,) = topic.spans()
        assert span == QueueSpan(0, 0, 5)
        assert offsets_of(list(tier.scan(options, span, topic.pieces(span)))) == list(range(5))
    with pytest.raises(SourceError, match="knows no topic others"):
        TierTopic.open(replace(options, topic="others"))
