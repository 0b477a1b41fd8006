"""A new, empty place in each kind of object store, for the suites that run over all of them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from strata_tier.store.credentials import S3Credentials
from strata_tier.store.store_options import StoreOptions

Scheme = Literal["memory", "posix", "s3", "gs", "hdfs"]

SCHEMES: tuple[Scheme, ...] = ("memory", "posix", "s3", "gs", "hdfs")


@dataclass(frozen=True)
class Place:
    """Access to a store.

    Attributes:
        url: its URL.
        credentials: for S3.
    """

    url: str
    credentials: S3Credentials | None = None

    def options(self, **changed: Any) -> StoreOptions:
        """Limits for tests: two tries, short pauses."""
        return StoreOptions(**{"attempts": 2, "first_pause_ms": 10, "max_pause_ms": 50} | changed)


UrlOf = Callable[[Scheme], Place]


def new_folder() -> str:
    """A name that nobody has used."""
    return f"t{uuid.uuid4().hex[:12]}"
