"""Secret keys of users."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable

_SECRET_BYTES = 24


def new_secret_key(random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """Return a secret key that nobody can guess: 32 characters."""
    return urlsafe_b64encode(random_bytes(_SECRET_BYTES)).decode("ascii")
