"""Every command against a real standalone node, in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node


def test_topics(node: Node) -> None:
    """Create, list, show, update and delete, with the promised JSON."""
    made = node.json("topic", "create", "t1", "--type", "FIFO", "--queues", "4")
    assert (made["name"], made["type"], made["queues"]) == ("t1", "FIFO", 4)
    assert made["retention_ms"] == 72 * 3_600_000
    assert [t["name"] for t in node.json("topic", "list")["topics"]].count("t1") == 1

    shown = node.json("topic", "show", "t1")
    assert [queue["queue"] for queue in shown["queue_status"]] == [0, 1, 2, 3]
    changed = node.json("topic", "update", "t1", "--queues", "6", "--retention", "1d")
    assert (changed["queues"], changed["retention_ms"]) == (6, 86_400_000)
    assert changed["topic_id"] == made["topic_id"]

    node.json("message", "send", "t1", "--body", "b", "--group", "g")
    planned = node.json("topic", "delete", "t1", "--dry-run")
    assert planned == {"would_delete": "t1", "queues": 6, "messages": 1}
    assert node.json("topic", "delete", "t1", "--yes") == {"deleted": "t1"}
    assert node.strata("topic", "show", "t1").returncode == 3


def test_namespaces(node: Node) -> None:
    """A list shows its own namespace only; the same name in two of them is two topics."""
    first = node.json("topic", "create", "same", "--namespace", "a")
    second = node.json("topic", "create", "same", "--namespace", "b")

    assert first["topic_id"] != second["topic_id"]
    assert [t["name"] for t in node.json("topic", "list", "--namespace", "a")["topics"]] == ["same"]
    assert "same" not in [t["name"] for t in node.json("topic", "list")["topics"]]
    everywhere = node.json("topic", "list", "--all-namespaces")["topics"]
    assert {(t["namespace"], t["name"]) for t in everywhere} >= {("a", "same"), ("b", "same")}


def test_groups(node: Node) -> None:
    """Create, list, show, update and delete; backoff of both kinds."""
    made = node.json(
        *("group", "create", "g1", "--fifo", "--max-attempts", "3"),
        *("--backoff-ms", "1000,5000"),
    )
    assert (made["fifo"], made["max_attempts"]) == (True, 3)
    assert made["backoff"] == {"kind": "customized", "next_ms": [1000, 5000]}
    assert "g1" in [group["name"] for group in node.json("group", "list")["groups"]]

    changed = node.json("group", "update", "g1", "--no-fifo", "--backoff-exp", "100,1000,2")
    assert changed["fifo"] is False
    assert changed["backoff"]["kind"] == "exponential"
    planned = node.json("group", "delete", "g1", "--dry-run")
    assert planned == {"would_delete": "g1", "members": 0, "lag": 0, "in_flight": 0}
    assert node.json("group", "delete", "g1") == {"deleted": "g1"}
    assert node.strata("group", "show", "g1").returncode == 3


def test_a_message_on_its_way(node: Node) -> None:
    """Send, find by id and by key and by offset, receive with ack, see the lag go."""
    node.json("topic", "create", "way")
    sent = node.json(
        *("message", "send", "way", "--body", "two pizzas", "--tag", "food"),
        *("--key", "order-17", "--property", "size=xl"),
    )
    by_id = node.json("message", "show", "way", "--id", sent["message_id"])["messages"]
    by_key = node.json("message", "show", "way", "--key", "order-17")["messages"]
    assert len(by_id) == 1
    assert by_id == by_key
    place = f"{by_id[0]['queue']}:{by_id[0]['offset']}"
    assert node.json("message", "show", "way", "--offset", place)["messages"] == by_id

    got = node.json("message", "receive", "way", "--group", "way-g", "--count", "5", "--ack")
    (message,) = got["messages"]
    assert message["message_id"] == sent["message_id"] == sent["transaction_id"]
    assert (message["body"], message["tag"], message["keys"]) == (
        "two pizzas",
        "food",
        ["order-17"],
    )
    assert message["properties"] == {"size": "xl"}
    assert (message["acked"], message["delivery_attempt"]) == (True, 1)
    shown = node.json("group", "show", "way-g")
    assert (shown["lag"], shown["in_flight"]) == (0, 0)

    node.json("group", "reset", "way-g", "--to", "earliest")
    again = node.json("message", "receive", "way", "--group", "way-g")["messages"]
    assert [one["message_id"] for one in again] == [sent["message_id"]]
    assert node.json("group", "show", "way-g")["in_flight"] == 1


def test_fifo_messages_keep_their_order(node: Node) -> None:
    """Messages of one message group come back in the order they were sent."""
    node.json("topic", "create", "ordered", "--type", "FIFO")
    node.json("group", "create", "ordered-g", "--fifo")
    for number in range(5):
        node.json("message", "send", "ordered", "--body", str(number), "--group", "customer-1")
    got = node.json("message", "receive", "ordered", "--group", "ordered-g", "--count", "5")

    bodies = [message["body"] for message in got["messages"]]
    assert bodies == sorted(bodies)
    assert bodies[0] == "0"
    assert {message["message_group"] for message in got["messages"]} == {"customer-1"}


def test_a_reset_that_is_only_shown_moves_nothing(node: Node) -> None:
    """It tells the cursor of each queue as the reset would leave it, whatever its target."""
    node.json("topic", "create", "resets", "--queues", "1")
    for body in "ab":
        sent = node.json("message", "send", "resets", "--body", body)
    node.json("message", "receive", "resets", "--group", "rg", "--ack", "--count", "1")
    shown = node.json("message", "show", "resets", "--id", sent["message_id"])
    since = str(shown["messages"][0]["store_time_ms"])
    before = node.json("group", "show", "rg")["queues"]
    for to, after in (("earliest", 0), ("latest", 2), (since, 1)):
        planned = node.json("group", "reset", "rg", "--to", to, "--dry-run")
        assert (planned["dry_run"], planned["queues"][0]["cursor_after"]) == (True, after), to
        if to != since:
            assert node.json("group", "show", "rg")["queues"] == before
    done = node.json("group", "reset", "rg", "--to", "earliest")
    assert done["queues"][0]["cursor"] == 0


def test_parents_of_lite_topics_on_the_command_line(node: Node) -> None:
    """Their queues are fixed, and so is their type; a lifetime is a number of minutes."""
    options = ("--type", "LITE", "--queues", "4", "--attribute", "lite.topic.expiration=60")
    made = node.json("topic", "create", "sessions", *options)
    assert (made["type"], made["queues"]) == ("LITE", 4)
    wrong = ("--attribute", "lite.topic.expiration=x")
    for change in (("--queues", "8"), ("--type", "NORMAL"), wrong):
        done = node.strata("topic", "update", "sessions", *change)
        assert (done.returncode, done.stdout) == (4, ""), change
        assert done.stderr.startswith("strata: topic sessions"), done.stderr
    group = node.json("group", "create", "lg", "--lite-topic", "sessions", "--lite-exclusive")
    assert (group["lite_topic"], group["lite_exclusive"]) == ("sessions", True)


def test_priorities_on_the_command_line(node: Node) -> None:
    """Higher ones are received first; `message show` and receives tell them."""
    made = node.json("topic", "create", "urgent", "--type", "PRIORITY", "--queues", "4")
    assert (made["type"], made["queues"]) == ("PRIORITY", 4)
    for priority in ("0", "3", "1"):
        node.json("message", "send", "urgent", "--body", priority, "--priority", priority)
    got = node.json("message", "receive", "urgent", "--group", "ug", "--count", "3", "--ack")
    assert [(one["body"], one["priority"], one["type"]) for one in got["messages"]] == [
        ("3", 3, "PRIORITY"),
        ("1", 1, "PRIORITY"),
        ("0", 0, "PRIORITY"),
    ]
    refused = node.strata("message", "send", "urgent", "--body", "x", "--priority", "-1")
    assert refused.returncode == 4
    assert "The priority must be greater than or equal to 0" in refused.stderr
    without = node.strata("message", "send", "urgent", "--body", "x")
    assert "the expected type is PRIORITY, but actual type is NORMAL" in without.stderr
    both = node.strata(
        "message", "send", "urgent", "--body", "x", "--priority", "1", "--delay", "1s"
    )
    assert (both.returncode, both.stderr) == (
        2,
        "strata: give at most one of --group, --delay, --at and --priority\n",
    )


def test_refusals_of_the_server_are_one_line(node: Node) -> None:
    """A refusal is exit code 4, a missing thing 3, both with one plain line."""
    node.json("topic", "create", "there")
    for arguments, reason, code in [
        (("topic", "create", "there"), "there exists already", 4),
        (("topic", "show", "none"), "topic none does not exist", 3),
        (("topic", "update", "there", "--queues", "1"), "may only grow", 4),
        (("topic", "create", "a b"), "illegal characters", 4),
        (("group", "delete", "none"), "none", 3),
        (("message", "send", "none", "--body", "x"), "topic none does not exist", 3),
        (("message", "send", "there", "--body", ""), "MESSAGE_BODY_EMPTY", 4),
        (("message", "receive", "none", "--group", "g"), "topic none does not exist", 3),
    ]:
        done = node.strata(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), arguments
        assert done.stderr.startswith("strata: "), done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert reason in done.stderr


def test_readable_output(node: Node) -> None:
    """Without -o json a list is a table that names every row, and bodies are no markup."""
    node.json("topic", "create", "readable")
    node.json("message", "send", "readable", "--body", "[bold]x[/bold]")
    listed = node.strata("topic", "list")
    got = node.strata("message", "receive", "readable", "--group", "readable-g")

    assert "readable" in listed.stdout
    assert "queues" in listed.stdout.splitlines()[0]
    assert "[bold]x[/bold]" in got.stdout


def test_configuration_in_force(node: Node) -> None:
    """`config show` asks the node: its sections are there as JSON and as TOML."""
    shown = node.json("config", "show")

    assert shown["nameserver"]["max_topics"] == 2_500_000
    assert shown["node"]["grpc_port"] == 0
    assert "[storage]" in node.strata("config", "show").stdout
