"""Addresses of other processes, `host:port`, as people and other processes write them."""

from __future__ import annotations

_MAX_PORT = 65_535
_SHOWN_CHARACTERS = 80


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of `host:port`; an IPv6 address may stand in brackets.

    An illegal host is refused here, before a resolver gets it: that one raises other errors for an
    empty label, a label of more than 63 characters, or a NUL.

    Raises:
        ValueError: it is none.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    is_port = port.isascii() and port.isdigit() and len(port) <= len(str(_MAX_PORT))
    if not is_port or not 0 < int(port) <= _MAX_PORT or not is_host(host):
        raise ValueError(f"{address[:_SHOWN_CHARACTERS]!r} is not HOST:PORT")
    return host, int(port)


def is_host(host: str) -> bool:
    """Whether a name or an IP address can be looked up; brackets are no part of it."""
    if not host.isprintable() or any(each.isspace() for each in host):
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return bool(host)
