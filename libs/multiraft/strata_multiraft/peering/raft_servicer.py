"""RaftService of one node: frames from other nodes, snapshots for them. A translator, no logic.

A frame's raft messages are stepped before the call's first await, so frames of one connection are
processed in order.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol

from strata.raft.v1 import raft_pb2
from strata_angelia.methods import immediate
from strata_angelia.ports import BAD_REQUEST, UNAVAILABLE, AngeliaError, CallContext
from strata_multiraft.base.errors import SnapshotRefused
from strata_multiraft.base.ports import Envelope
from strata_multiraft.base.snapshots import SnapshotFetch, SnapshotPart
from strata_multiraft.peering import envelopes as codec
from strata_multiraft.snapshots.snapshot_messages import as_fetch, as_response

RAFT_SERVICE = raft_pb2.DESCRIPTOR.services_by_name["RaftService"]


class RaftReceiver(Protocol):
    """The driver, `MultiRaft`."""

    def receive(self, envelopes: Sequence[Envelope]) -> None:
        """Take raft messages."""

    def snapshot_parts(self, fetch: SnapshotFetch) -> AsyncGenerator[SnapshotPart, None]:
        """Read the snapshot of a raft group led here; raises SnapshotRefused."""


class HeartbeatReceiver(Protocol):
    """Store liveness, `StoreLiveness`."""

    def frame_from(self, node_id: str, boot_id: int) -> None:
        """Take note of the sender's life."""

    def heartbeat_from(self, node_id: str, beat: raft_pb2.Beat) -> None:
        """Take a store heartbeat."""


class RaftServicer:
    """Handler of `strata.raft.v1.RaftService`.

    Args:
        node_id: this node; frames for others are refused, their senders have an old address.
    """

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._receiver: RaftReceiver | None = None
        self._heartbeats: HeartbeatReceiver | None = None

    def attach(self, receiver: RaftReceiver, heartbeats: HeartbeatReceiver) -> None:
        """Serve from now on; before, calls fail with UNAVAILABLE."""
        self._receiver, self._heartbeats = receiver, heartbeats

    def detach(self) -> None:
        """Serve no more."""
        self._receiver = self._heartbeats = None

    @immediate
    async def deliver(
        self, request: raft_pb2.DeliverRequest, context: CallContext
    ) -> raft_pb2.DeliverResponse:
        """Take raft messages and a store heartbeat of another node."""
        if self._receiver is None or self._heartbeats is None:
            raise AngeliaError(UNAVAILABLE, "the node is not ready")
        if request.target_node_id != self._node_id or not request.source_node_id:
            return raft_pb2.DeliverResponse(accepted=False)
        try:
            data = request.envelopes
            envelopes = codec.decode(data) if data else []
        except codec.EnvelopeError as error:
            raise AngeliaError(BAD_REQUEST, str(error)) from error
        # A new life first: it voids what was thought of the old one. The beat last: it speaks of
        # a state that the messages bring about.
        self._heartbeats.frame_from(request.source_node_id, request.source_boot_id)
        if envelopes:
            self._receiver.receive(envelopes)
        if request.HasField("beat"):
            self._heartbeats.heartbeat_from(request.source_node_id, request.beat)
        return raft_pb2.DeliverResponse(accepted=True)

    async def fetch_snapshot(
        self, request: raft_pb2.FetchSnapshotRequest, context: CallContext
    ) -> AsyncIterator[raft_pb2.FetchSnapshotResponse]:
        """Stream the parts of a snapshot, or say why there is none."""
        if self._receiver is None:
            raise AngeliaError(UNAVAILABLE, "the node is not ready")
        async with contextlib.aclosing(self._receiver.snapshot_parts(as_fetch(request))) as parts:
            try:
                async for part in parts:
                    yield as_response(part)
            except SnapshotRefused as refused:
                yield raft_pb2.FetchSnapshotResponse(refused=str(refused))
