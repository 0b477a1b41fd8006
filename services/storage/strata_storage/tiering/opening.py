"""Opens what tiering needs on a node, and closes it again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from strata_runtime.clock import Clock
from strata_runtime.closing import close_all
from strata_runtime.memory import keep_freed_memory
from strata_runtime.metrics import Metrics
from strata_seglog.log import CommitLog
from strata_state.ports import RowReader
from strata_storage.tiering.config import SpaceConfig, TierConfig
from strata_storage.tiering.known_stores import KnownStores
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
from strata_tier.objects import DEFAULT_SPACE, Stores, TopicCosts, space_prefix
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


async def _opened_stores(
    setup: TierSetup, known: KnownStores, clock: Clock, metrics: Metrics
) -> Stores:
    """Open the default store and those of namespaces that have one of their own."""
    config = setup.config
    options = config.store_options()

    async def opened(url: StoreUrl, keys: TierConfig | SpaceConfig, space: str) -> ObjectStore:
        given = OpenWith(
            options,
            metrics,
            clock,
            _credentials(keys) if url.scheme == "s3" else None,
            setup.memory,
            setup.random,
            known.of(url.name, space),
        )
        return await open_store(url, given)

    default_url = parse(config.url)
    default = await opened(default_url, config, DEFAULT_SPACE)
    spaces: dict[str, ObjectStore] = {}
    try:
        for name, url in _own_urls(config, default_url):
            spaces[name] = await opened(url, config.spaces[name], name)
    except BaseException:
        await Stores(default, spaces).close()
        raise
    return Stores(default, spaces)


def _own_urls(config: TierConfig, default_url: StoreUrl) -> Iterator[tuple[str, StoreUrl]]:
    """Iterate (space, URL) of the spaces with a store of their own."""
    for name, space in config.spaces.items():
        if space.url:
            yield name, parse(space.url)
        elif space.access_key:
            yield name, default_url.under(space_prefix(name).rstrip("/"))


def _credentials(keys: TierConfig | SpaceConfig) -> S3Credentials | None:
    if not keys.access_key:
        return None
    token = keys.session_token.get_secret_value()
    return S3Credentials(keys.access_key, keys.secret_key.get_secret_value(), token or None)


async def open_tier(
    setup: TierSetup,
    folder: Path,
    log: CommitLog,
    *,
    rows: RowReader,
    clock: Clock,
    metrics: Metrics,
) -> OpenTier | None:
    """Open the tier of a node; None: there is none.

    Nothing is asked of a store that is known: a node starts without it.

    Args:
        setup: settings and sources.
        folder: of the storage node's data.
        log: messages that are uploaded.
        rows: of all raft groups of the node; to be closed after the tier.
        clock: time.
        metrics: where the tier counts.

    Raises:
        ConfigError: the URL is wrong, or its driver is not installed.
        StoreError: a new folder cannot be used.
        OSError: what is known of the stores cannot be read.
    """
    config = setup.config
    if not config.url:
        return None
    own = {name for name, _ in _own_urls(config, parse(config.url))}
    # This is for the whole process: objects are moved in buffers of megabytes.
    keep_freed_memory()
    thread = TierThread()
    async with AsyncExitStack() as opened:
        opened.push_async_callback(asyncio.to_thread, thread.close)
        known = await KnownStores.open(folder, rows, own, thread)
        stores = await _opened_stores(setup, known, clock, metrics)
        opened.pop_all()
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
