"""SQL92 filters of the official clients: what matches, retries, wrong ones, a restart."""

from collections.abc import Iterator

import pytest

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
from tests.e2e.standalone import Standalone

ILLEGAL_FILTER_EXPRESSION = 40010

# (tag, properties) of messages, and whether EXPRESSION is TRUE for them.
EXPRESSION = "(TAGS = 'order' OR region IN ('eu', 'us')) AND amount BETWEEN 10 AND 99.5"
MESSAGES: list[tuple[str | None, dict[str, str], bool]] = [
    ("order", {"amount": "10"}, True),
    ("order", {"amount": "9"}, False),
    ("order", {}, False),
    ("order", {"amount": "many"}, False),
    (None, {"amount": "50", "region": "us"}, True),
    (None, {"amount": "50", "region": "US"}, False),
    ("refund", {"amount": "99.5", "region": "eu"}, True),
    ("refund", {"amount": "50"}, False),
]


def send_all(producer: Producer) -> list[str]:
    """Send the messages, one that matches last; return the ids of those that match, in order."""
    wanted = []
    for tag, properties, matches in MESSAGES:
        receipt = producer.send(tag=tag, properties=properties)
        if matches:
            wanted.append(receipt.message_id)
    wanted.append(producer.send(b"last", tag="order", properties={"amount": "11"}).message_id)
    return wanted


def ids_until(messages: list[Received], last_id: str) -> bool:
    return any(message.message_id == last_id for message in messages)


def test_a_simple_consumer_gets_what_is_true(node: Standalone, driver: Driver, name: str) -> None:
    """Comparison of texts and numbers, IN, BETWEEN, AND, OR and the tag, as RocketMQ has them."""
    topic = node.create_topic(name, "--queues", "1")
    wanted = send_all(driver.producer(topic))

    consumer = driver.simple(name, {topic: EXPRESSION}, sql=True)

    received = take_until(consumer, lambda messages: ids_until(messages, wanted[-1]))
    assert sorted(message.message_id for message in received) == sorted(wanted)
    assert {message.attempt for message in received} == {1}


def test_a_push_consumer_gets_what_is_true_and_its_retries(
    node: Standalone, driver: Driver, name: str
) -> None:
    """Every match is delivered, fails once, and is delivered again; nothing else ever comes."""
    topic = node.create_topic(name, "--queues", "1")
    consumer = driver.push(name, {topic: EXPRESSION}, failures=1, sql=True)

    wanted = send_all(driver.producer(topic))

    delivered = consumer.delivered(2 * len(wanted))
    assert sorted(message.message_id for message in delivered) == sorted(2 * wanted)


def test_a_wrong_expression_is_refused(node: Standalone, driver: Driver, name: str) -> None:
    """No consumer works with it: it does not start, or its receives say what is wrong."""
    topic = node.create_topic(name, "--queues", "1")

    with pytest.raises(ClientError) as refused:
        driver.simple(name, {topic: "amount >"}, sql=True, await_ms=1_000).receive()

    # Where the client shows the answer, it is the code, with the place.
    if refused.value.code is not None:
        assert refused.value.code == ILLEGAL_FILTER_EXPRESSION
        assert "character 9" in refused.value.text


@pytest.fixture
def own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A node this test may kill."""
    standalone = Standalone(tmp_path_factory.mktemp("filters") / "data")
    standalone.start()
    yield standalone
    standalone.close()


@pytest.mark.kill
@pytest.mark.timeout(240)
@pytest.mark.parametrize("language", LANGUAGES)
def test_filters_go_on_after_a_kill(own_node: Standalone, language: str) -> None:
    """Messages that were passed over stay so; the filter still holds for those not taken yet."""
    require(language)
    topic = own_node.create_topic("filtered", "--queues", "1")
    options = Options(endpoint=own_node.endpoint, tls=TLS_BY_DEFAULT[language])
    with Driver(language, options) as driver:
        producer = driver.producer(topic)
        before = send_all(producer)
        consumer = driver.simple("group", {topic: EXPRESSION}, sql=True)
        take_until(consumer, lambda messages: ids_until(messages, before[-1]))

    own_node.kill()
    own_node.start()

    with Driver(language, options) as driver:
        after = send_all(driver.producer(topic))
        consumer = driver.simple("group", {topic: EXPRESSION}, sql=True)
        received = take_until(consumer, lambda messages: ids_until(messages, after[-1]))
        assert sorted(message.message_id for message in received) == sorted(after)
