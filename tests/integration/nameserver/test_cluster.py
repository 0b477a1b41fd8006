"""A cluster of nameservers: formed, led, followed; members killed, emptied, lagging behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.factory import open_channel
from strata_metadata import ClusterView, MetadataClient
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.admin_keys import AdminKeys, read_keys, write_keys
from strata_testing import until
from tests.limits import within

if TYPE_CHECKING:
    from tests.integration.nameserver.conftest import NameserverSet

STORAGE_NODES = ("storage-a", "storage-b", "storage-c")


def storage(node_id: str, rack: str = "") -> meta_pb2.Node:
    return meta_pb2.Node(
        node_id=node_id,
        kind=meta_pb2.NODE_KIND_STORAGE,
        endpoints=[f"{node_id}:10920"],
        boot_id=7,
        rack=rack,
    )


async def register_storage(client: MetadataClient) -> None:
    for node_id in STORAGE_NODES:
        await client.call(
            "RegisterNode",
            meta_pb2.RegisterNodeRequest(node=storage(node_id)),
            meta_pb2.RegisterNodeResponse,
        )


async def create_topic(client: MetadataClient, name: str) -> meta_pb2.Topic:
    response = await client.call(
        "CreateTopic",
        meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name=name)),
        meta_pb2.CreateTopicResponse,
    )
    return response.topic


async def test_three_nameservers_form_one_cluster(nameservers: NameserverSet) -> None:
    """All write the same ids down, one leads, and every one serves the same rows."""
    leader = await nameservers.leader()
    client = nameservers.client()
    await register_storage(client)
    made = await create_topic(client, "orders")

    assert len({member.cluster_id for member in nameservers.members}) == 1
    assert nameservers.members[0].voters == {m.replica_id for m in nameservers.members}
    for member in nameservers.members:
        channel = open_channel(member.endpoint)
        stream = channel.stream(
            "/strata.meta.v1.MetaService/Watch",
            meta_pb2.WatchRequest(from_revision=made.revision - 1),
            meta_pb2.WatchResponse,
        )
        async for response in stream:
            if response.revision >= made.revision:
                break
        assert made in [change.topic for change in response.changes]
        refused = await channel.call(
            "/strata.meta.v1.MetaService/DeleteTopic",
            meta_pb2.DeleteTopicRequest(name="none"),
            meta_pb2.DeleteTopicResponse,
        )
        if member is leader:
            assert refused.status.outcome == meta_pb2.META_OUTCOME_NOT_FOUND
        else:
            assert refused.status.outcome == meta_pb2.META_OUTCOME_NOT_LEADER
            assert refused.status.leader_endpoint == leader.endpoint
            assert refused.status.leader_node_id == leader.node_id
        await channel.close()


@pytest.mark.parametrize("nameservers", [64 * 1024 * 1024], indirect=True)
async def test_every_nameserver_tells_whose_disk_is_full(nameservers: NameserverSet) -> None:
    """A follower of any nameserver learns it, and learns that it is over."""
    followers = [
        nameservers.follower([member.endpoint], ClusterView()) for member in nameservers.members
    ]
    leader = await nameservers.leader()
    full = next(member for member in nameservers.members if member is not leader)
    assert full.disk is not None
    filler = full.disk.open("stranger", create=True)
    filler.allocate(full.disk.space().free_bytes - 1024 * 1024)
    await until(lambda: all(each.full_nameservers == {full.node_id} for each in followers))
    full.disk.delete("stranger")
    await until(lambda: not any(each.full_nameservers for each in followers))


@pytest.mark.parametrize("nameservers", [64 * 1024 * 1024], indirect=True)
async def test_who_leads_on_a_full_disk_lets_another_lead(nameservers: NameserverSet) -> None:
    """Changes go on at one with room; with two full disks of three none is taken until one has."""
    client = nameservers.client()
    await register_storage(client)
    fillers = []
    for number in range(2):
        leader = await nameservers.leader()
        assert leader.disk is not None
        assert leader.app is not None
        filler = leader.disk.open("stranger", create=True)
        filler.allocate(leader.disk.space().free_bytes - 1024 * 1024)
        fillers.append(leader.disk)
        await until(lambda at=leader.app: bool(at.health().problems))  # type: ignore[misc]
        if number == 0:
            await until(lambda at=leader.app: not at.is_leader)  # type: ignore[misc]
            assert (await create_topic(client, "with-room")).topic_id
    # The third one leads now, or will in a moment, and hears of the others' disks.
    refusal = ""
    async with asyncio.timeout(60):
        for number in range(1_000_000):
            try:
                await create_topic(client, f"in-between-{number}")
            except MetaRefused as refused:
                refusal = refused.reason
            if "disk is full" in refusal:
                break
            await asyncio.sleep(0.05)
    assert "too many replicas" in refusal
    fillers[0].delete("stranger")
    fillers[1].delete("stranger")
    made = await until_made(client, "taken-again")
    assert made.topic_id


async def until_made(client: MetadataClient, name: str) -> meta_pb2.Topic:
    """Make a topic as soon as a nameserver takes it."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await create_topic(client, name)
            except MetaRefused:
                await asyncio.sleep(0.05)


async def test_writes_and_watches_go_on_without_the_leader(nameservers: NameserverSet) -> None:
    """A new leader answers within seconds; a watcher sees every topic once and in order."""
    client = nameservers.client()
    await register_storage(client)
    view = nameservers.view()
    before = [await create_topic(client, f"before-{n}") for n in range(5)]
    old = await nameservers.leader()
    await nameservers.stop(old)
    started_s = time.monotonic()
    after = [await create_topic(client, f"after-{n}") for n in range(5)]
    gap_s = time.monotonic() - started_s
    new = await nameservers.leader()
    await until(lambda: view.revision >= after[-1].revision)

    print(f"five writes after the loss of the leader took {gap_s:.2f} s")
    assert new is not old
    topic_ids = [topic.topic_id for topic in (*before, *after)]
    assert sorted(set(topic_ids)) == topic_ids
    assert all(view.retention_ms(topic_id) for topic_id in topic_ids)

    await nameservers.start(old)
    last = await create_topic(client, "last")
    assert old.app is not None
    await until(lambda: old.app is not None and old.app.revision >= last.revision)


async def test_an_emptied_nameserver_takes_its_old_place(nameservers: NameserverSet) -> None:
    """It comes with a new replica id, is taken in, replaces the old one, and has all rows."""
    client = nameservers.client()
    await register_storage(client)
    for number in range(20):
        await create_topic(client, f"t{number}")
    leader = await nameservers.leader()
    emptied = next(member for member in nameservers.members if member is not leader)
    old_replica_id, old_node_id = emptied.replica_id, emptied.node_id
    await nameservers.stop(emptied)
    emptied.empty()
    await nameservers.start(emptied)
    assert emptied.voters == leader.voters and emptied.replica_id not in emptied.voters

    wanted = {member.replica_id for member in nameservers.members}
    await until(lambda: leader.app is not None and leader.app.voters == wanted)
    last = await create_topic(client, "last")
    await until(lambda: emptied.app is not None and emptied.app.revision >= last.revision)

    # The new member counts: with it and one other there is a majority.
    view = nameservers.view()
    await until(lambda: view.node(emptied.node_id) is not None)
    await until(lambda: view.node(old_node_id) is None)
    await nameservers.stop(leader)
    await create_topic(client, "without the old leader".replace(" ", "-"))
    assert old_replica_id not in wanted


async def test_a_nameserver_that_was_away_for_long_gets_a_snapshot(
    nameservers: NameserverSet,
) -> None:
    """The log no longer has what it missed; afterwards it counts as before."""
    client = nameservers.client()
    await register_storage(client)
    leader = await nameservers.leader()
    away = next(member for member in nameservers.members if member is not leader)
    await nameservers.stop(away)
    filling = {"filling": "x" * 12_000}
    for number in range(300):
        topic = meta_pb2.Topic(name=f"t{number}", attributes=filling)
        await client.call(
            "CreateTopic", meta_pb2.CreateTopicRequest(topic=topic), meta_pb2.CreateTopicResponse
        )
    await until(lambda: leader.app is not None and leader.app.first_log_index > 100)
    await nameservers.start(away)
    last = await create_topic(client, "last")
    took_s = await until(lambda: away.app is not None and away.app.revision >= last.revision)

    print(f"caught up after {took_s:.2f} s")
    assert away.app is not None and away.app.first_log_index > 100
    await nameservers.stop(leader)
    view = nameservers.view()
    after = await create_topic(client, "after")
    await until(lambda: view.revision >= after.revision)
    assert all(view.retention_ms(topic_id) for topic_id in range(1, after.topic_id + 1))


@pytest.mark.parametrize("kind", ["broker", "storage"])
async def test_a_dead_node_is_down_soon(nameservers: NameserverSet, kind: str) -> None:
    """Watchers see it DOWN soon after its last heartbeat, and UP again after the next one."""
    view = nameservers.view()
    others = STORAGE_NODES[1:]
    client = nameservers.client()
    await register_storage(client)

    def of_others(node_id: str) -> Callable[[bool], meta_pb2.HeartbeatRequest]:
        def make(full: bool) -> meta_pb2.HeartbeatRequest:
            return meta_pb2.HeartbeatRequest(
                node_id=node_id, boot_id=7, full=full, unheard_node_ids=[STORAGE_NODES[0]]
            )

        return make

    for node_id in others:
        nameservers.presence(storage(node_id), of_others(node_id))
    dying = storage(STORAGE_NODES[0])
    if kind == "broker":
        dying = meta_pb2.Node(
            node_id="broker-1",
            kind=meta_pb2.NODE_KIND_BROKER,
            advertised_endpoint="127.0.0.1:8081",
            boot_id=7,
        )
    node_id = dying.node_id

    def state() -> int:
        node = view.node(node_id)
        return node.state if node is not None else 0

    presence = nameservers.presence(dying)
    await until(lambda: state() == meta_pb2.NODE_STATE_UP)
    await asyncio.sleep(1.5)
    presence.cancel()
    down_s = await until(lambda: state() == meta_pb2.NODE_STATE_DOWN)
    nameservers.presence(dying)
    up_s = await until(lambda: state() == meta_pb2.NODE_STATE_UP)

    within(f"{kind} DOWN", down_s, 2)
    within(f"{kind} UP", up_s, 2)


async def test_a_late_registration_of_a_former_process_takes_nothing_away(
    nameservers: NameserverSet,
) -> None:
    """One that says when it started is refused; after one that does not, the new process asks."""
    client, view = nameservers.client(), nameservers.view()
    new, former = storage("storage-x"), storage("storage-x")
    new.boot_id, former.boot_id = 8, 9

    def beat(full: bool) -> meta_pb2.HeartbeatRequest:
        return meta_pb2.HeartbeatRequest(node_id="storage-x", boot_id=8, full=full)

    def row() -> meta_pb2.Node:
        return view.node("storage-x") or meta_pb2.Node()

    async def register_former() -> None:
        await client.call(
            "RegisterNode",
            meta_pb2.RegisterNodeRequest(node=former),
            meta_pb2.RegisterNodeResponse,
        )

    presence = nameservers.presence(new, beat)
    await until(lambda: row().boot_id == 8)
    before = row().revision
    await register_former()
    await until(lambda: row().boot_id == 8 and row().revision >= before + 2)
    former.started_at_ms = 1_000
    with pytest.raises(MetaRefused, match="registered as node storage-x and started later"):
        await register_former()
    assert (row().boot_id, row().state) == (8, meta_pb2.NODE_STATE_UP)
    assert not presence.done()


async def test_a_cluster_has_one_first_admin(nameservers: NameserverSet) -> None:
    """The nameserver that leads makes it and has the keys in a file; later ones make no other."""
    nameservers.controls_access = True
    for _ in range(2):
        for member in nameservers.members:
            await nameservers.stop(member)
        await nameservers.start()
        await until(lambda: users_of(nameservers))
    [(name, user)] = (await users_of(nameservers)).items()
    files = [member.keys_folder / "first-admin.json" for member in nameservers.members]
    keys = [found for found in map(read_keys, files) if found is not None]
    assert keys == [AdminKeys(name, user.secret_key)]
    assert user.admin


async def test_a_key_is_recovered_at_a_follower(nameservers: NameserverSet) -> None:
    """Its order goes to the nameserver that leads."""
    leader = await nameservers.leader()
    follower = next(member for member in nameservers.members if member is not leader)
    await nameservers.stop(follower)
    order = follower.keys_folder / "recover-admin.json"
    write_keys(order, AdminKeys("root", "a-secret-of-the-test"))
    await nameservers.start(follower)
    await until(lambda: not order.exists())
    user = (await users_of(nameservers))["root"]
    assert (user.secret_key, user.admin) == ("a-secret-of-the-test", True)


async def users_of(nameservers: NameserverSet) -> dict[str, meta_pb2.User]:
    """Rows of the leader."""
    app = (await nameservers.leader()).app
    assert app is not None
    _, changes = await app.metadata.snapshot()
    return {change.user.name: change.user for change in changes if change.HasField("user")}
