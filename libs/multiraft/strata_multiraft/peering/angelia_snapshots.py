"""Snapshots from other nodes over Angelia, on connections of their own (rule 15).

A snapshot is large and may wait for its own rate limit; it must not delay raft messages. A
connection lasts for one call; the driver repeats an interrupted call from where it stopped.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from strata.raft.v1 import raft_pb2
from strata_angelia.ports import AngeliaError
from strata_multiraft.base.errors import SnapshotBroken, SnapshotRefused
from strata_multiraft.base.snapshots import SnapshotFetch, SnapshotPart
from strata_multiraft.peering.angelia_transport import EndpointOf, OpenChannel
from strata_multiraft.snapshots.snapshot_messages import as_part, as_request

FETCH_SNAPSHOT = "/strata.raft.v1.RaftService/FetchSnapshot"


class AngeliaSnapshotFetcher:
    """See `ports.SnapshotFetcher`.

    Args:
        endpoint_of: looks a node up.
        open_channel: makes a channel for an endpoint.
    """

    def __init__(self, endpoint_of: EndpointOf, open_channel: OpenChannel) -> None:
        self._endpoint_of = endpoint_of
        self._open_channel = open_channel

    async def fetch(self, node_id: str, fetch: SnapshotFetch) -> AsyncGenerator[SnapshotPart, None]:
        """See `ports.SnapshotFetcher.fetch`."""
        endpoint = self._endpoint_of(node_id)
        if endpoint is None:
            raise SnapshotBroken(f"the endpoint of node {node_id} is not known")
        channel = self._open_channel(endpoint)
        try:
            async for response in channel.stream(
                FETCH_SNAPSHOT, as_request(fetch), raft_pb2.FetchSnapshotResponse
            ):
                if response.WhichOneof("part") == "refused":
                    raise SnapshotRefused(response.refused)
                yield as_part(response)
        except (AngeliaError, ValueError) as error:
            raise SnapshotBroken(f"snapshot from node {node_id}: {error}") from error
        finally:
            await channel.close()
