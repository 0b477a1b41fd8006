"""Object stores: their port, limits and retries, and the opening of a URL."""

from strata_tier.store.credentials import S3Credentials
from strata_tier.store.drivers.memory import MemoryBucket
from strata_tier.store.known import KnownStore
from strata_tier.store.opening import OpenWith, open_store
from strata_tier.store.ports import (
    Buffer,
    ObjectNotFoundError,
    ObjectStore,
    ObjectTooShortError,
    StoreError,
    StoreMissingError,
    StoreUnavailableError,
    parts_of,
)
from strata_tier.store.retrying import StoreOperation
from strata_tier.store.store_options import StoreOptions
from strata_tier.store.url import StoreUrl, parse

__all__ = [
    "Buffer",
    "KnownStore",
    "MemoryBucket",
    "ObjectNotFoundError",
    "ObjectStore",
    "ObjectTooShortError",
    "OpenWith",
    "S3Credentials",
    "StoreError",
    "StoreMissingError",
    "StoreOperation",
    "StoreOptions",
    "StoreUnavailableError",
    "StoreUrl",
    "open_store",
    "parse",
    "parts_of",
]
