"""Roles of processes and people, as certificates of the cluster name them.

A certificate names its role in its subject's alternative names, as the URI `strata://role/storage`.
"""

from __future__ import annotations

from enum import StrEnum

ROLE_URI = "strata://role/"


class PeerRole(StrEnum):
    """The holder of a certificate."""

    BROKER = "broker"
    STORAGE = "storage"
    NAMESERVER = "nameserver"
    CLIENT = "client"
    ADMIN = "admin"

    # Looked up for each call.
    __hash__ = str.__hash__

    @property
    def uri(self) -> str:
        """The name in a certificate."""
        return f"{ROLE_URI}{self}"

    @property
    def described(self) -> str:
        """The holder in a sentence, with its article."""
        return _DESCRIBED.get(self.value, f"a {self}")


_DESCRIBED = {"storage": "a storage node", "admin": "an admin"}


def role_of(uris: list[str]) -> PeerRole | None:
    """Return the role that the URIs of a certificate name; None: none, several or an unknown one.

    Args:
        uris: all URIs of the certificate.
    """
    named = [uri.removeprefix(ROLE_URI) for uri in uris if uri.startswith(ROLE_URI)]
    if len(named) != 1 or named[0] not in set(PeerRole):
        return None
    return PeerRole(named[0])
