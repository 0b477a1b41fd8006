"""Calls that were carried out, by the ids that their callers gave them (rule 37).

A caller that got no answer sends its call again, perhaps to the next leader. So the answer is a row
that the call's own change writes. Memory has the ids alone. The leader decides with each change
which answers are forgotten: the oldest beyond a number, beyond a size, or beyond an age.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from strata.meta.v1 import command_pb2
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import MetadataRowKind, kind_range, revision_of

MAX_ANSWERS = 10_000
MAX_ANSWERS_BYTES = 8 * 1024 * 1024
MAX_ANSWER_BYTES = 300 * 1024
"""Size above which an answer is not kept; that its call was carried out is."""

KEPT_MS = 600_000
"""For how long a call may be repeated; callers give up after seconds."""

MAX_CALL_ID_BYTES = 64

# A change of many rows must fit into a raft entry, and forgets some besides.
_MAX_FORGOTTEN_AT_ONCE = 100


class KnownCall(NamedTuple):
    """A call that was carried out.

    Attributes:
        call_id: that its caller gave it.
        at_ms: wall time of the leader that decided it.
        size_bytes: of its row.
    """

    call_id: bytes
    at_ms: int
    size_bytes: int


class KeptAnswers:
    """The ids of the calls whose answers are kept; the answers are rows."""

    def __init__(self) -> None:
        # By the revision of its change, the oldest first.
        self._calls: OrderedDict[int, KnownCall] = OrderedDict()
        self._revisions: dict[bytes, int] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        """Return how many answers are kept."""
        return len(self._calls)

    @classmethod
    def load(cls, store: MetadataStore) -> KeptAnswers:
        """Read the rows."""
        answers = cls()
        for key, value in store.scan(*kind_range(MetadataRowKind.ANSWER)):
            answers.take(revision_of(key), command_pb2.AnsweredCall.FromString(value))
        return answers

    def take(self, revision: int, answered: command_pb2.AnsweredCall) -> None:
        """Take in the call that the newest revision carries out."""
        known = KnownCall(answered.call_id, answered.at_ms, answered.ByteSize())
        self._calls[revision] = known
        self._revisions[known.call_id] = revision
        self._size_bytes += known.size_bytes

    def forget(self, revisions: Iterable[int]) -> None:
        """Forget the calls that these revisions carried out."""
        for revision in revisions:
            known = self._calls.pop(revision, None)
            if known is None:
                continue
            self._size_bytes -= known.size_bytes
            if self._revisions[known.call_id] == revision:
                del self._revisions[known.call_id]

    def find(self, call_id: bytes, now_ms: int) -> int | None:
        """Return the revision that carried a call out; None: none did, or too long ago."""
        revision = self._revisions.get(call_id)
        if revision is None or now_ms - self._calls[revision].at_ms > KEPT_MS:
            return None
        return revision

    def surplus(self, now_ms: int, more: Sequence[command_pb2.AnsweredCall]) -> list[int]:
        """Return revisions of calls that are to be forgotten, the oldest first.

        Args:
            now_ms: wall time.
            more: calls that must find room.
        """
        count = len(self._calls) + len(more)
        size_bytes = self._size_bytes + sum(call.ByteSize() for call in more)
        revisions = []
        for revision, known in islice(self._calls.items(), _MAX_FORGOTTEN_AT_ONCE):
            is_old = now_ms - known.at_ms > KEPT_MS
            if not is_old and count <= MAX_ANSWERS and size_bytes <= MAX_ANSWERS_BYTES:
                break
            revisions.append(revision)
            count, size_bytes = count - 1, size_bytes - known.size_bytes
        return revisions
