"""Keys of the cluster's own brokers: they call each other under a name that no user can have.

A broker signs as `%broker-KEY_ID` with a secret that is derived from that cluster key, so that
whoever has the metadata can check it, and a rotation of the cluster key rotates it, too.
"""

from __future__ import annotations

import hmac

_PREFIX = "%broker-"


def peer_access_key(key_id: int) -> str:
    """Return the access key of brokers that sign with a cluster key."""
    return f"{_PREFIX}{key_id}"


def key_id_of_peer(access_key: str) -> int | None:
    """Return the id of the cluster key that a broker signed with; None: it is a user's name."""
    digits = access_key.removeprefix(_PREFIX)
    if digits == access_key or not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    return int(digits)


def peer_secret_key(cluster_key: bytes) -> str:
    """Return the secret key of brokers."""
    return hmac.digest(cluster_key, b"peer\x00", "sha256").hex()
