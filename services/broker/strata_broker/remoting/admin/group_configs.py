"""Configurations of consumer groups: as tools want them, and as tools are shown them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strata.meta.v1 import meta_pb2
from strata_broker.remoting.answers import RemotingRefusal
from strata_remoting import ResponseCode

_DEFAULT_RETRIES = 16
_MOST_RETRIES = 1 << 20
_MOST_DELAYS = 64
_MOST_MS = 1 << 53


def wanted_group(data: Mapping[str, Any]) -> meta_pb2.ConsumerGroup:
    """Read a consumer group from the JSON of a SubscriptionGroupConfig.

    `retryMaxTimes` counts the attempts after the first one.

    Raises:
        RemotingRefusal: a value has no meaning here; the text says why.
    """
    name = data.get("groupName")
    if not isinstance(name, str) or not name:
        raise _refused("The specified group is blank.")
    if data.get("consumeEnable") is False:
        raise _refused(
            f"consumer group {name}: a group cannot be switched off (consumeEnable); take the "
            "right to receive away from its users instead (strata policy)"
        )
    retries = data.get("retryMaxTimes", _DEFAULT_RETRIES)
    group = meta_pb2.ConsumerGroup(
        name=name,
        fifo=data.get("consumeMessageOrderly") is True,
        max_attempts=_number(name, "retryMaxTimes", retries, _MOST_RETRIES) + 1,
    )
    policy = data.get("groupRetryPolicy")
    if isinstance(policy, dict):
        _put_backoff(group, policy)
    return group


def shown_group(group: meta_pb2.ConsumerGroup) -> dict[str, object]:
    """Return a consumer group as a SubscriptionGroupConfig."""
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": group.fifo,
        "consumeTimeoutMinute": 15,
        "groupName": group.name,
        "groupRetryPolicy": _shown_backoff(group),
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": max(group.max_attempts - 1, 0),
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def _put_backoff(group: meta_pb2.ConsumerGroup, policy: Mapping[str, Any]) -> None:
    exponential, customized = (
        policy.get("exponentialRetryPolicy"),
        policy.get("customizedRetryPolicy"),
    )
    kind = policy.get("type", "CUSTOMIZED")
    if kind == "EXPONENTIAL" and isinstance(exponential, dict):
        group.exponential.initial_ms = _number(group.name, "initial", exponential.get("initial"))
        group.exponential.max_ms = _number(group.name, "max", exponential.get("max"))
        group.exponential.multiplier = _number(
            group.name, "multiplier", exponential.get("multiplier")
        )
    elif kind == "CUSTOMIZED" and isinstance(customized, dict):
        delays = customized.get("next")
        if not isinstance(delays, list) or not 0 < len(delays) <= _MOST_DELAYS:
            raise _refused(
                f"consumer group {group.name}: a retry policy has 1 to {_MOST_DELAYS} delays"
            )
        group.customized.next_ms.extend(_number(group.name, "next", delay) for delay in delays)


def _shown_backoff(group: meta_pb2.ConsumerGroup) -> dict[str, object]:
    match group.WhichOneof("backoff"):
        case "exponential":
            backoff = group.exponential
            shown = {
                "initial": backoff.initial_ms,
                "max": backoff.max_ms,
                "multiplier": int(backoff.multiplier),
            }
            return {"type": "EXPONENTIAL", "exponentialRetryPolicy": shown}
        case "customized":
            delays = list(group.customized.next_ms)
            return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": delays}}
        case _:
            return {"type": "CUSTOMIZED"}


def _number(group: str, name: str, value: object, most: int = _MOST_MS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _refused(f"consumer group {group}: {name} is {str(value)[:40]}; 0 to {most} may be")
    return value


def _refused(text: str) -> RemotingRefusal:
    return RemotingRefusal(ResponseCode.SYSTEM_ERROR, text)
