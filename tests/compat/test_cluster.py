"""Official clients on a cluster whose brokers and storage nodes are killed in turn."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from strata_testing import until_blocking
from tests.compat.collect import take_until
from tests.compat.conftest import require
from tests.compat.drivers import (
    LANGUAGES,
    TLS_BY_DEFAULT,
    ClientError,
    Driver,
    Options,
    Producer,
    Received,
)
from tests.e2e.cluster import Cluster

STEADY_S = 3.0
BETWEEN_SENDS_S = 0.2
LEAST_SENT = 15
# The Python client asks a queue by chance each time, and waits 5 s at an empty one: it misses one
# of four queues 36 times in a row once in 30,000 runs, but 8 times in one of ten.
READ_LIMIT_S = 180.0


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster this test may harm, behind one virtual address."""
    made = Cluster(tmp_path_factory.mktemp("cluster") / "c")
    made.up()
    made.settle()
    yield made
    made.down()


class Sending(threading.Thread):
    """Sends one message after another until it is told to stop."""

    def __init__(self, language: str, producer: Producer) -> None:
        super().__init__(name=language)
        self.sent: list[str] = []
        self.errors: list[ClientError] = []
        self._producer = producer
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(BETWEEN_SENDS_S):
            try:
                self.sent.append(self._producer.send(b"through everything").message_id)
            except ClientError as error:
                self.errors.append(error)

    def has_sent(self, least: int) -> bool:
        """Whether it has sent more than so many messages."""
        return len(self.sent) > least

    def stop(self) -> None:
        """End after the send under way."""
        self._stopped.set()
        self.join()


@pytest.mark.kill
@pytest.mark.timeout(900)
def test_no_error_reaches_the_caller(cluster: Cluster) -> None:
    """A broker, then a storage node is killed: every send succeeds, every message arrives."""
    with ExitStack() as stack:
        sessions = []
        for language in LANGUAGES:
            require(language)
            options = Options(endpoint=cluster.endpoint, tls=TLS_BY_DEFAULT[language])
            driver = stack.enter_context(Driver(language, options))
            cluster.create_topic(language, "--queues", "4")
            consumer = driver.simple(f"{language}-group", {language: "*"})
            sessions.append((Sending(language, driver.producer(language)), consumer))
        for sending, _ in sessions:
            sending.start()
        for victim in (cluster.names("broker")[0], cluster.by_leaderships()[0]):
            time.sleep(STEADY_S)
            cluster.local("kill", victim)
            time.sleep(STEADY_S)
            cluster.local("start", victim)
            cluster.settle()
        time.sleep(STEADY_S)
        for sending, _ in sessions:
            until_blocking(partial(sending.has_sent, LEAST_SENT))
            sending.stop()
            print(f"{sending.name}: {len(sending.sent)} sent, errors {sending.errors}")

        for sending, consumer in sessions:
            wanted = set(sending.sent)

            def complete(messages: list[Received], wanted: set[str] = wanted) -> bool:
                return wanted <= {message.message_id for message in messages}

            take_until(consumer, complete, deadline_s=READ_LIMIT_S)
            assert sending.errors == [], sending.name
