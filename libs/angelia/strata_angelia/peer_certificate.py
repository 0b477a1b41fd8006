"""The service that reads a process's cluster certificates again, and warns before one ends.

A caller sees the certificates of the servers that it connects to, so a broker also knows when those
of storage nodes and nameservers end. A connection keeps the certificate that it began with; what
seems to end soon is therefore looked at again with a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib

from strata_angelia.http2_tls import probe
from strata_angelia.metrics import METRICS
from strata_angelia.tls import PeerTls
from strata_runtime.certificate_watch import WARN_DAYS, CertificateWatch, not_read, versions
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.errors import ConfigError, one_line
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_runtime.timeouts import Timeout

_LOOK_INTERVAL_S = 1.0
_PEERS_INTERVAL_S = 60.0
_PROBE_TIMEOUT_S = 5.0
_DAY_MS = 86_400_000


class PeerCertificate:
    """See the module docstring; a `Service` of the runtime's lifecycle.

    Args:
        tls: loaded; also an attribute.
        metrics: where the days left show.
        clock: wall time.
    """

    name = "cluster certificate"

    def __init__(self, tls: PeerTls, metrics: Metrics, clock: Clock | None = None) -> None:
        metrics.declare(METRICS)
        self.tls = tls
        self._clock = clock or SystemClock()
        self._log = get_logger("angelia.certificate")
        self._watch = CertificateWatch(
            tls.files.certificate,
            metrics,
            gauge="strata_angelia_certificate_days_left",
            log="angelia.certificate",
            ended="no other process takes new connections of this one",
            clock=self._clock,
        )
        self._seen = versions(tls.files.all)
        self._error = ""
        self._tasks = Tasks("angelia.certificate", self._failed, max_tasks=4)

    async def start(self) -> None:
        """Look at the files from now on."""
        self._watch.read()
        self._tasks.spawn("watch", self._watch.run())
        self._tasks.spawn("read again", self._read_again())
        self._tasks.spawn("look at peers", self._look_at_peers())

    async def stop(self, grace_s: float) -> None:
        """Look no more."""
        await self._tasks.stop()
        self._watch.close()

    def health(self) -> Health:
        """Return what is wrong with the certificate, and with those of the servers it calls."""
        problems = [*self._watch.health().problems]
        if self._error:
            problems.append(not_read(self.tls.files.certificate, self._error))
        for endpoint, days in self._ending().items():
            if days < 0:
                detail = f"its cluster certificate expired {-days:.1f} days ago"
                problems.append(Problem("certificate", endpoint, "ENDED", Severity.DOWN, detail))
            else:
                detail = f"its cluster certificate expires in {days:.1f} days"
                problems.append(
                    Problem("certificate", endpoint, "ENDS_SOON", Severity.DEGRADED, detail)
                )
        return Health(problems=tuple(problems))

    def _ending(self) -> dict[str, float]:
        now_ms = self._clock.wall_ms()
        left = {
            endpoint: (ends_ms - now_ms) / _DAY_MS
            for endpoint, ends_ms in self.tls.peer_ends_ms.items()
        }
        return {endpoint: days for endpoint, days in left.items() if days < WARN_DAYS}

    async def check(self) -> None:
        """Take the files if they have changed and can be used."""
        files = self.tls.files
        seen = await asyncio.to_thread(versions, files.all)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            await asyncio.to_thread(self.tls.load)
        except ConfigError as error:
            if await asyncio.to_thread(versions, files.all) != seen:
                # They are being replaced: the next look finds all of them.
                return
            self._error = one_line(error)
            self._log.warning(
                "new certificate cannot be used, the old one remains", reason=self._error
            )
            return
        self._error = ""
        shown = ", ".join(map(str, files.all))
        self._log.warning("certificate reloaded for new connections", file=shown)
        self._watch.read()

    async def _read_again(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            await self.check()

    async def _look_at_peers(self) -> None:
        while True:
            await asyncio.sleep(_PEERS_INTERVAL_S)
            for endpoint in self._ending():
                # A process that has gone has no certificate to renew.
                self.tls.peer_ends_ms.pop(endpoint, None)
                with contextlib.suppress(OSError, TimeoutError):
                    async with Timeout(_PROBE_TIMEOUT_S):
                        await probe(endpoint, self.tls)

    def _failed(self, name: str, failure: BaseException) -> None:
        self._log.error("watch failed", task=name, error=one_line(failure), exc_info=failure)
