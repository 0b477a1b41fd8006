"""Brokers that check a half message, and the checks that they get on their watch streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from strata_runtime.stalls import OwnStalls
from strata_storage.base.errors import Refused
from strata_storage.base.watchers import TransactionCheck, WatcherOptions, Watchers, WatchUpdate
from strata_storage.leading.pending.check_routes import CheckRoutes, SentCheck

TOPIC, OTHER_TOPIC = 7, 8


def check(number: int = 1, message: bytes = b"half") -> TransactionCheck:
    return TransactionCheck(1, 10, 0, TOPIC, number, False, 0, message)


async def watching(watchers: Watchers, *boot_ids: int) -> list[AsyncGenerator[WatchUpdate]]:
    """Open streams and take the leaderships that come first."""
    streams = [watchers.updates(boot_id) for boot_id in boot_ids]
    for stream in streams:
        assert (await anext(stream)).led_groups == watchers.led_groups()
    return streams


async def close(streams: list[AsyncGenerator[WatchUpdate]]) -> None:
    for stream in streams:
        await stream.aclose()


async def test_producers_are_asked_in_turn() -> None:
    """Checks of a topic go to all brokers that hold a producer of it, and to no other."""
    watchers = Watchers()
    routes = CheckRoutes(watchers, 15, OwnStalls(0.1))
    streams = await watching(watchers, 1, 2, 3)
    for boot_id, topic_ids in ((1, [TOPIC]), (2, [OTHER_TOPIC]), (3, [OTHER_TOPIC, TOPIC])):
        routes.reported(boot_id, topic_ids, 0.0)
    first = [routes.candidates(TOPIC, 1.0)[0] for _ in range(4)]
    assert sorted(first) == [1, 1, 3, 3]
    assert sorted(routes.candidates(None, 1.0)) == [1, 2, 3]
    await close(streams)


async def test_a_broker_counts_while_it_watches_and_reports() -> None:
    """One that is silent, left, or never reported a topic is not asked."""
    watchers = Watchers()
    routes = CheckRoutes(watchers, 15, OwnStalls(0.1))
    streams = await watching(watchers, 1, 2, 3)
    routes.reported(1, [TOPIC], 0.0)
    routes.reported(2, [TOPIC], 0.0)
    routes.reported(2, None, 10.0)
    routes.reported(4, [TOPIC], 10.0)
    assert routes.candidates(TOPIC, 20.0) == [2]
    routes.reported(2, [], 20.0)
    assert routes.candidates(TOPIC, 20.0) == []
    routes.reported(2, [TOPIC], 20.0)
    routes.forget(2)
    assert routes.candidates(TOPIC, 20.0) == []
    await close(streams)
    assert routes.candidates(None, 20.0) == []


async def test_reports_are_limited() -> None:
    """Brokers and topics beyond the limits are not remembered."""
    watchers = Watchers()
    routes = CheckRoutes(watchers, 15, OwnStalls(0.1), max_brokers=2, max_topics=1)
    streams = await watching(watchers, 1, 2, 3)
    for boot_id in (1, 2, 3):
        routes.reported(boot_id, [TOPIC, OTHER_TOPIC], 0.0)
    assert sorted(routes.candidates(TOPIC, 0.0)) == [2, 3]
    assert routes.candidates(OTHER_TOPIC, 0.0) == []
    await close(streams)


async def test_a_check_goes_to_a_broker_that_has_room() -> None:
    """A full queue sends it to the next broker; when all are full it is not sent."""
    watchers = Watchers(WatcherOptions(checks_max=1))
    routes = CheckRoutes(watchers, 15, OwnStalls(0.1))
    streams = await watching(watchers, 1, 2)
    for boot_id in (1, 2):
        routes.reported(boot_id, [TOPIC], 0.0)
    sent = [routes.send(check(), TOPIC, 0.0) for _ in range(3)]
    assert sent == [SentCheck.COUNTS, SentCheck.COUNTS, SentCheck.NOT]
    assert watchers.checks_waiting == 2
    for stream in streams:
        update = await anext(stream)
        assert update.led_groups is None
        assert list(update.checks) == [check()]
    assert routes.send(check(), TOPIC, 0.0) is SentCheck.COUNTS
    await close(streams)


async def test_what_becomes_of_a_check_is_reported_by_brokers_that_said_so() -> None:
    """One of an earlier version reports nothing; its check counts when it is sent."""
    watchers = Watchers()
    routes = CheckRoutes(watchers, 15, OwnStalls(0.1))
    (earlier,) = await watching(watchers, 1)
    routes.reported(1, [TOPIC], 0.0)
    assert routes.send(check(), TOPIC, 0.0) is SentCheck.COUNTS
    assert not (await anext(earlier)).wants_reports
    await close([earlier])
    reporting = watchers.updates(1, reports=True)
    await anext(reporting)
    assert routes.send(check(), TOPIC, 0.0) is SentCheck.TO_BE_REPORTED
    assert (await anext(reporting)).wants_reports
    await close([reporting])


async def test_the_bytes_of_waiting_checks_are_limited() -> None:
    """One message always fits; a second one only below the limit."""
    watchers = Watchers(WatcherOptions(check_bytes_max=100))
    streams = await watching(watchers, 1)
    assert watchers.offer(1, check(1, b"x" * 200))
    assert not watchers.offer(1, check(2, b"x"))
    await anext(streams[0])
    assert watchers.offer(1, check(2, b"x"))
    await close(streams)


async def test_a_stream_tells_leaderships_and_checks_as_they_come() -> None:
    """Many checks come in several answers; a change of leadership does not wait behind them."""
    watchers = Watchers(WatcherOptions(checks_per_answer=2))
    (stream,) = await watching(watchers, 1)
    for number in range(3):
        watchers.offer(1, check(number))
    assert [each.number for each in (await anext(stream)).checks] == [0, 1]
    watchers.changed(5, leads=True)
    assert (await anext(stream)).led_groups == [5]
    assert [each.number for each in (await anext(stream)).checks] == [2]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    watchers.changed(5, leads=True)
    assert not waiting.done()
    watchers.changed(5, leads=False)
    assert (await waiting).led_groups == []
    await close([stream])


async def test_streams_are_limited() -> None:
    """One watcher too many is refused; a place becomes free when one leaves."""
    watchers = Watchers(WatcherOptions(watchers_max=1))
    streams = await watching(watchers, 1)
    with pytest.raises(Refused):
        await anext(watchers.updates(2))
    await close(streams)
    assert len(watchers) == 0
    await close(await watching(watchers, 2))
