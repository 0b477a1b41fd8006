"""All topics and consumer groups of a user, kept for a moment, so that 10,000 of them stay fast.

A list that is too old is still given out while one thread reads it anew; a request waits only for a
list that is not there or much too old. Lists are per user: a broker shows each what it may see.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient
from strata_cli.errors import CliError
from strata_cli.processes.console_config import ConsoleSection
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

Kind = Literal["topics", "groups"]
Row = meta_pb2.Topic | meta_pb2.ConsumerGroup

_PAGE = 1_000
_TOO_OLD = 12
_THREADS = 2


@dataclass(slots=True)
class Listing:
    """One list.

    Attributes:
        rows: by namespace and name.
        read_s: monotonic time at which it was read; 0: never.
        is_cut: there are more rows than a list may have.
        lock: held while it is read.
        is_refreshing: a thread will read it anew.
        changes: how often it is known to have changed.
    """

    rows: Sequence[Row] = ()
    read_s: float = 0.0
    is_cut: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_refreshing: bool = False
    changes: int = 0


class Catalogue:
    """See the module docstring; used by many threads.

    Args:
        config: limits.
        clock: age of lists.
        metrics: how much is kept.
    """

    def __init__(self, config: ConsoleSection, clock: Clock, metrics: Metrics) -> None:
        self._config = config
        self._clock = clock
        self._lists: OrderedDict[tuple[str, Kind], Listing] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "catalogue")
        metrics.gauge("strata_console_catalogue_rows", self._row_count)

    def rows(self, client: AdminClient, user: str, kind: Kind) -> Listing:
        """Return a user's list.

        Raises:
            CliError: it cannot be read.
        """
        listing = self._listing(user, kind)
        age_s = self._clock.monotonic_s() - listing.read_s
        wanted_s = self._config.catalogue_ms / 1_000
        if not listing.read_s or age_s > wanted_s * _TOO_OLD:
            with listing.lock:
                if not listing.read_s or self._clock.monotonic_s() - listing.read_s > wanted_s:
                    self._read(client, kind, listing)
        elif age_s > wanted_s:
            with self._lock:
                begins = not listing.is_refreshing
                listing.is_refreshing = True
            if begins:
                self._threads.submit(self._refresh, client, kind, listing)
        return listing

    def forget(self, kind: Kind) -> None:
        """Read a kind of list anew the next time: it has changed."""
        with self._lock:
            for (_, each), listing in self._lists.items():
                if each == kind:
                    listing.read_s = 0.0
                    listing.changes += 1

    def close(self) -> None:
        """Read no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _listing(self, user: str, kind: Kind) -> Listing:
        with self._lock:
            listing = self._lists.setdefault((user, kind), Listing())
            self._lists.move_to_end((user, kind))
            # Two lists per user.
            if len(self._lists) > 2 * self._config.max_catalogues:
                self._lists.popitem(last=False)
            return listing

    def _refresh(self, client: AdminClient, kind: Kind, listing: Listing) -> None:
        try:
            with listing.lock:
                self._read(client, kind, listing)
        except CliError:
            # The session has ended, or the cluster does not answer: whoever asks when the list is
            # much too old hears of it.
            pass
        finally:
            listing.is_refreshing = False

    def _read(self, client: AdminClient, kind: Kind, listing: Listing) -> None:
        began_s, changes = self._clock.monotonic_s(), listing.changes
        rows, listing.is_cut = (
            _topics(client, self._config.max_catalogue_rows)
            if kind == "topics"
            else _groups(client, self._config.max_catalogue_rows)
        )
        listing.rows = sorted(rows, key=lambda row: (row.namespace, row.name))
        with self._lock:
            # A change that came meanwhile may be in a page that was read before it.
            if listing.changes == changes:
                listing.read_s = began_s

    def _row_count(self) -> float:
        with self._lock:
            return sum(len(listing.rows) for listing in self._lists.values())


def _topics(client: AdminClient, most: int) -> tuple[list[Row], bool]:
    rows: list[Row] = []
    request = admin_pb2.ListTopicsRequest(page_size=_PAGE, include_system=True)
    while True:
        response = client.call(client.admin.ListTopics, request)
        rows.extend(response.topics)
        request.page_token = response.next_page_token
        if not request.page_token or len(rows) >= most:
            return rows[:most], bool(request.page_token) or len(rows) > most


def _groups(client: AdminClient, most: int) -> tuple[list[Row], bool]:
    rows: list[Row] = []
    request = admin_pb2.ListConsumerGroupsRequest(page_size=_PAGE)
    while True:
        response = client.call(client.admin.ListConsumerGroups, request)
        rows.extend(response.consumer_groups)
        request.page_token = response.next_page_token
        if not request.page_token or len(rows) >= most:
            return rows[:most], bool(request.page_token) or len(rows) > most
