"""The gRPC service that KEDA's operator calls; errors become statuses with one line."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import NoReturn, TypeAlias

import grpc

from strata.keda.v1 import externalscaler_pb2, externalscaler_pb2_grpc
from strata_placement.autoscaling.follower import TriggerFollower
from strata_placement.autoscaling.reader import ClusterUnreadableError
from strata_placement.autoscaling.scaler import Answer, Scaler, TooManyTriggersError
from strata_placement.autoscaling.trigger import TriggerError
from strata_runtime.errors import StrataError, one_line
from strata_runtime.metrics import Metrics

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"

_STATUS: dict[type[StrataError], grpc.StatusCode] = {
    TriggerError: grpc.StatusCode.INVALID_ARGUMENT,
    TooManyTriggersError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ClusterUnreadableError: grpc.StatusCode.UNAVAILABLE,
}


class ScalerServicer(externalscaler_pb2_grpc.ExternalScalerServicer):
    """Serves `externalscaler.ExternalScaler`.

    Args:
        scaler: knows the values.
        metrics: shows how many streams are open.
        max_streams: push triggers that are connected at once.
    """

    def __init__(self, scaler: Scaler, metrics: Metrics, max_streams: int) -> None:
        self._scaler = scaler
        self._max_streams = max_streams
        self._streams = 0
        self._gauge = metrics.gauge("strata_autoscaler_streams", lambda: self._streams)

    def close(self) -> None:
        """Show no metric any more."""
        self._gauge.close()

    async def IsActive(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> externalscaler_pb2.IsActiveResponse:
        """Return whether the target needs replicas at all."""
        answer = await self._answer(request, context)
        return externalscaler_pb2.IsActiveResponse(result=answer.is_active)

    async def StreamIsActive(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> AsyncIterator[externalscaler_pb2.IsActiveResponse]:
        """Yield whether the target needs replicas, at once and after each change."""
        if self._streams >= self._max_streams:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._max_streams} push triggers are connected (autoscaler.max_streams)",
            )
        self._streams += 1
        try:
            told: bool | None = None
            follower = await self._follower(request, context)
            while True:
                # An open stream is a trigger that somebody asks for.
                follower = await self._follower(request, context)
                if follower.is_usable and follower.is_active is not told:
                    told = follower.is_active
                    yield externalscaler_pb2.IsActiveResponse(result=told)
                await follower.changed()
        finally:
            self._streams -= 1

    async def GetMetricSpec(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> externalscaler_pb2.GetMetricSpecResponse:
        """Return name and target of the trigger's metric."""
        trigger = (await self._follower(request, context)).trigger
        spec = externalscaler_pb2.MetricSpec(
            metricName=trigger.metric_name,
            targetSize=max(1, round(trigger.target)),
            targetSizeFloat=trigger.target,
        )
        return externalscaler_pb2.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(
        self, request: externalscaler_pb2.GetMetricsRequest, context: Context
    ) -> externalscaler_pb2.GetMetricsResponse:
        """Return the value of the trigger's metric."""
        answer = await self._answer(request.scaledObjectRef, context)
        value = externalscaler_pb2.MetricValue(
            metricName=request.metricName,
            metricValue=math.ceil(answer.value),
            metricValueFloat=answer.value,
        )
        return externalscaler_pb2.GetMetricsResponse(metricValues=[value])

    async def _follower(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> TriggerFollower:
        try:
            return self._scaler.follow(request.namespace, request.name, request.scalerMetadata)
        except (TriggerError, TooManyTriggersError) as error:
            await _abort(context, error)

    async def _answer(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> Answer:
        follower = await self._follower(request, context)
        try:
            return await self._scaler.answer(follower)
        except ClusterUnreadableError as error:
            await _abort(context, error)


async def _abort(context: Context, error: StrataError) -> NoReturn:
    await context.abort(_STATUS[type(error)], one_line(error))
    raise asyncio.CancelledError  # `abort` never returns
