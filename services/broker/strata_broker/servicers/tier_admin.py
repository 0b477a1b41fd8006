"""The tier's part of `strata.admin.v1.AdminService`; it translates and decides nothing."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata_broker.operators.tier import TierOperations


class TierAdminServicer:
    """See the module docstring."""

    def __init__(self, operations: TierOperations) -> None:
        self._operations = operations

    async def get_tier(self, _: admin_pb2.GetTierRequest) -> admin_pb2.GetTierResponse:
        """Show the progress of uploads."""
        return admin_pb2.GetTierResponse(raft_groups=await self._operations.status())

    async def pause_tier(self, request: admin_pb2.PauseTierRequest) -> admin_pb2.PauseTierResponse:
        """Pause or resume uploads."""
        raft_groups = await self._operations.pause(request.raft_groups, paused=request.paused)
        return admin_pb2.PauseTierResponse(raft_groups=raft_groups)

    async def flush_tier(self, request: admin_pb2.FlushTierRequest) -> admin_pb2.FlushTierResponse:
        """Upload what waits."""
        return await self._operations.flush(request)

    async def replace_tier_ranges(
        self, request: admin_pb2.ReplaceTierRangesRequest
    ) -> admin_pb2.ReplaceTierRangesResponse:
        """Commit an object in place of others."""
        return await self._operations.replace_ranges(request)

    async def plan_tier_sweep(
        self, request: admin_pb2.PlanTierSweepRequest
    ) -> admin_pb2.PlanTierSweepResponse:
        """Say what may be deleted."""
        return await self._operations.plan_sweep(request)

    async def forget_tier_objects(
        self, request: admin_pb2.ForgetTierObjectsRequest
    ) -> admin_pb2.ForgetTierObjectsResponse:
        """Forget objects that were deleted."""
        return await self._operations.forget(request)
