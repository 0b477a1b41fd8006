"""`tier.metadata = json`: the tier state as rows, and in files that people can read.

Checkpoints, snapshots and restarts still use the rows; a replica that lost its files writes them
again from the rows. Reads are answered from the files' copy in memory.

Invariant: after `reload` the files equal the rows, and each change is written to both. A file that
a crash left ahead of the rows, or that was damaged or edited, is written again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from strata_state.ports import Row, RowBatch, StateStore
from strata_tier.base.errors import TierError
from strata_tier.objects.state import TierChange, TieredObject, TieredQueue, TieredRange
from strata_tier.ranges.metadata import QueueKey
from strata_tier.ranges.metadata_json import JsonTierMetadata
from strata_tier.ranges.metadata_rows import RowTierMetadata


class MirroredTierMetadata:
    """`TierMetadata` of one raft group; `reload` must be called before anything else.

    Args:
        folder: of the files; made if it is not there.
        store: with the rows.
        raft_group: whose.
    """

    def __init__(self, folder: Path, store: StateStore, raft_group: int) -> None:
        self._folder = folder
        self._raft_group = raft_group
        self._rows = RowTierMetadata(store, raft_group)
        self._files: JsonTierMetadata | None = None

    def reload(self, raft_index: int) -> None:
        """Make the files say what the rows say.

        Raises:
            OSError: they cannot be written.
        """
        self._files = None
        files = self._read()
        if list(files.rows()) != list(self._rows.rows()):
            files.replace(self._rows.rows(), raft_index)
        self._files = files

    def _read(self) -> JsonTierMetadata:
        try:
            return JsonTierMetadata.open(self._folder, self._raft_group)
        except TierError:
            # Damaged: what they said is in the rows.
            for path in self._folder.glob(f"{self._raft_group:08x}-*"):
                path.unlink()
            return JsonTierMetadata.open(self._folder, self._raft_group)

    @property
    def _known(self) -> JsonTierMetadata:
        assert self._files is not None, "reload was not called"
        return self._files

    def apply(self, batch: RowBatch, change: TierChange, raft_index: int) -> None:
        """Write a change to rows and files; see the port."""
        self._rows.apply(batch, change, raft_index)
        self._known.apply(batch, change, raft_index)

    def queue(self, topic_id: int, queue: int) -> TieredQueue | None:
        """Return how far a queue is in the tier."""
        return self._known.queue(topic_id, queue)

    def queues(self, topic_id: int | None = None) -> Iterator[tuple[QueueKey, TieredQueue]]:
        """Iterate queues in order."""
        return self._known.queues(topic_id)

    def object(self, object_id: int) -> TieredObject | None:
        """Return an object."""
        return self._known.object(object_id)

    def objects(self) -> Iterator[TieredObject]:
        """Iterate objects, by id."""
        return self._known.objects()

    def covering(self, topic_id: int, queue: int, offset: int) -> TieredRange | None:
        """Return the range that holds an offset."""
        return self._known.covering(topic_id, queue, offset)

    def ranges(self, topic_id: int, queue: int, first_offset: int = 0) -> Iterator[TieredRange]:
        """Iterate a queue's ranges in order."""
        return self._known.ranges(topic_id, queue, first_offset)

    def rows(self) -> Iterator[Row]:
        """Iterate everything as rows."""
        return self._rows.rows()

    def put_queue(self, batch: RowBatch, key: QueueKey, queue: TieredQueue) -> None:
        """Write a queue; the files get whole changes only, by `apply`."""
        self._rows.put_queue(batch, key, queue)

    def delete_queue(self, batch: RowBatch, key: QueueKey) -> None:
        """Remove a queue's row."""
        self._rows.delete_queue(batch, key)

    def put_object(self, batch: RowBatch, held: TieredObject) -> None:
        """Write an object's row."""
        self._rows.put_object(batch, held)

    def delete_object(self, batch: RowBatch, object_id: int) -> None:
        """Remove an object's row."""
        self._rows.delete_object(batch, object_id)

    def put_range(self, batch: RowBatch, tiered: TieredRange) -> None:
        """Write a range's row."""
        self._rows.put_range(batch, tiered)

    def delete_range(self, batch: RowBatch, tiered: TieredRange) -> None:
        """Remove a range's row."""
        self._rows.delete_range(batch, tiered)
