"""Runs of stored messages, one object for many of them: the result of both ways of reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StoredRun(NamedTuple):
    """Messages of one queue, in order.

    Attributes:
        queue: its number.
        offsets: rising.
        store_times_ms: as many.
        messages: as many; each a serialised `apache.rocketmq.v2.Message`.
    """

    queue: int
    offsets: Sequence[int]
    store_times_ms: Sequence[int]
    messages: Sequence[bytes]


class SourceError(RuntimeError):
    """A broker or the tier refused, none answered in time, or a row cannot be sent."""


class DataLossError(SourceError):
    """Messages that were to be read are not retained any more."""
