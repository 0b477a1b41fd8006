"""Manifests: the tier state of a raft group as a file in the bucket (rule 28).

Manifests are derived from the raft state, numbered by (term, sequence) and never changed; the
highest valid manifest wins. They serve restore, inspection and verification, never a running node.

A manifest is one JSON text with a checksum. It is canonical: a file that differs from the encoding
of its own contents is damaged, so every changed byte is found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from strata_state.memory_store import MemoryStore
from strata_tier.base.errors import DamagedObjectError
from strata_tier.objects.layout import ObjectKind, checksum
from strata_tier.objects.names import ManifestName, manifest_key
from strata_tier.objects.state import ObjectRef, TieredObject, TieredQueue, TieredRange
from strata_tier.ranges.metadata import QueueKey, TierMetadata
from strata_tier.ranges.metadata_memory import MemoryTierMetadata

FORMAT = 1


@dataclass(frozen=True, slots=True)
class ManifestQueue:
    """A queue in a manifest."""

    key: QueueKey
    offsets: TieredQueue
    ranges: Sequence[TieredRange]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tier state of a raft group as of one raft index.

    Attributes:
        home: id of the cluster.
        name: raft group, term and sequence.
        raft_index: up to which entry it holds.
        group_time_ms: of that entry.
        checkpoint: key of the archive that goes with it; "" if there is none.
        objects: by id.
        queues: in order.
    """

    home: str
    name: ManifestName
    raft_index: int
    group_time_ms: int
    checkpoint: str
    objects: Sequence[TieredObject]
    queues: Sequence[ManifestQueue]

    @property
    def key(self) -> str:
        """Its name in the default store."""
        return manifest_key(self.home, self.name)

    def metadata(self) -> MemoryTierMetadata:
        """Return it as the tier state it was made of."""
        metadata = MemoryTierMetadata(self.name.raft_group)
        batch = MemoryStore().new_batch()
        for held in self.objects:
            metadata.put_object(batch, held)
        for queue in self.queues:
            metadata.put_queue(batch, queue.key, queue.offsets)
            for tiered in queue.ranges:
                metadata.put_range(batch, tiered)
        return metadata


def manifest_of(
    metadata: TierMetadata,
    home: str,
    name: ManifestName,
    raft_index: int,
    group_time_ms: int,
    checkpoint: str = "",
) -> Manifest:
    """Return the manifest of a tier state. Reads all of it: for a thread, if it is large."""
    queues = [
        ManifestQueue(key, offsets, tuple(metadata.ranges(*key)))
        for key, offsets in metadata.queues()
    ]
    objects = tuple(metadata.objects())
    return Manifest(home, name, raft_index, group_time_ms, checkpoint, objects, queues)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the file of a manifest."""
    contents = {
        "format": FORMAT,
        "home": manifest.home,
        "raft_group": manifest.name.raft_group,
        "term": manifest.name.term,
        "sequence": manifest.name.sequence,
        "raft_index": manifest.raft_index,
        "group_time_ms": manifest.group_time_ms,
        "checkpoint": manifest.checkpoint,
        "objects": [_object_view(held) for held in manifest.objects],
        "queues": [_queue_view(queue) for queue in manifest.queues],
    }
    return seal_json("manifest", contents)


def decode_manifest(data: bytes, key: str) -> Manifest:
    """Return the manifest of a file.

    Raises:
        DamagedObjectError: it is not what was written, or of another format.
    """
    contents = unseal_json("manifest", data, key)
    try:
        if contents["format"] != FORMAT:
            raise DamagedObjectError(key, f"format {contents['format']}, this one reads {FORMAT}")
        name = ManifestName(contents["raft_group"], contents["term"], contents["sequence"])
        return Manifest(
            contents["home"],
            name,
            contents["raft_index"],
            contents["group_time_ms"],
            contents["checkpoint"],
            [_object(view) for view in contents["objects"]],
            [_queue(view) for view in contents["queues"]],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedObjectError(key, f"it is no manifest: {error!r}") from error


def seal_json(what: str, contents: Any) -> bytes:
    """Return contents as canonical JSON with their checksum, under the key `what`."""
    return _canonical({"crc32c": f"{checksum(_canonical(contents)):08x}", what: contents})


def unseal_json(what: str, data: bytes, key: str) -> Any:
    """Return the contents that `seal_json` made a file of.

    Raises:
        DamagedObjectError: it is another file, or a byte of it changed.
    """
    try:
        file = json.loads(data)
        contents, written = file[what], file["crc32c"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedObjectError(key, f"it is no {what}: {error!r}") from error
    if f"{checksum(_canonical(contents)):08x}" != written:
        raise DamagedObjectError(key, "its checksum is another one")
    if _canonical(file) != data:
        raise DamagedObjectError(key, "it is not in canonical form")
    return contents


def _canonical(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()


def _object_view(held: TieredObject) -> dict[str, Any]:
    ref = held.ref
    return {
        "object_id": f"{ref.object_id:016x}",
        "kind": ref.kind.name.lower(),
        "key": ref.key,
        "space": ref.space,
        "length": ref.length,
        "root_crc32c": f"{ref.root_checksum:08x}",
        "raft_group": ref.raft_group,
        "live_ranges": held.live_ranges,
        "live_bytes": held.live_bytes,
        "committed_at_ms": held.committed_at_ms,
        "dropped_at_ms": held.dropped_at_ms,
        "bodies_bytes": held.bodies_bytes,
    }


def _object(view: dict[str, Any]) -> TieredObject:
    ref = ObjectRef(
        int(view["object_id"], 16),
        ObjectKind[view["kind"].upper()],
        view["key"],
        view["space"],
        view["length"],
        int(view["root_crc32c"], 16),
        view["raft_group"],
    )
    return TieredObject(
        ref,
        view["live_ranges"],
        view["live_bytes"],
        view["committed_at_ms"],
        view["dropped_at_ms"],
        view["bodies_bytes"],
    )


def _queue_view(queue: ManifestQueue) -> dict[str, Any]:
    return {
        "topic_id": queue.key[0],
        "queue": queue.key[1],
        "first_offset": queue.offsets.first_offset,
        "commit_offset": queue.offsets.commit_offset,
        # One line of numbers each would be ten lines with an indent: they are text.
        "ranges": [_range_text(each) for each in queue.ranges],
    }


def _queue(view: dict[str, Any]) -> ManifestQueue:
    key = view["topic_id"], view["queue"]
    offsets = TieredQueue(view["first_offset"], view["commit_offset"])
    return ManifestQueue(key, offsets, [_range(key, text) for text in view["ranges"]])


def _range_text(tiered: TieredRange) -> str:
    numbers = " ".join(map(str, tiered[2:-1]))
    return f"{tiered.object_id:016x} {numbers}"


def _range(key: QueueKey, text: str) -> TieredRange:
    object_id, *numbers = text.split(" ")
    return TieredRange._make((*key, *map(int, numbers), int(object_id, 16)))
