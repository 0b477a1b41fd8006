"""Two raft groups in one log, and what tests do to it."""

from __future__ import annotations

from pathlib import Path

from strata.storage.v1 import storage_pb2 as pb
from strata_seglog.real_disk import RealDisk
from strata_seglog.verify import dump_log
from strata_testing.storage_node import CONTEXT, GROUP, NodeUnderTest, batch_of

OTHER_GROUP = 2
GROUPS = (GROUP, OTHER_GROUP)
FrameDict = dict[str, int | str | bool]


async def append(
    node: NodeUnderTest,
    raft_group: int,
    bodies: list[bytes],
    queue: int,
    *,
    topic_id: int = 7,
    ids: list[bytes] | None = None,
) -> pb.GroupResult:
    """Append to a queue of a raft group: even queues are group 1's, odd ones group 2's."""
    node.sequence += 1
    batch = pb.GroupBatch(
        raft_group=raft_group,
        sequence=node.sequence,
        batch=batch_of(bodies, queue=queue, topic_id=topic_id, ids=ids),
    )
    request = pb.AppendRequest(broker_boot_id=id(node), batches=[batch])
    return (await node.rpc.append(request, CONTEXT)).results[0]


async def fetch_all(node: NodeUnderTest, raft_group: int, queue: int) -> dict[int, bytes]:
    """Return every message of a queue that can be read, in pages of three."""
    found: dict[int, bytes] = {}
    offset = 0
    while True:
        request = pb.FetchRequest(
            raft_group=raft_group, topic_id=7, queue=queue, offset=offset, max_messages=3
        )
        response = await node.rpc.fetch(request, CONTEXT)
        assert not response.HasField("refusal"), response.refusal
        if not response.messages:
            return found
        found |= {message.offset: message.message for message in response.messages}
        offset = response.messages[-1].offset + 1


def status_of(node: NodeUnderTest, raft_group: int) -> pb.ReplicaStatus:
    """Return what the node says about a raft group."""
    replicas = node.app.node.status().replicas
    return next(each for each in replicas if each.raft_group == raft_group)


def flip(log: Path, position: int, length: int = 1) -> None:
    """Flip bits of every byte of a range of log positions."""
    segment = max(path for path in log.glob("*.log") if int(path.stem) <= position)
    at = position - int(segment.stem)
    data = bytearray(segment.read_bytes())
    data[at : at + length] = bytes(byte ^ 0x41 for byte in data[at : at + length])
    segment.write_bytes(data)


def frames_of(log: Path, replica_id: int, *, sealed: bool | None = None) -> list[FrameDict]:
    """Return a replica's entries that hold messages, of sealed segments or of the newest one."""
    frames = list(dump_log(RealDisk(log)))
    last = max(str(frame["segment"]) for frame in frames)
    return [
        frame
        for frame in frames
        if frame.get("kind") == "entry"
        and frame["replica_id"] == replica_id
        and sealed in (None, frame["segment"] != last)
        and not 10_000 < int(frame["payload_bytes"]) < 11_000
        and int(frame["payload_bytes"]) > 250
    ]
