"""Traffic is counted apart for namespaces that use the same names."""

from __future__ import annotations

from unittest.mock import patch

from strata.meta.v1 import meta_pb2
from strata_broker.base.metrics import METRICS
from strata_broker.base.receive_config import RefusalsSection
from strata_broker.metadata.recorder import Recorder
from strata_broker.metadata.topic_rows import TopicRow
from strata_mq.requests.types import MessageType
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics


def test_namespaces_are_counted_apart() -> None:
    """The same names of topic and consumer group in two namespaces are two series."""
    metrics = Metrics(METRICS)
    clock = SystemClock()
    recorder = Recorder(clock, metrics, RefusalsSection())
    for number, namespace in enumerate(("", "shop"), 1):
        row = meta_pb2.Topic(topic_id=number, namespace=namespace, name="t2")
        topic = TopicRow(row)
        recorder.sent(topic, MessageType.NORMAL, number, 10 * number)
        recorder.delivered(topic, "zz", (number, 0), (number, 0))
    text = metrics.render().decode()
    for number, namespace in enumerate(("", "shop"), 1):
        sent = f'{{message_type="normal",namespace="{namespace}",topic="t2"}}'
        assert f"rocketmq_messages_in_total{sent} {number}.0" in text
        given = f'{{consumer_group="zz",is_retry="false",namespace="{namespace}",topic="t2"}}'
        assert f"rocketmq_messages_out_total{given} {number}.0" in text


def test_topics_beyond_the_limit_of_label_sets_are_counted_together() -> None:
    """However many there are; a topic that has a series keeps it when it is made anew."""
    metrics = Metrics(METRICS, max_label_sets=2)
    recorder = Recorder(SystemClock(), metrics, RefusalsSection())
    names = ("a", "b", "c", "d", "c", "a")
    with patch.object(
        Recorder, "_stored_of", autospec=True, side_effect=Recorder._stored_of
    ) as new:
        for number, name in enumerate(names, 1):
            topic = TopicRow(meta_pb2.Topic(topic_id=number, name=name))
            recorder.sent(topic, MessageType.NORMAL, number, 10 * number)
    counter = metrics.counter("rocketmq_messages_in_total")
    labels = {"namespace": "", "message_type": "normal"}
    assert counter.value(labels | {"topic": "a"}) == 1 + 6
    assert counter.value(labels | {"topic": "b"}) == 2
    assert counter.value({"otel_metric_overflow": "true"}) == 3 + 4 + 5
    assert (recorder.messages_in, recorder.total_bytes_in) == (21, 210)
    # A message to one of very many topics makes no labels.
    assert [call.args[1].name for call in new.call_args_list] == ["a", "b", "c"]


def test_disabled_metrics_keep_nothing_of_topics() -> None:
    """A broker without metrics counts for its own figures only."""
    recorder = Recorder(SystemClock(), Metrics.disabled(), RefusalsSection())
    for number in range(1, 4):
        topic = TopicRow(meta_pb2.Topic(topic_id=number, name=f"t{number}"))
        recorder.sent(topic, MessageType.NORMAL, 1, 10)
    assert recorder.messages_in == 3
    assert not recorder._stored
