"""Knowledge of a store from earlier: it tells a store that cannot be seen from a new one.

A mount that is missing looks like an empty folder, and so does a folder in a file system that was
made again. Drivers that make their folder themselves (posix, hdfs) therefore ask here first: they
make it only when nothing is known to be in the store. Otherwise a store without its objects is
`StoreMissingError` until it is back. Buckets are never made by a driver, so s3 and gs do not ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class KnownStore(Protocol):
    """The knowledge that the owner of a store has of it; used from one event loop.

    `mark` and `keys` are two witnesses: the mark alone decides once it is known, the keys decide
    for data that is older than marks with a content.
    """

    @property
    def mark(self) -> str:
        """Content of the mark of the store that was used before; empty: none was yet."""

    async def remember(self, mark: str) -> None:
        """Keep the mark, durably: no object may be put before this has returned.

        Raises:
            OSError: it could not be kept.
        """

    async def keys(self) -> Sequence[str]:
        """Return some of the objects that must be in the store; empty: none has to be.

        Raises:
            OSError: that cannot be told now.
        """


class NothingKnown:
    """A store that its owner opens for the first time; what it learns ends with the process."""

    def __init__(self) -> None:
        self.mark = ""

    async def remember(self, mark: str) -> None:
        """Keep the mark as long as the store is open."""
        self.mark = mark

    async def keys(self) -> Sequence[str]:
        """Return nothing: no object is known."""
        return ()
