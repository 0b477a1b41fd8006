"""Errors of listening, with the address: `cannot listen on HOST:PORT for metrics: ...`.

The message of the operating system names neither the port nor its purpose.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from strata_runtime.errors import StrataError

_MAX_PORT = 65_535

_REASONS = {
    errno.EADDRINUSE: "another process has the port",
    errno.EADDRNOTAVAIL: "this machine does not have the address",
    errno.EACCES: "it may not be used without more rights",
}


class ListenError(StrataError, OSError):
    """An address that cannot be listened on; the message names it and says why."""


def endpoint_of(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def listening(host: str, port: int, purpose: str) -> Iterator[None]:
    """Tell what fails inside with the address.

    Args:
        host: that is listened on.
        port: of it.
        purpose: what for, as in "for clients".

    Raises:
        ListenError: it cannot be listened on.
    """
    shown = endpoint_of(host, port)
    if not 0 <= port <= _MAX_PORT:
        # A resolver takes it for another one.
        raise ListenError(f"cannot listen on {shown} {purpose}: a port is 0 to {_MAX_PORT}")
    try:
        yield
    except ListenError:
        raise
    except OSError as error:
        raise ListenError(f"cannot listen on {shown} {purpose}: {_reason(error)}") from error


def check_free(host: str, port: int, purpose: str) -> None:
    """Find out why an address cannot be listened on, for libraries that do not say.

    Raises:
        ListenError: it cannot be listened on now.
    """
    with listening(host, port, purpose):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            # Two may bind with SO_REUSEADDR; only one listens.
            probe.listen(1)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name is unknown ({error.strerror})"
    return _REASONS.get(error.errno or 0, error.strerror or str(error))
