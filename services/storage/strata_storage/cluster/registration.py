"""How a storage node learns from the nameserver what it hosts, and tells it that it is alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2 as meta
from strata_angelia.ports import AngeliaError, Channel
from strata_runtime.errors import one_line
from strata_runtime.logs import get_logger
from strata_storage.base.hosted import HostedGroup

Response = TypeVar("Response", bound=Message)

MakeHeartbeat = Callable[[bool], meta.HeartbeatRequest]

_SERVICE = "/strata.meta.v1.MetaService/"


class RegistrationError(Exception):
    """The nameserver did not take the node; the reason is its own."""


class Registration:
    """A storage node's place among the nameserver's nodes.

    Args:
        channel: to a nameserver; not closed here.
        node_id: the node's id, from its data folder.
        endpoints: where its service listens.
        boot_id: drawn at random when the process started.
        timeout_s: for each call.
    """

    def __init__(
        self,
        channel: Channel,
        node_id: str,
        endpoints: Sequence[str],
        *,
        boot_id: int,
        timeout_s: float,
    ) -> None:
        self._channel = channel
        self._node = meta.Node(
            node_id=node_id, kind=meta.NODE_KIND_STORAGE, endpoints=endpoints, boot_id=boot_id
        )
        self._timeout_s = timeout_s
        # The nameserver knows nothing of what is led here.
        self._want_full = True
        self._log = get_logger("storage")

    async def register(self) -> list[HostedGroup]:
        """Register; return the replicas the node hosts. Registering again gives the same.

        Raises:
            RegistrationError: refused.
            AngeliaError: no nameserver answered.
        """
        request = meta.RegisterNodeRequest(node=self._node)
        response = await self._call("RegisterNode", request, meta.RegisterNodeResponse)
        if response.status.outcome != meta.META_OUTCOME_OK:
            raise RegistrationError(response.status.reason)
        return [hosted_group(replica) for replica in response.replicas]

    async def keep(self, period_s: float, make: MakeHeartbeat | None = None) -> None:
        """Heartbeat until cancelled; with no nameserver reachable the node serves on (rule 16).

        Args:
            period_s: between two heartbeats.
            make: what a heartbeat says, given whether it must say all; None: that the node lives.
        """
        while True:
            try:
                await self.heartbeat(make)
            except (RegistrationError, AngeliaError) as failure:
                self._log.warning("no heartbeat", reason=one_line(failure))
            await asyncio.sleep(period_s)

    async def heartbeat(self, make: MakeHeartbeat | None = None) -> None:
        """Tell once that the node is alive; a nameserver that restarted is registered at again.

        Raises:
            RegistrationError: refused.
            AngeliaError: no nameserver answered.
        """
        request = (make or self._plain)(self._want_full)
        # What a lost heartbeat said must come again.
        self._want_full = True
        response = await self._call("Heartbeat", request, meta.HeartbeatResponse)
        self._want_full = response.want_full or response.status.outcome != meta.META_OUTCOME_OK
        if response.status.outcome == meta.META_OUTCOME_NOT_FOUND:
            # What it hosts was settled at the start of the process: the answer is the same.
            await self.register()
        elif response.status.outcome != meta.META_OUTCOME_OK:
            raise RegistrationError(response.status.reason)

    def _plain(self, full: bool) -> meta.HeartbeatRequest:
        return meta.HeartbeatRequest(
            node_id=self._node.node_id, boot_id=self._node.boot_id, full=full
        )

    async def _call(self, rpc: str, request: Message, response_type: type[Response]) -> Response:
        return await self._channel.call(
            _SERVICE + rpc, request, response_type, timeout_s=self._timeout_s
        )


def hosted_group(replica: meta.HostedReplica) -> HostedGroup:
    """Translate what the nameserver says of a replica."""
    return HostedGroup(
        replica.raft_group.raft_group,
        replica.replica_id,
        {peer.replica_id: peer.node_id for peer in replica.raft_group.replicas},
        [(slots.first_slot, slots.slot_count) for slots in replica.slots],
    )
