"""How the console reaches the cluster."""

from __future__ import annotations

from strata_cli.options import Common
from strata_cli.processes.console_config import ConsoleSection
from strata_console.server import client_factory


def test_messages_go_through_the_port_for_clients() -> None:
    """Operators' calls go to the one endpoint, clients' calls to the other, with a user's keys."""
    common = Common(endpoint="127.0.0.1:1", access_key="own", secret_key="never")
    connect = client_factory(ConsoleSection(), common, "127.0.0.1:2")
    client = connect("ada", "secret", "")
    try:
        assert client.endpoint == "127.0.0.1:1"
        assert client.channel is not client._channel
        headers = dict(client.metadata())
        assert "Credential=ada" in headers["authorization"]
    finally:
        client._clients.close()
        client._channel.close()
    alone = client_factory(ConsoleSection(), common)("ada", "secret", "")
    assert alone.channel is alone._channel
    alone._channel.close()
