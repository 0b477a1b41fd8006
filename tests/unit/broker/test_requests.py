"""What all requests have in common, with values that no client should send."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from apache.rocketmq.v2 import definition_pb2
from strata_broker.requests import enum_name, milliseconds

MOST_S = (1 << 63) - 1


@pytest.mark.parametrize(
    ("seconds", "nanos", "expected_ms"),
    [
        (1, 500_000_000, 1_500),
        (0, 999_999, 0),
        (MOST_S, (1 << 31) - 1, (1 << 63) - 1),
        (-MOST_S, 0, -(1 << 63) + 1),
    ],
)
def test_times_stay_within_63_bits(seconds: int, nanos: int, expected_ms: int) -> None:
    """Any field values give a time that other messages can hold."""
    assert milliseconds(Timestamp(seconds=seconds, nanos=nanos)) == expected_ms
    assert milliseconds(Duration(seconds=seconds, nanos=nanos)) == expected_ms


def test_unknown_enum_values_are_shown_as_numbers() -> None:
    """A client of a newer protocol is listed all the same."""
    assert enum_name(definition_pb2.Language, definition_pb2.JAVA) == "JAVA"
    assert enum_name(definition_pb2.Language, 99) == "99"
    assert enum_name(definition_pb2.ClientType, -1) == "-1"
