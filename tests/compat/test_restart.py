"""A restart of the node under living clients: they go on by themselves."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.compat.collect import take_until, until_sent
from tests.compat.conftest import require
from tests.compat.drivers import TLS_BY_DEFAULT, Driver, Options, Received
from tests.e2e.standalone import Standalone


@pytest.fixture
def own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A node this test may kill."""
    standalone = Standalone(tmp_path_factory.mktemp("restart") / "data")
    standalone.start()
    yield standalone
    standalone.close()


@pytest.mark.kill
@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_clients_go_on(own_node: Standalone, how: str) -> None:
    """After a restart producers send and both kinds of consumer receive, in every language."""
    with ExitStack() as stack:
        sessions = []
        for language in ("python", "node", "java", "go"):
            require(language)
            options = Options(endpoint=own_node.endpoint, tls=TLS_BY_DEFAULT[language])
            driver = stack.enter_context(Driver(language, options))
            own_node.create_topic(language, "--queues", "1")
            sessions.append(
                (
                    driver.producer(language),
                    driver.simple(f"{language}-simple", {language: "*"}),
                    driver.push(f"{language}-push", {language: "*"}),
                )
            )
        for producer, _, push in sessions:
            producer.send(b"before")
            assert len(push.delivered(1)) == 1

        getattr(own_node, how)()
        own_node.start()

        for producer, simple, push in sessions:
            after = until_sent(partial(producer.send, b"after")).message_id

            def complete(messages: list[Received], wanted: str = after) -> bool:
                return wanted in [message.message_id for message in messages]

            take_until(simple, complete, after_restart=True)
            assert complete(push.delivered(2))
