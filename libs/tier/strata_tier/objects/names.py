"""Names of objects: derived, never chosen (docs/data-layout.md section 9, rule 28).

Folders have no dot and the last segment has one, so no key is the folder of another. Numbers are
hexadecimal of fixed width: a listing is in order. This module does not know the contents of
objects.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from string import ascii_letters, digits
from typing import NamedTuple

from strata_tier.store.ports import MAX_SEGMENT_BYTES

DEFAULT_SPACE = ""

_HOME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PLAIN = frozenset(f"{ascii_letters}{digits}_-".encode())
_OBJECT = re.compile(
    r"(sets/[0-9a-f]{8}/[0-9a-f]{16}|queues/[0-9a-f]{8}/[0-9a-f]{8}-[0-9a-f]{8}-[0-9a-f]{16})"
    r"-([0-9a-f]{16})\.set"
)
_MANIFEST = re.compile(r"manifests/([0-9a-f]{8})/([0-9a-f]{16})-([0-9a-f]{16})\.json")
_REVISION = re.compile(r"([0-9a-f]{16})\.archive")
# An escape whose end is missing.
_CUT_ESCAPE = re.compile(r"=.?\Z")

# Bytes of the hash that ends a folder whose name would be too long.
_DIGEST_BYTES = 16

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


def parse_metadata_key(home: str, key: str) -> int | None:
    """Return the revision of an archive of the nameserver's rows; None: it is none of this home."""
    prefix = metadata_prefix(home)
    match = _REVISION.fullmatch(key, len(prefix)) if key.startswith(prefix) else None
    return None if match is None else int(match[1], 16)


def space_prefix(space: str) -> str:
    """Return where a space without a store of its own lies in the default store.

    Bytes that a namespace may have in its name and a key may not become `=` and two digits. A
    folder that would be too long becomes its beginning, `~` and a hash of the space's name. No
    other folder has a `~`, so two spaces never share one. Nobody needs the name that a folder was
    made of: the tier state and manifests tell it.
    """
    if space == DEFAULT_SPACE:
        return ""
    name = space.encode("utf-8", "surrogatepass")
    folder = "".join(chr(byte) if byte in _PLAIN else f"={byte:02x}" for byte in name)
    if len(folder) > MAX_SEGMENT_BYTES:
        digest = blake2b(name, digest_size=_DIGEST_BYTES).hexdigest()
        beginning = folder[: MAX_SEGMENT_BYTES - len(digest) - 1]
        folder = f"{_CUT_ESCAPE.sub('', beginning)}~{digest}"
    return f"{SPACES_FOLDER}/{folder}/"
