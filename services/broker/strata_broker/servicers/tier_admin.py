"""The tier's part of `strata.admin.v1.AdminService`; it translates and decides nothing."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata_broker.base.failures import Methods
from strata_broker.operators.tier import TierOperations
from strata_broker.servicers.admin_rpc import add


class TierAdminServicer:
    """See the module docstring."""

    def __init__(self, operations: TierOperations) -> None:
        self._operations = operations

    def register(self, edge: Methods) -> None:
        """Serve every RPC on an edge."""
        add(edge, "GetTier", admin_pb2.GetTierRequest, self.get_tier)
        add(edge, "PauseTier", admin_pb2.PauseTierRequest, self.pause_tier)
        operations = self._operations
        add(edge, "FlushTier", admin_pb2.FlushTierRequest, operations.flush)
        replace = admin_pb2.ReplaceTierRangesRequest
        add(edge, "ReplaceTierRanges", replace, operations.replace_ranges)
        add(edge, "PlanTierSweep", admin_pb2.PlanTierSweepRequest, operations.plan_sweep)
        add(edge, "ForgetTierObjects", admin_pb2.ForgetTierObjectsRequest, operations.forget)

    async def get_tier(self, _: admin_pb2.GetTierRequest) -> admin_pb2.GetTierResponse:
        """Show the progress of uploads."""
        return admin_pb2.GetTierResponse(raft_groups=await self._operations.status())

    async def pause_tier(self, request: admin_pb2.PauseTierRequest) -> admin_pb2.PauseTierResponse:
        """Pause or resume uploads."""
        raft_groups = await self._operations.pause(request.raft_groups, paused=request.paused)
        return admin_pb2.PauseTierResponse(raft_groups=raft_groups)
