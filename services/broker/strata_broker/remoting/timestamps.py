"""Times of remoting clients as protobuf has them: a client may name any number of 64 bits."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

_MOST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: protobuf refuses later ones."""


def put_ms(timestamp: Timestamp, time_ms: int) -> None:
    """Set a timestamp to a wall time in ms; to the nearest one that it can hold."""
    timestamp.FromMilliseconds(max(0, min(time_ms, _MOST_MS)))
