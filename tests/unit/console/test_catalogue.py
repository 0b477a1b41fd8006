"""Lists of topics and consumer groups: their age, their limits, whose they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient, CallFailed
from strata_cli.processes.console_config import ConsoleSection
from strata_console.catalogue import Catalogue
from strata_console.metrics import METRICS
from strata_runtime.metrics import Metrics
from strata_testing.clock import ManualClock
from strata_testing.waiting import until_blocking


class Cluster:
    """Answers ListTopics in pages of two."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.calls = 0
        self.is_down = False
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.admin = SimpleNamespace(ListTopics=None)

    def call(self, method: Callable[..., Any], request: Any) -> admin_pb2.ListTopicsResponse:
        """Answer one call."""
        self.may_answer.wait(30)
        if self.is_down:
            raise CallFailed("cannot reach it", grpc.StatusCode.UNAVAILABLE)
        self.calls += 1
        first = int(request.page_token or 0)
        page = self.names[first : first + 2]
        more = first + 2 < len(self.names)
        return admin_pb2.ListTopicsResponse(
            topics=[meta_pb2.Topic(name=name) for name in page],
            next_page_token=str(first + 2) if more else "",
        )


@contextmanager
def catalogue(clock: ManualClock, **keys: int) -> Iterator[Catalogue]:
    """A catalogue with some limits."""
    made = Catalogue(ConsoleSection.model_validate(keys), clock, Metrics(METRICS))
    yield made
    made.close()


def names(of: Catalogue, cluster: Cluster, user: str = "shop") -> list[str]:
    """The names of a user's topics."""
    listing = of.rows(cast(AdminClient, cluster), user, "topics")
    return [row.name for row in listing.rows]


def test_a_list_is_read_page_by_page_and_sorted() -> None:
    """All pages are in it; a young list costs no call."""
    cluster = Cluster("c", "a", "b")
    with catalogue(ManualClock()) as made:
        assert names(made, cluster) == ["a", "b", "c"]
        assert names(made, cluster) == ["a", "b", "c"]
    assert cluster.calls == 2


def test_an_old_list_is_given_out_while_it_is_read_anew() -> None:
    """Nobody waits for the cluster, and soon the list is new."""
    clock, cluster = ManualClock(), Cluster("a")
    with catalogue(clock, catalogue_ms=5_000) as made:
        assert names(made, cluster) == ["a"]
        cluster.names.append("b")
        cluster.may_answer.clear()
        clock.now_s += 6
        assert names(made, cluster) == ["a"]
        cluster.may_answer.set()
        until_blocking(lambda: names(made, cluster) == ["a", "b"])


def test_a_list_that_is_much_too_old_is_waited_for() -> None:
    """A page that was left open overnight shows no topic of yesterday."""
    clock, cluster = ManualClock(), Cluster("a")
    with catalogue(clock, catalogue_ms=5_000) as made:
        assert names(made, cluster) == ["a"]
        cluster.names[0] = "b"
        clock.now_s += 100
        assert names(made, cluster) == ["b"]


def test_a_list_that_was_changed_is_read_at_once() -> None:
    """A user who makes a topic sees it."""
    cluster = Cluster("a")
    with catalogue(ManualClock()) as made:
        assert names(made, cluster) == ["a"]
        cluster.names.append("b")
        made.forget("topics")
        assert names(made, cluster) == ["a", "b"]


def test_a_list_that_changes_while_it_is_read_is_read_again() -> None:
    """A topic that is made behind the reader's place would be missing for a while."""
    cluster = Cluster("b", "c", "d")
    with catalogue(ManualClock()) as made:
        answer = cluster.call

        def call(method: Callable[..., Any], request: Any) -> admin_pb2.ListTopicsResponse:
            response = answer(method, request)
            if len(cluster.names) == 3:
                cluster.names.insert(0, "a")
                made.forget("topics")
            return response

        cluster.call = call  # type: ignore[method-assign]
        assert "a" not in names(made, cluster)
        assert names(made, cluster) == ["a", "b", "c", "d"]
        calls = cluster.calls
        assert names(made, cluster) == ["a", "b", "c", "d"]
    assert cluster.calls == calls


def test_users_have_lists_of_their_own() -> None:
    """One user's list is never shown to another one, and old ones make room."""
    clock = ManualClock()
    with catalogue(clock, max_catalogues=1) as made:
        assert names(made, Cluster("a"), "first") == ["a"]
        assert names(made, Cluster("b"), "second") == ["b"]
        assert names(made, Cluster("c"), "third") == ["c"]
        # The first one's was dropped: it is read anew.
        assert names(made, Cluster("d"), "first") == ["d"]
        assert names(made, Cluster("e"), "third") == ["c"]


def test_a_list_is_cut_at_its_limit() -> None:
    """And says so."""
    cluster = Cluster("a", "b", "c")
    with catalogue(ManualClock(), max_catalogue_rows=2) as made:
        listing = made.rows(cast(AdminClient, cluster), "shop", "topics")
        assert ([row.name for row in listing.rows], listing.is_cut) == (["a", "b"], True)


def test_a_failure_is_told_to_the_first_reader_and_ends() -> None:
    """A list that cannot be read is not kept as an empty one."""
    cluster = Cluster("a")
    cluster.is_down = True
    with catalogue(ManualClock()) as made:
        with pytest.raises(CallFailed):
            names(made, cluster)
        cluster.is_down = False
        assert names(made, cluster) == ["a"]
