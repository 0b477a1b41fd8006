"""RocketMQ's own command for operators, `mqadmin`, unmodified, against a standalone node."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_broker.remoting.addresses import broker_name_of, broker_names
from strata_broker.remoting.admin.queue_entries import java_hash
from tests.compat.collect import take
from tests.compat.conftest import require
from tests.compat.drivers import Driver, Options
from tests.compat.mqadmin_driver import MqAdmin
from tests.compat.remoting_driver import RemotingDriver
from tests.e2e.standalone import HOST, Standalone
from tests.parts.ports import free_port

CLUSTER = ("-c", "DefaultCluster")
CLIENT = "5.5.0"


class AdminNode(Standalone):
    """A standalone node with a remoting port."""

    def __init__(self, folder: Path) -> None:
        self.nameserver = f"{HOST}:{free_port()}"
        port = self.nameserver.rpartition(":")[2]
        super().__init__(folder, options=("--remoting-port", port))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdminNode]:
    """A node that this module shares."""
    node = AdminNode(tmp_path_factory.mktemp("mqadmin") / "data")
    node.start()
    yield node
    node.close()


@pytest.fixture(scope="module")
def mqadmin(node: AdminNode) -> Iterator[MqAdmin]:
    """The command, in one process."""
    with MqAdmin(node.nameserver) as command:
        yield command


def rows(printed: str) -> list[list[str]]:
    """The words of each line that is no heading."""
    lines = [line.split() for line in printed.splitlines()]
    return [words for words in lines if words and not words[0].startswith("#")]


def row_of(printed: str, first: str) -> list[str]:
    """The line that begins with a word."""
    found = [words for words in rows(printed) if words[0] == first]
    assert found, printed
    return found[0]


def test_topics(node: AdminNode, mqadmin: MqAdmin, name: str) -> None:
    """Made, listed, described, grown and deleted; a topic never shrinks."""
    topic, broker = ("-t", name), broker_name_of(name)
    made = mqadmin.run("updateTopic", *CLUSTER, *topic, "-r", "4", "-w", "4")
    assert f"create topic to {node.nameserver} success." in made
    assert [name] in rows(mqadmin.run("topicList"))
    assert ["DefaultCluster", name] in rows(mqadmin.run("topicList", "-c"))
    assert mqadmin.run("topicClusterList", *topic).split() == ["DefaultCluster"]
    route = mqadmin.run("topicRoute", *topic)
    assert f'"brokerName":"{broker}"' in route
    assert f'0:"{node.nameserver}"' in route
    assert '"writeQueueNums":4' in route
    status = rows(mqadmin.run("topicStatus", *topic))
    assert status[:4] == [[broker, str(queue), "0", "0"] for queue in range(4)]
    assert mqadmin.run("allocateMQ", *topic, "-i", "a,b").count('"queueId"') == 4

    mqadmin.run("updateTopic", "-b", node.nameserver, *topic, "-r", "6", "-w", "6")
    assert '"readQueueNums":6' in mqadmin.run("topicRoute", *topic)
    refused = mqadmin.run("updateTopic", *CLUSTER, *topic, "-r", "2", "-w", "2")
    assert f"topic {name} has 6 queues, and queues are only ever added" in refused
    refused = mqadmin.run("updateTopicPerm", *CLUSTER, *topic, "-p", "4")
    assert "every topic can be read and written (6) here" in refused
    assert "from 6 to 6" in mqadmin.run("updateTopicPerm", *CLUSTER, *topic, "-p", "6")

    deleted = mqadmin.run("deleteTopic", *CLUSTER, *topic)
    assert f"delete topic [{name}] from cluster [DefaultCluster] success." in deleted
    assert f"delete topic [{name}] from NameServer success." in deleted
    assert [name] not in rows(mqadmin.run("topicList"))
    assert "No topic route info in name server" in mqadmin.run("topicRoute", *topic)


def test_consumer_groups(node: AdminNode, mqadmin: MqAdmin, name: str, tmp_path: Path) -> None:
    """Made, described, exported and deleted; several at once, and several topics at once."""
    group = ("-g", name)
    made = mqadmin.run("updateSubGroup", *CLUSTER, *group, "-o", "true", "-r", "2")
    assert f"create subscription group to {node.nameserver} success." in made
    config = mqadmin.run("getConsumerConfig", *group)
    assert ["consumeMessageOrderly", "=", "true"] in rows(config)
    assert ["retryMaxTimes", "=", "2"] in rows(config)

    lists: dict[str, list[object]] = {"topics.json": [], "groups.json": []}
    for number in (1, 2):
        topic = {"topicName": f"{name}-t{number}", "readQueueNums": 2, "writeQueueNums": 2}
        lists["topics.json"].append(topic)
        lists["groups.json"].append({"groupName": f"{name}-g{number}", "retryMaxTimes": 3})
    for file, content in lists.items():
        (tmp_path / file).write_text(json.dumps(content))
    place = ("-b", node.nameserver)
    mqadmin.run("updateTopicList", *place, "-f", str(tmp_path / "topics.json"))
    mqadmin.run("updateSubGroupList", *place, "-f", str(tmp_path / "groups.json"))
    mqadmin.run("exportMetadata", *CLUSTER, "-f", str(tmp_path))
    exported = json.loads((tmp_path / "metadata.json").read_text())
    topics, groups = exported["topicConfigTable"], exported["subscriptionGroupTable"]
    assert topics[f"{name}-t2"]["writeQueueNums"] == 2
    assert groups[name]["consumeMessageOrderly"] is True
    assert groups[f"{name}-g1"]["retryMaxTimes"] == 3

    deleted = mqadmin.run("deleteSubGroup", *CLUSTER, *group)
    assert f"delete subscription group [{name}]" in deleted
    assert f"subscription group not exist: {name}" in mqadmin.run("consumerProgress", *group)


def test_messages(node: AdminNode, mqadmin: MqAdmin, name: str) -> None:
    """Sent, found by key, by both kinds of ids and by place, and printed."""
    topic, broker = ("-t", name), broker_name_of(name)
    mqadmin.run("updateTopic", *CLUSTER, *topic, "-r", "2", "-w", "2")
    place = ("-b", broker, "-i", "1")
    sent = mqadmin.run("sendMessage", *topic, "-p", "hello", "-k", "key-1", "-c", "tag", *place)
    _, queue, outcome, message_id = row_of(sent, broker)
    assert (queue, outcome) == ("1", "SEND_OK")

    found = row_of(mqadmin.run("queryMsgByKey", *topic, "-k", "key-1"), message_id)
    assert found[1:3] == ["1", "0"]
    by_place = mqadmin.run("queryMsgByOffset", *topic, *place, "-o", "0")
    offset_id = row_of(by_place, "OffsetID:")[1]
    for printed in (
        by_place,
        mqadmin.run("queryMsgById", *topic, "-i", message_id),
        mqadmin.run("queryMsgById", *topic, "-i", offset_id),
        mqadmin.run("queryMsgByUniqueKey", *topic, "-i", message_id),
    ):
        assert row_of(printed, "Topic:") == ["Topic:", name]
        assert row_of(printed, "Tags:") == ["Tags:", "[tag]"]
        assert row_of(printed, "Keys:") == ["Keys:", "[key-1]"]
        assert "UNIQ_KEY=" + message_id in printed
    for printed in (
        mqadmin.run("printMsg", *topic, "-d", "true"),
        mqadmin.run("printMsgByQueue", *topic, "-a", broker, "-i", "1", "-p", "true", "-d", "true"),
        mqadmin.run("consumeMessage", *topic, "-g", f"{name}-g", *place, "-o", "0", "-c", "1"),
    ):
        assert message_id in printed
        assert "BODY: hello" in printed
    entries = mqadmin.run("queryCq", *topic, "-b", node.nameserver, "-q", "1", "-i", "0", "-c", "1")
    assert "max: 1, min: 0" in entries
    # Java's hash of the tag.
    assert f"tagsCode={java_hash('tag')}" in entries
    nothing = mqadmin.run("queryMsgByKey", *topic, "-k", "other")
    assert "query message by key finished, but no message" in nothing

    trips = rows(mqadmin.run("checkMsgSendRT", *topic, "-a", "4", "-s", "16"))
    assert [words[2] for words in trips[:4]] == ["true"] * 4
    # The command sends one message again and again; each of the two queues keeps it once.
    totals = row_of(mqadmin.run("statsAll", *topic), name)
    assert totals[-2:] == ["3", "0"]


def test_connected_clients(node: AdminNode, mqadmin: MqAdmin, name: str) -> None:
    """Connections, progress and status; a reset reaches a consumer that runs."""
    topic, group = node.create_topic(name, "--queues", "2"), f"{name}-g"
    who = ("-g", group)
    with RemotingDriver(CLIENT, node.nameserver) as client:
        producer = client.producer(name)
        consumer = client.consumer(f"{name}-c", group, topic, "a || b")
        for number in range(4):
            producer.send(topic, b"%d" % number, tag="a", how="queue", queue=number % 2)
        consumer.delivered(4)

        connections = mqadmin.run("consumerConnection", *who)
        [member] = [words for words in rows(connections) if words[-1] == "V5_5_0"]
        assert member[-2] == "JAVA"
        assert [topic, "a", "||", "b"] in rows(connections)
        assert "ConsumeType: CONSUME_PASSIVELY" in connections
        # A producer tells of itself a second after its start, and then every half minute.
        deadline_s = time.monotonic() + 90
        while f"{name}-producers" not in mqadmin.run("producer", "-b", node.nameserver):
            assert time.monotonic() < deadline_s, "the producer never told of itself"
        shown = mqadmin.run("producerConnection", "-g", f"{name}-producers", "-t", topic)
        assert "JAVA" in shown
        status = mqadmin.run("consumerStatus", *who)
        assert row_of(status, "1")[1] == member[-4]

        mqadmin.run("resetOffsetByTime", *who, "-t", topic, "-s", "0")
        again = consumer.delivered(8)
        assert len(again) >= 8
        consumer.close()
        producer.close()
    skipped = rows(mqadmin.run("skipAccumulatedMessage", *who, "-t", topic))
    assert sorted(words[-2:] for words in skipped) == [["0", "2"], ["1", "2"]]
    progress = mqadmin.run("consumerProgress", *who)
    lines = [words for words in rows(progress) if words[0] == topic]
    assert sorted(words[2:6] for words in lines) == [["0", "2", "2", "0"], ["1", "2", "2", "0"]]
    assert "Consume Diff Total: 0" in progress
    assert row_of(mqadmin.run("consumerProgress"), group)[1:3] == ["0", "OFFLINE"]
    assert "not online" in mqadmin.run("consumerConnection", *who)
    mqadmin.run("cloneGroupOffset", "-s", group, "-d", f"{name}-h", "-t", topic, "-o", "true")
    copied = mqadmin.run("consumerProgress", "-g", f"{name}-h", "-t", topic)
    assert "Consume Diff Total: 0" in copied


def test_clients_of_grpc_are_shown(node: AdminNode, mqadmin: MqAdmin, name: str) -> None:
    """A consumer of the newer protocol has connections, progress and a status, too."""
    require("python")
    topic, group = node.create_topic(name), f"{name}-g"
    with Driver("python", Options(endpoint=node.endpoint, tls=False)) as python:
        producer = python.producer(topic)
        producer.send(b"new", tag="a")
        consumer = python.simple(group, {topic: "a"})
        [got] = take(consumer, 1)
        consumer.ack(got)
        connections = mqadmin.run("consumerConnection", "-g", group)
        assert "PYTHON" in connections
        assert f"{topic}" in connections
        progress = mqadmin.run("consumerProgress", "-g", group)
        assert "Consume Diff Total: 0" in progress
        assert "PYTHON" in mqadmin.run("producerConnection", "-g", topic, "-t", topic)


def test_the_broker(node: AdminNode, mqadmin: MqAdmin, tmp_path: Path) -> None:
    """Load, version and configuration, under each broker name."""
    listed = rows(mqadmin.run("clusterList"))
    assert [words[1] for words in listed] == broker_names()
    assert {tuple(words[2:5]) for words in listed} == {("0", node.nameserver, "StrataMQ")}
    assert len(rows(mqadmin.run("clusterList", "-m"))) == len(broker_names())
    assert ["brokerActive", ":", "true"] in rows(mqadmin.run("brokerStatus", "-b", node.nameserver))
    config = mqadmin.run("getBrokerConfig", "-b", node.nameserver)
    assert ["namesrvAddr", "=", node.nameserver] in rows(config)
    assert ["namesrvAddr", "=", node.nameserver] in rows(mqadmin.run("getNamesrvConfig"))
    assert "Diff Total:" in mqadmin.run("brokerConsumeStats", "-b", node.nameserver)
    for what in ("Configs", "Metrics"):
        assert "success" in mqadmin.run(f"export{what}", *CLUSTER, "-f", str(tmp_path))
        assert json.loads((tmp_path / f"{what.lower()}.json").read_text())


def test_users(node: AdminNode, mqadmin: MqAdmin, name: str) -> None:
    """Listed, shown and deleted; the command for operators makes them."""
    place = ("-b", node.nameserver)
    node.strata("user", "create", name)
    shown = [name, "***", "Normal", "enable"]
    assert shown in rows(mqadmin.run("listUser", *place))
    assert shown in rows(mqadmin.run("getUser", *place, "-u", name))
    node.strata("policy", "create", name, "--resource", "topic:orders*", "--actions", "pub,sub")
    acl = [f"User:{name}", "Custom", "Topic:orders*", "[Pub,", "Sub]", "[]", "Allow"]
    assert acl in rows(mqadmin.run("listAcl", *place))
    assert acl in rows(mqadmin.run("getAcl", *place, "-s", f"User:{name}"))
    assert acl not in rows(mqadmin.run("listAcl", *place, "-s", "nobody"))
    assert "delete user to" in mqadmin.run("deleteUser", *place, "-u", name)
    assert "CODE: 1 " in mqadmin.run("getUser", *place, "-u", name)


def test_modes_of_consumers(node: AdminNode, mqadmin: MqAdmin, name: str) -> None:
    """A group pops a topic or pulls it; a topic or a group that does not exist is told."""
    node.create_topic(name)
    node.create_group(f"{name}-g")
    address = ("-b", node.nameserver)
    for mode, shown in (("POP", [name]), ("POP", [name]), ("PULL", [])):
        which = ("-t", name, "-g", f"{name}-g", "-m", mode, "-q", "0")
        printed = mqadmin.run("setConsumeMode", *address, *which)
        assert f"set consume mode to {node.nameserver} success." in printed
        assert node.strata("group", "show", f"{name}-g")["pop_topics"] == shown
    wrong = ("-t", f"{name}-absent", "-g", f"{name}-g", "-m", "POP", "-q", "0")
    assert "not exist" in mqadmin.run("setConsumeMode", *address, *wrong)
    wrong = ("-t", name, "-g", f"{name}-absent", "-m", "POP", "-q", "0")
    assert "CODE: 26" in mqadmin.run("setConsumeMode", *address, *wrong)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "updateBrokerConfig -b ADDRESS -k a -v b",
            "a broker reads its configuration at its start",
        ),
        ("updateNamesrvConfig -k a -v b", "a broker reads its configuration at its start"),
        ("wipeWritePerm -b strata-r00", "a broker name stands for topics here"),
        ("addWritePerm -b strata-r00", "a broker name stands for topics here"),
        ("updateKvConfig -s a -k b -v c", "keeps no KV configuration"),
        ("cleanExpiredCQ -c DefaultCluster", "there is nothing to clean by hand"),
        ("deleteExpiredCommitLog -c DefaultCluster", "there is nothing to clean by hand"),
        ("cleanUnusedTopic -c DefaultCluster", "topics are deleted one by one"),
        ("haStatus -b ADDRESS", "brokers have no slaves"),
        ("getBrokerEpoch -b strata-r00", "there is no controller"),
        ("getColdDataFlowCtrInfo -b ADDRESS", "there is no cold data control"),
        ("updateStaticTopic -t static -qn 2 -c DefaultCluster", "there is no static topic"),
        ("deleteAcl -b ADDRESS -s User:u", "rights are policies of users here"),
        ("createUser -b ADDRESS -u u -p p", "users are made with strata user create"),
    ],
)
def test_what_has_no_meaning_is_refused_with_the_reason(
    node: AdminNode, mqadmin: MqAdmin, line: str, reason: str
) -> None:
    """In RocketMQ's form of errors; the command ends by itself."""
    verb, *arguments = line.replace("ADDRESS", node.nameserver).split()
    printed = mqadmin.run(verb, *arguments)
    assert "CODE: 16  DESC: not supported by StrataMQ: " in printed
    assert reason in printed
