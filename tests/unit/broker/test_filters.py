"""Filter expressions of clients: what is read, and how much of it."""

from __future__ import annotations

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.metrics import METRICS
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.clients.settings import wrong_filter
from strata_broker.metadata.filters import Filters
from strata_mq.requests.errors import Code, RequestError
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock

PER_SECOND = 1_000
CALLER = ("client-1", "127.0.0.1:5000")


def tags(text: str) -> definition_pb2.FilterExpression:
    return definition_pb2.FilterExpression(type=definition_pb2.TAG, expression=text)


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
    return filters_with(clock)


def filters_with(clock: ManualClock, metrics: Metrics | None = None, **changed: int) -> Filters:
    """Return filters with a pace of 4,000 characters, 1,000 of one client, 2,000 of one address."""
    config = {
        "filter_characters_per_s": 4 * PER_SECOND,
        "filter_characters_per_s_per_client": PER_SECOND,
        "filter_characters_per_s_per_address": 2 * PER_SECOND,
        **changed,
    }
    section = ReceiveSection.model_validate(config)
    return Filters(section, clock, metrics or Metrics.disabled())


def refusal(filters: Filters, expression: definition_pb2.FilterExpression, *caller: str) -> str:
    """Return the text with which an expression is refused for now; "": it is taken."""
    try:
        taken = filters.of(expression, *caller)
    except RequestError as refused:
        assert refused.code is Code.TOO_MANY_REQUESTS
        return refused.text
    assert taken.expression == expression.expression
    return ""


def test_new_expressions_are_read_at_a_rate(filters: Filters, clock: ManualClock) -> None:
    """Further ones are refused for now; known ones, and all tags, cost nothing."""
    assert not refusal(filters, long(1), *CALLER)
    assert not refusal(filters, long(2), *CALLER)
    for text in (long(3), tags("x || y")):
        assert refusal(filters, text, *CALLER) == (
            "too many new filter expressions from this client: try again "
            "(receive.filter_characters_per_s_per_client)"
        )
    assert not refusal(filters, long(1), *CALLER)
    for everything in ("", "*", " * "):
        assert filters.of(tags(everything), *CALLER).kind == storage_pb2.FILTER_KIND_ALL
    clock.advance(2)
    assert not refusal(filters, long(3), *CALLER)


def test_many_clients_of_one_address_share_a_pace(filters: Filters, clock: ManualClock) -> None:
    """A client chooses its id freely; another address is not refused."""
    taken = 0
    while not (text := refusal(filters, long(taken), f"client-{taken}", "10.0.0.1:1")):
        taken += 1
    assert taken == 3
    assert "from this address" in text
    assert "(receive.filter_characters_per_s_per_address)" in text
    assert not refusal(filters, long(taken), "client-0", "10.0.0.2:1")
    clock.advance(2)
    assert not refusal(filters, long(taken + 1), "client-9", "10.0.0.1:2")


def test_one_address_never_uses_up_what_others_need(clock: ManualClock) -> None:
    """Expressions as long as an address may have at once, as fast as it may, for a minute."""
    filters = filters_with(clock, max_cached_filter_characters=1)
    for number in range(600):
        for client in range(5):
            refusal(filters, sql("a" * 2 * PER_SECOND), f"{number}-{client}", "10.0.0.1:1")
            assert not refusal(filters, sql(f"a > {number}"), "client-1", "10.0.0.2:1")
        clock.advance(0.1)


def test_refusals_are_counted_by_what_is_used_up(clock: ManualClock) -> None:
    """By client, address or broker; the gauge tells how many owners have a pace here."""
    metrics = Metrics(METRICS)
    filters = filters_with(clock, metrics, filter_characters_per_s=2 * PER_SECOND)
    refused = {
        (client, host): refusal(filters, long(number), client, f"{host}:1")
        for number, (client, host) in enumerate(
            [("a", "h"), ("a", "i"), ("a", "j"), ("b", "h"), ("c", "k")]
        )
    }
    assert [caller for caller, text in refused.items() if text] == [("a", "j"), ("c", "k")]
    assert refused["c", "k"] == (
        "too many new filter expressions at this broker: try again "
        "(receive.filter_characters_per_s)"
    )
    metrics.read_gauges()
    shown = metrics.render().decode()
    assert 'strata_broker_unread_filters_total{by="client"} 1' in shown
    assert 'strata_broker_unread_filters_total{by="all"} 1' in shown
    assert 'strata_broker_cached_filters{of="owners"} 4' in shown


def test_a_filter_in_use_outlives_ever_new_filters_of_others(clock: ManualClock) -> None:
    """It is not forgotten: read anew it would be refused, as its client has read too much."""
    filters = filters_with(
        clock,
        filter_characters_per_s=10**9,
        filter_characters_per_s_per_address=10**9,
        max_cached_filter_characters=8 * PER_SECOND,
        max_cached_filter_characters_per_client=2 * PER_SECOND,
        max_cached_filter_characters_per_address=4 * PER_SECOND,
    )
    used = (sql("a > 1"), long(1), tags("x || y" + " " * 980))
    for expression in used:
        assert not refusal(filters, expression, *CALLER)
    assert refusal(filters, long(2), *CALLER)
    for number in range(100):
        kind = tags if number % 2 else sql
        new = kind(long(10 + number).expression)
        assert not refusal(filters, new, f"other-{number}", "10.0.0.9:1")
        if number < 2:
            assert not refusal(filters, long(200 + number), "neighbour", "127.0.0.1:6000")
    for expression in used:
        assert not refusal(filters, expression, *CALLER)


def test_wrong_expressions_count_too(filters: Filters) -> None:
    """They are read anew each time; too long ones are not read."""
    for _ in range(9):
        with pytest.raises(RequestError, match="longer than 65536"):
            filters.of(sql("a" * 65_537), *CALLER)
    for _ in range(2):
        with pytest.raises(RequestError, match="character"):
            filters.of(sql(long(1).expression + " ="), *CALLER)
    with pytest.raises(RequestError, match="try again"):
        filters.of(sql(long(1).expression + " ="), *CALLER)


def test_settings_are_not_wrong_because_much_was_read(filters: Filters) -> None:
    """A client with many filters starts; each is checked where it is used."""
    settings = definition_pb2.Settings()
    for number in range(9):
        settings.subscription.subscriptions.add(expression=long(number))
    assert wrong_filter(settings, lambda wanted: filters.of(wanted, *CALLER)) is None
