"""How whoever leads a raft group follows what its state machine applies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strata_mq.commands import DropKind
from strata_mq.layout import PartKind, PendingKey


class AppliedListener(Protocol):
    """Receives news of applied entries for a leader, after the rows are in the store."""

    def on_applied(self, index: int) -> None:
        """Everything up to `index` is applied."""

    def on_appended(self, topic_id: int, queue: int) -> None:
        """A queue has new messages."""

    def on_pending(self, became: Sequence[tuple[PendingKey, PartKind]]) -> None:
        """Messages wait, or wait for another time than before."""

    def on_trimmed(self, topic_id: int, queue: int, min_offset: int) -> None:
        """A queue begins at `min_offset` now."""

    def on_sealed(self, topic_id: int, queue: int) -> None:
        """A queue's epoch has ended."""

    def on_dropped(self, what: DropKind, dropped_id: int) -> None:
        """A topic or consumer group is gone."""
