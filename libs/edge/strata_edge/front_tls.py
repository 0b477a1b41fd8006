"""TLS of the front process; it imports no more than the front may."""

from __future__ import annotations

import ssl
from pathlib import Path

from strata_edge.front_config import FrontConfig


def tls_context(config: FrontConfig) -> ssl.SSLContext:
    """TLS as the policy says, HTTP/2, no renegotiation (a write never waits for a read)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    config.tls_policy.restrict(context)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["h2"])
    # The password is for keys that have one: without it OpenSSL would ask the terminal.
    context.load_cert_chain(config.certificate_file, config.key_file, password="")
    return context


def certificate_versions(config: FrontConfig) -> tuple[tuple[int, int, int] | None, ...]:
    """Return values that change with the certificate's files; None for a file that is not seen."""
    seen: list[tuple[int, int, int] | None] = []
    for file in (config.certificate_file, config.key_file):
        try:
            state = Path(file).stat()
            seen.append((state.st_mtime_ns, state.st_ino, state.st_size))
        except OSError:
            seen.append(None)
    return tuple(seen)
