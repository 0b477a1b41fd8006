"""Lag of many consumer groups, and how fast topics grow: counts at two moments give rates.

There is a call per consumer group or topic, a few at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient
from strata_cli.errors import CliError
from strata_cli.views import View

PAGE_SIZE = 1_000

_AT_ONCE = 8
"""Most calls at a time."""

Name = tuple[str, str]
"""(namespace, name) of a topic or a consumer group."""

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Counts(NamedTuple):
    """A counter at a moment.

    Attributes:
        at_s: monotonic time.
        total: since ever.
    """

    at_s: float
    total: int


class CounterRates:
    """Turns counters that are read again and again into rates."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, ...], Counts] = {}

    def rate(self, name: tuple[str, ...], count: int) -> float | None:
        """Return how fast a counter grew since the last call; None at the first one.

        A counter that was set back (a reset, a topic that was made again) has the rate 0.
        """
        now = Counts(time.monotonic(), count)
        before = self._before.get(name)
        self._before[name] = now
        if before is None or now.at_s <= before.at_s:
            return None
        return round(max(now.total - before.total, 0) / (now.at_s - before.at_s), 1)


def topics(client: AdminClient, namespace: str | None, *, system: bool = False) -> list[Name]:
    """Return the names of topics; `namespace` None: of every namespace."""
    return [(each.namespace, each.name) for each in topic_rows(client, namespace, system=system)]


def topic_rows(
    client: AdminClient, namespace: str | None, *, system: bool = False
) -> list[meta_pb2.Topic]:
    """Return topics by namespace and name; `namespace` None: of every namespace."""
    request = admin_pb2.ListTopicsRequest(namespace=namespace, include_system=system)
    return topic_page(client, request)[0]


def topic_page(
    client: AdminClient, wanted: admin_pb2.ListTopicsRequest, limit: int | None = None
) -> tuple[list[meta_pb2.Topic], str]:
    """Return at most `limit` topics (None: all) and the token of the page behind them."""
    request = admin_pb2.ListTopicsRequest()
    request.CopyFrom(wanted)
    found: list[meta_pb2.Topic] = []
    while True:
        request.page_size = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - len(found))
        response = client.call(client.admin.ListTopics, request)
        found.extend(response.topics)
        if not response.next_page_token or len(found) == limit:
            return found, response.next_page_token
        request.page_token = response.next_page_token


def lite_topic_page(
    client: AdminClient, wanted: admin_pb2.ListLiteTopicsRequest, limit: int | None = None
) -> tuple[list[admin_pb2.LiteTopicStatus], str]:
    """Return at most `limit` lite topics (None: all) and the token of the page behind them."""
    request = admin_pb2.ListLiteTopicsRequest()
    request.CopyFrom(wanted)
    found: list[admin_pb2.LiteTopicStatus] = []
    while True:
        request.page_size = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - len(found))
        response = client.call(client.admin.ListLiteTopics, request)
        found.extend(response.lite_topics)
        if not response.next_page_token or len(found) == limit:
            return found, response.next_page_token
        request.page_token = response.next_page_token


def group_rows(client: AdminClient, namespace: str | None) -> list[meta_pb2.ConsumerGroup]:
    """Return consumer groups by namespace and name; `namespace` None: of every namespace."""
    request = admin_pb2.ListConsumerGroupsRequest(page_size=PAGE_SIZE, namespace=namespace)
    found: list[meta_pb2.ConsumerGroup] = []
    while True:
        response = client.call(client.admin.ListConsumerGroups, request)
        found.extend(response.consumer_groups)
        if not response.next_page_token:
            return found
        request.page_token = response.next_page_token


def lags_of(client: AdminClient, groups: Sequence[Name], rates: CounterRates) -> list[View]:
    """Return the lag of consumer groups; those that were deleted meanwhile are left out."""

    def ask(name: Name) -> admin_pb2.GetConsumerGroupResponse | None:
        request = admin_pb2.GetConsumerGroupRequest(namespace=name[0], name=name[1])
        return _unless_gone(lambda: client.call(client.admin.GetConsumerGroup, request))

    return [
        _lag_view(name, found, rates)
        for name, found in zip(groups, _several(ask, groups), strict=True)
        if found is not None
    ]


def rates_of(client: AdminClient, names: Sequence[Name], rates: CounterRates) -> list[View]:
    """Return how many messages topics hold and get; those that were deleted are left out."""

    def ask(name: Name) -> admin_pb2.GetTopicResponse | None:
        request = admin_pb2.GetTopicRequest(namespace=name[0], name=name[1])
        return _unless_gone(lambda: client.call(client.admin.GetTopic, request))

    return [
        {
            "namespace": name[0],
            "name": name[1],
            "messages": sum(each.next_offset - each.min_offset for each in found.queues),
            "messages_per_s": rates.rate(name, sum(each.next_offset for each in found.queues)),
            "last_store_time_ms": max(
                (each.last_store_time_ms for each in found.queues), default=0
            ),
        }
        for name, found in zip(names, _several(ask, names), strict=True)
        if found is not None
    ]


def _lag_view(name: Name, found: admin_pb2.GetConsumerGroupResponse, rates: CounterRates) -> View:
    by_topic: dict[str, list[admin_pb2.ConsumerQueueLag]] = {}
    for queue in found.queues:
        by_topic.setdefault(queue.topic, []).append(queue)
    consumed = sum(queue.cursor for queue in found.queues)
    return {
        "namespace": name[0],
        "group": name[1],
        "lag": sum(queue.lag for queue in found.queues),
        "in_flight": sum(queue.in_flight for queue in found.queues),
        "members": len(found.members),
        "consumed_per_s": rates.rate(name, consumed),
        "topics": [
            {
                "topic": topic,
                "queues": len(queues),
                "lag": sum(queue.lag for queue in queues),
                "in_flight": sum(queue.in_flight for queue in queues),
                "consumed_per_s": rates.rate((*name, topic), sum(each.cursor for each in queues)),
            }
            for topic, queues in sorted(by_topic.items())
        ],
    }


def _several(ask: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(ask, items))


def _unless_gone(ask: Callable[[], Answer]) -> Answer | None:
    try:
        return ask()
    except CliError as error:
        if error.code == "not_found":
            return None
        raise
