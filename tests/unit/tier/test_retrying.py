"""The gate of requests: retries, turns, budgets and what it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from strata_runtime.metrics import Metrics
from strata_testing import ManualClock
from strata_tier.store.ports import (
    ObjectNotFoundError,
    RefusedError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    ThrottledError,
)
from strata_tier.store.retrying import RequestGate, StoreOperation
from strata_tier.store.store_options import StoreOptions

STORE = "s3://bucket"


class Time(ManualClock):
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        super().__init__(100.0)
        self.slept_s: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.advance(seconds)
        await asyncio.sleep(0)


def gate(
    time: Time, metrics: Metrics | None = None, options: StoreOptions | None = None
) -> RequestGate:
    """A gate whose pauses are exactly three quarters of their length."""
    return RequestGate(STORE, options, metrics, clock=time, random=lambda: 0.5, sleep=time.sleep)


def failing(times: int, error: StoreError) -> Callable[[], Awaitable[str]]:
    """A request that fails some times and then succeeds."""
    left = [times]

    async def call() -> str:
        if left[0]:
            left[0] -= 1
            raise error
        return "done"

    return call


async def test_errors_that_may_pass_are_repeated_with_growing_pauses() -> None:
    """Each pause is twice the one before until the longest, and the result is the caller's."""
    time = Time()
    options = StoreOptions(attempts=6, first_pause_ms=1000, max_pause_ms=4000)
    throttled = ThrottledError(STORE, "k", "SlowDown")
    done = await gate(time, options=options).run(StoreOperation.GET, "k", failing(5, throttled))
    assert done == "done"
    assert time.slept_s == [0.75, 1.5, 3.0, 3.0, 3.0]


async def test_the_last_error_is_the_callers() -> None:
    """After `attempts` tries the error goes on, and it is counted as given up."""
    time, metrics = Time(), Metrics()
    unavailable = StoreUnavailableError(STORE, "k", "down")
    options = StoreOptions(attempts=3)
    with pytest.raises(StoreUnavailableError):
        await gate(time, metrics, options).run(StoreOperation.PUT, "k", failing(3, unavailable))
    labels = {"store": STORE, "operation": "put"}
    assert len(time.slept_s) == 2
    assert metrics.counter("strata_tier_store_retries_total").value(labels) == 2
    assert metrics.counter("strata_tier_store_given_up_total").value(labels) == 1


async def test_an_exception_that_no_driver_expects_is_the_stores() -> None:
    """It is repeated and reported, with a reason of bounded length, as a store that is down."""
    time, metrics, tries = Time(), Metrics(), []

    async def call() -> None:
        tries.append(1)
        raise KeyError("<p>page</p>\n" * 1000)

    options = StoreOptions(attempts=3)
    with pytest.raises(StoreUnavailableError, match="get: unexpected answer: KeyError: ") as caught:
        await gate(time, metrics, options).run(StoreOperation.GET, "k", call)
    assert (len(tries), caught.value.key) == (3, "k")
    assert len(str(caught.value)) < 400
    assert isinstance(caught.value.__cause__, KeyError)
    labels = {"store": STORE, "operation": "get", "outcome": "store_unavailable"}
    assert metrics.counter("strata_tier_store_requests_total").value(labels) == 3


@pytest.mark.parametrize("kind", [ObjectNotFoundError, RefusedError])
async def test_errors_that_stay_are_not_repeated(kind: type[StoreError]) -> None:
    """The caller gets at once an error that another try cannot change."""
    time = Time()
    with pytest.raises(kind):
        await gate(time).run(StoreOperation.GET, "k", failing(1, kind(STORE, "k", "no")))
    assert time.slept_s == []


async def test_requests_and_bytes_are_counted() -> None:
    """Every request counts, repeats too, with its outcome; bytes count once they arrived."""
    metrics = Metrics()
    passing = gate(Time(), metrics)
    down = StoreUnavailableError(STORE, "k", "down")
    await passing.run(StoreOperation.PUT_PART, "k", failing(1, down), upload_bytes=10)
    await passing.received(7, 7)
    total = metrics.counter("strata_tier_store_requests_total")
    labels = {"store": STORE, "operation": "put_part"}
    assert total.value({**labels, "outcome": "store_unavailable"}) == 1
    assert total.value({**labels, "outcome": "ok"}) == 1
    bytes_of = {"store": STORE}
    assert metrics.counter("strata_tier_store_uploaded_bytes_total").value(bytes_of) == 10
    assert metrics.counter("strata_tier_store_downloaded_bytes_total").value(bytes_of) == 7
    # The same for boards made for RocketMQ.
    prefix = "rocketmq_tiered_store_provider"
    latency = metrics.histogram(f"{prefix}_rpc_latency")
    for success in ("true", "false"):
        assert latency.count({"operation": "put_part", "success": success}) == 1
    text = metrics.render().decode()
    assert f'{prefix}_upload_bytes_sum{{operation="put_part"}} 10.0' in text
    assert f'{prefix}_upload_bytes_count{{operation="put_part"}} 1.0' in text
    assert f'{prefix}_download_bytes_sum{{operation="get"}} 7.0' in text


async def test_a_request_without_answer_is_ended() -> None:
    """A request that outlives its time is a timeout and gives its turn back."""
    options = StoreOptions(max_requests_in_flight=1, attempts=1, request_timeout_ms=1)
    passing = gate(Time(), options=options)

    async def silent() -> None:
        await asyncio.Event().wait()

    for _ in range(2):
        with pytest.raises(StoreTimeoutError):
            await passing.run(StoreOperation.GET, "k", silent)


async def test_turns_are_bounded_and_in_order() -> None:
    """No more requests run than there are turns, first come first served."""
    passing = gate(Time(), options=StoreOptions(max_requests_in_flight=2))
    running, most, order = 0, 0, []

    async def call(number: int) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        order.append(number)
        running -= 1

    async with asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(passing.run(StoreOperation.GET, "k", partial(call, number)))
    assert most == 2
    assert order == list(range(10))


async def test_too_many_waiting_are_refused() -> None:
    """A call that finds the waiting room full is refused, and the others are served."""
    options = StoreOptions(max_requests_in_flight=1, requests_waiting=1, attempts=1)
    passing, release = gate(Time(), options=options), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(passing.run(StoreOperation.GET, "a", release.wait))
        second = group.create_task(passing.run(StoreOperation.GET, "b", release.wait))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(ThrottledError, match="requests_waiting"):
            await passing.run(StoreOperation.GET, "c", release.wait)
        release.set()
    assert first.result() is True
    assert second.result() is True


async def test_budgets_hold_on_average() -> None:
    """Ten uploads of 1,000 bytes at 500 a second take 18 s: the first waits for nothing."""
    time = Time()
    passing = gate(time, options=StoreOptions(upload_bytes_per_s=500))
    done = failing(0, ThrottledError(STORE, "", ""))
    # The unused second before the first one is spent first.
    for _ in range(10):
        await passing.run(StoreOperation.PUT, "k", done, upload_bytes=1000)
    assert time.now_s - 100 == pytest.approx(17)


async def test_bytes_that_were_not_announced_are_paid_after() -> None:
    """A body whose length was not known slows down the next request."""
    time = Time()
    passing = gate(time, options=StoreOptions(download_bytes_per_s=100))
    await passing.received(300, 0)
    assert time.slept_s == []
    done = failing(0, ThrottledError(STORE, "", ""))
    await passing.run(StoreOperation.GET, "k", done, download_bytes=1)
    assert time.slept_s == [pytest.approx(2.0)]


async def test_a_cancelled_request_gives_its_turn_back() -> None:
    """Cancelling waiting and running requests leaves every turn free."""
    passing = gate(Time(), options=StoreOptions(max_requests_in_flight=1))
    never = asyncio.Event()
    tasks = [asyncio.ensure_future(passing.run(StoreOperation.GET, "k", never.wait)) for _ in "ab"]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    done = failing(0, ThrottledError(STORE, "", ""))
    assert await passing.run(StoreOperation.GET, "k", done) == "done"
