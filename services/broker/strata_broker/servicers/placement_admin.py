"""Placement's part of `strata.admin.v1.AdminService`; it translates and decides nothing."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata_broker.operators.placement import PlacementOperations


class PlacementAdminServicer:
    """See the module docstring."""

    def __init__(self, operations: PlacementOperations) -> None:
        self._operations = operations

    async def propose_plan(
        self, request: admin_pb2.ProposePlanRequest
    ) -> admin_pb2.ProposePlanResponse:
        """Keep a plan."""
        return admin_pb2.ProposePlanResponse(plan=await self._operations.propose(request.plan))

    async def apply_plan(self, request: admin_pb2.ApplyPlanRequest) -> admin_pb2.ApplyPlanResponse:
        """Run a plan, or end it."""
        plan = await self._operations.apply(request.plan_id, stop=request.stop)
        return admin_pb2.ApplyPlanResponse(plan=plan)

    async def get_placement(
        self, request: admin_pb2.GetPlacementRequest
    ) -> admin_pb2.GetPlacementResponse:
        """Show plans and loads."""
        return await self._operations.show()

    async def set_placement_model(
        self, request: admin_pb2.SetPlacementModelRequest
    ) -> admin_pb2.SetPlacementModelResponse:
        """Take a model of loads into use."""
        model = await self._operations.set_model(request.model)
        return admin_pb2.SetPlacementModelResponse(model=model)
