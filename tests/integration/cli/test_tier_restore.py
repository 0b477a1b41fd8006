"""`strata tier restore`: a node from a bucket alone."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from strata.meta.v1 import command_pb2, meta_pb2
from strata_cli.main import run
from strata_cli.processes.data_folder import DataFolder, FolderRole
from strata_cli.reference import JSON_KEYS
from strata_mq.layout.rows import QueueRow, RowKind, kind_prefix
from strata_seglog.real_disk import RealDisk
from strata_seglog.verify import verify_log
from strata_state.metadata_keys import (
    APPLIED_KEY,
    cluster_key_key,
    consumer_group_key,
    node_key,
    policy_key,
    raft_group_key,
    topic_key,
    user_key,
)
from strata_state.metadata_rocksdb import RocksDbMetadataStore
from strata_testing import until_blocking
from strata_tier.objects.archive import Description, encode_archive
from strata_tier.objects.names import ManifestName, checkpoint_key, metadata_key
from strata_tier.ranges.manifest import manifest_of
from strata_tier.store.opening import open_store
from tests.integration.cli.conftest import Node, StartNode
from tests.unit.tier.objects import HOME, RAFT_GROUP, Tier, messages_of, put_manifest, queue_of

TOPICS = ((1, "orders"), (2, "clicks"))


def _metadata_rows() -> list[tuple[bytes, bytes]]:
    topics = {
        topic_key("", name): meta_pb2.Topic(topic_id=topic_id, name=name, queue_count=4)
        for topic_id, name in TOPICS
    }
    others = {
        topic_key("", "%DLQ%group"): meta_pb2.Topic(
            topic_id=9, name="%DLQ%group", queue_count=1, type=meta_pb2.TOPIC_TYPE_DEAD_LETTER
        ),
        consumer_group_key("", "group"): meta_pb2.ConsumerGroup(
            consumer_group_id=5, name="group", dead_letter_topic_id=9
        ),
        raft_group_key(RAFT_GROUP): meta_pb2.RaftGroup(
            raft_group=RAFT_GROUP,
            replicas=[meta_pb2.Replica(replica_id=31, node_id="lost")],
            broker_name="broker-7",
            initial_replica_ids=[31],
        ),
        node_key("lost"): meta_pb2.Node(node_id="lost", kind=meta_pb2.NODE_KIND_STORAGE),
        user_key("root"): meta_pb2.User(name="root", secret_key="root-secret", admin=True),
        policy_key(7): meta_pb2.Policy(policy_id=7, user="root", resource="*", actions=["all"]),
        cluster_key_key(3): meta_pb2.ClusterKey(key_id=3, secret=bytes(32)),
    }
    return [(key, row.SerializeToString()) for key, row in (topics | others).items()]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A bucket in a folder: two topics, one raft group, metadata of revision 40."""
    url = f"posix://{tmp_path / 'tier'}"

    async def fill() -> None:
        tier = Tier(await open_store(url))
        await tier.add([queue_of(messages_of(topic_id, 0, range(5))) for topic_id, _ in TOPICS])
        name = ManifestName(RAFT_GROUP, 2, 1)
        key = checkpoint_key(HOME, name)
        description = Description(HOME, RAFT_GROUP, 90, 2, 9_000, 9_500)
        prefix = kind_prefix(RAFT_GROUP, RowKind.QUEUE)
        rows = [
            (prefix + topic_id.to_bytes(4) + bytes(4), QueueRow(8, 0, 1_008, 0).encode())
            for topic_id, _ in TOPICS
        ]
        rows.append((kind_prefix(RAFT_GROUP, RowKind.OWN_REVISION), (55).to_bytes(8)))
        await tier.store.put(key, b"".join(encode_archive(description, rows)))
        of_metadata = Description(HOME, -1, 40, 0, 9_000, 9_000)
        archive = b"".join(encode_archive(of_metadata, _metadata_rows()))
        await tier.store.put(metadata_key(HOME, 40), archive)
        manifest = manifest_of(tier.metadata, HOME, name, 90, 9_000, key)
        await put_manifest(tier.store, manifest)
        await tier.store.close()

    asyncio.run(fill())
    return url


def test_a_folder_is_written(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Topics and groups keep their ids, raft groups get one new replica here, ids go on far on."""
    folder = tmp_path / "new"
    command = ["tier", "restore", "--from", url, "--data-dir", str(folder), "-o", "json"]
    assert run([*command, "--dry-run"]) == 0
    assert not folder.exists()
    dry = json.loads(capsys.readouterr().out)
    assert run(command) == 0
    view = json.loads(capsys.readouterr().out)
    assert view["queues"] == dry["queues"]
    assert [(queue["topic_id"], queue["lost"]) for queue in view["queues"]] == [(1, 3), (2, 3)]
    promised = set(re.findall(r"`([a-z_]+)`", JSON_KEYS["tier restore"]))
    assert promised == {*view, *view["queues"][0], *view["raft_groups"][0]}
    opened = DataFolder.open(folder, FolderRole.STANDALONE)
    assert view["cluster_id"] == opened.identity.cluster_id != HOME
    store = RocksDbMetadataStore(opened.nameserver / "meta")
    counters = command_pb2.AppliedState.FromString(store.get(APPLIED_KEY) or b"").counters
    assert counters.revision == 56
    assert counters.next_topic_id > 1_000
    assert (counters.topic_count, counters.consumer_group_count, counters.node_count) == (3, 1, 0)
    assert (counters.user_count, counters.policy_count) == (1, 1)
    assert counters.next_policy_id > 1_000
    _check_access(store)
    row = meta_pb2.RaftGroup.FromString(store.get(raft_group_key(RAFT_GROUP)) or b"")
    (replica,) = row.replicas
    assert replica.node_id == opened.identity.storage_node_id
    assert replica.replica_id > 1_000
    assert counters.next_replica_id > replica.replica_id
    assert (list(row.initial_replica_ids), row.broker_name) == ([replica.replica_id], "broker-7")
    store.close()
    opened.close()
    report = verify_log(RealDisk(folder / "storage" / "log"))
    assert report.ok
    assert report.replicas[replica.replica_id].last_index == 91


def test_the_folders_of_a_cluster_are_written(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nameserver and storage node get a folder each, of one identity; replicas are voters."""
    folder = tmp_path / "new"
    command = ["tier", "restore", "--from", url, "--data-dir", str(folder), "--split", "-o", "json"]
    assert run(command) == 0
    view = json.loads(capsys.readouterr().out)
    of_nameserver = DataFolder.open(folder / "nameserver", FolderRole.NAMESERVER)
    of_storage = DataFolder.open(folder / "storage", FolderRole.STORAGE)
    assert replace(of_nameserver.identity, role=FolderRole.STORAGE) == of_storage.identity
    assert view["cluster_id"] == of_storage.identity.cluster_id
    store = RocksDbMetadataStore(of_nameserver.nameserver / "meta")
    row = meta_pb2.RaftGroup.FromString(store.get(raft_group_key(RAFT_GROUP)) or b"")
    (replica,) = row.replicas
    # Else the nameserver takes the raft group for one that still changes, and it never grows.
    assert list(row.membership.voters) == [replica.replica_id]
    assert replica.node_id == of_storage.identity.storage_node_id
    store.close()
    assert verify_log(RealDisk(of_storage.storage / "log")).ok
    assert not (folder / "nameserver" / "storage" / "log").exists()
    of_nameserver.close()
    of_storage.close()


def test_one_topic_comes_back(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --topic nothing of the others is in the folder; an unknown one is an error."""
    folder = tmp_path / "new"
    command = ["tier", "restore", "--from", url, "--data-dir", str(folder), "-o", "json"]
    assert run([*command, "--topic", "nothing"]) == 1
    assert "holds no topic nothing" in capsys.readouterr().err
    assert run([*command, "--topic", "clicks"]) == 0
    assert [queue["topic_id"] for queue in json.loads(capsys.readouterr().out)["queues"]] == [2]
    store = RocksDbMetadataStore(folder / "nameserver" / "meta")
    assert store.get(topic_key("", "clicks")) is not None
    assert store.get(topic_key("", "orders")) is None
    # Every consumer group comes back, and has the topic of its dead letters.
    assert store.get(topic_key("", "%DLQ%group")) is not None
    _check_access(store)
    store.close()


def _check_access(store: RocksDbMetadataStore) -> None:
    """Users keep their keys and policies, and what was signed with a cluster key stays good."""
    user = meta_pb2.User.FromString(store.get(user_key("root")) or b"")
    assert (user.secret_key, user.admin) == ("root-secret", True)
    assert meta_pb2.Policy.FromString(store.get(policy_key(7)) or b"").user == "root"
    assert meta_pb2.ClusterKey.FromString(store.get(cluster_key_key(3)) or b"").key_id == 3


def test_a_folder_in_use_is_left_alone(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written into a folder that holds something."""
    (tmp_path / "file").write_text("mine")
    assert run(["tier", "restore", "--from", url, "--data-dir", str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_a_node_comes_back_from_the_bucket(start_node: StartNode, tmp_path: Path) -> None:
    """Every message of a lost node is received from the one that was restored."""
    url = f"posix://{tmp_path / 'tier'}"
    environment = {
        "STRATA_TIER_URL": url,
        "STRATA_TIER_FLUSH_AGE_MS": "200",
        "STRATA_TIER_MANIFEST_INTERVAL_MS": "1000",
        "STRATA_STORAGE_RETENTION_INTERVAL_MS": "1000",
    }
    node = start_node(**environment)
    node.json("topic", "create", "orders", "--queues", "2")
    bodies = [f"order {number}" for number in range(5)]
    for body in bodies:
        node.json("message", "send", "orders", "--body", body)
    until_blocking(lambda: _uploaded(node, url) >= len(bodies), 60, step_s=1)
    node.stop()
    node.data_dir.rename(tmp_path / "lost")
    node.json("tier", "restore", "--from", url, "--data-dir", str(node.data_dir))
    node = start_node(**environment)
    received = node.json("message", "receive", "orders", "--group", "new", "--count", "5")
    assert sorted(message["body"] for message in received["messages"]) == bodies


def _uploaded(node: Node, url: str) -> int:
    """Return how many messages a bucket holds; before the first manifest it is no tier."""
    shown = node.strata("tier", "inspect", "--from", url, "-o", "json")
    if "holds no tier" in shown.stderr:
        return 0
    return sum(topic["messages"] for topic in json.loads(shown.stdout)["topics"])
