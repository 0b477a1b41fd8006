"""MetaService over a durable copy: reads and watches; a nameserver serves all other calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing

from google.protobuf import message_factory
from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId, own
from strata_angelia.methods import snake_case
from strata_angelia.ports import OVERLOADED, AngeliaError, CallContext
from strata_metadata.cache import MetadataCache
from strata_metadata.errors import MetaRefused

META_SERVICE = meta_pb2.DESCRIPTOR.services_by_name["MetaService"]

_ROWS_PER_TURN = 1_000
_READ_ONLY = meta_pb2.MetaStatus(
    outcome=meta_pb2.META_OUTCOME_UNAVAILABLE,
    reason="this node has a copy of the metadata; changes go to a nameserver",
)
_NOTHING_KNOWN = meta_pb2.MetaStatus(
    outcome=meta_pb2.META_OUTCOME_UNAVAILABLE, reason="this node has no metadata yet"
)
_RESPONSE_TYPES: dict[str, type[Message]] = {
    snake_case(rpc.name): message_factory.GetMessageClass(rpc.output_type)
    for rpc in META_SERVICE.methods
    if not rpc.server_streaming
}


class CachedMetaServicer:
    """Serves `GetIdentity`, `GetSnapshot` and `Watch`; every other RPC answers UNAVAILABLE.

    Args:
        cache: the copy.
        cluster: that the process belongs to; None: to none.
    """

    def __init__(self, cache: MetadataCache, cluster: ClusterId | None = None) -> None:
        self._cache = cache
        self._cluster = own(cluster)

    def __getattr__(self, name: str) -> Callable[[Message, CallContext], Awaitable[Message]]:
        """Return the handler of an RPC that changes something."""
        response_type = _RESPONSE_TYPES.get(name)
        if response_type is None:
            raise AttributeError(name)

        async def refuse(request: Message, context: CallContext) -> Message:
            return response_type(status=_READ_ONLY)

        return refuse

    async def get_snapshot(
        self, request: meta_pb2.GetSnapshotRequest, context: CallContext
    ) -> meta_pb2.GetSnapshotResponse:
        """Return all rows."""
        try:
            revision, rows = await self._cache.snapshot()
        except MetaRefused as refusal:
            status = meta_pb2.MetaStatus(outcome=refusal.outcome, reason=refusal.reason)
            return meta_pb2.GetSnapshotResponse(status=status)
        if not revision:
            return meta_pb2.GetSnapshotResponse(status=_NOTHING_KNOWN)
        return await snapshot_response(revision, rows)

    async def get_identity(
        self, request: meta_pb2.GetIdentityRequest, context: CallContext
    ) -> meta_pb2.GetIdentityResponse:
        """Tell which cluster the copy is of."""
        if not self._cluster.value:
            return meta_pb2.GetIdentityResponse(status=_NOTHING_KNOWN)
        try:
            node = self._cache.look_up_node(request.node_id)
        except MetaRefused as refusal:
            status = meta_pb2.MetaStatus(outcome=refusal.outcome, reason=refusal.reason)
            return meta_pb2.GetIdentityResponse(status=status)
        return meta_pb2.GetIdentityResponse(
            status=meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK),
            cluster_id=self._cluster.value,
            knows_node=node.is_known,
            replicas=node.replicas,
        )

    async def watch(
        self, request: meta_pb2.WatchRequest, context: CallContext
    ) -> AsyncIterator[meta_pb2.WatchResponse]:
        """Stream changes; nothing, not even a first response, before anything is known.

        Raises:
            AngeliaError: OVERLOADED: too many watchers; WRONG_CLUSTER.
        """
        self._cluster.check(request.cluster_id, context.peer)
        try:
            async with aclosing(
                self._cache.watch(request.from_revision, request.from_stamp)
            ) as responses:
                async for response in responses:
                    if response.revision or response.changes:
                        yield response
        except MetaRefused as error:
            raise AngeliaError(OVERLOADED, error.reason) from error


async def snapshot_response(
    revision: int, rows: Sequence[meta_pb2.Change]
) -> meta_pb2.GetSnapshotResponse:
    """Return the answer to `GetSnapshot`; other work goes on while it is put together."""
    status = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK)
    response = meta_pb2.GetSnapshotResponse(status=status, revision=revision)
    for first in range(0, len(rows), _ROWS_PER_TURN):
        response.rows.extend(rows[first : first + _ROWS_PER_TURN])
        await asyncio.sleep(0)
    return response
