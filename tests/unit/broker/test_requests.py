"""Common parts of all requests, with values that no client should send."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from apache.rocketmq.v2 import definition_pb2
from strata_broker.metadata.requests import enum_name, milliseconds, time_for

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


@pytest.mark.parametrize(
    ("left_s", "given_s"), [(None, 3.0), (1e9, 600.0), (10.0, 9.8), (1.0, 0.95), (0.0, 0.0)]
)
def test_a_client_chooses_its_time_within_the_brokers(left_s: float | None, given_s: float) -> None:
    """A deadline in years parks nothing for years; an answer is there before a short one ends."""
    assert time_for(left_s, 3.0, 600.0) == pytest.approx(given_s)
