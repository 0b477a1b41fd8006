"""Brokers are not asked for what filters leave out: counted by a broker that counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.spark.submitting import NEEDS_SPARK, complaint, run

QUEUES, MESSAGES = 4, 200
FIRST_MS = 1_700_000_000_000

pytestmark = list(NEEDS_SPARK)


class CountingBroker(admin_pb2_grpc.AdminServiceServicer):
    """Serves a topic of small messages, one stored per second in each queue; counts what it gives.

    Attributes:
        given: messages by the query that they were given to, in order of the queries.
    """

    def __init__(self) -> None:
        self.given: list[int] = []

    def ListQueueSpans(
        self, request: admin_pb2.ListQueueSpansRequest, _: grpc.ServicerContext
    ) -> admin_pb2.ListQueueSpansResponse:
        """Each query begins with it."""
        self.given.append(0)
        begin = _offset_at(request.begin_ms) if request.HasField("begin_ms") else 0
        end = _offset_at(request.end_ms) if request.HasField("end_ms") else MESSAGES
        return admin_pb2.ListQueueSpansResponse(
            spans=[
                admin_pb2.QueueSpan(queue=queue, first_offset=begin, end_offset=max(begin, end))
                for queue in range(QUEUES)
            ]
        )

    def ScanQueue(
        self, request: admin_pb2.ScanQueueRequest, _: grpc.ServicerContext
    ) -> admin_pb2.ScanQueueResponse:
        """Give all that a task asks for."""
        response = admin_pb2.ScanQueueResponse(
            next_offset=MESSAGES, resume_offset=request.end_offset
        )
        for offset in range(request.offset, request.end_offset):
            tag = f"tag-{offset % 10}"
            if not request.tag or tag in [part.strip() for part in request.tag.split("||")]:
                message = definition_pb2.Message(
                    system_properties=definition_pb2.SystemProperties(tag=tag)
                )
                response.messages.add(
                    queue=request.queue,
                    offset=offset,
                    store_time_ms=FIRST_MS + 1_000 * offset,
                    message=message.SerializeToString(),
                )
        self.given[-1] += len(response.messages)
        return response


def _offset_at(time_ms: int) -> int:
    """Return the first offset that was stored at a time or later."""
    return min(max(0, -(-(time_ms - FIRST_MS) // 1_000)), MESSAGES)


@pytest.fixture
def broker() -> Iterator[tuple[str, CountingBroker]]:
    """A broker and its endpoint."""
    broker = CountingBroker()  # type: ignore[abstract]
    server = grpc.server(ThreadPoolExecutor(4))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(broker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", broker
    server.stop(None)


def test_filters_are_pushed_down(broker: tuple[str, CountingBroker]) -> None:
    """Queue, tag and time: the rows are right, and brokers gave little more than these.

    A session that pushes nothing down, as is Spark's default, reads everything and gives the same.
    """
    endpoint, counting = broker
    second = "timestamp_millis(1700000000000 + 1000 * {})"
    cases = {
        "queue = 2": MESSAGES,
        "tag = 'tag-3'": QUEUES * MESSAGES // 10,
        "tag in ('tag-3', 'tag-7') and queue in (0, 1)": 2 * MESSAGES // 5,
        f"store_time >= {second.format(50)} and store_time < {second.format(60)}": QUEUES * 10,
        "true": QUEUES * MESSAGES,
    }
    job = Path(__file__).with_name("jobs") / "push_down.py"
    out, err = run(job, endpoint, "any", json.dumps(list(cases)))
    lines = [line for line in out.splitlines() if line.startswith("COUNTS ")]
    assert lines, complaint(err)
    assert json.loads(lines[0].removeprefix("COUNTS ")) == [*cases.values(), MESSAGES]
    *given, without = counting.given[-len(cases) - 1 :]
    assert without == QUEUES * MESSAGES
    # The end of a time is given a millisecond more, as the filter may include it.
    for wanted, number in zip(cases.values(), given, strict=True):
        assert wanted <= number <= wanted + QUEUES
