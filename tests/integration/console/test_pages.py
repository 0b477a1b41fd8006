"""Reads and acts of the console against a real node, page by page."""

from __future__ import annotations

import json
import shlex

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_cli.client import AdminClient
from strata_cli.options import Common
from strata_console.act_table import ACTS
from tests.integration.cli.conftest import Node
from tests.integration.console.conftest import Browser, console_for

NODE = ("--plugins", "kv")


def kill(node: Node, topic: str, group: str) -> None:
    """Let a consumer give up the first message of a topic: it becomes a dead letter."""
    received = node.json("message", "receive", topic, "--group", group)["messages"][0]
    request = service_pb2.ForwardMessageToDeadLetterQueueRequest(
        group=definition_pb2.Resource(name=group),
        topic=definition_pb2.Resource(name=topic),
        receipt_handle=received["receipt_handle"],
        message_id=received["message_id"],
        delivery_attempt=1,
        max_delivery_attempts=1,
    )
    client = AdminClient(Common(endpoint=node.endpoint))
    answer = client.call(client.messaging.ForwardMessageToDeadLetterQueue, request)
    client.close()
    assert answer.status.code == definition_pb2.OK, answer.status.message


async def test_the_cluster_map_has_nodes_groups_and_findings(browser: Browser) -> None:
    """One answer shows each tier's node, the leaders of raft groups, and that nothing is wrong."""
    data = await browser.read("overview")
    roles = {node["role"]: node for node in data["nodes"]}
    assert set(roles) == {"nameserver", "storage", "broker"}
    assert data["health"]["status"] == "healthy"
    leaders = [group["leader"] for group in data["raft_groups"]]
    assert roles["storage"]["leads"] == leaders.count(roles["storage"]["node"]) > 0
    assert not roles["storage"]["slow"]
    node = await browser.read("node", name=roles["storage"]["node"])
    assert {replica["state"] for replica in node["replicas"]} == {"serving"}
    group = await browser.read("raft-group", number=data["raft_groups"][0]["raft_group"])
    assert group["replicas"][0]["leader"]


async def test_topics_are_searched_sorted_and_paged_by_the_server(browser: Browser) -> None:
    """A page holds what was asked for, with the number of all that match; changes show at once."""
    for number in range(7):
        name = f"page-{number}"
        await browser.act("topic-create", {"name": name, "queues": str(7 - number)})
    first = await browser.read("topics", search="PAGE-", size=3)
    assert [row["name"] for row in first["rows"]] == ["page-0", "page-1", "page-2"]
    assert (first["total"], first["first"], first["is_cut"]) == (7, 0, False)
    last = await browser.read("topics", search="page-", size=3, first=6)
    assert [row["name"] for row in last["rows"]] == ["page-6"]
    fewest = await browser.read("topics", search="page-", sort="queues", size=1)
    assert fewest["rows"][0]["name"] == "page-6"
    most = await browser.read("topics", search="page-", sort="queues", descending=1, size=1)
    assert most["rows"][0]["name"] == "page-0"
    await browser.act("topic-delete", {"name": "page-3"})
    assert (await browser.read("topics", search="page-"))["total"] == 6
    answer = await browser.http.get("/api/read/topics", params={"sort": "secret"})
    assert answer.status_code == 400


async def test_a_list_has_a_limit_and_says_so(node: Node, browser: Browser) -> None:
    """Beyond it rows are left out, and the page can tell."""
    for name in ("cut-a", "cut-b", "cut-c"):
        await browser.act("topic-create", {"name": name})
    async with console_for(node.endpoint, max_catalogue_rows=2) as other:
        await other.session()
        page = await other.read("topics")
        assert (page["total"], page["is_cut"]) == (2, True)


async def test_a_topic_its_queues_and_their_places(browser: Browser) -> None:
    """Queues have offsets, and each can say why it is where it is."""
    await browser.act("topic-create", {"name": "places", "queues": 4})
    topic = await browser.read("topic", name="places")
    assert [queue["queue"] for queue in topic["queue_status"]] == [0, 1, 2, 3]
    place = await browser.read("queue", topic="places", queue=2)
    assert place["raft_group"] == topic["queue_status"][2]["raft_group"]
    assert place["reasons"]


async def test_a_message_is_sent_and_found_by_id_key_time_and_place(browser: Browser) -> None:
    """Its body comes back as text, or as bytes where it is no text; its trace has its way."""
    await browser.act("topic-create", {"name": "orders", "queues": 2})
    values = {"topic": "orders", "body": '{"pizzas": 2}', "keys": "k-1\nk-2", "properties": "a=1"}
    sent = await browser.act("message-send", values)
    raw = {"topic": "orders", "body": "00ff10", "body_encoding": "hex", "tag": "raw"}
    binary = await browser.act("message-send", raw)
    found = (await browser.read("messages", topic="orders", id=sent["message_id"]))["messages"]
    assert (found[0]["body"], found[0]["keys"]) == ('{"pizzas": 2}', ["k-1", "k-2"])
    assert found[0]["properties"] == {"a": "1"}
    place = f"{found[0]['queue']}:{found[0]['offset']}"
    for query in ({"key": "k-2"}, {"offset": place}):
        again = (await browser.read("messages", topic="orders", **query))["messages"]
        assert [each["message_id"] for each in again] == [sent["message_id"]]
    tagged = (await browser.read("messages", topic="orders", tag="raw"))["messages"]
    assert (tagged[0]["message_id"], tagged[0]["body"]) == (binary["message_id"], None)
    assert tagged[0]["body_base64"] == "AP8Q"
    early = await browser.read("messages", topic="orders", to="2020-01-01T00:00:00Z")
    assert early["messages"] == []
    newest = (await browser.read("latest", topic="orders"))["messages"]
    assert [each["message_id"] for each in newest] == [binary["message_id"], sent["message_id"]]
    trace = await browser.read("trace", topic="orders", offset=place)
    assert trace["message_id"] == sent["message_id"]


async def test_a_consumer_group_has_lag_age_and_members(node: Node, browser: Browser) -> None:
    """Lag per queue with the age of its first message; a list shows it, too."""
    await browser.act("topic-create", {"name": "bills", "queues": 1})
    await browser.act("group-create", {"name": "billing", "max_attempts": "3"})
    for number in range(3):
        await browser.act("message-send", {"topic": "bills", "body": str(number)})
    received = node.json("message", "receive", "bills", "--group", "billing", "--ack")
    group = await browser.read("group", name="billing")
    queues = [queue for queue in group["queues"] if queue["topic"] == "bills"]
    assert (len(received["messages"]), queues[0]["lag"]) == (1, 2)
    newest = (await browser.read("latest", topic="bills"))["messages"]
    assert queues[0]["oldest_time_ms"] == newest[1]["store_time_ms"] == group["oldest_time_ms"]
    assert (group["max_attempts"], group["dead_letters"]) == (3, 0)
    rows = (await browser.read("groups", search="billing"))["rows"]
    assert [(row["name"], row["lag"]) for row in rows] == [("billing", 2)]


async def test_a_reset_is_tried_before_it_is_done(browser: Browser) -> None:
    """A dry run shows the cursors and moves none."""
    await browser.act("topic-create", {"name": "again", "queues": 1})
    await browser.act("message-send", {"topic": "again", "body": "x"})
    await browser.act("group-create", {"name": "replay"})
    reset = {"name": "replay", "to_time": "latest", "topic": "again"}
    planned = await browser.act("group-reset", reset, dry_run=True)
    assert planned["dry_run"] is True
    done = await browser.act("group-reset", reset)
    assert [queue["lag"] for queue in done["queues"]] == [0]


async def test_dead_letters_are_redriven_after_a_dry_run(node: Node, browser: Browser) -> None:
    """The list has them, the dry run sends nothing, the redrive sends them once."""
    await browser.act("topic-create", {"name": "fails", "queues": 1})
    await browser.act("group-create", {"name": "unlucky", "max_attempts": "1"})
    await browser.act("message-send", {"topic": "fails", "body": "poison"})
    kill(node, "fails", "unlucky")
    groups = (await browser.read("dead-letter-groups"))["topics"]
    assert [(each["consumer_group"], each["waiting"]) for each in groups] == [("unlucky", 1)]
    letters = (await browser.read("dead-letters", group="unlucky"))["dead_letters"]
    assert [(each["body"], each["redriven"]) for each in letters] == [("poison", False)]
    assert (await browser.read("group", name="unlucky"))["dead_letters"] == 1
    values = {"group": "unlucky", "limit": "10"}
    planned = await browser.act("dlq-redrive", values, dry_run=True)
    assert (planned["dry_run"], planned["redriven"], planned["waiting"]) == (True, 0, 1)
    assert [each["topic"] for each in planned["messages"]] == ["fails"]
    done = await browser.act("dlq-redrive", values)
    assert (done["redriven"], done["failed"], done["waiting"]) == (1, 0, 0)
    bodies = [each["body"] for each in (await browser.read("latest", topic="fails"))["messages"]]
    assert bodies == ["poison", "poison"]


async def test_a_delayed_message_is_recalled(browser: Browser) -> None:
    """The send gives a handle; the recall takes the message back."""
    await browser.act("topic-create", {"name": "later", "type": "DELAY", "queues": 1})
    sent = await browser.act("message-send", {"topic": "later", "body": "x", "delay": "1h"})
    handle = {"topic": "later", "recall_handle": sent["recall_handle"]}
    assert (await browser.act("message-recall", handle))["message_id"] == sent["message_id"]


async def test_tables_and_their_items(browser: Browser) -> None:
    """A table is made, written, read and dropped."""
    await browser.act("table-create", {"name": "positions"})
    put = {"table": "positions", "key": "source-1", "value": "4711"}
    assert (await browser.act("item-put", put))["written"] is True
    items = (await browser.read("items", name="positions", prefix="source-"))["items"]
    assert [(item["key"], item["value"]) for item in items] == [("source-1", "4711")]
    await browser.act("item-delete", {"table": "positions", "key": "source-1"})
    await browser.act("table-drop", {"name": "positions"})
    assert (await browser.read("tables"))["tables"] == []


async def test_operations_pages_answer(browser: Browser) -> None:
    """Tier, placement, transactions, quotas, slots: each shows its state."""
    assert (await browser.read("transactions"))["transactions"] == []
    assert {group["state"] for group in (await browser.read("tier"))["raft_groups"]} == {"NONE"}
    assert (await browser.read("plan"))["nodes"]
    assert (await browser.read("plans"))["plans"] == []
    assert (await browser.read("slots"))["ranges"]
    await browser.act("quota-set", {"namespace": "shop", "topics": "5"})
    quotas = (await browser.read("quotas"))["quotas"]
    assert [(quota["namespace"], quota["topics"]) for quota in quotas] == [("shop", 5)]
    limits = (await browser.read("quota", namespace="shop"))["limits"]
    assert {limit["name"]: limit["limit"] for limit in limits}["topics"] == 5
    plan = await browser.act("plan-make", {"loads": "growth", "sample": "1ms"})
    assert "steps" in plan


async def test_the_configuration_has_its_defaults(browser: Browser) -> None:
    """Each key with its value, its default and its meaning; those that differ are marked."""
    keys = (await browser.read("config"))["keys"]
    by_name = {f"{key['section']}.{key['key']}": key for key in keys}
    port = by_name["node.grpc_port"]
    assert (port["value"], port["default"], port["is_default"]) == (0, 8081, False)
    assert by_name["edge.tls"]["is_default"]
    assert [name for name, key in by_name.items() if not key["description"]] == []


async def test_the_audit_trail_is_shown_without_its_topic(browser: Browser) -> None:
    """By default the trail is a log: the page says so."""
    assert await browser.read("audit") == {"events": [], "has_topic": False}


async def test_an_act_shows_its_command_line_before_and_after(node: Node, browser: Browser) -> None:
    """The preview does nothing; the line is what a shell takes, and does the same."""
    values = {"name": "shown", "queues": "2", "attributes": "note=two words"}
    shown = (await browser.post("/api/acts/topic-create/preview", values=values)).json()["command"]
    assert "--attribute=note=two words" in shlex.split(shown)
    assert (await browser.http.get("/api/read/topic", params={"name": "shown"})).status_code == 404
    done = node.strata(*shlex.split(shown)[1:], "-o", "json")
    assert json.loads(done.stdout)["attributes"] == {"note": "two words"}
    again = await browser.post("/api/acts/topic-create", values=values)
    assert (again.status_code, again.json()["code"]) == (409, "refused")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/read/nothing", 404),
        ("/api/read/topic", 400),
        ("/api/read/topic?name=-x", 400),
        ("/api/read/topic?name=missing", 404),
        ("/api/read/topics?size=100000", 400),
        ("/api/read/raft-group?number=x", 400),
        ("/api/read/messages?topic=missing&id=1", 404),
    ],
)
async def test_a_wrong_read_is_one_line_with_its_status(
    browser: Browser, path: str, status: int
) -> None:
    """Neither a stack trace nor a page of HTML."""
    answer = await browser.http.get(path)
    assert answer.status_code == status, answer.text
    assert "\n" not in answer.json()["error"]


async def test_a_change_needs_the_token_of_its_session(browser: Browser) -> None:
    """A page of another site, which has the cookie at best, changes nothing."""
    body = {"values": {"name": "forged"}}
    for headers in ({}, {"x-strata-csrf": "x" * 43}):
        answer = await browser.http.post("/api/acts/topic-create", json=body, headers=headers)
        assert answer.status_code == 403
    browser.http.headers["origin"] = "http://evil.invalid"
    assert (await browser.post("/api/acts/topic-create", **body)).status_code == 403
    del browser.http.headers["origin"]
    answer = await browser.http.get("/api/read/topic", params={"name": "forged"})
    assert answer.status_code == 404


async def test_without_a_session_nothing_is_shown(browser: Browser) -> None:
    """Not even where access control is off: a session begins with the page."""
    browser.http.cookies.clear()
    for path in ("/api/read/overview", "/api/live/overview", "/api/tail?topic=x", "/api/acts"):
        assert (await browser.http.get(path)).status_code == 401


async def test_other_machines_get_nothing_from_a_cluster_without_access_control(node: Node) -> None:
    """A console that other machines reach refuses, unless anybody may do anything."""
    async with console_for(node.endpoint, host="0.0.0.0", behind_tls=True) as other:
        answer = await other.http.get("/api/session")
        assert (answer.status_code, "access control is off" in answer.text) == (403, True)
        signed = await other.sign_in("any", "keys")
        assert signed.status_code == 403
    async with console_for(node.endpoint, host="0.0.0.0", insecure=True) as open_to_all:
        assert (await open_to_all.session())["signed_in"]


async def test_the_forms_describe_every_act(browser: Browser) -> None:
    """The page makes its forms from this."""
    acts = (await browser.http.get("/api/acts")).json()["acts"]
    assert [act["name"] for act in acts] == list(ACTS)


async def test_requests_and_errors_are_counted(browser: Browser) -> None:
    """The process's metrics say what browsers asked for."""
    await browser.http.get("/api/read/nothing")
    browser.metrics.read_gauges()
    text = browser.metrics.render().decode()
    assert 'strata_console_requests_total{kind="read",status="404"} 1.0' in text
    assert 'strata_console_errors_total{code="not_found"} 1.0' in text
    assert "strata_console_sessions 1.0" in text


async def test_a_cluster_that_does_not_answer_is_named() -> None:
    """The page says which endpoint it cannot reach."""
    async with console_for("127.0.0.1:1", call_timeout_ms=2_000) as alone:
        answer = await alone.http.get("/api/session")
        assert (answer.status_code, answer.json()["code"]) == (503, "unreachable")
        assert "127.0.0.1:1" in answer.json()["error"]
