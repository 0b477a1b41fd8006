"""A storage node whose object store fails: appends go on, uploads resume, readers get the truth.

The uploader of the node works by itself, as in a server; the S3 server stands behind a proxy that
spoils what passes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_testing import until
from strata_testing.storage_node import CONTEXT, GROUP, TOPIC, NodeUnderTest
from strata_tier.upkeep.audit import AuditOptions, verify
from tests.integration.storage.tiered_node import (
    Tier,
    empty_log,
    fetch_all,
    fill,
    is_uploaded,
    retain,
    tiered_node,
    uploader_of,
)
from tests.parts.fault_proxy import (
    Fault,
    FaultProxy,
    Message,
    Rule,
    connection_lost,
    cut,
    delayed,
    flipped,
    throttled,
)
from tests.parts.hdfs_cluster import HdfsCluster
from tests.parts.s3_server import CREDENTIALS, S3Server
from tests.parts.stores import Place

Messages = dict[int, list[bytes]]

# The uploader looks every 100 ms, tries a request for 3 s, and again after 2 s.
LIMIT_S = 60.0
POLL_S = 0.05
BEFORE, WHILE = 13, 14

pytestmark = pytest.mark.timeout(240)


def tier_of(place: Place, monkeypatch: pytest.MonkeyPatch) -> Tier:
    """Return a tier in a place, with credentials by the usual chain."""
    if place.credentials is not None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", place.credentials.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", place.credentials.secret_key)
    return Tier(url=place.url, flush_age_ms=100)


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    """A new bucket."""
    return s3_server.new_bucket()


@pytest.fixture
async def proxy(s3_server: S3Server) -> AsyncIterator[FaultProxy]:
    """Stands before the S3 server and spoils nothing yet."""
    async with FaultProxy(s3_server.port).serving() as serving:
        yield serving


@pytest.fixture
async def node(
    tmp_path: Path,
    s3_server: S3Server,
    bucket: str,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[NodeUnderTest]:
    """A node whose tier is behind the proxy."""
    tier = tier_of(s3_server.place(bucket, proxy.endpoint), monkeypatch)
    async with tiered_node(tmp_path / "node", tier) as running:
        yield running


async def passing(holds: Callable[[], bool], node: NodeUnderTest) -> None:
    """Wait until something holds, while the node's time goes on."""

    def holds_later() -> bool:
        if not (held := holds()):
            node.clock.advance(0.2)
        return held

    def tell() -> object:
        return holds, node.app.node.tiering.status(node.app.node.engine(GROUP))

    await until(holds_later, LIMIT_S, step_s=POLL_S, tell=tell)


async def uploaded(node: NodeUnderTest) -> None:
    """Wait until the tier has everything."""
    await passing(lambda: is_uploaded(node), node)


async def failing(node: NodeUnderTest) -> None:
    """Wait until an upload has failed and the node says so."""
    uploader = uploader_of(node)
    await passing(lambda: bool(uploader.last_failure), node)
    status = node.app.node.tiering.status(node.app.node.engine(GROUP))
    assert status.last_failure == uploader.last_failure
    assert status.uploading_queues


async def fill_more(node: NodeUnderTest, rng: random.Random, expected: Messages, boot: int) -> None:
    """Append to what is expected; every append is answered."""
    for queue, messages in (await fill(node, rng, WHILE, boot_id=boot)).items():
        expected[queue] += messages


async def comes_back(node: NodeUnderTest, expected: Messages) -> None:
    """Prove that the tier has every message once, in order, and alone."""
    await uploaded(node)
    assert not uploader_of(node).last_failure
    await empty_log(node)
    for queue, messages in expected.items():
        assert await fetch_all(node, queue) == list(enumerate(messages))
    store = uploader_of(node)._place.stores
    report = await verify(store, "test", AuditOptions())
    assert report.is_whole, report.findings


def always(request: Message) -> bool:
    """Every request."""
    return True


def is_second_part(request: Message) -> bool:
    """The second part of a multipart upload."""
    return request.is_part and "partNumber=2" in request.path


UPLOAD_FAULTS: dict[str, tuple[Callable[[Message], bool], Fault]] = {
    "down": (always, connection_lost),
    "throttling": (always, throttled()),
    "failing in the middle of a multipart upload": (is_second_part, connection_lost),
    "out of order": (always, throttled("500 Internal Server Error", "InternalError")),
}


@pytest.mark.parametrize("name", UPLOAD_FAULTS)
async def test_a_store_that_fails_uploads(
    node: NodeUnderTest, proxy: FaultProxy, name: str
) -> None:
    """Appends go on, the node says what is wrong, and afterwards the upload goes on by itself."""
    rng = random.Random(31)
    expected = await fill(node, rng, BEFORE)
    await uploaded(node)
    proxy.rules.append(Rule(*UPLOAD_FAULTS[name]))
    await fill_more(node, rng, expected, 2)
    # More than one part: what waits is uploaded together.
    await fill_more(node, rng, expected, 3)
    await failing(node)
    await fill_more(node, rng, expected, 4)
    proxy.rules.clear()
    await comes_back(node, expected)


async def test_a_slow_store(node: NodeUnderTest, proxy: FaultProxy) -> None:
    """A store that takes half a second for every answer gets everything, without a failure."""
    rng = random.Random(32)
    proxy.rules.append(Rule(always, delayed(0.5)))
    expected = await fill(node, rng, BEFORE)
    await fill_more(node, rng, expected, 2)
    await comes_back(node, expected)


READ_FAULTS: dict[str, Fault] = {
    "a flipped bit": flipped(20),
    "an answer that is cut": cut(1_000),
    "no answer": connection_lost,
}


@pytest.mark.parametrize("name", READ_FAULTS)
async def test_a_store_that_gives_wrong_bytes(
    node: NodeUnderTest, proxy: FaultProxy, name: str
) -> None:
    """A reader is refused, or gets what was sent: nothing else, and never an end that is none."""
    rng = random.Random(33)
    expected = await fill(node, rng, BEFORE + WHILE)
    await uploaded(node)
    await empty_log(node)
    proxy.rules.append(Rule(lambda request: request.method == "GET", READ_FAULTS[name]))
    # The last messages are in the log's newest segment, too.
    for offset in (0, len(expected[1]) // 4, len(expected[1]) // 2):
        request = pb.FetchRequest(
            raft_group=GROUP, topic_id=TOPIC.topic_id, queue=1, offset=offset, max_messages=10
        )
        fetched = await node.rpc.fetch(request, CONTEXT)
        assert fetched.refusal.outcome == pb.OUTCOME_OVERLOADED
        assert "tier" in fetched.refusal.reason
        assert not fetched.messages
    proxy.rules.clear()
    for queue, messages in expected.items():
        assert await fetch_all(node, queue) == list(enumerate(messages))


async def test_a_bit_that_flipped_in_the_store(
    node: NodeUnderTest, s3_server: S3Server, bucket: str
) -> None:
    """Readers of that block are refused, those of others are not; verify names the object."""
    rng = random.Random(34)
    expected = await fill(node, rng, BEFORE + WHILE)
    await uploaded(node)
    await empty_log(node)
    (path, *_) = sorted((s3_server.data / bucket).rglob("*.set"))
    # The first message of the first block, which is of queue 1.
    data = bytearray(path.read_bytes())
    at = data.index(expected[1][0])
    data[at] ^= 4
    path.write_bytes(data)
    request = pb.FetchRequest(
        raft_group=GROUP, topic_id=TOPIC.topic_id, queue=1, offset=0, max_messages=1
    )
    fetched = await node.rpc.fetch(request, CONTEXT)
    assert fetched.HasField("refusal")
    assert not fetched.messages
    assert await fetch_all(node, 2) == list(enumerate(expected[2]))
    report = await verify(uploader_of(node)._place.stores, "test", AuditOptions())
    assert [finding.key for finding in report.findings] == [
        path.relative_to(s3_server.data / bucket / "some" / "prefix").as_posix()
    ]


@asynccontextmanager
async def without_bucket(server: S3Server, bucket: str) -> AsyncIterator[None]:
    """Delete a bucket with all that is in it; make an empty one of that name afterwards."""
    client = server.client()
    for found in client.list_objects_v2(Bucket=bucket).get("Contents", []):
        client.delete_object(Bucket=bucket, Key=found["Key"])
    for found in client.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        client.abort_multipart_upload(Bucket=bucket, Key=found["Key"], UploadId=found["UploadId"])
    client.delete_bucket(Bucket=bucket)
    yield
    client.create_bucket(Bucket=bucket)
    client.close()


async def test_a_bucket_that_is_deleted(
    node: NodeUnderTest, s3_server: S3Server, bucket: str
) -> None:
    """Made again, it gets all that the log has still: that of deleted objects, too."""
    rng = random.Random(35)
    expected = await fill(node, rng, BEFORE)
    await uploaded(node)
    async with without_bucket(s3_server, bucket):
        await fill_more(node, rng, expected, 2)
        await failing(node)
    await uploaded(node)
    # The log gives up nothing that was not read back: what is missing is uploaded again.
    node.clock.advance(61)
    await retain(node)
    await comes_back(node, expected)


async def test_credentials_that_are_revoked(node: NodeUnderTest, s3_server: S3Server) -> None:
    """Refused at once and said so; with credentials that hold the upload goes on."""
    rng = random.Random(36)
    expected = await fill(node, rng, BEFORE)
    await uploaded(node)
    s3_server.revoke()
    try:
        await fill_more(node, rng, expected, 2)
        await failing(node)
        assert CREDENTIALS.secret_key not in uploader_of(node).last_failure
    finally:
        s3_server.restore_credentials()
    await comes_back(node, expected)


async def test_hdfs_in_safe_mode_and_without_a_data_node(
    tmp_path: Path, hdfs_cluster: HdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In safe mode nothing is uploaded, reads go on; with one DataNode dead nothing is lost."""
    rng = random.Random(37)
    tier = tier_of(hdfs_cluster.place(), monkeypatch)
    async with tiered_node(tmp_path / "node", tier) as node:
        expected = await fill(node, rng, BEFORE)
        await uploaded(node)
        await asyncio.to_thread(hdfs_cluster.safe_mode, "enter")
        try:
            await fill_more(node, rng, expected, 2)
            await failing(node)
        finally:
            await asyncio.to_thread(hdfs_cluster.safe_mode, "leave")
        await uploaded(node)
        hdfs_cluster.data_nodes[0].kill()
        try:
            await fill_more(node, rng, expected, 3)
        finally:
            await asyncio.to_thread(hdfs_cluster.data_nodes[0].start)
            await asyncio.to_thread(hdfs_cluster.wait_until_it_writes)
        await comes_back(node, expected)
