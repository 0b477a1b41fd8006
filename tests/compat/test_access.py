"""The official clients on a node that controls access: with keys, with wrong ones, with none."""

import json
from collections.abc import Iterator

import pytest

from tests.compat.collect import take
from tests.compat.conftest import require
from tests.compat.drivers import TLS_BY_DEFAULT, ClientError, Driver, Options
from tests.e2e.standalone import Standalone

UNAUTHORIZED, FORBIDDEN = 40100, 40300
USER = "shopkeeper"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A node with access control, run by its first admin."""
    node = Standalone(
        tmp_path_factory.mktemp("access") / "data", options=["--access-control", "on"]
    )
    node.start()
    admin = json.loads((node.data_dir / "first-admin.json").read_text())
    node.keys = {
        "STRATA_ACCESS_KEY": admin["access_key"],
        "STRATA_SECRET_KEY": admin["secret_key"],
    }
    yield node
    node.close()


@pytest.fixture(scope="module")
def secret_key(guarded: Standalone) -> str:
    """The secret key of a user who may use topics and consumer groups called `shop...`."""
    made = guarded.strata("user", "create", USER)
    for resource, actions in (("topic:shop*", "pub,sub"), ("group:shop*", "sub")):
        guarded.strata(
            *("policy", "create", USER, "--resource", resource),
            *("--actions", actions, "--decision", "allow"),
        )
    secret = made["secret_key"]
    assert isinstance(secret, str)
    return secret


def driver_of(language: str, node: Standalone, access_key: str = "", secret: str = "") -> Driver:
    """A client with these keys."""
    require(language)
    return Driver(
        language,
        Options(
            endpoint=node.endpoint,
            tls=TLS_BY_DEFAULT[language],
            access_key=access_key,
            secret_key=secret,
        ),
    )


def test_with_keys_everything_works(
    guarded: Standalone, secret_key: str, language: str, name: str
) -> None:
    """Send, receive, acknowledge, and a push consumer, which has to tell its settings."""
    topic = guarded.create_topic(f"shop-{name}", "--queues", "2")
    with driver_of(language, guarded, USER, secret_key) as driver:
        producer = driver.producer(topic)
        sent = [producer.send(f"message {number}".encode()).message_id for number in range(4)]
        consumer = driver.simple(f"shop-{name}", {topic: "*"})
        got = [one.message_id for one in take(consumer, len(sent))]
        assert sorted(got) == sorted(sent)
        push = driver.push(f"shop-push-{name}", {topic: "*"})
        assert sorted({one.message_id for one in push.delivered(len(sent), 40)}) == sorted(sent)


def test_without_right_keys_nothing_does(
    guarded: Standalone, secret_key: str, language: str, name: str
) -> None:
    """No keys, and another's secret: the client says so, or does not start."""
    topic = guarded.create_topic(f"shop-{name}", "--queues", "2")
    for access_key, secret in (("", ""), (USER, "not-" + secret_key), ("nobody", "secret-key")):
        with driver_of(language, guarded, access_key, secret) as driver:
            with pytest.raises(ClientError) as refused:
                driver.producer(topic).send(b"x")
            assert refused.value.code in (UNAUTHORIZED, None)
    found = guarded.strata("message", "query", topic)
    assert found["messages"] == []


def test_a_topic_of_somebody_else_is_forbidden(
    guarded: Standalone, secret_key: str, language: str, name: str
) -> None:
    """The policies say shop..., and nothing else."""
    topic = guarded.create_topic(f"bank-{name}", "--queues", "2")
    with driver_of(language, guarded, USER, secret_key) as driver:
        with pytest.raises(ClientError) as refused:
            driver.producer(topic).send(b"x")
        assert refused.value.code in (FORBIDDEN, None)
