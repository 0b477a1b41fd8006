"""Commands of `mqadmin` print of this node the same as of RocketMQ 5.5.0.

`python -m tests.compat.test_mqadmin_recorded HOST:PORT HOST:PORT` records the file of vectors anew:
at a name server of RocketMQ 5.5.0 and its one broker, `broker-a` of `DefaultCluster`, with
`autoCreateTopicEnable=false` and without topics of an earlier record.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from strata_broker.remoting.addresses import broker_name_of
from tests.compat.mqadmin_driver import MqAdmin
from tests.e2e.standalone import HOST, Standalone
from tests.parts.ports import free_port

Answers = list[dict[str, object]]
RECORDED = Path(__file__).parents[1] / "vectors" / "mqadmin" / "rocketmq-5.5.0.json"
COMMANDS = (
    "updateTopic -c DefaultCluster -t shown -r 4 -w 4",
    "topicRoute -t shown",
    "topicClusterList -t shown",
    "sendMessage -t shown -p hello -k key1 -c tagA -b BROKER -i 1",
    "topicStatus -t shown",
    "updateSubGroup -c DefaultCluster -g shownG -r 3",
    "consumeMessage -t shown -g shownG -b BROKER -i 1 -o 0 -c 1",
    "consumerConnection -g shownG",
    "resetOffsetByTime -g shownG -t shown -s -1",
    "consumerProgress -g shownG",
    "resetOffsetByTime -g shownG -t shown -s 0",
    "skipAccumulatedMessage -g shownG -t shown",
    "producerConnection -g nosuch -t shown",
    "queryMsgByKey -t shown -k key1",
    "queryMsgByKey -t shown -k other",
    "queryMsgByOffset -t shown -b BROKER -i 1 -o 0",
    "queryMsgById -t shown -i 7F000001000000000000000000000000",
    "checkMsgSendRT -t shown -a 3 -s 16",
    "topicStatus -t nosuch",
    "topicRoute -t nosuch",
    "allocateMQ -t shown -i a",
    "updateTopicPerm -t shown -p 6 -c DefaultCluster",
    "updateOrderConf -t shown -m get",
    "deleteKvConfig -s space -k name",
    "deleteSubGroup -c DefaultCluster -g shownG",
    "deleteTopic -c DefaultCluster -t shown",
    "deleteTopic -c DefaultCluster -t shown",
    "updateTopic -c DefaultCluster -t steps -r 2 -w 2 -a +message.type=FIFO",
    "updateTopic -b ADDRESS -t more -r 2 -w 2",
    "sendMessage -t more -p one -k key1 -c tagA -b BROKER -i 1",
    "sendMessage -t nosuch -p one",
    "updateSubGroup -c DefaultCluster -g moreG -r 3 -o true",
    "getConsumerConfig -g nosuch",
    "brokerConsumeStats -b ADDRESS",
    "printMsg -t more -d true",
    "printMsg -t nosuch",
    "printMsgByQueue -t more -a BROKER -i 1 -p true -d true",
    "queryCq -t more -q 1 -i 0 -b ADDRESS",
    "queryMsgByUniqueKey -t more -i 7F000001000000000000000000000000",
    "queryMsgByOffset -t more -b BROKER -i 1 -o 7",
    "consumeMessage -t more",
    "consumeMessage -t nosuch",
    "setConsumeMode -b ADDRESS -t more -g moreG -m POP -q 0",
    "resetOffsetByTime -g moreG -t nosuch -s 0",
    "producer -b ADDRESS",
    "updateTopicPerm -t nosuch -p 6 -c DefaultCluster",
    "updateTopicPerm -t more -p 9 -c DefaultCluster",
    "topicClusterList -t nosuch",
    "allocateMQ -t nosuch -i a",
    "clusterList -c NoCluster",
    "deleteSubGroup -b ADDRESS -g moreG",
    "deleteSubGroup -c DefaultCluster -g nosuch",
    "deleteTopic -c DefaultCluster -t steps",
    "deleteTopic -c DefaultCluster -t more",
)
# Lines of a message that say where RocketMQ keeps it, and properties that only its broker adds.
_OWN_LINES = ("OffsetID:", "CommitLog Offset:", "Properties:", "MSGID:", "Message Body Path:")
_STACKS = ("at ", "... ", "See http", "For more information")
_SAME = (
    (r"[0-9A-F]{32}(?:[0-9A-F]{24})?", "ID"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"/tmp/\S+", "FILE"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)?", "TIME"),
    (r"\b17\d{11}@shown@K@key1@ID@\d+", "INDEX"),
    (r"physicOffset=\d+, physicSize=\d+", "PLACE"),
    (r"\bRT: [\d.]+", "RT"),
    (r"(BROKER \d true) \d+", r"\1 RT"),
)


def said(printed: str, broker: str) -> list[str]:
    """Lines that both systems print alike: no stacks, ids, addresses and times; in order."""
    lines = []
    for line in printed.splitlines():
        words = " ".join(line.split()).replace(broker, "BROKER")
        for pattern, name in _SAME:
            words = re.sub(pattern, name, words)
        if words and not words.startswith((*_OWN_LINES, *_STACKS)):
            lines.append(words)
    return sorted(lines)


def run_all(nameserver: str, address: str, name_of: Callable[[str], str]) -> Answers:
    """Run all commands; return what each said.

    Args:
        nameserver: HOST:PORT.
        address: HOST:PORT of the broker.
        name_of: returns the broker name of a topic.
    """
    with MqAdmin(nameserver) as mqadmin:
        answers: Answers = []
        topic = ""
        for command in COMMANDS:
            words = command.split()
            topic = words[words.index("-t") + 1] if "-t" in words else topic
            broker = name_of(topic)
            known = {"BROKER": broker, "ADDRESS": address}
            verb, *arguments = (known.get(word, word) for word in words)
            printed = mqadmin.run(verb, *arguments)
            answers.append({"command": command, "said": said(printed, broker)})
        return answers


@pytest.mark.timeout(300)
def test_answers_are_those_of_rocketmq(tmp_path: Path) -> None:
    """Each command says the same of both systems, apart from ids, addresses and times."""
    nameserver = f"{HOST}:{free_port()}"
    port = nameserver.rpartition(":")[2]
    node = Standalone(tmp_path / "data", options=("--remoting-port", port))
    node.start()
    try:
        answers = run_all(nameserver, nameserver, broker_name_of)
    finally:
        node.close()
    recorded = json.loads(RECORDED.read_text())
    assert [one["command"] for one in recorded] == list(COMMANDS)
    for ours, theirs in zip(answers, recorded, strict=True):
        assert ours == theirs


def record(nameserver: str, address: str) -> None:
    """Write the file of vectors from what RocketMQ answers."""
    RECORDED.parent.mkdir(exist_ok=True)
    answers = run_all(nameserver, address, lambda _: "broker-a")
    RECORDED.write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    record(*sys.argv[1:])
