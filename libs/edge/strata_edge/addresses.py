"""Addresses of clients, as their shares count them."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address

_IPV6_BITS_OF_OTHERS = 64


def network_of(host: str) -> str:
    """Return what counts as one address: of IPv6 the first 64 bits, as one client has all others.

    An IPv4 address in IPv6's form is that IPv4 address. Any other text stands for itself.

    Args:
        host: address of a client; one of IPv6 may stand in brackets.
    """
    return _network_of_ipv6(host) if ":" in host else host


def network_of_peer(peer: str) -> str:
    """Return the same for `host:port`."""
    return network_of(peer.rpartition(":")[0])


@lru_cache(maxsize=4_096)
def _network_of_ipv6(host: str) -> str:
    bare = host.removeprefix("[").removesuffix("]")
    bare = bare.removeprefix("%5B").removesuffix("%5D")  # gRPC's form of them
    try:
        address = IPv6Address(bare)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    kept = int(address) >> _IPV6_BITS_OF_OTHERS << _IPV6_BITS_OF_OTHERS
    return str(IPv6Address(kept))
