"""Names of objects: derived, never chosen (docs/data-layout.md section 9, rule 28).

Folders have no dot and the last segment has one, so no key is the folder of another. Numbers are
hexadecimal of fixed width: a listing is in order. This module does not know the contents of
objects.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from strata_tier.store.ports import MAX_SEGMENT_BYTES

DEFAULT_SPACE = ""

_HOME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLAIN = re.compile(r"[A-Za-z0-9_-]")
_OBJECT = re.compile(
    r"(sets/[0-9a-f]{8}/[0-9a-f]{16}|queues/[0-9a-f]{8}/[0-9a-f]{8}-[0-9a-f]{8}-[0-9a-f]{16})"
    r"-([0-9a-f]{16})\.set"
)
_MANIFEST = re.compile(r"manifests/([0-9a-f]{8})/([0-9a-f]{16})-([0-9a-f]{16})\.json")

CHECKPOINT_FOLDER = "checkpoints"
MANIFEST_FOLDER = "manifests"
METADATA_FOLDER = "metadata"
SET_FOLDER = "sets"
QUEUE_FOLDER = "queues"
SPACES_FOLDER = "spaces"


class ManifestName(NamedTuple):
    """Content of a manifest's key; keys sort by (raft group, term, sequence)."""

    raft_group: int
    term: int
    sequence: int


def check_home(home: str) -> str:
    """Return a home's name if it can be the first folder of a key.

    Raises:
        ValueError: it cannot.
    """
    if not _HOME.fullmatch(home) or home == SPACES_FOLDER:
        raise ValueError(f"home {home!r}: 1 to 64 letters, digits, _ and -, not {SPACES_FOLDER!r}")
    return home


def set_key(home: str, raft_group: int, first_time_ms: int, object_id: int) -> str:
    """Return the key of a stream set."""
    return f"{home}/{SET_FOLDER}/{raft_group:08x}/{first_time_ms:016x}-{object_id:016x}.set"


def queue_object_key(
    home: str, raft_group: int, position: tuple[int, int, int], object_id: int
) -> str:
    """Return the key of an object of one queue; `position` is (topic id, queue, first offset)."""
    topic_id, queue, first_offset = position
    name = f"{topic_id:08x}-{queue:08x}-{first_offset:016x}-{object_id:016x}.set"
    return f"{home}/{QUEUE_FOLDER}/{raft_group:08x}/{name}"


def object_folders(home: str, raft_group: int) -> tuple[str, str]:
    """Return what the keys of all objects that a raft group writes begin with."""
    return (
        f"{home}/{SET_FOLDER}/{raft_group:08x}/",
        f"{home}/{QUEUE_FOLDER}/{raft_group:08x}/",
    )


def parse_object_key(home: str, raft_group: int, key: str) -> int | None:
    """Return the id of an object that a raft group wrote; None: no such object is named so."""
    if not key.startswith(object_folders(home, raft_group)):
        return None
    match = _OBJECT.fullmatch(key.removeprefix(f"{home}/"))
    return None if match is None else int(match[2], 16)


def manifest_key(home: str, name: ManifestName) -> str:
    """Return the key of a manifest."""
    return f"{manifest_prefix(home, name.raft_group)}{name.term:016x}-{name.sequence:016x}.json"


def manifest_prefix(home: str, raft_group: int | None = None) -> str:
    """Return what the keys of a raft group's manifests begin with; None: of all raft groups."""
    folder = f"{home}/{MANIFEST_FOLDER}/"
    return folder if raft_group is None else f"{folder}{raft_group:08x}/"


def parse_manifest_key(home: str, key: str) -> ManifestName | None:
    """Return what the key of a manifest says; None: it is none of this home."""
    match = _MANIFEST.fullmatch(key.removeprefix(f"{home}/"))
    return None if match is None else ManifestName(*(int(text, 16) for text in match.groups()))


def checkpoint_key(home: str, name: ManifestName) -> str:
    """Return the key of the archive with a raft group's checkpoint."""
    folder = f"{home}/{CHECKPOINT_FOLDER}/{name.raft_group:08x}"
    return f"{folder}/{name.term:016x}-{name.sequence:016x}.archive"


def metadata_key(home: str, revision: int) -> str:
    """Return the key of the archive with the nameserver's rows."""
    return f"{metadata_prefix(home)}{revision:016x}.archive"


def metadata_prefix(home: str) -> str:
    """Return what the keys of archives with the nameserver's rows begin with."""
    return f"{home}/{METADATA_FOLDER}/"


def space_prefix(space: str) -> str:
    """Return where a space without a store of its own lies in the default store.

    Characters that a namespace may have in its name and a key may not become `=` and two digits.

    Raises:
        ValueError: the name of the space is too long for a folder.
    """
    if space == DEFAULT_SPACE:
        return ""
    folder = "".join(
        letter if _PLAIN.fullmatch(letter) else "".join(f"={byte:02x}" for byte in letter.encode())
        for letter in space
    )
    if len(folder) > MAX_SEGMENT_BYTES:
        raise ValueError(f"space {space!r}: its folder has more than {MAX_SEGMENT_BYTES} letters")
    return f"{SPACES_FOLDER}/{folder}/"
