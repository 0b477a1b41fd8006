"""Lifecycle of a process: services start in order and stop in reverse order; signals; grace period.

The sequence is decided here, once: a service that fails to start undoes those before it, a fatal
failure of a background task ends the process with its reason, a second signal ends it at once.
SIGHUP, the end of the terminal, stops it like SIGTERM; files of certificates are read again without
a signal.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from strata_runtime.clock import Clock, SystemClock
from strata_runtime.closing import close_all
from strata_runtime.errors import FatalError, one_line
from strata_runtime.logs import get_logger
from strata_runtime.timeouts import Timeout

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Service(Protocol):
    """Something that runs between `start` and `stop`."""

    @property
    def name(self) -> str:
        """Name in logs."""

    async def start(self) -> None:
        """Return when it serves. A failed start leaves nothing running."""

    async def stop(self, grace_s: float) -> None:
        """Take no new work, end what runs within `grace_s`, free everything."""


class Lifecycle:
    """Runs services until a signal, `request_stop` or a fatal failure.

    Args:
        services: in the order of their start.
        grace_s: time for all stops together.
        clock: measures the grace.
        at_once: called before the process ends at once.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        grace_s: float = 30.0,
        clock: Clock | None = None,
        at_once: Callable[[], None] = lambda: None,
    ) -> None:
        self._services = tuple(services)
        self._grace_s = grace_s
        self._clock = clock or SystemClock()
        self._at_once = at_once
        self._stop = asyncio.Event()
        self._failure: tuple[str, BaseException] | None = None
        self._log = get_logger("lifecycle")

    @property
    def is_stopping(self) -> bool:
        """Whether there is a reason to stop; a start that waits for others gives up then."""
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Begin the stop; the process ends in order."""
        self._stop.set()

    def on_fatal(self, name: str, failure: BaseException) -> None:
        """A background task failed (`tasks.OnFatal`): remember the first reason and stop."""
        self._log.error("task failed", task=name, error=one_line(failure), exc_info=failure)
        if self._failure is None:
            self._failure = (name, failure)
        self._stop.set()

    async def start(self) -> None:
        """Start the services in order; if one fails, stop those before it and raise its error."""
        started: list[Service] = []
        try:
            for service in self._services:
                await service.start()
                started.append(service)
        except BaseException:
            # A stop that fails is in the log; why the start failed is the reason.
            with suppress(Exception):
                await self._stop_all(started)
            raise

    async def run(self, *, handle_signals: bool = True) -> None:
        """Start, wait for a reason to stop, stop.

        Raises:
            FatalError: a task failed, or a service did not stop; the reason is its message.
        """
        if handle_signals:
            self._handle_signals()
        await self.start()
        try:
            await self._stop.wait()
        finally:
            try:
                await self.stop()
            except FatalError:
                # It is in the log; why it stopped says more than what became of the stop.
                if self._failure is None:
                    raise
        if self._failure is not None:
            name, failure = self._failure
            raise FatalError(f"{name} failed: {one_line(failure)}") from failure

    async def stop(self) -> None:
        """Stop the services in reverse order within the grace limit; one that fails stops none.

        Raises:
            FatalError: a service failed to stop; all others are stopped.
        """
        try:
            await self._stop_all(self._services)
        except Exception as failure:
            raise FatalError(f"a service did not stop: {one_line(failure)}") from failure

    async def _stop_all(self, services: Sequence[Service]) -> None:
        deadline_s = self._clock.monotonic_s() + self._grace_s

        async def stopped(service: Service) -> None:
            # The last ones always get a moment: a lock or a log must be closed even when the
            # first ones used up the grace.
            left_s = max(1.0, deadline_s - self._clock.monotonic_s())
            try:
                async with Timeout(left_s + 1.0):
                    await service.stop(left_s)
            except TimeoutError:
                self._log.warning("service did not stop in time", service=service.name)
            except Exception as failure:
                self._log.error(
                    "service did not stop",
                    service=service.name,
                    error=one_line(failure),
                    exc_info=failure,
                )
                raise

        await close_all("services", *(partial(stopped, each) for each in reversed(services)))

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            # `nohup` starts a process that ignores SIGHUP, and so it stays. A shell that starts one
            # in the background has it ignore SIGINT as well: that is not meant for servers.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            self._log.warning("second signal received, ending at once", signal=number.name)
            self._at_once()
            os._exit(128 + number)
        self._log.info("stopping", signal=number.name, grace_s=self._grace_s)
        self._stop.set()
