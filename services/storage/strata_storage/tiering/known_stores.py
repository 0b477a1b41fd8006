"""Knowledge that a node has of its object stores from earlier (`strata_tier.store.KnownStore`).

Two witnesses: the mark that a store had, in `tier/stores.json` of the storage node's folder, and
objects that the tier states of its raft groups name. The second one covers a node that was upgraded
or lost the file, and a replica that came by a snapshot.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence, Set
from functools import partial
from pathlib import Path

from strata_mq.layout import raft_group_prefix
from strata_runtime.files import replace_file
from strata_runtime.logs import get_logger
from strata_state.ports import RowReader, StateError
from strata_storage.base.jobs import RunJob
from strata_tier.objects import DEFAULT_SPACE, space_prefix
from strata_tier.ranges import RowTierMetadata

FILE = "stores.json"

_VERSION = 1
# Objects that are named of each raft group, and of all of them. Any one that is there is enough;
# single ones may be missing, and are then reported where they are read.
_KEYS_PER_GROUP = 4
_KEYS_MAX = 64
_GROUP_BYTES = 4
_LAST_GROUP = 2 ** (8 * _GROUP_BYTES) - 1


class KnownStores:
    """The knowledge of all stores of a node. Made by `open`.

    Args:
        file: where the marks are kept.
        marks: name of a store (its URL without options) -> its mark.
        rows: of all raft groups of the node.
        own: spaces with a store of their own.
        run: runs blocking work in a thread that ends before the rows are closed.
    """

    def __init__(
        self,
        file: Path,
        marks: dict[str, str],
        *,
        rows: RowReader,
        own: Set[str],
        run: RunJob,
    ) -> None:
        self._file = file
        self._marks = marks
        self._rows = rows
        self._own = frozenset(own)
        self._run = run
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, folder: Path, rows: RowReader, own: Set[str], run: RunJob) -> KnownStores:
        """Read what is known.

        Args:
            folder: of the storage node's data.
            rows: see the class.
            own: see the class.
            run: see the class.

        Raises:
            OSError: the file is there and cannot be read.
        """
        file = folder / "tier" / FILE
        return cls(file, await run(partial(_marks, file)), rows=rows, own=own, run=run)

    def of(self, store: str, space: str = DEFAULT_SPACE) -> NodeKnownStore:
        """Return what is known of one store, whose name is given: that of a space, or of all."""
        return NodeKnownStore(self, store, space)

    def mark(self, store: str) -> str:
        """Return the mark of a store; empty: none is known."""
        return self._marks.get(store, "")

    async def remember(self, store: str, mark: str) -> None:
        """Keep the mark of a store, durably.

        Raises:
            OSError: it could not be kept.
        """
        async with self._turn:
            if self._marks.get(store) == mark:
                return
            marks = {**self._marks, store: mark}
            await self._run(partial(_write, self._file, marks))
            self._marks = marks

    async def keys(self, space: str) -> Sequence[str]:
        """Return objects that must be in the store of a space.

        Raises:
            OSError: the rows cannot be read.
        """
        try:
            return await self._run(partial(_known_keys, self._rows, space, self._own))
        except StateError as error:
            raise OSError(f"rows of the tier state cannot be read: {error}") from error


class NodeKnownStore:
    """A `KnownStore`: what a node knows of one store."""

    def __init__(self, stores: KnownStores, store: str, space: str) -> None:
        self._stores = stores
        self._store = store
        self._space = space

    @property
    def mark(self) -> str:
        """See the port."""
        return self._stores.mark(self._store)

    async def remember(self, mark: str) -> None:
        """See the port."""
        await self._stores.remember(self._store, mark)

    async def keys(self) -> Sequence[str]:
        """See the port."""
        return await self._stores.keys(self._space)


def _marks(file: Path) -> dict[str, str]:
    try:
        told = json.loads(file.read_bytes())
        return {str(store): str(mark) for store, mark in told["stores"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        # The rows are the other witness, and the next put writes the file anew.
        get_logger("tier").warning("known stores are forgotten", file=str(file), reason=str(error))
        return {}


def _write(file: Path, marks: dict[str, str]) -> None:
    file.parent.mkdir(exist_ok=True)
    text = json.dumps({"version": _VERSION, "stores": marks}, indent=1, sort_keys=True)
    replace_file(file, f"{text}\n".encode())


def _known_keys(rows: RowReader, space: str, own: frozenset[str]) -> list[str]:
    """Return the names of some live objects, as the store of a space has them."""
    keys: list[str] = []
    for raft_group in _raft_groups(rows):
        found = 0
        for held in RowTierMetadata(rows, raft_group).objects():
            ref = held.ref
            # One that was dropped may be deleted already.
            if held.dropped_at_ms or (ref.space if ref.space in own else DEFAULT_SPACE) != space:
                continue
            keys.append(ref.key if ref.space in own else space_prefix(ref.space) + ref.key)
            found += 1
            if found == _KEYS_PER_GROUP:
                break
        if len(keys) >= _KEYS_MAX:
            break
    return keys


def _raft_groups(rows: RowReader) -> Iterator[int]:
    """Iterate the raft groups that have rows: one short scan each."""
    raft_group, end = 0, raft_group_prefix(_LAST_GROUP)
    while (row := next(rows.scan(raft_group_prefix(raft_group), end), None)) is not None:
        raft_group = int.from_bytes(row[0][:_GROUP_BYTES])
        yield raft_group
        raft_group += 1
