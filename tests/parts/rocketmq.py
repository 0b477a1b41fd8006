"""RocketMQ 5.5 itself, one nameserver and one broker: the source of a migration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from bench.peers import install, remoting
from bench.peers.processes import Processes, listens
from bench.peers.rocketmq import BROKER, NAMESRV, java, write_properties
from strata_remoting import RequestCode
from tests.e2e.standalone import HOST
from tests.parts.ports import free_ports
from tests.parts.required import absent

START_LIMIT_S = 140.0
BROKER_NAME = "broker-a"
_READ_AND_WRITE = 6


KEYS = ("rocketmq", "12345678")
"""Access key and secret key of the super user."""

_AUTH = "org.apache.rocketmq.auth"


class RocketMq:
    """The servers in a folder, all of them at 127.0.0.1.

    Args:
        folder: an existing folder.
        is_synchronous: the broker flushes before it answers.
        has_access_control: ACL 2.0 is on; `KEYS` are those of its super user.

    Attributes:
        nameserver: HOST:PORT.
        broker: HOST:PORT.
    """

    def __init__(
        self, folder: Path, *, is_synchronous: bool = False, has_access_control: bool = False
    ) -> None:
        jars = install.TARGET / "rocketmq" / "lib"
        if not jars.is_dir() or shutil.which("java") is None:
            absent("RocketMQ is missing: make compat-rocketmq")
        self._folder = folder
        self._flush = "SYNC_FLUSH" if is_synchronous else "ASYNC_FLUSH"
        self._access = _access_settings() if has_access_control else {}
        self._jars = jars
        self._processes = Processes(folder)
        port = free_ports(6)
        self.nameserver = f"{HOST}:{port}"
        # The fast port is two below the broker's, and the one for replicas one above.
        self.broker = f"{HOST}:{port + 4}"

    def start(self) -> None:
        """Start both servers; return when the broker is known."""
        host, _, port = self.nameserver.rpartition(":")
        config = write_properties(
            self._folder / "namesrv.conf",
            {
                "listenPort": port,
                "bindAddress": host,
                "rocketmqHome": self._folder,
                "kvConfigPath": self._folder / "kvConfig.json",
            },
        )
        self._launch("namesrv", "128m", NAMESRV, config)
        self._processes.wait("the name server", lambda: listens(int(port)), START_LIMIT_S)
        self._launch("broker", "512m", BROKER, self._broker_config())
        self._processes.wait(
            "the broker", lambda: bool(remoting.masters(self.nameserver)), START_LIMIT_S
        )

    def stop(self) -> None:
        """Stop both servers."""
        self._processes.stop()

    def create_topic(self, name: str, queues: int, message_type: str = "") -> None:
        """Make a topic at the broker."""
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(_READ_AND_WRITE),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        if message_type:
            fields["attributes"] = f"+message.type={message_type}"
        self.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def create_group(self, name: str, retries: int) -> None:
        """Make a consumer group at the broker."""
        row = {"groupName": name, "retryMaxTimes": retries, "consumeMessageOrderly": False}
        self.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, json.dumps(row).encode())

    def set_position(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Store the position of a consumer group in a queue."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
        self.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": str(offset)})

    def call(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Call the broker."""
        remoting.call(self.broker, code, dict(fields), body)

    def _broker_config(self) -> Path:
        host, _, port = self.broker.rpartition(":")
        store = self._folder / "store"
        return write_properties(
            self._folder / "broker.conf",
            {
                "brokerClusterName": "source",
                "brokerName": BROKER_NAME,
                "brokerId": 0,
                "brokerIP1": host,
                "bindAddress": host,
                "namesrvAddr": self.nameserver,
                "listenPort": port,
                "haListenPort": int(port) + 1,
                "storePathRootDir": store,
                "storePathCommitLog": store / "commitlog",
                "mappedFileSizeCommitLog": 64 * 1024 * 1024,
                "mappedFileSizeConsumeQueue": 300_000,
                "maxIndexNum": 100_000,
                "autoCreateTopicEnable": "false",
                "autoCreateSubscriptionGroup": "true",
                "flushDiskType": self._flush,
                **self._access,
            },
        )

    def _launch(self, name: str, heap: str, main: str, config: Path) -> None:
        home = self._folder / name
        home.mkdir()
        command = java(home, self._jars, heap, main, ["-c", str(config)])
        self._processes.start(name, command, {"ROCKETMQ_HOME": str(home)})


def _access_settings() -> dict[str, str]:
    """Return the settings of a broker that knows its users and their ACLs."""
    user, password = KEYS
    return {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{_AUTH}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": (
            f"{_AUTH}.authentication.provider.LocalAuthenticationMetadataProvider"
        ),
        "initAuthenticationUser": json.dumps({"username": user, "password": password}),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": user, "secretKey": password}
        ),
        "authorizationEnabled": "true",
        "authorizationProvider": f"{_AUTH}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": (
            f"{_AUTH}.authorization.provider.LocalAuthorizationMetadataProvider"
        ),
    }
