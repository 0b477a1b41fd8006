"""The certificate of the native edge: read at the start, and again when its files change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from strata_edge.certificate import watch_of
from strata_runtime import tls
from strata_runtime.certificate_watch import not_read, versions
from strata_runtime.errors import ConfigError, one_line
from strata_runtime.health import Health
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_runtime.tls_policy import TlsPolicy

if TYPE_CHECKING:
    import strata_edge_native

_LOOK_INTERVAL_S = 1.0


class NativeCertificate:
    """Gives the server a pair of files, and the pair that takes its place.

    Args:
        server: takes the pair for new connections.
        certificate: the files.
        metrics: where the days left show.
        policy: lowest version of TLS, and ciphers.
    """

    def __init__(
        self,
        server: strata_edge_native.Server,
        certificate: tls.Certificate,
        metrics: Metrics,
        *,
        policy: TlsPolicy,
    ) -> None:
        self._policy = policy
        self._server = server
        self._certificate = certificate
        self._watch = watch_of(certificate, metrics)
        self._log = get_logger("edge.certificate")
        self._tasks = Tasks("edge.certificate", self._watching_failed)
        self._files = (certificate.certificate_file, certificate.key_file)
        self._seen = versions(self._files)
        self._error = ""

    async def load(self) -> None:
        """Take the pair for the first time.

        Raises:
            ConfigError: it cannot be used; the message names the file.
        """
        await asyncio.to_thread(self._give)
        self._watch.read()

    def watch(self) -> None:
        """Take what changes from now on."""
        self._tasks.spawn("watch", self._watch.run())
        self._tasks.spawn("read again", self._read_again())

    def health(self) -> Health:
        """Return what is wrong with the certificate."""
        health = self._watch.health()
        if not self._error:
            return health
        return Health(problems=(*health.problems, not_read(self._certificate, self._error)))

    async def close(self) -> None:
        """Look no more."""
        await self._tasks.stop()
        self._watch.close()

    async def _read_again(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            seen = await asyncio.to_thread(versions, self._files)
            if seen == self._seen:
                continue
            self._seen = seen
            try:
                await asyncio.to_thread(self._give)
            except ConfigError as bad:
                if await asyncio.to_thread(versions, self._files) != seen:
                    # They are being replaced: the next look finds both.
                    continue
                self._error = one_line(bad)
                self._log.warning(
                    "new certificate cannot be used, the old one remains", reason=self._error
                )
                continue
            self._error = ""
            files = f"{self._certificate.certificate_file}, {self._certificate.key_file}"
            self._log.warning("certificate reloaded for new connections", file=files)
            self._watch.read()

    def _give(self) -> None:
        """Give the server the pair as it is in the files."""
        certificate = self._certificate
        tls.check(certificate)
        try:
            self._server.set_certificate(
                certificate.certificate_file.read_bytes(),
                certificate.key_file.read_bytes(),
                **self._restrictions(),
            )
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"TLS file {certificate.certificate_file} cannot be used: {one_line(error)}"
            ) from error

    def _restrictions(self) -> dict[str, Any]:
        """Return what the policy restricts; nothing: what the extension takes by itself."""
        if self._policy == TlsPolicy():
            return {}
        return {"min_version": self._policy.min_version, "ciphers": list(self._policy.ciphers)}

    def _watching_failed(self, name: str, failure: BaseException) -> None:
        self._log.error("watch failed", task=name, error=one_line(failure), exc_info=failure)
