"""The certificate of the remoting port; its files are read again when they change."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from strata_runtime import tls
from strata_runtime.certificate_watch import versions
from strata_runtime.clock import Clock
from strata_runtime.errors import ConfigError
from strata_runtime.logs import get_logger
from strata_runtime.tasks import RequestTasks, TooManyTasksError
from strata_runtime.tls_policy import TlsPolicy

_LOOK_AGAIN_S = 5.0
_LOG = get_logger("remoting")


class ServerTls:
    """See the module docstring. Connections that have begun keep their certificate.

    Args:
        certificate_file, key_file: PEM files.
        requests: own the look at the files, which a new connection begins.
        clock: monotonic time.
        policy: lowest version of TLS, and ciphers.
    """

    def __init__(
        self,
        certificate_file: str,
        key_file: str,
        requests: RequestTasks,
        *,
        clock: Clock,
        policy: TlsPolicy | None = None,
    ) -> None:
        self._policy = policy or TlsPolicy()
        self._files = Path(certificate_file), Path(key_file)
        self._requests = requests
        self._clock = clock
        self._context: ssl.SSLContext | None = None
        self._versions: object = None
        self._looked_s = 0.0

    async def start(self) -> None:
        """Read the files.

        Raises:
            ConfigError: they are no pair that a server can use.
        """
        self._versions, self._context = await asyncio.to_thread(self._read)
        self._looked_s = self._clock.monotonic_s()

    def context(self) -> ssl.SSLContext:
        """Return the context of a new connection; the files are looked at now and then."""
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= _LOOK_AGAIN_S:
            self._looked_s = now_s
            try:
                self._requests.spawn("read remoting certificate", self._look())
            except TooManyTasksError:
                _LOG.warning("remoting certificate not looked at", reason="too many requests")
        assert self._context is not None, "not started"
        return self._context

    async def _look(self) -> None:
        if await asyncio.to_thread(versions, self._files) == self._versions:
            return
        try:
            self._versions, self._context = await asyncio.to_thread(self._read)
        except ConfigError as error:
            _LOG.error("remoting certificate not read, the old one remains", reason=str(error))
        else:
            _LOG.info("remoting certificate read", file=str(self._files[0]))

    def _read(self) -> tuple[object, ssl.SSLContext]:
        # A change while they are read is seen the next time.
        seen = versions(self._files)
        certificate = tls.own(*self._files)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._policy.restrict(context)
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.load_cert_chain(certificate.certificate_file, certificate.key_file, password="")
        return seen, context
