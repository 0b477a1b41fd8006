"""Reads of tables: at the leader, linearizable at another replica, or stale at any replica.

A read at a follower asks the leader for an index first: a replica that has applied this index has
every write that was acknowledged before. If a replica does not answer in time, the leader is read;
the caller gets no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from google.protobuf.message import Message

from strata.kv.v1 import kv_pb2, kv_storage_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base import errors
from strata_broker.base.table_config import KvSection
from strata_broker.kv.lanes import Lanes, WaitingRequest
from strata_broker.kv.tables import Tables
from strata_broker.kv.writes import SERVICE
from strata_broker.metadata.metadata import TopicRow
from strata_broker.receives.receive import topic_ref
from strata_broker.servicers.plugins import PluginParts
from strata_mq.requests import Code, RequestError

_MAX_BATCH = 512
_MAX_BATCH_BYTES = 1024 * 1024

# Outcomes that say whether the key is there, or that it may be asked for again.
_ANSWERS = frozenset((storage_pb2.OUTCOME_OK, storage_pb2.OUTCOME_OVERLOADED))

Response = TypeVar("Response", bound=Message)


class _Place(NamedTuple):
    """Reads of one place share a call."""

    raft_group: int
    consistency: kv_pb2.Consistency.ValueType


Placed = kv_storage_pb2.ReadRequest | kv_storage_pb2.ScanRequest
"""A request that says where it may be answered."""

_Read = WaitingRequest[kv_storage_pb2.ReadKey, kv_storage_pb2.ReadResult]


class Reads:
    """See the module docstring.

    Args:
        parts: of the broker.
        tables: where tables are.
        config: limits.
    """

    def __init__(self, parts: PluginParts, tables: Tables, config: KvSection) -> None:
        self._cluster = parts.cluster
        self._calls = parts.calls
        self._tables = tables
        self._config = config
        self.in_flight = 0
        self._try_s = parts.calls.config.storage_client.try_timeout_ms / 1000
        # The replica to ask next; replicas take turns.
        self._turn = 0
        self._lanes: Lanes[_Place, kv_storage_pb2.ReadKey, kv_storage_pb2.ReadResult] = Lanes(
            "kv-read",
            self._exchange,
            parts.calls.requests,
            clock=parts.calls.clock,
            max_batch=_MAX_BATCH,
            max_batch_bytes=_MAX_BATCH_BYTES,
        )
        # For items that an answer for many had no room for, or could not be read with it.
        self._alone: Lanes[_Place, kv_storage_pb2.ReadKey, kv_storage_pb2.ReadResult] = Lanes(
            "kv-read-alone",
            self._exchange,
            parts.calls.requests,
            clock=parts.calls.clock,
            max_batch=1,
            max_batch_bytes=_MAX_BATCH_BYTES,
        )
        self._batch_reads = parts.calls.metrics.histogram("strata_kv_batch_reads")

    async def get(
        self,
        topic: TopicRow,
        key: bytes,
        consistency: kv_pb2.Consistency.ValueType,
        deadline_s: float,
    ) -> kv_pb2.Item | None:
        """Return an item; None: there is no such key.

        Raises:
            RequestError: BAD_REQUEST, the consistency is none; TOO_MANY_REQUESTS: a limit is
                reached, or no disk can read the item now; PROXY_TIMEOUT: no replica answered in
                time.
        """
        consistency = _known(consistency)
        if self.in_flight >= self._config.max_reads_in_flight:
            raise errors.too_many_requests("too many reads are under way (kv.max_reads_in_flight)")
        wanted = kv_storage_pb2.ReadKey(table=topic_ref(topic), key=key)

        async def at(raft_group: int) -> kv_storage_pb2.ReadResult:
            place = _Place(raft_group, consistency)
            result = await self._lanes.call(place, wanted, len(key), deadline_s)
            if result.outcome == storage_pb2.OUTCOME_OVERLOADED:
                result = await self._alone.call(place, wanted, len(key), deadline_s)
            if result.outcome == storage_pb2.OUTCOME_OVERLOADED:
                raise errors.too_many_requests()
            return result

        self.in_flight += 1
        try:
            result = await self._tables.at_raft_group(topic, deadline_s, at)
        finally:
            self.in_flight -= 1
        return result.item if result.HasField("item") else None

    async def scan(
        self,
        topic: TopicRow,
        request: kv_storage_pb2.ScanRequest,
        consistency: kv_pb2.Consistency.ValueType,
        deadline_s: float,
    ) -> kv_storage_pb2.ScanResponse:
        """Return a page of a range.

        Raises:
            RequestError: BAD_REQUEST, the consistency is none; PROXY_TIMEOUT: no replica answered
                in time.
        """
        consistency = _known(consistency)

        async def at(raft_group: int) -> kv_storage_pb2.ScanResponse:
            # A new object: the former one may still be on its way.
            scan = kv_storage_pb2.ScanRequest()
            scan.CopyFrom(request)
            scan.raft_group = raft_group
            place = _Place(raft_group, consistency)
            return await self._ask(place, "Scan", scan, kv_storage_pb2.ScanResponse, deadline_s)

        return await self._tables.at_raft_group(topic, deadline_s, at)

    async def _exchange(self, place: _Place, batch: Sequence[_Read], deadline_s: float) -> None:
        """Ask for the items of one batch."""
        request = kv_storage_pb2.ReadRequest(
            raft_group=place.raft_group, keys=[one.wanted for one in batch]
        )
        try:
            response = await self._ask(
                place, "Read", request, kv_storage_pb2.ReadResponse, deadline_s
            )
        except RequestError as failure:
            for one in batch:
                one.settle(failure)
            return
        self._batch_reads.record(len(batch))
        # A node of another version may answer fewer: the lane fails the rest.
        for one, result in zip(batch, response.results, strict=False):
            one.settle(result if result.outcome in _ANSWERS else errors.refused(result.outcome))

    # Where to ask -------------------------------------------------------------------------------

    async def _ask(
        self,
        place: _Place,
        rpc: str,
        request: Placed,
        response_type: type[Response],
        deadline_s: float,
    ) -> Response:
        if place.consistency == kv_pb2.CONSISTENCY_FOLLOWER:
            response = await self._ask_follower(place, rpc, request, response_type, deadline_s)
            if response is not None:
                return response
        elif place.consistency == kv_pb2.CONSISTENCY_STALE:
            for node_id in self._replicas(place.raft_group):
                anywhere = _placed(request, 0)
                response = await self._ask_node(node_id, rpc, anywhere, response_type, deadline_s)
                if response is not None:
                    return response
        return await self._cluster.storage.client.call(
            place.raft_group,
            SERVICE + rpc,
            request,
            response_type,
            timeout_s=deadline_s - self._calls.clock.monotonic_s(),
        )

    async def _ask_follower(
        self,
        place: _Place,
        rpc: str,
        request: Placed,
        response_type: type[Response],
        deadline_s: float,
    ) -> Response | None:
        """Ask a replica that does not lead; None: no replica answered."""
        leader = self._cluster.storage.leaders.leader_of(place.raft_group)
        followers = [node for node in self._replicas(place.raft_group) if node != leader]
        if not followers:
            return None
        index = await self._cluster.storage.client.call(
            place.raft_group,
            SERVICE + "ReadIndex",
            kv_storage_pb2.ReadIndexRequest(raft_group=place.raft_group),
            kv_storage_pb2.ReadIndexResponse,
            timeout_s=deadline_s - self._calls.clock.monotonic_s(),
        )
        here = _placed(request, index.index)
        return await self._ask_node(followers[0], rpc, here, response_type, deadline_s)

    async def _ask_node(
        self,
        node_id: str,
        rpc: str,
        request: Message,
        response_type: type[Response],
        until_s: float,
    ) -> Response | None:
        """Ask a replica; None: it did not answer, or could not."""
        left_s = min(until_s - self._calls.clock.monotonic_s(), self._try_s)
        with suppress(AngeliaError):
            response = await self._cluster.storage.channels.to(node_id).call(
                SERVICE + rpc, request, response_type, timeout_s=max(left_s, 0.001)
            )
            refusal: storage_pb2.Refusal = response.refusal  # type: ignore[attr-defined]
            if refusal.outcome in (storage_pb2.OUTCOME_UNSPECIFIED, storage_pb2.OUTCOME_OK):
                return response
        return None

    def _replicas(self, raft_group: int) -> list[str]:
        """Return the nodes with a voter, live ones first, each time beginning at the next node."""
        row = self._cluster.view.raft_group(raft_group)
        nodes = [] if row is None else [one.node_id for one in row.replicas if not one.learner]
        if not nodes:
            return []
        self._turn += 1
        first = self._turn % len(nodes)
        turned = nodes[first:] + nodes[:first]
        return sorted(turned, key=self._is_down)

    def _is_down(self, node_id: str) -> bool:
        node = self._cluster.view.node(node_id)
        return node is None or node.state == meta_pb2.NODE_STATE_DOWN


def _known(
    consistency: kv_pb2.Consistency.ValueType,
) -> kv_pb2.Consistency.ValueType:
    """Return which guarantee a client wants; there is a lane for each, so it must be a known one.

    Raises:
        RequestError: BAD_REQUEST.
    """
    if consistency == kv_pb2.CONSISTENCY_UNSPECIFIED:
        return kv_pb2.CONSISTENCY_LEADER
    if consistency not in kv_pb2.Consistency.values():
        raise RequestError(Code.BAD_REQUEST, f"consistency {consistency} is not known")
    return consistency


def _placed(request: Placed, index: int) -> Placed:
    """Return a new request that any replica may answer once it has applied an index."""
    placed = type(request)()
    placed.MergeFrom(request)  # type: ignore[arg-type]
    placed.place.any_replica, placed.place.index = True, index
    return placed
