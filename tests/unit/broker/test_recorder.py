"""Traffic is counted apart for namespaces that use the same names."""

from __future__ import annotations

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
