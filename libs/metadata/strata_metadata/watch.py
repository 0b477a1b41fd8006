"""Watch streams: each watcher is a revision that advances to the newest one.

Used by nameservers and by servers of a durable copy of the metadata. A watcher holds no queue: it
reads the recent revisions that all watchers share, then rows of kind "change" when it lags further,
and a snapshot when it lags too far for those rows too. A slow watcher therefore costs one number.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple, Protocol

from strata.meta.v1 import command_pb2, meta_pb2
from strata_angelia.cluster_id import ClusterId, own
from strata_metadata.errors import MetaRefused
from strata_metadata.metrics import METRICS
from strata_metadata.options import WatchOptions
from strata_metadata.rows import SNAPSHOT_ORDER, change_of, fill_change
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_runtime.timeouts import Timeout
from strata_state.metadata import MetadataStore, Row
from strata_state.metadata_keys import MetadataRowKind, change_key, kind_range, revision_of

NOT_WHOLE = "a snapshot is replacing the metadata here: ask another nameserver, or again later"
"""Reason for refusing to read rows that are being replaced."""


class Revision(NamedTuple):
    """The changes on the way from revision `after` to revision `number`.

    `stamp` tells `number` from the same revision of another history; 0: not known.
    """

    after: int
    number: int
    changes: Sequence[meta_pb2.Change]
    stamp: int = 0


class _Place(NamedTuple):
    """A revision of one history; a stamp of 0 is not known."""

    revision: int
    stamp: int


class WatchHub:
    """Brings watchers up to date with the rows of a store.

    Invariant: changes go only to a watcher whose own revision is the one here, by its stamp. Where
    that cannot be told, all rows follow: changes of one history make no sense above another one.

    Args:
        store: where revisions are that are not recent.
        revision: of the rows in it.
        options: limits.
        metrics: watchers and snapshots.
        is_fresh: whether the rows follow the leader's; while they do not, watchers hear nothing
            and look for another source.
        cluster: whose rows they are; every response says it. None: nobody's.
        stamp: of `revision` (`Revision.stamp`).
        full_nameservers: node ids of nameservers whose disk is full; every response says it.
    """

    def __init__(
        self,
        store: MetadataStore,
        revision: int,
        options: WatchOptions,
        *,
        metrics: Metrics,
        is_fresh: Callable[[], bool] = lambda: True,
        cluster: ClusterId | None = None,
        full_nameservers: Callable[[], Collection[str]] = tuple,
        stamp: int = 0,
    ) -> None:
        self._store = store
        # Bounded by its changes, not its revisions: one revision may create a thousand topics.
        self._recent: deque[Revision] = deque()
        self._max_recent_changes = options.recent_changes
        self._recent_changes = 0
        self._at = _Place(revision, stamp)
        # The oldest recent revision follows this one; without recent ones, the next one does.
        self._before_recent = self._at
        self._response_changes = options.response_changes
        self._snapshot_rows = options.snapshot_rows
        self._keepalive_s = options.keepalive_ms / 1_000
        self._is_fresh = is_fresh
        self._cluster = own(cluster)
        self._full_nameservers = full_nameservers
        self._watchers = Limit(
            "metadata_watchers", options.max_watchers, "streams", metrics=metrics
        )
        metrics.declare(METRICS)
        self._snapshots_total = metrics.counter("strata_metadata_watch_snapshots_total")
        self._published = asyncio.Event()
        self._closed = False
        self._paused = False

    def publish(self, revisions: Sequence[Revision]) -> None:
        """Wake the watchers. The rows of these revisions are in the store already."""
        if not revisions:
            return
        for revision in revisions:
            self._recent.append(revision)
            self._recent_changes += _weight(revision)
        while self._recent_changes > self._max_recent_changes and len(self._recent) > 1:
            oldest = self._recent.popleft()
            self._recent_changes -= _weight(oldest)
            self._before_recent = _Place(oldest.number, oldest.stamp)
        self._at = _Place(revisions[-1].number, revisions[-1].stamp)
        self._wake()

    def reset(self, revision: int, stamp: int = 0) -> None:
        """All rows were replaced: whoever is behind gets a snapshot."""
        self._recent.clear()
        self._recent_changes = 0
        self._at = self._before_recent = _Place(revision, stamp)
        self._wake()

    def pause(self) -> None:
        """Tell watchers nothing: the rows are about to be replaced. From any thread."""
        self._paused = True

    def resume(self) -> None:
        """Tell watchers what there is now."""
        self._paused = False
        self._wake()

    @property
    def is_paused(self) -> bool:
        """Whether the rows are being replaced."""
        return self._paused

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        self._wake()

    async def watch(
        self, from_revision: int, from_stamp: int = 0
    ) -> AsyncGenerator[meta_pb2.WatchResponse, None]:
        """Yield what happened after `from_revision`, then every revision as it is applied.

        A reader that leaves closes it (`contextlib.aclosing`): it counts as a watcher until then.

        The first response comes at once, even when there is nothing new: it tells the revision,
        also to a watcher that knows more. Later ones without changes tell that the source lives.
        A snapshot too large for one response comes in several; only the last one tells a
        revision, so a watcher that is cut off between starts again from 0. Other work goes on
        between two responses.

        A watcher whose revision has another stamp here comes from another history: it gets a
        snapshot that says so. So does one of whose revision nothing is kept, without a word: nobody
        knows its history. A stamp of 0 is not known and not compared.

        Raises:
            MetaRefused: LIMIT_REACHED: too many watchers.
        """
        if not self._watchers.try_take():
            raise MetaRefused(
                meta_pb2.META_OUTCOME_LIMIT_REACHED,
                f"{self._watchers.maximum} watch streams are open (max_watchers)",
            )
        try:
            at = _Place(from_revision, from_stamp)
            first = True
            while not self._closed:
                published = self._published
                if self._paused:
                    await published.wait()
                elif first or at != self._at:
                    diverged = self._diverges(at)
                    for response in self._responses_after(at):
                        if self._paused:
                            # It may tell of rows that were being dropped.
                            break
                        response.is_fresh = self._is_fresh()
                        response.diverged = diverged
                        diverged = False
                        yield self._signed(response)
                        at = _Place(response.revision, response.stamp)
                        first = False
                        await asyncio.sleep(0)
                elif not await _within(published, self._keepalive_s) and self._is_fresh():
                    yield self._signed(
                        meta_pb2.WatchResponse(revision=at.revision, stamp=at.stamp, is_fresh=True)
                    )
        finally:
            self._watchers.give_back()

    async def snapshot(self) -> tuple[int, list[meta_pb2.Change]]:
        """Return a revision and all rows as they stand then, what others refer to first.

        Other work goes on meanwhile, changes of the rows too.

        Raises:
            MetaRefused: LIMIT_REACHED: more rows than one answer may have; UNAVAILABLE: the rows
                are being replaced.
        """
        revision, rows = self.revision, self._store.frozen()
        changes: list[meta_pb2.Change] = []
        try:
            if self._paused:
                # Asked after the rows were frozen: a thread may have begun to drop them before.
                raise MetaRefused(meta_pb2.META_OUTCOME_UNAVAILABLE, NOT_WHOLE)
            for number, change in enumerate(_all_rows(rows), 1):
                if number > self._snapshot_rows:
                    raise MetaRefused(
                        meta_pb2.META_OUTCOME_LIMIT_REACHED,
                        f"there are more than {self._snapshot_rows} rows (max_snapshot_rows); "
                        "Watch from revision 0 has them in pieces",
                    )
                changes.append(change)
                if number % self._response_changes == 0:
                    await asyncio.sleep(0)
        finally:
            rows.close()
        return revision, changes

    @property
    def revision(self) -> int:
        """Revision of the rows that readers and watchers see."""
        return self._at.revision

    def _signed(self, response: meta_pb2.WatchResponse) -> meta_pb2.WatchResponse:
        """Return a response with what every response says."""
        response.cluster_id = self._cluster.value
        response.full_nameserver_ids.extend(self._full_nameservers())
        return response

    def _diverges(self, at: _Place) -> bool:
        """Whether a watcher's revision is another change here, as far as it is known."""
        return at.stamp != 0 and self._kept_stamp(at.revision) not in (None, 0, at.stamp)

    def _leads_here(self, at: _Place) -> bool:
        """Whether the revisions after a watcher's own follow it."""
        return at.revision > 0 and (at.stamp == 0 or self._kept_stamp(at.revision) in (0, at.stamp))

    def _kept_stamp(self, revision: int) -> int | None:
        """Return the stamp of a revision; 0: an older version wrote none; None: nothing is kept."""
        if revision == self._at.revision:
            return self._at.stamp
        if revision == self._before_recent.revision:
            return self._before_recent.stamp
        place = bisect_left(self._recent, revision, key=attrgetter("number"))
        if place < len(self._recent) and self._recent[place].number == revision:
            return self._recent[place].stamp
        row = self._store.get(change_key(revision)) if 0 < revision < self._at.revision else None
        return None if row is None else command_pb2.ChangedKeys.FromString(row).stamp

    def _wake(self) -> None:
        self._published.set()
        self._published = asyncio.Event()

    def _responses_after(self, at: _Place) -> Iterator[meta_pb2.WatchResponse]:
        """Yield what brings a watcher up to date; each response has a stamp where a revision."""
        revision, newest = at.revision, self._at
        if revision > newest.revision or (revision == newest.revision and self._leads_here(at)):
            # One who knows more is told so and goes elsewhere: this source lags behind.
            return iter([meta_pb2.WatchResponse(revision=newest.revision, stamp=newest.stamp)])
        if self._leads_here(at):
            if self._recent and self._recent[0].after <= revision:
                return self._recent_after(revision)
            if self._store.get(change_key(revision + 1)) is not None:
                return self._stored_after(revision)
        return self._whole()

    def _recent_after(self, revision: int) -> Iterator[meta_pb2.WatchResponse]:
        """Join recent revisions into responses.

        A revision that is taken in twice does no harm: a change tells a row as it stands.
        """
        first = bisect_right(self._recent, revision, key=attrgetter("number"))
        response = meta_pb2.WatchResponse()
        for recent in list(islice(self._recent, first, None)):
            response.changes.extend(recent.changes)
            response.revision, response.stamp = recent.number, recent.stamp
            if len(response.changes) >= self._response_changes:
                yield response
                response = meta_pb2.WatchResponse()
        if response.revision:
            yield response

    def _stored_after(self, revision: int) -> Iterator[meta_pb2.WatchResponse]:
        """Yield the rows changed since, as they stand now.

        A row may tell of a later revision than its response does; that one follows. Where a
        revision is missing, a snapshot follows: fewer were kept at times than are stored.
        """
        keys: dict[bytes, None] = {}
        newest, last = self._at, revision
        end = kind_range(MetadataRowKind.CHANGE)[1]
        for key, value in self._store.scan(change_key(revision + 1), end):
            reached = revision_of(key)
            if reached != last + 1:
                break
            last = reached
            changed = command_pb2.ChangedKeys.FromString(value)
            keys.update(dict.fromkeys(changed.keys))
            if len(keys) >= self._response_changes and reached < newest.revision:
                yield self._as_they_stand(_Place(reached, changed.stamp), keys)
                keys = {}
        if last < newest.revision:
            yield from self._whole()
        else:
            yield self._as_they_stand(newest, keys)

    def _as_they_stand(self, at: _Place, keys: Iterable[bytes]) -> meta_pb2.WatchResponse:
        changes = [change_of(key, self._store.get(key)) for key in keys]
        return meta_pb2.WatchResponse(revision=at.revision, stamp=at.stamp, changes=changes)

    def _whole(self) -> Iterator[meta_pb2.WatchResponse]:
        """Snapshot as of now; what changes while it is sent follows as ordinary changes."""
        self._snapshots_total.add()
        at = self._at
        response = meta_pb2.WatchResponse(snapshot=True, snapshot_revision=at.revision)
        count = 0
        for kind in SNAPSHOT_ORDER:
            for key, value in self._store.scan(*kind_range(kind)):
                if count == self._response_changes:
                    yield response
                    response, count = meta_pb2.WatchResponse(snapshot_revision=at.revision), 0
                fill_change(response.changes.add(), key, value)
                count += 1
        response.revision, response.stamp = at.revision, at.stamp
        yield response


def _weight(revision: Revision) -> int:
    """Return how much a revision counts; one without changes takes memory, too."""
    return max(1, len(revision.changes))


class _Scanned(Protocol):
    """A store, or its rows as they stood at one moment."""

    def scan(self, first: bytes, end: bytes) -> Iterator[Row]:
        """Return the rows with `first <= key < end` in key order."""


def _all_rows(rows: _Scanned) -> Iterator[meta_pb2.Change]:
    """Return all rows, what others refer to first, by key within a kind."""
    for kind in SNAPSHOT_ORDER:
        for key, value in rows.scan(*kind_range(kind)):
            yield change_of(key, value)


async def _within(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event; False: it did not come in time."""
    try:
        async with Timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
