"""The scans' part of `strata.admin.v1.AdminService`; it translates and decides nothing."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata_broker.base.failures import Methods
from strata_broker.operators.queue_scans import QueueScans
from strata_broker.servicers.admin_rpc import add


class ScanAdminServicer:
    """See the module docstring."""

    def __init__(self, scans: QueueScans) -> None:
        self._scans = scans

    def register(self, edge: Methods) -> None:
        """Serve every RPC on an edge."""
        add(edge, "ListQueueSpans", admin_pb2.ListQueueSpansRequest, self.list_queue_spans)
        add(edge, "ScanQueue", admin_pb2.ScanQueueRequest, self.scan_queue)

    async def list_queue_spans(
        self, request: admin_pb2.ListQueueSpansRequest
    ) -> admin_pb2.ListQueueSpansResponse:
        """List the offsets of a topic."""
        return admin_pb2.ListQueueSpansResponse(spans=await self._scans.spans(request))

    async def scan_queue(self, request: admin_pb2.ScanQueueRequest) -> admin_pb2.ScanQueueResponse:
        """Read one queue."""
        return await self._scans.scan(request)
