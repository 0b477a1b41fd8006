"""The scans' part of `strata.admin.v1.AdminService`; it translates and decides nothing."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata_broker.operators.queue_scans import QueueScans


class ScanAdminServicer:
    """See the module docstring."""

    def __init__(self, scans: QueueScans) -> None:
        self._scans = scans

    async def list_queue_spans(
        self, request: admin_pb2.ListQueueSpansRequest
    ) -> admin_pb2.ListQueueSpansResponse:
        """List the offsets of a topic."""
        return admin_pb2.ListQueueSpansResponse(spans=await self._scans.spans(request))

    async def scan_queue(self, request: admin_pb2.ScanQueueRequest) -> admin_pb2.ScanQueueResponse:
        """Read one queue."""
        return await self._scans.scan(request)
