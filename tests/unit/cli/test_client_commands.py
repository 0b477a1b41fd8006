"""`strata client list`, and what `--verbose` tells of the calls of a command."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import grpc
import pytest

from strata.admin.v1 import admin_pb2
from strata_cli.main import run
from strata_cli.reference import JSON_KEYS

if TYPE_CHECKING:
    from tests.unit.cli.conftest import ScriptedAdmin

PRODUCER = admin_pb2.ConnectedClient(
    client_id="p1", client_type="PRODUCER", language="JAVA", version="5.0.7", topics=["orders"]
)
CONSUMER = admin_pb2.ConnectedClient(
    client_id="c1",
    client_type="PUSH_CONSUMER",
    consumer_group="billing",
    subscriptions={"orders": "*", "bills": "paid"},
)


@pytest.fixture
def connected(scripted: ScriptedAdmin) -> ScriptedAdmin:
    """Two clients on two pages."""

    def page(request: admin_pb2.ListClientsRequest) -> admin_pb2.ListClientsResponse:
        if request.page_token:
            return admin_pb2.ListClientsResponse(clients=[PRODUCER])
        return admin_pb2.ListClientsResponse(clients=[CONSUMER], next_page_token="next")

    scripted.answers = {"ListClients": page}
    return scripted


def test_all_pages_of_clients_are_listed(
    connected: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the promised keys; a consumer's topics are those that it subscribes to."""
    command = ["client", "list", "--endpoint", endpoint_of_scripted]
    assert run([*command, "-o", "json"]) == 0
    consumer, producer = json.loads(capsys.readouterr().out)["clients"]
    promised = set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS["client list"]))
    assert set(consumer) | {"clients"} == promised
    assert (consumer["topics"], consumer["consumer_group"]) == (["bills", "orders"], "billing")
    assert (producer["client_type"], producer["topics"]) == ("PRODUCER", ["orders"])
    assert run([*command, "-o", "name"]) == 0
    assert capsys.readouterr().out == "c1\np1\n"


def test_options_narrow_the_list(connected: ScriptedAdmin, endpoint_of_scripted: str) -> None:
    """The broker chooses; without --all-namespaces only one namespace counts."""
    command = ["client", "list", "--endpoint", endpoint_of_scripted]
    assert run([*command, "--producers", "--topic", "orders", "--namespace", "shop"]) == 0
    first = connected.asked("ListClients")[0]
    assert (first.kind, first.topic, first.namespace) == (
        admin_pb2.CLIENT_KIND_PRODUCER,
        "orders",
        "shop",
    )
    assert run([*command, "--consumers", "--group", "billing", "--all-namespaces"]) == 0
    other = connected.asked("ListClients")[-1]
    assert (other.kind, other.consumer_group) == (admin_pb2.CLIENT_KIND_CONSUMER, "billing")
    assert not other.HasField("namespace")
    assert run([*command, "--producers", "--consumers"]) == 2


def test_verbose_tells_of_each_call(
    connected: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On standard error; the result stays the same."""
    command = ["client", "list", "-o", "name", "--endpoint", endpoint_of_scripted]
    assert run([*command, "-v"]) == 0
    told = capsys.readouterr()
    assert told.out == "c1\np1\n"
    first, *calls = told.err.splitlines()
    assert first == f"strata: endpoint {endpoint_of_scripted}, plaintext, no keys"
    assert len(calls) == 2
    assert all(re.fullmatch(r"strata: ListClients: OK after \d+\.\d ms", line) for line in calls)
    connected.answers["ListClients"] = grpc.StatusCode.PERMISSION_DENIED
    assert run([*command, "--verbose"]) == 4
    assert "strata: ListClients: PERMISSION_DENIED after " in capsys.readouterr().err
