"""Keys of object stores, apart from the drivers so that naming a key imports no driver."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Keys from the configuration; without them boto3's usual chain is asked.

    Attributes:
        access_key: the public part.
        secret_key: never shown.
        session_token: of temporary keys.
    """

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
