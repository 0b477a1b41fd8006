"""Watch on the end of a certificate: a metric, a problem and warnings before it expires."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from strata_runtime import tls
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.errors import ConfigError
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics

WARN_DAYS = 30
"""Days before its end from which on a certificate is a problem of a node's health."""

_DAY_MS = 86_400_000
_CHECK_INTERVAL_S = 6 * 3_600.0
_URGENT_DAYS = 7
_KIND = "certificate"


class CertificateWatch:
    """Knows the end of the certificate that new connections get.

    Args:
        certificate: the files.
        metrics: where the days left show.
        gauge: the declared metric of the days left.
        log: logger of the warnings.
        ended: what happens once it has ended, for people.
        clock: wall time.
    """

    def __init__(
        self,
        certificate: tls.Certificate,
        metrics: Metrics,
        *,
        gauge: str,
        log: str,
        ended: str,
        clock: Clock | None = None,
    ) -> None:
        self._certificate = certificate
        self._clock = clock or SystemClock()
        self._ended = ended
        self._log = get_logger(log)
        self._ends_ms: int | None = None
        self._gauge = metrics.gauge(
            gauge,
            lambda: [] if self._ends_ms is None else [(self.days_left(), {})],
        )

    def days_left(self) -> float:
        """Days until the certificate ends; less than 0 when it has."""
        assert self._ends_ms is not None, "no certificate was read"
        return (self._ends_ms - self._clock.wall_ms()) / _DAY_MS

    def read(self) -> None:
        """Take the end from the file; before the start and when the front has read it again."""
        try:
            self._ends_ms = tls.ends_ms(self._certificate)
        except ConfigError:
            return  # replaced again meanwhile: the front tells when it has read that
        self.warn()

    def warn(self) -> None:
        """Say so when the end is near."""
        if self._ends_ms is None:
            return
        days = self.days_left()
        file = str(self._certificate.certificate_file)
        if days < 0:
            self._log.error("certificate has expired", file=file, days_ago=round(-days, 1))
        elif days < _URGENT_DAYS:
            self._log.error("certificate expires within days", file=file, days_left=round(days, 1))
        elif days < WARN_DAYS:
            self._log.warning("certificate expires soon", file=file, days_left=round(days, 1))

    def health(self) -> Health:
        """Return what is wrong with the certificate; nothing while its end is far away."""
        days = self.days_left() if self._ends_ms is not None else WARN_DAYS
        if days >= WARN_DAYS:
            return Health()
        name = str(self._certificate.certificate_file)
        if days < 0:
            detail = f"it expired {-days:.1f} days ago: {self._ended}"
            return Health(problems=(Problem(_KIND, name, "ENDED", Severity.DOWN, detail),))
        detail = f"it expires in {days:.1f} days; replace the file, it is read at once"
        return Health(problems=(Problem(_KIND, name, "ENDS_SOON", Severity.DEGRADED, detail),))

    async def run(self) -> None:
        """Warn now and then, forever."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            self.warn()

    def close(self) -> None:
        """Take it off the scrape."""
        self._gauge.close()


def not_read(certificate: tls.Certificate, error: str) -> Problem:
    """Return the problem of new files that cannot be used.

    The old certificate remains, whose end has its own problem, under the name of its file alone.
    """
    files = f"{certificate.certificate_file}, {certificate.key_file}"
    detail = f"the new files cannot be used, the old certificate remains: {error}"
    return Problem(_KIND, files, "NOT_READ", Severity.DEGRADED, detail)


def versions(files: Iterable[Path]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what changes when one of the files does; None for one that cannot be seen."""
    seen: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            state = file.stat()
            seen.append((state.st_mtime_ns, state.st_ino, state.st_size))
        except OSError:
            seen.append(None)
    return tuple(seen)
