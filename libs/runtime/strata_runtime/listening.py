"""Errors of listening, with the address: `cannot listen on HOST:PORT for metrics: ...`.

The message of the operating system names neither the port nor its purpose.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address

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


def is_loopback(host: str) -> bool:
    """Whether only processes of the same machine reach an address that is listened on."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


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


def hold_shared(host: str, port: int, purpose: str) -> socket.socket:
    """Take a port on which several processes of this user will listen (SO_REUSEPORT).

    The socket itself never listens. It keeps the port while none of them does: `check_free` fails
    and so does another `hold_shared`.

    Args:
        host: address to listen on.
        port: 0 takes any free one.
        purpose: what for, as in "for clients".

    Raises:
        ListenError: another process has the port, or it cannot be listened on.
    """
    if port:
        check_free(host, port, purpose)
    with listening(host, port, purpose):
        try:
            # A process with SO_REUSEADDR may bind a port that is bound so and that nobody listens
            # on: the socket that keeps others away goes without.
            return _bound(host, port, socket.SO_REUSEPORT)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        # Connections of a process that did not share the port end (TIME_WAIT).
        return _bound(host, port, socket.SO_REUSEPORT, socket.SO_REUSEADDR)


def _bound(host: str, port: int, *options: int) -> socket.socket:
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        for option in options:
            holder.setsockopt(socket.SOL_SOCKET, option, 1)
        holder.bind((host, port))
    except OSError:
        holder.close()
        raise
    return holder


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name is unknown ({error.strerror})"
    return _REASONS.get(error.errno or 0, error.strerror or str(error))
