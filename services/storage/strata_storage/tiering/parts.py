"""The parts of tiering on one node; the same objects for all its raft groups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from strata_mq.tier_policy import TierLevel, TierPolicy
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_storage.base.jobs import RunJob
from strata_storage.tiering.metadata_publisher import MetadataPublisher
from strata_storage.tiering.options import TieringOptions
from strata_storage.tiering.uploads import ObjectUploads
from strata_tier.objects import DEFAULT_SPACE, Stores, TopicCosts
from strata_tier.store import ObjectStore


class TierPolicies(Protocol):
    """How topics use the tier."""

    def tier_policy(self, topic_id: int) -> TierPolicy | None:
        """Return a topic's policy; None: the topic is not known here."""


class FixedTierPolicies:
    """One policy for all topics."""

    def __init__(self, policy: TierPolicy) -> None:
        self._policy = policy

    def tier_policy(self, topic_id: int) -> TierPolicy:
        """Return a topic's policy."""
        return self._policy


class TierInstruments:
    """Counters of tiering, looked up once."""

    __slots__ = (
        "failures",
        "fallbacks",
        "objects",
        "read_bytes",
        "rested_ms",
        "upload_ms",
        "uploaded_bytes",
    )

    def __init__(self, metrics: Metrics) -> None:
        self.objects = metrics.counter("strata_storage_tier_objects_total")
        self.uploaded_bytes = metrics.counter("strata_storage_tier_uploaded_bytes_total")
        self.failures = metrics.counter("strata_storage_tier_failures_total")
        self.fallbacks = metrics.counter("rocketmq_tiered_store_get_message_fallback_total")
        self.rested_ms = metrics.counter("strata_storage_tier_rested_ms_total")
        self.upload_ms = metrics.histogram("strata_storage_tier_upload_ms")
        self.read_bytes = metrics.counter("strata_storage_tier_read_bytes_total")


class UploadTurns:
    """Limits the uploads of a node that are under way at once.

    Attributes:
        taken: how many are.
    """

    __slots__ = ("_turns", "taken")

    def __init__(self, max_uploads: int) -> None:
        self._turns = asyncio.Semaphore(max_uploads)
        self.taken = 0

    async def __aenter__(self) -> None:
        await self._turns.acquire()
        self.taken += 1

    async def __aexit__(self, *_: object) -> None:
        self.taken -= 1
        self._turns.release()


def _uncounted() -> TopicCosts:
    return TopicCosts(Metrics.disabled(), lambda _: "")


@dataclass(frozen=True, slots=True)
class Spaces:
    """The namespaces that have a place of their own in the tier.

    Attributes:
        named: these, with a store of their own.
        is_each: every other one, too, as a folder of the default store.
    """

    named: frozenset[str] = frozenset()
    is_each: bool = False

    def of_namespace(self, namespace: str) -> str:
        """Return the space of a namespace: itself, or the default one."""
        return namespace if self.is_each or namespace in self.named else DEFAULT_SPACE


@dataclass(frozen=True, slots=True)
class TierPlace:
    """The place of a cluster's objects.

    Attributes:
        stores: the object store and those of spaces, with repeats and budgets in them.
        home: folder of this cluster in the store.
        json_folder: where raft groups keep their tier state in files, too; None: nowhere.
    """

    stores: Stores
    home: str
    json_folder: Path | None = None

    @property
    def store(self) -> ObjectStore:
        """The store of everything that is in no space with a store of its own."""
        return self.stores.default


@dataclass(frozen=True, slots=True)
class TieredTopics:
    """How topics use the tier, and what they cost there.

    Attributes:
        policies: what the metadata says of each topic.
        options: for topics that say nothing.
        names: topic id, as text -> NAMESPACE%NAME, as far as it is known.
        spaces: which namespaces have a place of their own.
        costs: what topics cost in the store.
    """

    policies: TierPolicies
    options: TieringOptions
    names: Callable[[], dict[str, str]] = dict
    spaces: Spaces = field(default_factory=Spaces)
    costs: TopicCosts = field(default_factory=_uncounted)

    def space_of(self, topic_id: int) -> str:
        """Return the space that a topic's messages go to."""
        policy = self.policies.tier_policy(topic_id)
        return DEFAULT_SPACE if policy is None else self.spaces.of_namespace(policy.namespace)

    def level(self, topic_id: int) -> TierLevel | None:
        """Return when a topic's messages are read from the tier; None: it is not known (yet)."""
        policy = self.policies.tier_policy(topic_id)
        return None if policy is None else policy.level or self.options.default_level

    def is_tiered(self, topic_id: int) -> bool | None:
        """Whether a topic's messages are uploaded; None: it is not known (yet)."""
        level = self.level(topic_id)
        return None if level is None else level is not TierLevel.DISABLE

    def local_retention_ms(self, topic_id: int) -> int:
        """Return for how long the log keeps what the tier has of a topic."""
        policy = self.policies.tier_policy(topic_id)
        named_ms = None if policy is None else policy.local_retention_ms
        return self.options.local.retention_ms if named_ms is None else named_ms


@dataclass(frozen=True, slots=True)
class TierWork:
    """The means of the tier's work on a node.

    Attributes:
        options: limits and intervals.
        clock: time.
        instruments: counters.
        run_read: runs blocking work in the tier's own thread.
        upload_turns: limits uploads under way at once.
    """

    options: TieringOptions
    clock: Clock
    instruments: TierInstruments
    run_read: RunJob
    upload_turns: UploadTurns


@dataclass(frozen=True, slots=True, kw_only=True)
class TieringParts:
    """See the module docstring.

    Attributes:
        place: where objects are.
        topics: how topics use the tier.
        work: limits, time, counters and threads.
        uploads: brings objects to the store.
        metadata: publishes the metadata rows; None: they are not known here.
    """

    place: TierPlace
    topics: TieredTopics
    work: TierWork
    uploads: ObjectUploads
    metadata: MetadataPublisher | None = None
