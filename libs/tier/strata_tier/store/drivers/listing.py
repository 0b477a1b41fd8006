"""Listings of stores that are file trees, in the byte order of whole keys.

Folder `a` sorts where `a/` does: after `a-b`, before `a0`. Only folders that can hold a wanted key
are opened, so a page costs its own folders, not the whole tree. This module reads nothing itself:
it asks its driver, which may block or await.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from strata_tier.store.ports import ObjectInfo, ObjectPage


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One name in a folder.

    Attributes:
        name: without the folder.
        size_bytes: length of a file; None: it is a folder.
        modified_ms: Unix milliseconds; 0 for a folder.
    """

    name: str
    size_bytes: int | None
    modified_ms: int


def listing(
    prefix: str, after: str, limit: int
) -> Generator[str, Sequence[FolderEntry], ObjectPage]:
    """Make one page of a listing (arguments: `ObjectStore.list`).

    Yields:
        A folder to read, "" being the root, others ending with "/"; its entries are to be sent.

    Returns:
        The page.
    """
    found: list[ObjectInfo] = []
    # Entries that are still to come, the next one last: objects, and folders to read.
    pending: list[ObjectInfo | str] = [""]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            entries = yield item
            pending += reversed(_wanted(item, entries, prefix, after))
        elif len(found) == limit:
            return ObjectPage(tuple(found), found[-1].key)
        else:
            found.append(item)
    return ObjectPage(tuple(found), None)


def _wanted(
    folder: str, entries: Sequence[FolderEntry], prefix: str, after: str
) -> list[ObjectInfo | str]:
    """Return the entries of a folder that belong into the listing, in its order."""
    wanted: list[tuple[str, ObjectInfo | str]] = []
    for entry in entries:
        path = folder + entry.name
        if entry.name.startswith("."):
            continue  # Marks and temporary files; keys never begin so.
        if entry.size_bytes is None:
            path += "/"
            if _may_hold(path, prefix, after):
                wanted.append((path, path))
        elif path > after and path.startswith(prefix):
            wanted.append((path, ObjectInfo(path, entry.size_bytes, entry.modified_ms)))
    return [item for _, item in sorted(wanted, key=lambda pair: pair[0])]


def _may_hold(folder: str, prefix: str, after: str) -> bool:
    """Whether a key under `folder` can start with `prefix` and be greater than `after`."""
    related = folder.startswith(prefix) or prefix.startswith(folder)
    return related and (folder >= after or after.startswith(folder))
