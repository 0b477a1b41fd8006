"""Retry policies, group time, error codes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apache.rocketmq.v2 import definition_pb2 as wire
from strata.meta.v1 import meta_pb2 as meta
from strata_mq.group_time import GroupTime
from strata_mq.requests.errors import Code, RequestError
from strata_mq.requests.retry import (
    DEFAULT_CONSUMER_POLICY,
    DEFAULT_PRODUCER_POLICY,
    CustomizedBackoff,
    ExponentialBackoff,
    RetryPolicy,
)
from strata_mq.requests.types import MessageType, TopicType


def test_default_policies_are_those_observed() -> None:
    """17 attempts after 1 s to 2 h; producers 3 attempts after 10 ms, doubled."""
    steps = [DEFAULT_CONSUMER_POLICY.delay_ms(attempt) for attempt in range(1, 20)]
    assert steps[:5] == [1_000, 5_000, 10_000, 30_000, 60_000]
    assert steps[-3:] == [3_600_000, 7_200_000, 7_200_000]
    assert isinstance(DEFAULT_CONSUMER_POLICY.backoff, CustomizedBackoff)
    assert len(DEFAULT_CONSUMER_POLICY.backoff.next_ms) == 18
    assert DEFAULT_CONSUMER_POLICY.max_attempts == 17
    assert [DEFAULT_PRODUCER_POLICY.delay_ms(attempt) for attempt in (1, 2, 8, 10**9)] == [
        10,
        20,
        1_000,
        1_000,
    ]


def test_a_constant_backoff_stays_constant() -> None:
    """A multiplier of 1 is allowed and ends at once for any attempt number."""
    assert ExponentialBackoff(5, 50, 1.0).delay_ms(10**9) == 5


def test_policies_that_make_no_schedule_are_refused() -> None:
    """Empty, negative or shrinking schedules and zero attempts are errors of configuration."""
    for make in (
        lambda: CustomizedBackoff(()),
        lambda: CustomizedBackoff((-1,)),
        lambda: ExponentialBackoff(10, 5, 2.0),
        lambda: ExponentialBackoff(10, 50, 0.5),
        lambda: RetryPolicy(0, CustomizedBackoff((1,))),
    ):
        with pytest.raises(ValueError, match=r"backoff|max_attempts"):
            make()


def test_group_time_starts_at_the_later_of_stamp_and_wall() -> None:
    """A leader with a slow clock goes on from the last committed stamp."""
    assert GroupTime(5_000).now(10.0, 4_000) == 5_000
    assert GroupTime(5_000).now(10.0, 6_000) == 6_000
    slow = GroupTime(5_000)
    slow.start_term(10.0, 1_000)
    # It runs on, all but as fast as the monotonic clock.
    assert slow.now(20.0, 11_000) == 14_990


def test_group_time_slews_towards_wall_time_by_a_thousandth() -> None:
    """A wall clock that jumps moves group time by at most 0.1 % of what has passed."""
    forward = GroupTime()
    forward.start_term(0.0, 100_000)
    assert forward.now(10.0, 9_999_999) == 110_010
    backward = GroupTime()
    backward.start_term(0.0, 100_000)
    assert backward.now(10.0, 0) == 109_990
    exact = GroupTime()
    exact.start_term(0.0, 100_000)
    assert exact.now(10.0, 110_003) == 110_003


def test_a_new_term_starts_over_from_wall_time() -> None:
    """Between terms the bound does not hold: only "never back" does."""
    group_time = GroupTime()
    group_time.now(0.0, 100_000)
    group_time.start_term(1.0, 500_000)
    assert group_time.now(1.0, 500_000) == 500_000


@given(
    st.lists(
        st.tuples(
            st.floats(-1, 60, allow_nan=False),
            st.integers(-(10**9), 10**9),
            st.sampled_from(("now", "now", "observe", "start_term")),
        ),
        max_size=30,
    )
)
def test_group_time_never_goes_back(steps: list[tuple[float, int, str]]) -> None:
    """It never goes back, for any clocks and leaders; an observed time is a lower bound."""
    group_time = GroupTime()
    monotonic_s, last_ms = 1_000.0, 0
    for seconds, jump_ms, what in steps:
        monotonic_s += seconds
        wall_ms = max(0, 10**10 + jump_ms)
        if what == "observe":
            group_time.observe(wall_ms)
            last_ms = max(last_ms, wall_ms)
        elif what == "start_term":
            group_time.start_term(monotonic_s, wall_ms)
        found_ms = group_time.now(monotonic_s, wall_ms)
        assert found_ms >= last_ms
        assert found_ms == group_time.last_ms
        last_ms = found_ms


def test_numbers_are_those_of_the_protocol() -> None:
    """Codes and types equal the generated ones, name by name."""
    assert {code.name: code.value for code in Code} == dict(wire.Code.items())
    types = {name.removeprefix("MESSAGE_TYPE_"): value for name, value in wire.MessageType.items()}
    assert {kind.name: kind.value for kind in MessageType} == types
    topics = {name.removeprefix("TOPIC_TYPE_"): value for name, value in meta.TopicType.items()}
    assert {kind.name: kind.value for kind in TopicType} == topics


def test_an_error_without_text_says_its_code() -> None:
    """Clients' tests look for the code's name in the status message."""
    error = RequestError(Code.INVALID_RECEIPT_HANDLE)
    assert (error.code, error.text) == (40013, "INVALID_RECEIPT_HANDLE")
    assert str(RequestError(Code.FORBIDDEN, "no")) == "FORBIDDEN: no"
