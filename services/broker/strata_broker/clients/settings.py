"""The settings for a client, shaped for its language. Pure: values in, values out.

The answer is the client's own settings with the same publishing or subscription branch, because
clients ignore or refuse anything else. Its values come from the consumer group and the
configuration, never from an earlier stream of this client, so every broker gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from google.protobuf.duration_pb2 import Duration

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.clients.route import endpoints_message
from strata_mq.requests import (
    DEFAULT_CONSUMER_POLICY,
    DEFAULT_PRODUCER_POLICY,
    Code,
    CustomizedBackoff,
    ExponentialBackoff,
    RequestError,
    RetryPolicy,
    check_consumer_group,
    check_namespace,
    check_topic,
)

# Length of the list that replaces an exponential policy for clients that know only lists.
_MAX_CUSTOMIZED_STEPS = 64
_SECOND_MS = 1_000


CheckFilter = Callable[[definition_pb2.FilterExpression], object]
"""Raises RequestError for an expression that no receive could use."""


def check(settings: definition_pb2.Settings) -> None:
    """Check a client's settings, except its filters.

    Raises:
        RequestError: no branch, or an illegal topic or consumer group.
    """
    branch = settings.WhichOneof("pub_sub")
    if branch == "publishing":
        _check_topics(settings.publishing.topics)
    elif branch == "subscription":
        check_consumer_group(settings.subscription.group.name)
        check_namespace(settings.subscription.group.resource_namespace)
        _check_topics(entry.topic for entry in settings.subscription.subscriptions)
    else:
        raise RequestError(Code.BAD_REQUEST, "settings have neither publishing nor subscription")


def wrong_filter(
    settings: definition_pb2.Settings, check_filter: CheckFilter
) -> RequestError | None:
    """Return the error of the first illegal filter of a consumer's subscriptions."""
    for entry in settings.subscription.subscriptions:
        try:
            # A filter without a type is refused only when it is used.
            if entry.expression.type:
                check_filter(entry.expression)
        except RequestError as wrong:
            # A filter that cannot be read now is checked when it is used.
            return None if wrong.code is Code.TOO_MANY_REQUESTS else wrong
    return None


def namespace_of(settings: definition_pb2.Settings) -> str:
    """Return the namespace that a client's resources say, "" if they say none."""
    if settings.WhichOneof("pub_sub") == "subscription":
        return settings.subscription.group.resource_namespace
    return next((topic.resource_namespace for topic in settings.publishing.topics), "")


def _check_topics(topics: Iterable[definition_pb2.Resource]) -> None:
    for topic in topics:
        check_topic(topic.name)
        check_namespace(topic.resource_namespace)


def answer(
    settings: definition_pb2.Settings,
    group: meta_pb2.ConsumerGroup | None,
    language: int,
    config: BrokerConfig,
) -> definition_pb2.Settings:
    """Return the settings that the client should use.

    Args:
        settings: the client's settings, checked.
        group: its consumer group; None for a producer or a group that does not exist yet.
        language: `definition_pb2.Language`, decides the shape of the retry policy.
        config: limits.
    """
    told = definition_pb2.Settings()
    told.CopyFrom(settings)
    told.metric.Clear()
    told.metric.SetInParent()
    if config.telemetry.client_metrics_endpoint:
        told.metric.on = True
        told.metric.endpoints.CopyFrom(endpoints_message(config.telemetry.client_metrics_endpoint))
    if settings.WhichOneof("pub_sub") == "publishing":
        policy = policy_message(DEFAULT_PRODUCER_POLICY)
        if language == definition_pb2.NODE_JS:
            # It would read 10 ms as 0 s, and ask again at once instead of later.
            policy = _for_node(DEFAULT_PRODUCER_POLICY)
        told.backoff_policy.CopyFrom(policy)
        told.publishing.max_body_size = config.send.max_body_bytes
        told.publishing.validate_message_type = True
        return told
    policy = shape_for(language, group_policy(group))
    told.backoff_policy.CopyFrom(policy)
    subscription = told.subscription
    subscription.fifo = group is not None and group.fifo
    subscription.receive_batch_size = config.receive.max_messages
    # Whole seconds: Python clients read nothing else.
    subscription.long_polling_timeout.FromSeconds(config.receive.max_polling_ms // _SECOND_MS)
    subscription.lite_subscription_quota = config.telemetry.lite_subscription_quota
    subscription.max_lite_topic_size = config.telemetry.max_lite_topic_bytes
    return told


def group_policy(group: meta_pb2.ConsumerGroup | None) -> RetryPolicy:
    """Return the retry policy of a consumer group; the default one where it has none."""
    if group is None:
        return DEFAULT_CONSUMER_POLICY
    attempts = group.max_attempts or DEFAULT_CONSUMER_POLICY.max_attempts
    match group.WhichOneof("backoff"):
        case "exponential":
            row = group.exponential
            return RetryPolicy(
                attempts,
                ExponentialBackoff(
                    row.initial_ms, max(row.max_ms, row.initial_ms), max(row.multiplier, 1.0)
                ),
            )
        case "customized" if group.customized.next_ms:
            return RetryPolicy(attempts, CustomizedBackoff(tuple(group.customized.next_ms)))
        case _:
            return RetryPolicy(attempts, DEFAULT_CONSUMER_POLICY.backoff)


def shape_for(language: int, policy: RetryPolicy) -> definition_pb2.RetryPolicy:
    """Return a consumer's retry policy in the shape that clients of this language understand."""
    if language == definition_pb2.NODE_JS:
        return _for_node(policy)
    if language == definition_pb2.PYTHON:
        return _for_python(policy)
    return policy_message(policy)


def _for_node(policy: RetryPolicy) -> definition_pb2.RetryPolicy:
    """Node knows exponential policies only, and takes the seconds of a duration for milliseconds.

    With any other policy it makes one attempt and forwards to the dead-letter topic.
    """
    backoff = policy.backoff
    if isinstance(backoff, CustomizedBackoff):
        backoff = ExponentialBackoff(backoff.next_ms[0], max(backoff.next_ms), 2.0)
    message = definition_pb2.RetryPolicy(max_attempts=policy.max_attempts)
    message.exponential_backoff.initial.seconds = backoff.initial_ms
    message.exponential_backoff.max.seconds = backoff.max_ms
    message.exponential_backoff.multiplier = backoff.multiplier
    return message


def _for_python(policy: RetryPolicy) -> definition_pb2.RetryPolicy:
    """Python knows customized policies only and cuts fractions of a second off."""
    steps = min(max(policy.max_attempts - 1, 1), _MAX_CUSTOMIZED_STEPS)
    if isinstance(policy.backoff, CustomizedBackoff):
        delays_ms = list(policy.backoff.next_ms)
    else:
        delays_ms = [policy.delay_ms(attempt) for attempt in range(1, steps + 1)]
    message = definition_pb2.RetryPolicy(max_attempts=policy.max_attempts)
    for delay_ms in delays_ms:
        message.customized_backoff.next.add(seconds=-(-delay_ms // _SECOND_MS))
    return message


def policy_message(policy: RetryPolicy) -> definition_pb2.RetryPolicy:
    """Return a retry policy as it is."""
    message = definition_pb2.RetryPolicy(max_attempts=policy.max_attempts)
    if isinstance(policy.backoff, ExponentialBackoff):
        message.exponential_backoff.initial.CopyFrom(_duration(policy.backoff.initial_ms))
        message.exponential_backoff.max.CopyFrom(_duration(policy.backoff.max_ms))
        message.exponential_backoff.multiplier = policy.backoff.multiplier
    else:
        message.customized_backoff.next.extend(map(_duration, policy.backoff.next_ms))
    return message


def _duration(milliseconds: int) -> Duration:
    duration = Duration()
    duration.FromMilliseconds(milliseconds)
    return duration
