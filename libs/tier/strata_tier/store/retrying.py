"""The gate that every request to an object store passes: turns, budgets, retries, counts.

The gate is below the drivers, not above them: a driver knows the requests of one `put`, so a
multipart upload retries one failed part instead of all parts, and the counters show what a cloud
bills.

Invariants:

- At most `max_requests_in_flight` requests run, at most `requests_waiting` wait; waiting requests
  run in the order of their arrival.
- A request is retried only on retryable errors (`StoreError.retryable`), after a pause that doubles
  and is spread, at most `attempts` times. The caller gets the last error.
- A caller gets nothing but `StoreError`s and its own cancellation. Errors of a driver pass
  unchanged; a request that exceeds its time raises `StoreTimeoutError` here, and an exception that
  no driver expects, such as that of a parser about a proxy's page, `StoreUnavailableError`. So a
  driver makes its result out of the answer inside `call`.

The gate does not know what a request does; `call` must be safe to repeat.
"""

from __future__ import annotations

import asyncio
import random as system_random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TypeVar

from strata_runtime.backoff import Backoff, Random
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.metrics import Gauge, Metrics
from strata_runtime.timeouts import Timeout
from strata_tier.base.metrics import STORE_METRICS
from strata_tier.store.budgets import Budget
from strata_tier.store.ports import (
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    ThrottledError,
)
from strata_tier.store.store_options import StoreOptions

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[object]]

# Characters of an exception whose text may be a whole page.
_REASON_LETTERS = 300


class StoreOperation(StrEnum):
    """Kind of a request; label `operation`. Clouds bill `put` to `list` as writes."""

    PUT = "put"
    BEGIN_UPLOAD = "begin_upload"
    PUT_PART = "put_part"
    END_UPLOAD = "end_upload"
    LIST = "list"
    GET = "get"
    HEAD = "head"
    DELETE = "delete"
    ABORT_UPLOAD = "abort_upload"


class RequestGate:
    """The gate that all requests to one store pass, used from one event loop.

    Args:
        store: name of the store, for errors and metric labels.
        options: its limits.
        metrics: where requests are counted.
        clock: for budgets and times.
        random: spreads the pauses.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        store: str,
        options: StoreOptions | None = None,
        metrics: Metrics | None = None,
        *,
        clock: Clock | None = None,
        random: Random = system_random.random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.store = store
        self.options = options or StoreOptions()
        self._clock = clock or SystemClock()
        self._random = random
        self._sleep = sleep
        self._turns = asyncio.Semaphore(self.options.max_requests_in_flight)
        self._in_flight = 0
        self._waiting = 0
        self.requests = Budget(self.options.requests_per_s, self._clock)
        self.upload = Budget(self.options.upload_bytes_per_s, self._clock)
        self.download = Budget(self.options.download_bytes_per_s, self._clock)
        self._count(metrics or Metrics.disabled())

    def _count(self, metrics: Metrics) -> None:
        metrics.declare(STORE_METRICS)
        self._requests_total = metrics.counter("strata_tier_store_requests_total")
        self._request_ms = metrics.histogram("strata_tier_store_request_ms")
        self._retries_total = metrics.counter("strata_tier_store_retries_total")
        self._given_up_total = metrics.counter("strata_tier_store_given_up_total")
        self._uploaded = metrics.counter("strata_tier_store_uploaded_bytes_total")
        self._downloaded = metrics.counter("strata_tier_store_downloaded_bytes_total")
        # The same under RocketMQ's names, which know one store.
        self._rpc_latency = metrics.histogram("rocketmq_tiered_store_provider_rpc_latency")
        self._upload_bytes = metrics.histogram("rocketmq_tiered_store_provider_upload_bytes")
        self._download_bytes = metrics.histogram("rocketmq_tiered_store_provider_download_bytes")
        self._budget_wait_ms = metrics.histogram("strata_tier_store_budget_wait_ms")
        name, options, label = "strata_tier_store_requests", self.options, {"store": self.store}
        self._gauges: tuple[Gauge, ...] = (
            metrics.gauge(f"{name}_in_flight", lambda: [(self._in_flight, label)]),
            metrics.gauge(
                f"{name}_in_flight_limit", lambda: [(options.max_requests_in_flight, label)]
            ),
            metrics.gauge(f"{name}_waiting", lambda: [(self._waiting, label)]),
            metrics.gauge(f"{name}_waiting_limit", lambda: [(options.requests_waiting, label)]),
        )

    async def run(
        self,
        operation: StoreOperation,
        key: str,
        call: Callable[[], Awaitable[Result]],
        *,
        upload_bytes: int = 0,
        download_bytes: int = 0,
    ) -> Result:
        """Do one request, repeated while it fails in a way that may pass.

        Args:
            operation: what it does.
            key: the object it is about, "" for the store.
            call: does it once; called again for each repeat.
            upload_bytes: length of the body it sends.
            download_bytes: length of the body it will receive, 0 if that is not known.

        Raises:
            StoreError: of the last attempt.
        """
        return await self.repeat(
            operation,
            lambda: self.once(
                operation,
                key,
                call,
                upload_bytes=upload_bytes,
                download_bytes=download_bytes,
            ),
        )

    async def repeat(
        self, operation: StoreOperation, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        """Repeat something that is made of several `once`: an upload that must begin anew."""
        labels = {"store": self.store, "operation": operation.value}
        backoff = Backoff(self.options.first_pause_ms, self.options.max_pause_ms, self._random)
        for _ in range(self.options.attempts - 1):
            try:
                return await call()
            except StoreError as error:
                if not error.retryable:
                    raise
            self._retries_total.add(1, labels)
            await self._sleep(backoff.next_s())
        try:
            return await call()
        except StoreError as error:
            if error.retryable:
                self._given_up_total.add(1, labels)
            raise

    async def once(
        self,
        operation: StoreOperation,
        key: str,
        call: Callable[[], Awaitable[Result]],
        *,
        upload_bytes: int = 0,
        download_bytes: int = 0,
    ) -> Result:
        """Do one request a single time: wait for budgets and a turn, count, end it in time."""
        await self._pay("requests", self.requests, 1)
        await self._pay("upload", self.upload, upload_bytes)
        await self._pay("download", self.download, download_bytes)
        async with self._turn(key):
            begun_s, outcome = self._clock.monotonic_s(), "cancelled"
            try:
                async with Timeout(self.options.timeout_s(upload_bytes + download_bytes)):
                    result = await call()
                outcome = "ok"
            except TimeoutError:
                outcome = outcome_of(StoreTimeoutError)
                raise StoreTimeoutError(self.store, key, f"{operation}: no answer") from None
            except StoreError as error:
                outcome = outcome_of(type(error))
                raise
            except Exception as error:
                # Parsers, the driver's and its library's, raise anything for an answer that no
                # store gives. A task that works with stores must not end for one.
                outcome = outcome_of(StoreUnavailableError)
                text = " ".join(f"{type(error).__name__}: {error}".split())[:_REASON_LETTERS]
                reason = f"{operation}: unexpected answer: {text}"
                raise StoreUnavailableError(self.store, key, reason) from error
            finally:
                self._ended(operation, (self._clock.monotonic_s() - begun_s) * 1000, outcome)
        if upload_bytes:
            self._uploaded.add(upload_bytes, {"store": self.store})
            self._upload_bytes.record(upload_bytes, {"operation": operation.value})
        return result

    def _ended(self, operation: StoreOperation, took_ms: float, outcome: str) -> None:
        labels = {"store": self.store, "operation": operation.value}
        self._request_ms.record(took_ms, labels)
        self._requests_total.add(1, {**labels, "outcome": outcome})
        success = "true" if outcome == "ok" else "false"
        self._rpc_latency.record(took_ms, {"operation": operation.value, "success": success})

    async def received(self, length: int, announced: int) -> None:
        """Count a body that came; pay for what was not announced as `download_bytes`."""
        self._downloaded.add(length, {"store": self.store})
        self._download_bytes.record(length, {"operation": StoreOperation.GET.value})
        await self._pay("download", self.download, max(0, length - announced))

    def close(self) -> None:
        """Take its gauges off the scrape."""
        for gauge in self._gauges:
            gauge.close()

    async def _pay(self, name: str, budget: Budget, amount: int) -> None:
        wait_s = budget.spend(amount)
        if wait_s:
            self._budget_wait_ms.record(wait_s * 1000, {"store": self.store, "budget": name})
            await self._sleep(wait_s)

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        if self._waiting >= self.options.requests_waiting:
            raise ThrottledError(
                self.store, key, f"requests_waiting: already {self._waiting} requests wait"
            )
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._turns.release()


def outcome_of(error: type[StoreError]) -> str:
    """Label `outcome` of an error: `ObjectNotFoundError` is `object_not_found`."""
    words = "".join(f"_{c.lower()}" if c.isupper() else c for c in error.__name__)
    return words.removeprefix("_").removesuffix("_error")
