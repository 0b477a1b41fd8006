"""Filter expressions of clients: what is read, and how much of it."""

from __future__ import annotations

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.clients.settings import wrong_filter
from strata_broker.metadata.filters import Filters
from strata_mq.requests.errors import Code, RequestError
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock

PER_SECOND = 1_000


def sql(text: str) -> definition_pb2.FilterExpression:
    return definition_pb2.FilterExpression(type=definition_pb2.SQL, expression=text)


def long(number: int) -> definition_pb2.FilterExpression:
    """Return an expression of as many characters as may come in a second."""
    text = f"a = 'x{number:06}' OR "
    return sql(text * (PER_SECOND // len(text)) + "b")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def filters(clock: ManualClock) -> Filters:
    config = ReceiveSection(filter_characters_per_s=PER_SECOND)
    return Filters(config, clock, Metrics.disabled())


def test_new_expressions_are_read_at_a_rate(filters: Filters, clock: ManualClock) -> None:
    """Further ones are refused for now; known ones, and tags, cost nothing."""
    filters.of(long(1))
    filters.of(long(2))
    with pytest.raises(RequestError) as refused:
        filters.of(long(3))
    assert refused.value.code is Code.TOO_MANY_REQUESTS
    assert filters.of(long(1)).expression == long(1).expression
    assert filters.of(definition_pb2.FilterExpression(expression="x || y")).expression == "x || y"
    clock.advance(2)
    assert filters.of(long(3)).expression == long(3).expression


def test_wrong_expressions_count_too(filters: Filters) -> None:
    """They are read anew each time."""
    for _ in range(2):
        with pytest.raises(RequestError, match="character"):
            filters.of(sql(long(1).expression + " ="))
    with pytest.raises(RequestError, match="try again"):
        filters.of(sql(long(1).expression + " ="))


def test_settings_are_not_wrong_because_much_was_read(filters: Filters) -> None:
    """A client with many filters starts; each is checked where it is used."""
    settings = definition_pb2.Settings()
    for number in range(9):
        settings.subscription.subscriptions.add(expression=long(number))
    assert wrong_filter(settings, filters.of) is None
