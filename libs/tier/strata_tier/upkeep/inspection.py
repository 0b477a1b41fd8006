"""Claimed contents of a bucket, per raft group and topic; only manifests are verified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from strata_tier.base.errors import DamagedObjectError
from strata_tier.objects.layout import TRAILER_BYTES, BlockEntry, Root, decode_trailer
from strata_tier.objects.open_objects import OpenObject
from strata_tier.objects.state import ObjectRef
from strata_tier.ranges.manifest import Manifest
from strata_tier.store.ports import ObjectNotFoundError, ObjectStore
from strata_tier.upkeep import bucket


@dataclass(slots=True)
class TopicContents:
    """A topic, as the newest manifests have it.

    Attributes:
        topic_id: which.
        name: NAMESPACE%NAME, "" if no archive says it.
        queues: (queue, first offset, commit offset), in order; a queue that was moved between
            raft groups comes once for each.
        messages, bodies_bytes: in all its ranges.
        min_time_ms, max_time_ms: store times; 0 if there is no message.
    """

    topic_id: int
    name: str = ""
    queues: list[tuple[int, int, int]] = field(default_factory=list)
    messages: int = 0
    bodies_bytes: int = 0
    min_time_ms: int = 0
    max_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class HomeContents:
    """Contents of one home folder.

    Attributes:
        home: id of the cluster.
        manifests: the newest valid one of each raft group.
        topics: by id.
        damaged: manifests and archives that cannot be used.
    """

    home: str
    manifests: Sequence[Manifest]
    topics: Sequence[TopicContents]
    damaged: Sequence[DamagedObjectError]


async def inspect(store: ObjectStore, home: str) -> HomeContents:
    """Return what the newest valid manifests of a home say.

    Raises:
        StoreError: the store cannot be read.
    """
    manifests: list[Manifest] = []
    damaged: list[DamagedObjectError] = []
    for names in (await bucket.manifests_in(store, home)).values():
        try:
            found = await bucket.newest_manifest(store, home, names)
        except DamagedObjectError as error:
            damaged.append(error)
            continue
        manifests.append(found.manifest)
        damaged += found.damaged
    topics = topics_of(manifests)
    for manifest in manifests:
        if manifest.checkpoint:
            try:
                archive = await bucket.read_archive(store, manifest.checkpoint)
            except DamagedObjectError as error:
                damaged.append(error)
                continue
            except ObjectNotFoundError as error:
                damaged.append(DamagedObjectError(manifest.checkpoint, error.reason))
                continue
            for topic in topics:
                topic.name = archive.description.names.get(str(topic.topic_id), topic.name)
    return HomeContents(home, manifests, topics, damaged)


def topics_of(manifests: Iterable[Manifest]) -> list[TopicContents]:
    """Return the topics of manifests, by id; names are left empty."""
    topics: dict[int, TopicContents] = {}
    for manifest in manifests:
        for queue in manifest.queues:
            topic_id, number = queue.key
            topic = topics.setdefault(topic_id, TopicContents(topic_id))
            topic.queues.append((number, *queue.offsets))
            for tiered in queue.ranges:
                topic.messages += tiered.message_count
                topic.bodies_bytes += tiered.bodies_bytes
                if tiered.message_count:
                    topic.max_time_ms = max(topic.max_time_ms, tiered.max_time_ms)
                    oldest_ms = topic.min_time_ms or tiered.min_time_ms
                    topic.min_time_ms = min(oldest_ms, tiered.min_time_ms)
    for topic in topics.values():
        topic.queues.sort()
    return [topics[topic_id] for topic_id in sorted(topics)]


async def inspect_object(store: ObjectStore, key: str) -> tuple[Root, list[BlockEntry]]:
    """Return root and blocks of an object that is known by its name alone.

    Raises:
        DamagedObjectError: it is no object of the tier, or its index is damaged.
        StoreError: it cannot be read.
    """
    info = await store.head(key)
    if info.size_bytes < TRAILER_BYTES:
        raise DamagedObjectError(key, f"{info.size_bytes} bytes are no object")
    data = await store.get(key, info.size_bytes - TRAILER_BYTES, TRAILER_BYTES)
    trailer = decode_trailer(data, key)
    ref = ObjectRef(
        trailer.object_id, trailer.kind, key, "", info.size_bytes, trailer.root_checksum, 0
    )
    opened = await OpenObject.open(store, ref, TRAILER_BYTES)
    return opened.root, await opened.entries(0, opened.root.block_count)
