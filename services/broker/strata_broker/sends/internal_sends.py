"""Sends of the broker: for operators, and of its own, with the same checks as clients' sends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from apache.rocketmq.v2 import service_pb2
from strata_broker.access.principals import ANYBODY, ITSELF, Principal
from strata_broker.base.future_call import FutureCall
from strata_broker.sends.pending_send import SEND
from strata_broker.sends.send import Sender


class InternalCall(FutureCall):
    """A hot call that no client made; see `strata_edge.ports.HotCall`."""

    method = SEND
    peer = "127.0.0.1:0"

    def __init__(self, request: bytes, metadata: Mapping[str, str], timeout_s: float) -> None:
        super().__init__()
        self.request = request
        self.metadata = metadata
        self._ends_s = asyncio.get_running_loop().time() + timeout_s

    def time_left_s(self) -> float | None:
        """See `HotCall`."""
        return self._ends_s - asyncio.get_running_loop().time()


class InternalSends:
    """See the module docstring."""

    def __init__(self, sender: Sender, node_id: str, timeout_s: float) -> None:
        self._sender = sender
        self._node_id = node_id
        self._timeout_s = timeout_s

    async def send(
        self, request: service_pb2.SendMessageRequest
    ) -> service_pb2.SendMessageResponse:
        """Send messages for an operator; refusals are in the response, as a client gets them."""
        return await self._send(request, ANYBODY)

    async def send_own(
        self, request: service_pb2.SendMessageRequest
    ) -> service_pb2.SendMessageResponse:
        """Send messages of the broker itself: it alone writes StrataMQ's own topics."""
        return await self._send(request, ITSELF)

    async def _send(
        self, request: service_pb2.SendMessageRequest, principal: Principal
    ) -> service_pb2.SendMessageResponse:
        metadata = {"x-mq-client-id": f"strata-admin@{self._node_id}"}
        call = InternalCall(request.SerializeToString(), metadata, self._timeout_s)
        self._sender.take(call, principal)
        (data,) = await call.answer
        return service_pb2.SendMessageResponse.FromString(data)
