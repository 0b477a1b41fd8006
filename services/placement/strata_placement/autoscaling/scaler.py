"""All triggers that KEDA asks for: follows each, forgets those that nobody asks for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from strata_placement.autoscaling.follower import Parts, TriggerFollower
from strata_placement.autoscaling.metrics import METRICS
from strata_placement.autoscaling.reader import ClusterUnreadableError
from strata_placement.autoscaling.trigger import trigger_of
from strata_placement.series import PlacementError
from strata_runtime.metrics import Labels, Metrics
from strata_runtime.tasks import OnFatal, Tasks
from strata_runtime.timeouts import Timeout

Key = tuple[str, str, tuple[tuple[str, str], ...]]


class TooManyTriggersError(PlacementError):
    """More triggers than the limit allows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to KEDA about one trigger.

    Attributes:
        value: of the metric.
        is_active: whether the target needs replicas at all.
        is_kept: the cluster could not be read; the value is the last one that was.
    """

    value: float
    is_active: bool
    is_kept: bool


class Scaler:
    """See the module docstring; a `Service` of the runtime's lifecycle.

    Args:
        parts: reader, options and clock.
        metrics: values, their ages, readings and answers.
        on_fatal: told when a background task failed.
    """

    name = "scaler"

    def __init__(self, parts: Parts, metrics: Metrics, *, on_fatal: OnFatal) -> None:
        metrics.declare(METRICS)
        self._parts = parts
        self._followers: dict[Key, TriggerFollower] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._tasks = Tasks("autoscaler", on_fatal, max_tasks=parts.options.max_triggers + 1)
        self._readings = metrics.counter("strata_autoscaler_readings_total")
        self._answers = metrics.counter("strata_autoscaler_answers_total")
        self._gauges = (
            metrics.gauge("strata_autoscaler_triggers", lambda: len(self._followers)),
            metrics.gauge("strata_autoscaler_value", self._values),
            metrics.gauge("strata_autoscaler_value_age_ms", self._ages),
        )

    @property
    def failures(self) -> dict[str, str]:
        """Reason by scaled object, of readings that fail at present."""
        return {each.scaled_object: each.failure for each in self._each() if each.failure}

    async def start(self) -> None:
        """Begin to forget triggers that nobody asks for."""
        self._tasks.spawn("forget", self._forget())

    async def stop(self, grace_s: float) -> None:
        """Follow nothing any more."""
        await self._tasks.stop(grace_s)
        for gauge in self._gauges:
            gauge.close()

    def follow(self, namespace: str, name: str, metadata: Mapping[str, str]) -> TriggerFollower:
        """Return the follower of a trigger; a new one begins to read.

        Args:
            namespace: of the ScaledObject.
            name: of the ScaledObject.
            metadata: of the trigger.

        Raises:
            TriggerError: the metadata cannot be read.
            TooManyTriggersError: there are as many triggers as allowed.
        """
        key: Key = (namespace, name, tuple(sorted(metadata.items())))
        follower = self._followers.get(key)
        if follower is None:
            trigger = trigger_of(metadata)
            limit = self._parts.options.max_triggers
            if len(self._followers) >= limit:
                raise TooManyTriggersError(
                    f"{limit} triggers are followed (autoscaler.max_triggers); raise the limit or "
                    "delete ScaledObjects"
                )
            follower = TriggerFollower(trigger, f"{namespace}/{name}", self._parts)
            self._followers[key] = follower
            self._running[key] = self._tasks.spawn(
                f"follow {name}", follower.run(partial(self._count, trigger.metric))
            )
        follower.asked_at_s = self._parts.clock.monotonic_s()
        return follower

    async def answer(self, follower: TriggerFollower) -> Answer:
        """Return what KEDA is told of a trigger; wait for the first value.

        Raises:
            ClusterUnreadableError: there is no value, or it is too old.
        """
        if follower.value is None:
            with suppress(TimeoutError):
                async with Timeout(self._parts.options.first_value_timeout_ms / 1_000):
                    while follower.value is None and not follower.failure:
                        await follower.changed()
        metric = follower.trigger.metric
        value = follower.value
        if value is None or not follower.is_usable:
            self._answers.add(1, {"metric": metric, "result": "refused"})
            raise ClusterUnreadableError(self._why(follower))
        is_kept = bool(follower.failure)
        self._answers.add(1, {"metric": metric, "result": "kept" if is_kept else "fresh"})
        return Answer(value, follower.is_active, is_kept)

    def _why(self, follower: TriggerFollower) -> str:
        reason = follower.failure or "the first reading has not ended"
        if follower.value is None:
            return f"there is no value yet: {reason}"
        return (
            f"the cluster cannot be read: {reason}; the last value is "
            f"{follower.age_ms / 1_000:.0f} s old, and autoscaler.keep_last_ms allows "
            f"{self._parts.options.keep_last_ms / 1_000:.0f} s"
        )

    def _count(self, metric: str, succeeded: bool) -> None:
        self._readings.add(1, {"metric": metric, "result": "read" if succeeded else "failed"})

    async def _forget(self) -> None:
        options = self._parts.options
        while True:
            await asyncio.sleep(options.read_interval_ms / 1_000)
            oldest_s = self._parts.clock.monotonic_s() - options.forget_after_ms / 1_000
            for key, follower in list(self._followers.items()):
                if follower.asked_at_s < oldest_s:
                    del self._followers[key]
                    self._running.pop(key).cancel()

    def _each(self) -> Iterator[TriggerFollower]:
        return iter(tuple(self._followers.values()))

    def _values(self) -> Iterator[tuple[float, Labels]]:
        for each in self._each():
            if each.value is not None:
                yield each.value, _labels(each)

    def _ages(self) -> Iterator[tuple[float, Labels]]:
        for each in self._each():
            if each.value is not None:
                yield each.age_ms, _labels(each)


def _labels(follower: TriggerFollower) -> Labels:
    return {"scaled_object": follower.scaled_object, "metric": follower.trigger.metric}
