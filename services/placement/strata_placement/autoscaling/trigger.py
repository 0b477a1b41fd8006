"""A trigger: what a ScaledObject asks for, read from its metadata, and its bounds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from strata_placement.series import PlacementError

Metric = Literal["lag", "messages_per_second", "bytes_per_second", "forecast"]
Rate = Literal["messages_per_second", "bytes_per_second"]
Choice = TypeVar("Choice", bound=str)

_METRICS: tuple[Metric, ...] = get_args(Metric)
_RATES: tuple[Rate, ...] = get_args(Rate)

_SCOPE = ("namespace", "group", "topic", "of", "horizon")
_BOUNDS = ("target", "activation", "minReplicas", "maxReplicas")

KEYS = frozenset(("metric", *_SCOPE, *_BOUNDS))
"""Keys of ours in a trigger's metadata."""

_TLS_OF_KEDA = ("enableTLS", "unsafeSsl", "caCert", "tlsCertFile", "tlsClientCert", "tlsClientKey")
_OF_KEDA = frozenset(("scalerAddress", *_TLS_OF_KEDA))
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"([1-9]\d{0,5})([smh])")
_DEFAULT_HORIZON = "15m"
_MAX_HORIZON_MS = 86_400_000
_MAX_NAMED_TOPICS = 100
_MAX_TEXT = 255


class TriggerError(PlacementError):
    """A trigger that cannot be read; the message says which key, and what it may be."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """One trigger of a ScaledObject: the metric that it asks for, and its bounds.

    Attributes:
        metric: what is measured.
        target: of the metric, per replica.
        namespace: of topics and consumer group; empty: the default namespace.
        group: consumer group of a lag.
        topics: names; empty: all topics of the group, or of the cluster.
        of: the rate of a forecast; else that of the metric.
        horizon_ms: how far a forecast looks ahead.
        activation: value above which the target needs replicas at all.
        min_replicas: the value never asks for fewer, while it is active.
        max_replicas: the value never asks for more; 0: no such bound.
    """

    metric: Metric
    target: float
    namespace: str = ""
    group: str = ""
    topics: tuple[str, ...] = ()
    of: Rate = "messages_per_second"
    horizon_ms: int = 0
    activation: float = 0.0
    min_replicas: int = 0
    max_replicas: int = 0

    @property
    def metric_name(self) -> str:
        """Name of the metric in the HorizontalPodAutoscaler."""
        return f"strata-{self.metric.replace('_', '-')}"

    @property
    def rate(self) -> Rate | None:
        """The rate that is measured; None: a lag is."""
        if self.metric == "lag":
            return None
        return self.of if self.metric == "forecast" else self.metric

    def is_active(self, value: float) -> bool:
        """Return whether the target needs replicas at all."""
        return value > self.activation

    def bounded(self, value: float) -> float:
        """Return a value that asks for a number of replicas within the bounds."""
        least = self.min_replicas * self.target if self.is_active(value) else 0.0
        most = self.max_replicas * self.target if self.max_replicas else math.inf
        return min(max(value, least), most)


def trigger_of(metadata: Mapping[str, str]) -> Trigger:
    """Return the trigger that a ScaledObject's metadata describe.

    Raises:
        TriggerError: a key is missing, unknown, or has a value that cannot be.
    """
    for key in metadata:
        if key not in KEYS and key not in _OF_KEDA and not key.endswith("FromEnv"):
            raise TriggerError(f"the key {key!r} is unknown; keys are {', '.join(sorted(KEYS))}")
    metric = _choice("metric", metadata.get("metric", ""), _METRICS)
    trigger = Trigger(
        metric=metric,
        target=_number(metadata, "target", None, above=0.0),
        namespace=_text(metadata, "namespace"),
        group=_text(metadata, "group"),
        topics=_topics(metadata.get("topic", "")),
        of=_of(metric, metadata),
        horizon_ms=_horizon(metric, metadata),
        activation=_number(metadata, "activation", 0.0),
        min_replicas=_whole(metadata, "minReplicas"),
        max_replicas=_whole(metadata, "maxReplicas"),
    )
    _check(trigger)
    return trigger


def _check(trigger: Trigger) -> None:
    if (trigger.metric == "lag") != bool(trigger.group):
        raise TriggerError(
            "group: a lag needs a consumer group, and nothing else has one; it is "
            f"{trigger.group!r} of the metric {trigger.metric}"
        )
    if trigger.rate == "bytes_per_second" and trigger.topics:
        raise TriggerError(
            "topic: bytes_per_second is measured for the whole cluster; use messages_per_second "
            "for topics"
        )
    if 0 < trigger.max_replicas < trigger.min_replicas:
        raise TriggerError(
            f"minReplicas: {trigger.min_replicas} is above maxReplicas, {trigger.max_replicas}"
        )
    if 0 < trigger.max_replicas * trigger.target <= trigger.activation:
        # The value that KEDA is told would never activate anything.
        raise TriggerError(
            f"activation: {trigger.activation:g} is not below what maxReplicas bear, "
            f"{trigger.max_replicas * trigger.target:g}"
        )


def _of(metric: Metric, metadata: Mapping[str, str]) -> Rate:
    text = metadata.get("of", "")
    if metric != "forecast":
        if text:
            raise TriggerError(f"of: only a forecast has it, the metric is {metric}")
        return "messages_per_second"
    return _choice("of", text or "messages_per_second", _RATES)


def _horizon(metric: Metric, metadata: Mapping[str, str]) -> int:
    text = metadata.get("horizon", "")
    if metric != "forecast":
        if text:
            raise TriggerError(f"horizon: only a forecast has it, the metric is {metric}")
        return 0
    match = _DURATION.fullmatch(text or _DEFAULT_HORIZON)
    horizon_ms = int(match[1]) * _UNITS_MS[match[2]] if match else 0
    if not 0 < horizon_ms <= _MAX_HORIZON_MS:
        raise TriggerError(f"horizon: {text!r} is not a time like 90s, 15m or 2h, at most 24h")
    return horizon_ms


def _choice(key: str, text: str, allowed: Sequence[Choice]) -> Choice:
    for each in allowed:
        if each == text:
            return each
    raise TriggerError(f"{key}: {text!r} is not one of {', '.join(allowed)}")


def _text(metadata: Mapping[str, str], key: str) -> str:
    text = metadata.get(key, "").strip()
    if len(text) > _MAX_TEXT:
        raise TriggerError(f"{key}: {len(text)} characters; a name has at most {_MAX_TEXT}")
    return text


def _topics(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if len(names) > _MAX_NAMED_TOPICS:
        raise TriggerError(f"topic: {len(names)} topics; a trigger names {_MAX_NAMED_TOPICS}")
    return names


def _number(
    metadata: Mapping[str, str], key: str, default: float | None, above: float | None = None
) -> float:
    text = metadata.get(key)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (above is not None and value <= above):
        kind = "a number above 0" if above is not None else "a number, 0 or more"
        raise TriggerError(f"{key}: {text or ''!r} is not {kind}")
    return value


def _whole(metadata: Mapping[str, str], key: str) -> int:
    text = metadata.get(key, "0")
    if not text.isascii() or not text.isdigit() or len(text) > 6:
        raise TriggerError(f"{key}: {text!r} is not a whole number")
    return int(text)
