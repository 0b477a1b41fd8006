"""The metadata as a whole on its way to a nameserver that lags behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import CallContext
from strata_metadata.errors import MetaRefused
from strata_metadata.identity import KnownNode, look_up_node
from strata_multiraft.base.errors import LogFull
from strata_multiraft.base.snapshots import SnapshotRows
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.servicers.meta import MetaAnswers, MetaServicer
from strata_nameserver.state.snapshots import MetadataSnapshots
from strata_raft import Configuration, SnapshotMetadata
from strata_state.metadata import MetadataStoreError, MetadataSyncFailed
from strata_state.metadata_keys import APPLIED_KEY, INSTALLING_KEY, MetadataRowKind, kind_range
from tests.unit.nameserver.storage_nodes import CONFIG

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver

CONFIGURATION = Configuration(frozenset({1, 2, 3}))


def snapshots_of(nameserver: Nameserver) -> MetadataSnapshots:
    return MetadataSnapshots(nameserver.store, nameserver.machine, nameserver.hub)


async def send(
    source: Nameserver, target: Nameserver, *, max_bytes: int = 200, parts: int = 10_000
) -> SnapshotMetadata:
    """Carry rows over in small parts, as many as asked; finished only when all came."""
    reader = snapshots_of(source).open_snapshot()
    store = snapshots_of(target)
    snapshot = SnapshotMetadata(reader.index, 1, CONFIGURATION)
    store.begin_install(snapshot)
    after = b""
    for _ in range(parts):
        rows = reader.read(after, max_bytes)
        if not rows.keys:
            reader.close()
            store.finish_install(snapshot)
            store.installed()
            break
        store.install_rows(rows)
        after = rows.keys[-1]
    return snapshot


@pytest.fixture
async def source(nameserver: Nameserver) -> Nameserver:
    for number in range(20):
        await nameserver.metadata.create_topic(meta_pb2.Topic(name=f"t{number}"))
    await nameserver.metadata.create_consumer_group(meta_pb2.ConsumerGroup(name="g"))
    await nameserver.metadata.delete_topic("", "t3")
    access = nameserver.metadata.access
    await access.ensure_cluster_key()
    await access.ensure_admin("root", "a-secret-of-the-test", unless_any=True)
    allow = meta_pb2.POLICY_DECISION_ALLOW
    policy = meta_pb2.Policy(user="root", resource="*", actions=["all"], decision=allow)
    await access.create_policy(policy)
    return nameserver


@pytest.fixture
async def target(make_nameserver: MakeNameserver) -> Nameserver:
    """A nameserver with rows of its own that must all go."""
    lagging = await make_nameserver(NameserverConfig().alone()).with_storage("old")
    await lagging.metadata.create_topic(meta_pb2.Topic(name="old"))
    return lagging


async def test_the_target_has_the_same_rows(source: Nameserver, target: Nameserver) -> None:
    """Rows, revision, ids and indexes; what the target had is gone, what comes next fits."""
    snapshot = await send(source, target)

    assert await target.metadata.snapshot() == await source.metadata.snapshot()
    assert target.machine.applied_index() == target.machine.persisted_index() == snapshot.index
    configuration = target.machine.configuration()
    assert configuration is not None and configuration[1] == CONFIGURATION
    made = await target.metadata.create_topic(meta_pb2.Topic(name="next"))
    expected = await source.metadata.create_topic(meta_pb2.Topic(name="next"))
    assert made.topic_id == expected.topic_id
    kinds = [change.WhichOneof("row") for change in (await target.metadata.snapshot())[1]]
    assert [kinds.count(kind) for kind in ("user", "policy", "cluster_key")] == [1, 1, 1]
    assert target.machine.speculative.access.admins == {"root"}


async def test_rows_are_as_of_one_moment(source: Nameserver, target: Nameserver) -> None:
    """Changes during the reading of a snapshot do not show in it."""
    before = await source.metadata.snapshot()
    reader = snapshots_of(source).open_snapshot()
    first = reader.read(b"", 200)
    for number in range(5):
        await source.metadata.delete_topic("", f"t{number + 10}")
    keys = list(first.keys)
    while (rows := reader.read(keys[-1], 10_000)).keys:
        keys += rows.keys

    assert keys == sorted(keys)
    assert len(keys) == len(before[1]) + 1


@pytest.mark.parametrize(
    ("method", "failure", "told"),
    [
        ("write", MetadataStoreError("No space left on device"), LogFull),
        ("sync", MetadataSyncFailed("No space left on device"), MetadataSyncFailed),
    ],
)
async def test_a_step_without_room_can_be_repeated_and_a_failed_sync_is_final(
    source: Nameserver,
    target: Nameserver,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    failure: Exception,
    told: type[Exception],
) -> None:
    """The driver repeats what raises LogFull; anything else ends the process (rule 7)."""
    reader, store = snapshots_of(source).open_snapshot(), snapshots_of(target)
    snapshot = SnapshotMetadata(reader.index, 1, CONFIGURATION)

    def refuse(*_: object) -> NoReturn:
        raise failure

    def fails_then_works(step: Callable[[], None]) -> None:
        with monkeypatch.context() as full:
            full.setattr(target.store, method, refuse)
            with pytest.raises(told, match="No space left"):
                step()
        step()

    fails_then_works(lambda: store.begin_install(snapshot))
    rows = reader.read(b"", 1_000_000)
    if method == "write":
        fails_then_works(lambda: store.install_rows(rows))
    else:
        store.install_rows(rows)
    fails_then_works(lambda: store.finish_install(snapshot))
    store.installed()
    assert await target.metadata.snapshot() == await source.metadata.snapshot()
    fails_then_works(store.abandon_install)
    store.installed()
    assert (await target.metadata.snapshot())[1] == []


async def test_an_interrupted_install_is_found_and_repeated(
    source: Nameserver, target: Nameserver
) -> None:
    """After a crash there is no applied row but a mark; a second install makes it whole."""
    await send(source, target, parts=3)
    restarted = target.restarted()
    store = snapshots_of(restarted)
    assert store.is_installing()
    assert restarted.machine.applied_index() == 0
    with pytest.raises(MetaRefused, match="a snapshot is replacing"):
        await restarted.metadata.snapshot()
    await send(source, restarted)

    assert not store.is_installing()
    assert await restarted.metadata.snapshot() == await source.metadata.snapshot()


async def test_nobody_is_unknown_while_rows_are_missing(
    source: Nameserver, target: Nameserver, make_nameserver: MakeNameserver
) -> None:
    """A node that asks is told "not now": replicas that nobody knows are not started (rule 32)."""

    async def ask(nameserver: Nameserver, node_id: str) -> tuple[bool, int]:
        servicer = MetaServicer(
            ClusterId("c1"), partial(look_up_node, nameserver.store), MetaAnswers(lambda: ("", ""))
        )
        request = meta_pb2.GetIdentityRequest(node_id=node_id)
        answer = await servicer.get_identity(request, CallContext(timeout_s=None))
        return answer.knows_node, answer.replicas

    assert await ask(target, "old") == (True, 2)
    for parts in range(4):
        await send(source, target, parts=parts)
        for node_id in ("old", "storage-a", "stranger"):
            with pytest.raises(MetaRefused, match="not here, or not all of it") as refused:
                await ask(target, node_id)
            assert refused.value.outcome == meta_pb2.META_OUTCOME_UNAVAILABLE
    await send(source, target)
    assert await ask(target, "old") == (False, 0)
    assert await ask(target, "storage-a") == (True, 2)
    # One whose folder was emptied knows nobody before it has any rows.
    with pytest.raises(MetaRefused, match="not here, or not all of it"):
        await ask(make_nameserver(CONFIG), "storage-a")


async def test_rows_that_were_being_dropped_when_they_were_read_are_not_told(
    source: Nameserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread drops them: it may begin between a look at the mark and the reading."""
    hub, store = source.hub, source.store
    for method in ("frozen", "scan"):
        reads = getattr(store, method)

        def read(*args: bytes, reads: Callable[..., object] = reads) -> object:
            hub.pause()
            store.write([(INSTALLING_KEY, b"")], [APPLIED_KEY])
            return reads(*args)

        before = store.get(APPLIED_KEY)
        assert before is not None
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(store, method, read)
            with pytest.raises(MetaRefused, match="a snapshot is replacing the metadata here"):
                if method == "frozen":
                    await source.metadata.snapshot()
                else:
                    source.machine.rows(*kind_range(MetadataRowKind.USER))
            store.write([(APPLIED_KEY, before)], [INSTALLING_KEY])
            if method == "scan":
                with pytest.raises(MetaRefused, match="not here, or not all of it"):
                    look_up_node(store, "stranger")
        store.write([(APPLIED_KEY, before)], [INSTALLING_KEY])
        hub.resume()
    assert look_up_node(store, "stranger") == KnownNode(is_known=False, replicas=0)


async def test_an_abandoned_install_leaves_an_empty_replica(
    source: Nameserver, target: Nameserver
) -> None:
    """No rows, no mark, nothing applied."""
    await send(source, target, parts=3)
    store = snapshots_of(target)
    store.abandon_install()
    store.installed()

    assert not store.is_installing()
    assert target.machine.applied_index() == 0
    assert await target.metadata.snapshot() == (0, [])


async def test_a_watcher_hears_nothing_of_a_half_installed_state(
    source: Nameserver, target: Nameserver
) -> None:
    """It waits, then gets a snapshot of the new rows."""
    stream = target.metadata.watch(0)
    await anext(stream)
    await send(source, target, parts=3)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    await send(source, target)
    response = await waiting

    assert response.snapshot
    assert response.revision == source.machine.revision
    assert "old" not in {change.topic.name for change in response.changes}


async def test_a_snapshot_without_its_applied_row_is_refused(
    source: Nameserver, target: Nameserver
) -> None:
    """Rows without a revision must not be taken for metadata."""
    store = snapshots_of(target)
    snapshot = SnapshotMetadata(9, 1, CONFIGURATION)
    store.begin_install(snapshot)
    store.install_rows(SnapshotRows([b"\x04n"], [b""]))

    with pytest.raises(ValueError, match="the rows are of index 0"):
        store.finish_install(snapshot)
