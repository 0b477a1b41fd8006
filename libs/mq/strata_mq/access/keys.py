"""Secret keys of users."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable

_SECRET_BYTES = 24


def new_secret_key(random_bytes: Callable[[int], bytes]) -> str:
    """Return a secret key of 32 characters.

    Args:
        random_bytes: gives bytes that nobody can guess.
    """
    return urlsafe_b64encode(random_bytes(_SECRET_BYTES)).decode("ascii")
