"""`strata.storage.v1.TierService`: what operators and jobs ask of raft groups led here."""

from __future__ import annotations

from strata.storage.v1 import tier_pb2
from strata_angelia.ports import CallContext
from strata_storage.group.engines import Engines
from strata_storage.tiering.node import NodeTiering

SERVICE = tier_pb2.DESCRIPTOR.services_by_name["TierService"]


class TierServicer:
    """Protobuf to tiering and back.

    Args:
        engines: the raft groups of the node.
        tiering: of the node.
    """

    def __init__(self, engines: Engines, tiering: NodeTiering) -> None:
        self._engines = engines
        self._tiering = tiering

    async def get_tier_status(
        self, request: tier_pb2.GetTierStatusRequest, context: CallContext
    ) -> tier_pb2.GetTierStatusResponse:
        """Tell how far a raft group has got."""
        response = tier_pb2.GetTierStatusResponse()
        engine = self._engines.engine(request.raft_group)
        await engine.barrier()
        response.status.CopyFrom(self._tiering.status(engine))
        return response

    async def set_tier_paused(
        self, request: tier_pb2.SetTierPausedRequest, context: CallContext
    ) -> tier_pb2.SetTierPausedResponse:
        """Stop the uploads of a raft group, or let them go on."""
        response = tier_pb2.SetTierPausedResponse()
        engine = self._engines.engine(request.raft_group)
        await self._tiering.pause(engine, paused=request.paused)
        return response

    async def flush_tier(
        self, request: tier_pb2.FlushTierRequest, context: CallContext
    ) -> tier_pb2.FlushTierResponse:
        """Upload what waits, and publish what a restore needs."""
        response = tier_pb2.FlushTierResponse()
        engine = self._engines.engine(request.raft_group)
        response.raft_index = await self._tiering.flush(engine)
        return response

    async def replace_tier_ranges(
        self, request: tier_pb2.ReplaceTierRangesRequest, context: CallContext
    ) -> tier_pb2.ReplaceTierRangesResponse:
        """Commit an object that a job outside wrote in place of others."""
        response = tier_pb2.ReplaceTierRangesResponse()
        engine = self._engines.engine(request.raft_group)
        replaced = await self._tiering.replace_ranges(engine, request.change)
        response.replaced_ranges = replaced
        return response

    async def plan_tier_sweep(
        self, request: tier_pb2.PlanTierSweepRequest, context: CallContext
    ) -> tier_pb2.PlanTierSweepResponse:
        """Say what a job outside may delete."""
        response = tier_pb2.PlanTierSweepResponse()
        engine = self._engines.engine(request.raft_group)
        plan = await self._tiering.plan_sweep(engine, request.old_keys)
        for held in plan.doomed:
            ref = held.ref
            response.doomed.add(object_id=ref.object_id, space=ref.space, key=ref.key)
        response.orphan_keys.extend(plan.orphan_keys)
        response.valid_ms = plan.valid_ms
        return response

    async def forget_tier_objects(
        self, request: tier_pb2.ForgetTierObjectsRequest, context: CallContext
    ) -> tier_pb2.ForgetTierObjectsResponse:
        """Forget dropped objects that a job outside deleted."""
        response = tier_pb2.ForgetTierObjectsResponse()
        engine = self._engines.engine(request.raft_group)
        response.forgotten = await self._tiering.forget(engine, request.object_ids)
        return response
