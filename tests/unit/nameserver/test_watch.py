"""Watch streams: every watcher ends up with the rows, however it comes and however slow it is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.rows import key_of, value_of
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.state.draft import applied_state
from strata_state.metadata_keys import MetadataRowKind, kind_range, revision_of
from tests.unit.nameserver.test_snapshots import send

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver


CONFIG = NameserverConfig(
    raft_groups_per_storage_node=1, max_recent_changes=4, max_kept_revisions=8
).alone()


class View:
    """Knowledge of a watcher: rows by key, and how it came to know them."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.revision = 0
        self.snapshots = 0

    def take(self, response: meta_pb2.WatchResponse) -> None:
        if response.snapshot:
            self.rows.clear()
            self.snapshots += 1
        for change in response.changes:
            value = value_of(change)
            if value is None:
                self.rows.pop(key_of(change), None)
            else:
                self.rows[key_of(change)] = value
        self.revision = response.revision

    async def follow(self, nameserver: Nameserver, *, until: int | None = None) -> None:
        """Take in what there is up to a revision (default: the newest)."""
        wanted = nameserver.machine.revision if until is None else until
        stream = nameserver.metadata.watch(self.revision)
        async for response in stream:
            self.take(response)
            if self.revision >= wanted:
                break
        await _close(stream)


def stored(nameserver: Nameserver) -> dict[bytes, bytes]:
    """All rows but those that watchers do not see: 0, applied, and 6, changes."""
    rows = nameserver.store.scan(b"\x01", b"\xff")
    return {key: value for key, value in rows if key[0] != MetadataRowKind.CHANGE}


def stamp_of(nameserver: Nameserver) -> int:
    """Return the stamp of the newest revision."""
    return applied_state(nameserver.store).counters.stamp


@pytest.mark.parametrize("more", [0, 1, 7])
async def test_a_watcher_of_another_history_gets_all_anew(
    nameserver: Nameserver, more: int
) -> None:
    """Its revision is another change here; the nameserver was put back and has gone on since."""
    await nameserver.metadata.create_topic(meta_pb2.Topic(name="known"))
    revision, stamp = nameserver.machine.revision, stamp_of(nameserver)
    for number in range(more):
        await nameserver.metadata.create_topic(meta_pb2.Topic(name=f"later-{number}"))
    for given, diverged in ((stamp, False), (0, False), (stamp ^ 1, True)):
        stream = nameserver.metadata.watch(revision, given)
        response = await anext(stream)
        assert (response.diverged, response.snapshot) == (diverged, diverged)
        await _close(stream)


async def test_the_same_revision_of_two_histories_has_two_stamps(
    nameserver: Nameserver, small_nameserver: Nameserver
) -> None:
    """They differ from the first different change on, also after changes that are the same."""
    await small_nameserver.with_storage()
    for each, name in ((nameserver, "one"), (small_nameserver, "other")):
        await each.metadata.create_topic(meta_pb2.Topic(name=name, queue_count=1))
    for each in (nameserver, small_nameserver):
        await each.metadata.create_topic(meta_pb2.Topic(name="the-same", queue_count=1))
    assert nameserver.machine.revision == small_nameserver.machine.revision
    assert 0 not in (stamp_of(nameserver), stamp_of(small_nameserver))
    assert stamp_of(nameserver) != stamp_of(small_nameserver)


async def other_history(make_nameserver: MakeNameserver, name: str, topics: int) -> Nameserver:
    """A nameserver with as many topics of its own; it keeps eight revisions."""
    config = CONFIG.model_copy(update={"max_recent_changes": 1})
    nameserver = await make_nameserver(config).with_storage()
    for number in range(topics):
        await nameserver.metadata.create_topic(meta_pb2.Topic(name=f"{name}{number}"))
    return nameserver


async def first_of(nameserver: Nameserver, revision: int, stamp: int) -> meta_pb2.WatchResponse:
    stream = nameserver.metadata.watch(revision, stamp)
    response = await anext(stream)
    await _close(stream)
    return response


@pytest.mark.parametrize(
    ("behind", "own", "other"),
    [
        (7, (False, False), (True, True)),
        (8, (False, False), (True, True)),
        (9, (False, True), (False, True)),
        (30, (False, True), (False, True)),
    ],
)
async def test_histories_are_compared_as_far_back_as_changes_are_kept(
    make_nameserver: MakeNameserver,
    behind: int,
    own: tuple[bool, bool],
    other: tuple[bool, bool],
) -> None:
    """Further back nobody can tell: such a watcher gets all rows, never changes alone."""
    here = await other_history(make_nameserver, "here", 40)
    at = here.machine.revision - behind
    there = await other_history(make_nameserver, "there", at - 1)
    earlier = await other_history(make_nameserver, "here", at - 1)
    for came_from, expected in ((earlier, own), (there, other)):
        assert came_from.machine.revision == at
        response = await first_of(here, at, stamp_of(came_from))
        assert (response.diverged, response.snapshot) == expected


@pytest.mark.parametrize("restarted", [False, True])
async def test_histories_are_compared_after_a_snapshot_came_in(
    make_nameserver: MakeNameserver, restarted: bool
) -> None:
    """The revision of the snapshot has no change here, but its stamp is known."""
    source = await other_history(make_nameserver, "source", 10)
    there = await other_history(make_nameserver, "there", 10)
    here = make_nameserver(source.config)
    await send(source, here)
    at, stamps = source.machine.revision, (stamp_of(source), stamp_of(there))
    assert stamp_of(here) == stamps[0] != stamps[1]
    for more in range(2):
        own, other = [await first_of(here, at, stamp) for stamp in stamps]
        assert (own.diverged, own.snapshot) == (False, False)
        assert (other.diverged, other.snapshot) == (True, True)
        await here.metadata.create_topic(meta_pb2.Topic(name=f"more{more}"))
    if restarted:
        # Nothing tells the stamp any more: either watcher gets all rows.
        here = here.restarted()
        responses = [await first_of(here, at, stamp) for stamp in stamps]
        assert [response.snapshot for response in responses] == [True, True]


async def test_a_watcher_that_came_while_rows_were_replaced_is_compared(
    make_nameserver: MakeNameserver,
) -> None:
    """Its revision was dropped with the others when it came, and is here again."""
    source = await other_history(make_nameserver, "source", 10)
    there = await other_history(make_nameserver, "there", 10)
    here = make_nameserver(source.config)
    await send(source, here, parts=2)
    stream = here.metadata.watch(there.machine.revision, stamp_of(there))
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not waiting.done()
    await send(source, here)
    response = await waiting
    assert (response.diverged, response.snapshot) == (True, True)
    await _close(stream)


async def test_a_new_watcher_gets_a_snapshot_then_deltas(nameserver: Nameserver) -> None:
    """The first response is everything; then each change comes as it is applied."""
    view = View()
    stream = nameserver.metadata.watch(0)
    view.take(await anext(stream))
    assert (view.snapshots, view.rows) == (1, stored(nameserver))

    made = await nameserver.metadata.create_topic(meta_pb2.Topic(name="t"))
    response = await anext(stream)
    assert not response.snapshot
    assert [change.topic for change in response.changes] == [made]
    assert response.revision == made.revision
    await _close(stream)


async def test_a_watcher_that_is_up_to_date_is_told_so(nameserver: Nameserver) -> None:
    """The first response comes at once even when nothing happened."""
    stream = nameserver.metadata.watch(nameserver.machine.revision)

    assert await anext(stream) == meta_pb2.WatchResponse(
        revision=nameserver.machine.revision, is_fresh=True, stamp=stamp_of(nameserver)
    )
    await _close(stream)


@pytest.mark.parametrize(("missed", "snapshots"), [(3, 0), (7, 0), (20, 1)])
async def test_a_watcher_resumes_from_its_revision(
    missed: int, snapshots: int, make_nameserver: MakeNameserver
) -> None:
    """From memory, from the change rows, or by a snapshot when it is too far behind for both."""
    nameserver = await make_nameserver(CONFIG).with_storage()
    view = View()
    await view.follow(nameserver)
    view.snapshots = 0
    for number in range(missed):
        name = f"t{number // 2}"
        if number % 2:
            await nameserver.metadata.delete_topic("", name)
        else:
            await nameserver.metadata.create_topic(meta_pb2.Topic(name=name))
    await view.follow(nameserver)

    assert (view.snapshots, view.rows) == (snapshots, stored(nameserver))
    assert view.revision == nameserver.machine.revision


async def test_a_restarted_nameserver_resumes_from_its_rows(
    make_nameserver: MakeNameserver,
) -> None:
    """Change rows outlive the process: no snapshot after a short absence."""
    nameserver = await make_nameserver(CONFIG).with_storage()
    view = View()
    await view.follow(nameserver)
    await nameserver.metadata.create_consumer_group(meta_pb2.ConsumerGroup(name="g"))
    await nameserver.metadata.delete_consumer_group("", "g")
    await nameserver.metadata.create_topic(meta_pb2.Topic(name="t"))
    restarted = nameserver.restarted()
    view.snapshots = 0
    await view.follow(restarted)

    assert (view.snapshots, view.rows) == (0, stored(restarted))


async def test_a_hole_in_the_kept_revisions_is_bridged_by_a_snapshot(
    make_nameserver: MakeNameserver,
) -> None:
    """Fewer revisions are kept from a start on: what was kept before does not hide the gap."""
    many = CONFIG.model_copy(update={"max_kept_revisions": 100, "max_recent_changes": 1})
    nameserver = await make_nameserver(many).with_storage()
    view = View()
    await view.follow(nameserver)
    for number in range(10):
        await nameserver.metadata.create_topic(meta_pb2.Topic(name=f"before-{number}"))
    known, changes = view.revision, kind_range(MetadataRowKind.CHANGE)
    old = list(nameserver.store.scan(*changes))
    few = many.model_copy(update={"max_kept_revisions": 5})
    nameserver = make_nameserver(few, nameserver.store, nameserver.clock)
    for number in range(10):
        await nameserver.metadata.create_topic(meta_pb2.Topic(name=f"after-{number}"))
    kept = [revision_of(key) for key, _ in nameserver.store.scan(*changes)]
    newest = nameserver.machine.revision
    # A watcher may be five behind; the stamp of its own revision is compared.
    assert kept == list(range(newest - 5, newest + 1))

    # An older version left the rows behind.
    nameserver.store.write(old)
    assert revision_of(old[-1][0]) < newest - 5 and known + 1 in map(revision_of, dict(old))
    view.snapshots = 0
    await view.follow(nameserver)

    assert (view.snapshots, view.rows) == (1, stored(nameserver))
    assert view.revision == newest


async def test_a_watcher_that_knows_more_is_told_so(nameserver: Nameserver) -> None:
    """It hears the revision known here and no rows, so it can go to a source that is not behind."""
    stream = nameserver.metadata.watch(nameserver.machine.revision + 100)

    assert await anext(stream) == meta_pb2.WatchResponse(
        revision=nameserver.machine.revision, is_fresh=True, stamp=stamp_of(nameserver)
    )
    await _close(stream)


async def test_a_large_snapshot_comes_in_parts(small_nameserver: Nameserver) -> None:
    """Only the last part tells a revision, so a cut-off watcher starts again from 0."""
    await small_nameserver.with_storage()
    stream = small_nameserver.metadata.watch(0)
    view = View()
    parts = []
    while view.revision == 0:
        response = await anext(stream)
        parts.append((response.snapshot, response.revision, len(response.changes)))
        view.take(response)
    await _close(stream)

    assert view.rows == stored(small_nameserver)
    assert parts[0] == (True, 0, 3)
    assert {part[:2] for part in parts[1:-1]} == {(False, 0)}
    assert parts[-1][1] == small_nameserver.machine.revision


async def test_any_history_of_watching_ends_with_the_rows(make_nameserver: MakeNameserver) -> None:
    """Random changes, restarts and absences: whoever follows to the end knows every row."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    nameserver = await make_nameserver(CONFIG).with_storage()
    views = [View() for _ in range(3)]
    for _ in range(150):
        name = f"t{rng.randrange(5)}"
        try:
            if rng.random() < 0.6:
                await nameserver.metadata.create_topic(meta_pb2.Topic(name=name))
            else:
                await nameserver.metadata.delete_topic("", name)
        except MetaRefused:
            pass
        if rng.random() < 0.05:
            nameserver = nameserver.restarted()
        for view in views:
            if rng.random() < 0.15:
                await view.follow(nameserver)
    for view in views:
        await view.follow(nameserver)
        assert view.rows == stored(nameserver)


async def test_too_many_watchers_are_refused(small_nameserver: Nameserver) -> None:
    """The limit on streams holds, and a stream that ends makes room."""
    await small_nameserver.with_storage()
    first = small_nameserver.metadata.watch(1)
    await anext(first)
    with pytest.raises(MetaRefused, match="1 watch streams are open"):
        await anext(small_nameserver.metadata.watch(1))
    await _close(first)
    second = small_nameserver.metadata.watch(1)
    await anext(second)
    await _close(second)


async def test_closing_the_hub_ends_the_streams(nameserver: Nameserver) -> None:
    """A nameserver that stops leaves no watcher waiting."""
    stream = nameserver.metadata.watch(nameserver.machine.revision)
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream, None))
    await asyncio.sleep(0)
    nameserver.hub.close()

    assert await waiting is None


async def _close(stream: AsyncIterator[meta_pb2.WatchResponse]) -> None:
    await stream.aclose()  # type: ignore[attr-defined]
