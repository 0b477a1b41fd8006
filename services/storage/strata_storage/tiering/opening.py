"""Opens what tiering needs on a node, and closes it again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from strata_runtime.clock import Clock
from strata_runtime.closing import close_all
from strata_runtime.memory import keep_freed_memory
from strata_runtime.metrics import Metrics
from strata_seglog.log import CommitLog
from strata_storage.tiering.config import SpaceConfig, TierConfig
from strata_storage.tiering.metadata_publisher import MetadataPublisher, MetadataSource
from strata_storage.tiering.pace import UploadPace
from strata_storage.tiering.parts import (
    Spaces,
    TieredTopics,
    TieringParts,
    TierInstruments,
    TierPlace,
    TierPolicies,
    TierWork,
    UploadTurns,
)
from strata_storage.tiering.uploads import ObjectUploads
from strata_tier.objects import Stores, TopicCosts, space_prefix
from strata_tier.reads import TierReader
from strata_tier.store import (
    MemoryBucket,
    ObjectStore,
    OpenWith,
    S3Credentials,
    StoreUrl,
    open_store,
    parse,
)

Result = TypeVar("Result")

DEFAULT_HOME = "strata"
"""Folder of the objects of a cluster."""


@dataclass(frozen=True, slots=True)
class TierSetup:
    """Settings and sources of a node's tier.

    Attributes:
        config: the section `[tier]`; without a URL there is none.
        policies: how topics use it.
        home: folder of this cluster if `config` names none.
        memory: buckets of `memory://NAME`.
        random: spreads the pauses before requests to the store are repeated.
        topic_names: topic id, as text -> NAMESPACE%NAME of all topics; read in a thread.
        topic_name: the same for one topic; empty: it is not known.
        metadata: gives the metadata rows, for a restore; None: nobody here has them.
    """

    config: TierConfig
    policies: TierPolicies
    home: str = DEFAULT_HOME
    memory: dict[str, MemoryBucket] = field(default_factory=dict)
    random: Callable[[], float] = random.random
    topic_names: Callable[[], dict[str, str]] = dict
    topic_name: Callable[[int], str] = lambda _: ""
    metadata: MetadataSource | None = None


class TierThread:
    """One thread that reads the log for uploads: foreground reads have their own."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="storage-tier")

    def __call__(self, work: Callable[[], Result], /) -> Awaitable[Result]:
        """Run `work` in the thread."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def close(self) -> None:
        """Wait for what runs and end the thread."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class OpenTier:
    """An opened tier.

    Attributes:
        parts: what tiering is made of.
        messages: reads from objects.
    """

    def __init__(self, parts: TieringParts, messages: TierReader, thread: TierThread) -> None:
        self.parts = parts
        self.messages = messages
        self._thread = thread

    @property
    def store(self) -> ObjectStore:
        """The object store."""
        return self.parts.place.store

    async def close(self) -> None:
        """End reads and let go of the store; uploads have ended."""
        await close_all(
            "tier",
            self.messages.close,
            lambda: asyncio.to_thread(self._thread.close),
            self.parts.place.stores.close,
        )


async def _opened_stores(setup: TierSetup, clock: Clock, metrics: Metrics) -> Stores:
    """Open the default store and those of namespaces that have one of their own."""
    config = setup.config
    options = config.store_options()

    async def opened(url: StoreUrl, keys: TierConfig | SpaceConfig) -> ObjectStore:
        credentials = _credentials(keys) if url.scheme == "s3" else None
        given = OpenWith(options, metrics, clock, credentials, setup.memory, setup.random)
        return await open_store(url, given)

    default_url = parse(config.url)
    default = await opened(default_url, config)
    spaces: dict[str, ObjectStore] = {}
    try:
        for name, space in config.spaces.items():
            if space.url:
                spaces[name] = await opened(parse(space.url), space)
            elif space.access_key:
                folder = default_url.under(space_prefix(name).rstrip("/"))
                spaces[name] = await opened(folder, space)
    except BaseException:
        await Stores(default, spaces).close()
        raise
    return Stores(default, spaces)


def _credentials(keys: TierConfig | SpaceConfig) -> S3Credentials | None:
    if not keys.access_key:
        return None
    token = keys.session_token.get_secret_value()
    return S3Credentials(keys.access_key, keys.secret_key.get_secret_value(), token or None)


async def open_tier(
    setup: TierSetup, folder: Path, log: CommitLog, clock: Clock, metrics: Metrics
) -> OpenTier | None:
    """Open the tier of a node, whose data folder this is; None: there is none.

    Nothing is asked of the store yet: a node starts without it.

    Raises:
        ConfigError: the URL is wrong, or its driver is not installed.
        StoreError: a folder cannot be used.
    """
    config = setup.config
    if not config.url:
        return None
    # This is for the whole process: objects are moved in buffers of megabytes.
    keep_freed_memory()
    stores = await _opened_stores(setup, clock, metrics)
    thread = TierThread()
    options = config.options()
    home = config.home or setup.home
    costs = TopicCosts(metrics, setup.topic_name)
    messages = TierReader(stores, config.read_options(), metrics, clock=clock, costs=costs)
    instruments = TierInstruments(metrics)
    pace = UploadPace(
        options.pace, lambda: log.end_position, clock, on_rest=instruments.rested_ms.add
    )
    parts = TieringParts(
        place=TierPlace(stores, home, folder / "tier" if config.metadata == "json" else None),
        topics=TieredTopics(
            setup.policies,
            options,
            setup.topic_names,
            Spaces(frozenset(config.spaces), config.namespace_prefixes),
            costs,
        ),
        work=TierWork(options, clock, instruments, thread, UploadTurns(options.upload.max_uploads)),
        uploads=ObjectUploads(
            stores,
            home,
            log,
            run_read=thread,
            pace=pace,
            options=options.upload,
            on_stored=messages.remember,
        ),
        metadata=None
        if setup.metadata is None
        else MetadataPublisher(stores.default, home, setup.metadata, clock=clock, run_read=thread),
    )
    return OpenTier(parts, messages, thread)
