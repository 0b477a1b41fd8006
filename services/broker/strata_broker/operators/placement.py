"""Operators' requests about placement: keep plans, carry them out, show loads.

The nameserver does the work; a broker only forwards.
"""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_metadata.client import MetadataClient


class PlacementOperations:
    """See the module docstring. Failures are `MetaRefused` or `AngeliaError`."""

    def __init__(self, metadata: MetadataClient) -> None:
        self._metadata = metadata

    async def propose(self, plan: meta_pb2.PlacementPlan) -> meta_pb2.PlacementPlan:
        """Keep a plan and return it with its id; nothing moves."""
        request = meta_pb2.ProposePlanRequest(plan=plan)
        call = self._metadata.call("ProposePlan", request, meta_pb2.ProposePlanResponse)
        return (await call).plan

    async def apply(self, plan_id: int, *, stop: bool) -> meta_pb2.PlacementPlan:
        """Run a plan, or end it."""
        request = meta_pb2.ApplyPlanRequest(plan_id=plan_id, stop=stop)
        call = self._metadata.call("ApplyPlan", request, meta_pb2.ApplyPlanResponse)
        return (await call).plan

    async def show(self) -> admin_pb2.GetPlacementResponse:
        """Return plans, loads of nodes, and the rule that places new queues."""
        request = meta_pb2.GetPlacementRequest()
        answer = await self._metadata.call("GetPlacement", request, meta_pb2.GetPlacementResponse)
        response = admin_pb2.GetPlacementResponse(
            plans=answer.plans, loads=answer.loads, rule=answer.rule
        )
        if answer.HasField("model"):
            response.model.CopyFrom(answer.model)
        return response

    async def set_model(self, model: meta_pb2.PlacementModel) -> meta_pb2.PlacementModel:
        """Take a model of loads into use."""
        request = meta_pb2.SetPlacementModelRequest(model=model)
        call = self._metadata.call("SetPlacementModel", request, meta_pb2.SetPlacementModelResponse)
        return (await call).model
