"""Official clients read a backlog most of which is in the tier only, over every kind of store."""

import random
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import pytest

from strata_testing import until_blocking
from tests.compat.collect import DEADLINE_S
from tests.compat.conftest import require
from tests.compat.drivers import (
    LANGUAGES,
    TLS_BY_DEFAULT,
    ClientError,
    Driver,
    Options,
    Producer,
    Received,
    SimpleConsumer,
)
from tests.e2e.standalone import Standalone
from tests.parts.fixtures import gcs_server, hdfs_cluster, s3_server, url_of
from tests.parts.ports import free_port
from tests.parts.stores import Place, Scheme, UrlOf

__all__ = ["gcs_server", "hdfs_cluster", "s3_server", "url_of"]

MIB = 1024 * 1024
MESSAGES = 40
MESSAGE_BYTES = 1_000_000
SEGMENT_BYTES = 8 * MIB
FILLERS = 9
# A tenth of what a test sends, what fills the log, and its newest segment.
LOCAL_BYTES_MAX = (MESSAGES // 10 + FILLERS) * MESSAGE_BYTES + SEGMENT_BYTES
READ_LIMIT_S = 120.0
# Share of all messages' bytes: what is read of the store for one of them, found by its tag.
RARE_BYTES_MAX = 0.2 * MESSAGES * MESSAGE_BYTES
SETTINGS = {
    # It reads whole objects, whenever it comes to it; counted here is what clients ask for.
    "STRATA_TIER_COMPACTION": "false",
    "STRATA_TIER_FLUSH_AGE_MS": "500",
    "STRATA_STORAGE_LOG_SEGMENT_BYTES": str(SEGMENT_BYTES),
    "STRATA_STORAGE_RECENT_BYTES": "0",
    "STRATA_STORAGE_RETENTION_INTERVAL_MS": "1000",
    "STRATA_STORAGE_DEFAULT_RETENTION_MS": "60000",
}
CASES: list[tuple[str, Scheme]] = [
    *[(language, "posix") for language in LANGUAGES],
    *[(language, scheme) for scheme in ("s3", "gs", "hdfs") for language in ("python", "go")],
]


@dataclass(frozen=True)
class Tiered:
    """A node, what its environment says of the tier, and where its metrics are."""

    node: Standalone
    settings: dict[str, str]
    metrics_port: int

    def metric(self, name: str) -> float:
        """Return the sum of what a metric shows now."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def downloaded_bytes(self) -> float:
        """Return what came from the store since the node started."""
        return self.metric("strata_tier_store_downloaded_bytes_total")

    def restart(self) -> None:
        """End the node with kill -9 and start it again: it has nothing in memory."""
        self.node.kill()
        self.node.start()


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[Scheme, Tiered]]:
    """Nodes that run, one for each kind of store that a test asked for."""
    running: dict[Scheme, Tiered] = {}
    yield running
    for tiered in running.values():
        tiered.node.close()


@pytest.fixture
def tiered(
    request: pytest.FixtureRequest,
    nodes: dict[Scheme, Tiered],
    url_of: UrlOf,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Tiered:
    """A node with a tier in a store, which gives up its log as soon as it may."""
    scheme: Scheme = request.param
    is_new = scheme not in nodes
    if is_new:
        folder, port = tmp_path_factory.mktemp(scheme), free_port()
        # The node outlives this test.
        place = Place(f"posix://{folder}/store") if scheme == "posix" else url_of(scheme)
        settings = SETTINGS | {"STRATA_TIER_URL": place.url, "STRATA_NODE_METRICS_PORT": str(port)}
        if place.credentials is not None:
            # As an operator gives them: by the usual chain.
            settings["AWS_ACCESS_KEY_ID"] = place.credentials.access_key
            settings["AWS_SECRET_ACCESS_KEY"] = place.credentials.secret_key
        node = Standalone(folder / "data")
        nodes[scheme] = Tiered(node, settings, port)
    for name, value in nodes[scheme].settings.items():
        monkeypatch.setenv(name, value)
    if is_new:
        nodes[scheme].node.start()
    return nodes[scheme]


def log_bytes(node: Standalone) -> int:
    """Return what the storage node's log takes."""
    return sum(file.stat().st_size for file in (node.data_dir / "storage" / "log").iterdir())


def give_up_log(tiered: Tiered, filler: Producer, rng: random.Random) -> None:
    """Fill the newest segments with something else and wait until what is before them is gone.

    Everything is in the tier then: what is uploaded later would be read back, and counted.
    """
    for _ in range(FILLERS):
        filler.send(rng.randbytes(MESSAGE_BYTES))

    def is_given_up() -> bool:
        is_small = log_bytes(tiered.node) <= LOCAL_BYTES_MAX
        return is_small and not tiered.metric("strata_storage_tier_backlog")

    until_blocking(
        is_given_up,
        2 * DEADLINE_S,
        step_s=0.5,
        tell=lambda: tiered.node.strata("tier", "status"),
    )


def read(consumer: SimpleConsumer, count: int, came: Sequence[Received] = ()) -> list[Received]:
    """Receive and acknowledge until so many different messages came; return all that came.

    A read of the store may be too slow for its call, and a restart cuts calls: what they had
    leased comes once more.
    """
    messages = list(came)
    deadline = time.monotonic() + READ_LIMIT_S
    while len({message.body_sha256 for message in messages}) < count:
        assert time.monotonic() < deadline, f"only {len(messages)} of {count} came"
        with suppress(ClientError):
            for message in consumer.receive():
                messages.append(message)
                consumer.ack(message)
    return messages


def check(messages: Sequence[Received], hashes: Sequence[str]) -> None:
    """Every message came with its bytes, and those delivered at once came in order."""
    assert {message.body_sha256 for message in messages} == set(hashes)
    at_once = [message.body_sha256 for message in messages if message.attempt == 1]
    assert at_once
    assert at_once == [each for each in hashes if each in at_once]


def read_rare(
    tiered: Tiered, rare: SimpleConsumer, topic: str, language: str, expected: str
) -> float:
    """Read the one message with its tag, with nothing in memory; return how many bytes it moved.

    A tag moves its messages, not the others. A read that was too slow for its call was carried out
    more than once, so a node under load gets more chances.
    """
    for _ in range(3):
        tiered.restart()
        check(read(rare, 1), [expected])
        if (moved_bytes := tiered.downloaded_bytes()) < RARE_BYTES_MAX:
            break
        tiered.node.strata(
            "group", "reset", f"{language}-rare", "--topic", topic, "--to", "earliest"
        )
    return moved_bytes


def create_topics(node: Standalone, language: str) -> tuple[str, str]:
    """Create a topic whose messages leave the log, and one that fills it; return their names."""
    level = ("--tiered-storage-level", "NOT_IN_DISK", "--local-retention", "1s")
    topic = node.create_topic(language, "--queues", "1", "--retention", "365d", *level)
    short = ("--retention", "1s", "--tiered-storage-level", "DISABLE")
    return topic, node.create_topic(f"{language}-filler", "--queues", "1", *short)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("language", "tiered"), CASES, indirect=["tiered"])
def test_a_client_reads_a_backlog_of_the_tier(tiered: Tiered, language: str) -> None:
    """Every message comes byte for byte, in order, over a kill; again from a time; by its tag."""
    require(language)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    bodies = [rng.randbytes(MESSAGE_BYTES) for _ in range(MESSAGES)]
    hashes = [sha256(body).hexdigest() for body in bodies]
    node, half = tiered.node, MESSAGES // 2
    topic, filler = create_topics(node, language)
    options = Options(endpoint=node.endpoint, tls=TLS_BY_DEFAULT[language])
    with Driver(language, options) as driver:
        producer = driver.producer(topic, filler)
        for number, body in enumerate(bodies):
            if number == half:
                time.sleep(0.01)
                half_ms = time.time_ns() // 1_000_000
            producer.send(body, tag="rare" if number == half else "common")
        give_up_log(tiered, driver.producer(filler), rng)
        # Before the restarts: a Node client that starts while its process still backs off from an
        # endpoint that was gone fails after three attempts.
        group = f"{language}-tier"
        rare = driver.simple(f"{language}-rare", {topic: "rare"})
        consumer = driver.simple(group, {topic: "*"})
        rare_bytes = read_rare(tiered, rare, topic, language, hashes[half])
        tiered.restart()
        messages = read(consumer, half // 2)
        tiered.restart()
        check(read(consumer, MESSAGES, messages), hashes)
        assert rare_bytes < RARE_BYTES_MAX
        # Back to a time, then to the start: the same once more, from the tier.
        for to, expected in ((str(half_ms), hashes[half:]), ("earliest", hashes)):
            node.strata("group", "reset", group, "--topic", topic, "--to", to)
            check(read(consumer, len(expected)), expected)
        # Messages that the log still had may have been moved within it, to give up a segment.
        assert tiered.downloaded_bytes() > MESSAGES * MESSAGE_BYTES - LOCAL_BYTES_MAX
