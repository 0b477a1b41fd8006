"""Opens the store that a URL names, with its limits, retries, budgets and metrics.

Drivers are imported on demand: boto3, google-auth and hdfs-native are optional extras of this
package, and each takes a while to import.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from strata_runtime.clock import Clock, SystemClock
from strata_runtime.errors import ConfigError
from strata_runtime.metrics import Metrics
from strata_tier.store.credentials import S3Credentials
from strata_tier.store.drivers.memory import MemoryBucket, MemoryObjectStore
from strata_tier.store.drivers.posix import PosixStore
from strata_tier.store.known import KnownStore
from strata_tier.store.ports import ObjectStore
from strata_tier.store.retrying import RequestGate
from strata_tier.store.store_options import StoreOptions
from strata_tier.store.url import StoreUrl, parse


@dataclass(frozen=True, slots=True)
class OpenWith:
    """Parts that a store is opened with beside its URL.

    Attributes:
        options: limits.
        metrics: where its requests are counted.
        clock: time.
        credentials: of S3; None, as with all others: the usual chain of the driver's library.
        memory: buckets of `memory://NAME`; whoever shares the mapping shares the objects.
        random: spreads the pauses before requests are repeated.
        known: what is known of this store from earlier; None: nothing.
    """

    options: StoreOptions = field(default_factory=StoreOptions)
    metrics: Metrics = field(default_factory=Metrics.disabled)
    clock: Clock = field(default_factory=SystemClock)
    credentials: S3Credentials | None = None
    memory: dict[str, MemoryBucket] = field(default_factory=dict)
    random: Callable[[], float] = random.random
    known: KnownStore | None = None


async def open_store(url: StoreUrl | str, opened_with: OpenWith | None = None) -> ObjectStore:
    """Open a store. The caller closes it.

    `posix` makes its folder if nothing is known of the store; the others, and `posix` otherwise,
    send nothing yet, so a store that is down does not keep a node from starting.

    Raises:
        ConfigError: the URL is wrong, or its driver is not installed.
        StoreError: a new folder cannot be used, or there are no credentials for Google.
    """
    if isinstance(url, str):
        url = parse(url)
    given = opened_with or OpenWith()
    gate = RequestGate(
        url.name, given.options, given.metrics, clock=given.clock, random=given.random
    )
    if url.scheme == "memory":
        return MemoryObjectStore(
            given.memory.setdefault(url.name, MemoryBucket()), gate, given.clock
        )
    if url.scheme == "posix":
        return await PosixStore.open(Path(url.path), gate, given.known, must_exist=url.must_exist)
    try:
        if url.scheme == "hdfs":
            return await _open_hdfs(url, gate, given.known)
        if url.scheme == "gs":
            return await _open_gs(url, gate)
        return await _open_s3(url, given.credentials, gate)
    except ImportError as error:
        raise ConfigError(f"{url}: {error.name} is not installed") from error


async def _open_s3(
    url: StoreUrl, credentials: S3Credentials | None, gate: RequestGate
) -> ObjectStore:
    from strata_tier.store.drivers.s3 import S3Store
    from strata_tier.store.drivers.s3_dialects import DIALECTS
    from strata_tier.store.drivers.s3_requests import S3Location

    endpoint = url.options.get("endpoint")
    name = url.options.get("dialect", "generic" if endpoint else "aws")
    if name not in DIALECTS:
        raise ConfigError(f"{url}: dialect is one of {', '.join(sorted(DIALECTS))}")
    region = url.options.get("region", "us-east-1")
    location = S3Location(url.host, url.prefix, endpoint, region, DIALECTS[name])
    return await S3Store.open(location, credentials, gate)


async def _open_gs(url: StoreUrl, gate: RequestGate) -> ObjectStore:
    from strata_tier.store.drivers.gs import ENDPOINT, GsStore

    return await GsStore.open(url.host, url.prefix, url.options.get("endpoint", ENDPOINT), gate)


async def _open_hdfs(url: StoreUrl, gate: RequestGate, known: KnownStore | None) -> ObjectStore:
    from strata_tier.store.drivers.hdfs import HdfsLocation, HdfsStore

    replication = url.options.get("replication")
    if replication is not None and not replication.isdigit():
        raise ConfigError(f"{url}: replication must be a number")
    location = HdfsLocation(
        tuple(url.host.split(",")),
        f"/{url.path}",
        url.options.get("config"),
        int(replication) if replication else None,
        url.must_exist,
    )
    return await HdfsStore.open(location, gate, known)
