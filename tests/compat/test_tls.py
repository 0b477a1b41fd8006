"""TLS and plaintext on the one advertised port."""

import ssl
from pathlib import Path

import pytest

from tests.compat.collect import take
from tests.compat.conftest import DriverPool
from tests.compat.drivers import Driver, Options
from tests.e2e.standalone import HOST, Standalone


def send_and_receive(node: Standalone, driver: Driver, name: str) -> None:
    """One message there and back."""
    topic = node.create_topic(name, "--queues", "1")
    sent = driver.producer(topic).send()
    [message] = take(driver.simple(name, {topic: "*"}), 1)
    assert message.message_id == sent.message_id


def test_plaintext(node: Standalone, drivers: DriverPool, language: str, name: str) -> None:
    """Every client works on the port without TLS."""
    send_and_receive(node, drivers.get(language, tls=False), name)


def test_tls(node: Standalone, language: str, name: str, tmp_path: Path) -> None:
    """Every client works on the same port with TLS; two of them check the certificate."""
    roots = tmp_path / "node.pem"
    roots.write_text(ssl.get_server_certificate((HOST, node.port)))
    options = Options(endpoint=node.endpoint, tls=True)
    trust = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots)}
    with Driver(language, options, trust) as driver:
        send_and_receive(node, driver, name)


@pytest.mark.parametrize("language", ["java", "go"], indirect=True)
def test_both_meet(node: Standalone, drivers: DriverPool, language: str, name: str) -> None:
    """The client reads over plaintext what it sent over TLS."""
    topic = node.create_topic(name, "--queues", "1")
    sent = drivers.get(language, tls=True).producer(topic).send()

    [message] = take(drivers.get(language, tls=False).simple(name, {topic: "*"}), 1)

    assert message.message_id == sent.message_id
