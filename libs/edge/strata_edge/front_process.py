"""Keeps the front process running: hands it the port, restarts it, reads its reports.

The listening socket belongs to this process, so that the port stays and clients queue while the
front is restarted. The front is started without forking this process: uvloop's own way forks, which
runs gRPC's fork handlers among its threads, and that sometimes aborts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from strata_edge.certificate import watch_of
from strata_edge.front_config import FrontConfig, FrontReport
from strata_edge.listener import open_listener
from strata_edge.options import EdgeOptions
from strata_edge.socket_folder import sweep
from strata_runtime import tls
from strata_runtime.blocking import run_to_end
from strata_runtime.certificate_watch import not_read
from strata_runtime.errors import ConfigError, StrataError, one_line
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_runtime.timeouts import Timeout

# The server refuses a call with more headers than it may have; who sends so many more is cut off.
_HEADERS_ON_THE_WIRE = 4
_DRAIN_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 2.0
_MIN_RESTART_PAUSE_S = 0.05
_MAX_RESTART_PAUSE_S = 5.0


class FrontError(StrataError):
    """The front did not come up."""


class FrontProcess:
    """Supervises one front.

    Args:
        options: address, certificate, limits.
        server_socket: unix socket of the server behind it.
        other_socket: unix socket for connections of another protocol; None: there is none.
        metrics: connections and restarts.
    """

    def __init__(
        self,
        options: EdgeOptions,
        server_socket: Path,
        metrics: Metrics,
        *,
        other_socket: Path | None = None,
    ) -> None:
        assert options.certificate is not None
        self._options = options
        self._certificate = options.certificate
        self._server_socket = server_socket
        self._other_socket = other_socket
        self._log = get_logger("edge.front")
        self._tasks = Tasks("edge.front", self._supervision_failed)
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._watching: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        # Ready, or it said why it cannot be.
        self._decided = asyncio.Event()
        self._failure = ""
        # Clients that the front has sent away, for the caller; and that the front has answered.
        self._sent_away: list[str] = []
        self._answered = asyncio.Event()
        self._stopping = False
        self._report = FrontReport()
        self._restarts = metrics.counter("strata_edge_front_restarts_total")
        self._refused = metrics.counter("strata_edge_refused_connections_total")
        self._tls_failures = metrics.counter("strata_edge_tls_failures_total")
        self._handshake_timeouts = metrics.counter("strata_edge_handshake_timeouts_total")
        self._pauses = metrics.counter("strata_edge_connection_pauses_total")
        self._ended = metrics.counter("strata_edge_ended_connections_total")
        self._away_total = metrics.counter("strata_edge_sent_away_total")
        self._handed_over = metrics.counter("strata_edge_handed_over_total")
        self._plaintext_refused = metrics.counter("strata_edge_plaintext_refused_total")
        self._watch = watch_of(self._certificate, metrics)
        self._gauges = (
            metrics.gauge("strata_edge_connections", lambda: self._report.connections),
            metrics.gauge("strata_edge_leaving_connections", lambda: self._report.leaving),
            metrics.gauge("strata_edge_relayed_connections", lambda: self._report.relayed),
            metrics.gauge("strata_edge_connections_maximum", lambda: options.max_connections),
            metrics.gauge("strata_edge_large_request_bytes", lambda: self._report.large_bytes),
            metrics.gauge("strata_edge_large_requests_waiting", self._large_waiting),
        )

    def _large_waiting(self) -> int:
        return self._report.large_waiting

    @property
    def pid(self) -> int | None:
        """Process id of the running front; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def listen(self) -> int:
        """Take the port; return its number. Connections queue from now on.

        Socket folders beside this server's own that dead servers left are removed.

        Raises:
            ListenError: the address cannot be listened on.
        """
        options = self._options
        swept = sweep(self._server_socket.parent.parent, time.time())
        if swept:
            self._log.info("removed socket folders of dead servers", folders=len(swept))
        listener = open_listener(
            options.host,
            options.port,
            keepalive=options.keepalive,
            is_shared=options.is_port_shared,
        )
        self._listener = listener
        port: int = listener.getsockname()[1]
        return port

    async def start(self) -> None:
        """Return when the front accepts.

        Raises:
            FrontError: it did not within `front_ready_timeout_s`, or said why it cannot.
        """
        self._tasks.spawn("supervise", self._supervise())
        try:
            async with Timeout(self._options.front_ready_timeout_s):
                await self._decided.wait()
        except TimeoutError:
            await self.stop()
            reason = f": {self._failure}" if self._failure else ""
            raise FrontError(f"the front process did not start{reason}") from None
        if not self._ready.is_set():
            await self.stop()
            raise FrontError(f"the front process did not start: {self._failure}")
        self._watching = self._tasks.spawn("watch certificate", self._watch.run())

    def health(self) -> Health:
        """Return what is wrong with the certificate, and whether the front serves."""
        problems = list(self._watch.health().problems)
        if self._report.certificate_error:
            problems.append(not_read(self._certificate, self._report.certificate_error))
        is_wanted = self._decided.is_set() and not self._stopping
        if is_wanted and (self.pid is None or not self._ready.is_set()):
            detail = self._failure or "it ended"
            problems.append(Problem("front", "", "RESTARTING", Severity.DOWN, detail))
        return Health(problems=tuple(problems))

    def connections(self) -> int:
        """Return how many clients of gRPC are connected and were not asked to go."""
        report = self._report
        return report.connections - report.leaving - report.relayed

    async def send_away(self, most: int) -> Sequence[str]:
        """See `ports.Edge.send_away`; an answer that is late comes with the next one."""
        if self._writer is None or self._stopping or most <= 0:
            return ()
        self._answered.clear()
        self._writer.write(b"away %d\n" % most)
        with contextlib.suppress(TimeoutError):
            async with Timeout(_ANSWER_TIMEOUT_S):
                await self._answered.wait()
        told, self._sent_away = self._sent_away, []
        return told

    def end_connection(self, peer: str) -> None:
        """End the connection of a client, `host:port`, if it is still there."""
        if self._writer is not None:
            self._writer.write(b"end %s\n" % peer.encode())

    def drain(self) -> None:
        """Close the port and send clients away; the front ends with its last relay."""
        self._stopping = True
        if self._watching is not None:
            self._watching.cancel()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._writer is not None:
            self._writer.write(b"drain\n")

    async def drained(self, timeout_s: float) -> bool:
        """Wait until the last client has gone after `drain`; False: not in time."""
        return await self._tasks.drain(timeout_s)

    async def stop(self) -> None:
        """Let the last bytes out, then end the front."""
        self.drain()
        await self._tasks.drain(_DRAIN_TIMEOUT_S)
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        await self._tasks.stop()
        self._watch.close()
        for gauge in self._gauges:
            gauge.close()

    async def _supervise(self) -> None:
        pause_s = _MIN_RESTART_PAUSE_S
        while not self._stopping:
            self._ready.clear()
            try:
                await self._run_once()
            except (OSError, ValueError) as error:
                # No memory, descriptors or process ids: that ends by itself, as clients wait.
                self._failure = f"it cannot be started: {one_line(error)}"
            if self._stopping:
                return
            self._restarts.add()
            came_up = self._ready.is_set()
            pause_s = _MIN_RESTART_PAUSE_S if came_up else min(2 * pause_s, _MAX_RESTART_PAUSE_S)
            self._log.error(
                "front process died, restarting it", pause_s=pause_s, reason=self._failure
            )
            await asyncio.sleep(pause_s)

    async def _run_once(self) -> None:
        """Start a front and read its reports until it ends.

        Raises:
            OSError, ValueError: it cannot be started; nothing is left of it.
        """
        mine, its = socket.socketpair()
        process: subprocess.Popen[bytes] | None = None
        try:
            try:
                start = partial(_start_process, self._config(its))
                process = self._process = await run_to_end(start, undo=_give_up)
            finally:
                its.close()
            reader, self._writer = await asyncio.open_connection(sock=mine)
        except BaseException:
            mine.close()
            if process is not None:
                await run_to_end(partial(_give_up, process))
            raise
        if self._stopping:
            # `drain` found no front to tell.
            self._writer.write(b"drain\n")
        try:
            while line := await reader.readline():
                self._take(line)
        except ConnectionError:
            pass  # killed while reports were on their way: an end like any other
        finally:
            # A front whose parent does not listen ends.
            self._writer.close()
            self._writer = None
            self._report = FrontReport()
            self._answered.set()
            await asyncio.to_thread(process.wait)

    def _config(self, control: socket.socket) -> FrontConfig:
        """Return the configuration of a front that reports to `control`."""
        assert self._listener is not None
        return FrontConfig(
            listen_descriptor=self._listener.fileno(),
            control_descriptor=control.fileno(),
            server_socket=str(self._server_socket),
            other_socket=str(self._other_socket or ""),
            certificate_file=str(self._certificate.certificate_file),
            key_file=str(self._certificate.key_file),
            tls_only=self._options.tls_only,
            tls_policy=self._options.tls_policy,
            max_connections=self._options.max_connections,
            max_connections_per_address=self._options.max_connections_per_address,
            relay_buffer_bytes=self._options.relay_buffer_bytes,
            handshake_timeout_ms=self._options.handshake_timeout_ms,
            large_requests=self._options.large_requests,
            guard=replace(
                self._options.guard,
                max_header_bytes=_HEADERS_ON_THE_WIRE * self._options.max_metadata_bytes,
            ),
        )

    def _take(self, line: bytes) -> None:
        if line == b"ready\n":
            self._failure = ""
            self._ready.set()
            self._decided.set()
            self._watch.read()
            return
        told = json.loads(line)
        if "failed" in told:
            self._failure = f"{self._files}: {told['failed']}"
            self._decided.set()
            return
        if "sent_away" in told and len(told) == 1:
            self._sent_away += filter(None, told["sent_away"])
            self._answered.set()
            return
        report = FrontReport(**told)
        self._refused.add(report.refused - self._report.refused)
        self._tls_failures.add(report.tls_failures - self._report.tls_failures)
        self._handshake_timeouts.add(report.handshake_timeouts - self._report.handshake_timeouts)
        self._plaintext_refused.add(report.plaintext_refused - self._report.plaintext_refused)
        self._pauses.add(max(0, report.pauses - self._report.pauses))
        self._ended.add(max(0, report.ended - self._report.ended))
        self._handed_over.add(max(0, report.handed_over - self._report.handed_over))
        self._away_total.add(max(0, report.sent_away - self._report.sent_away))
        if report.certificates != self._report.certificates:
            self._log.warning("certificate reloaded for new connections", file=self._files)
            self._watch.read()
        if report.certificate_error and report.certificate_error != self._report.certificate_error:
            self._log.warning(
                "new certificate cannot be used, the old one remains",
                reason=self._why_not(report.certificate_error),
            )
        self._report = report

    @property
    def _files(self) -> str:
        return f"{self._certificate.certificate_file}, {self._certificate.key_file}"

    def _why_not(self, error: str) -> str:
        """Say which file is bad, if it still is; OpenSSL does not."""
        try:
            tls.check(self._certificate)
        except ConfigError as bad:
            return one_line(bad)
        return f"{self._files}: {error}"

    def _supervision_failed(self, name: str, failure: BaseException) -> None:
        self._log.error("supervision failed", task=name, error=one_line(failure), exc_info=failure)


def _start_process(config: FrontConfig) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "strata_edge.front", config.to_json()],
        pass_fds=(config.listen_descriptor, config.control_descriptor),
        stdin=subprocess.DEVNULL,
    )


def _give_up(process: subprocess.Popen[bytes]) -> None:
    """End a front that nobody has: it would keep the port."""
    process.kill()
    process.wait()
