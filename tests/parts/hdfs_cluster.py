"""A real HDFS: a NameNode and DataNodes, one JVM each."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path

from hdfs_native import Client, WriteOptions

from strata_testing import until_blocking
from tests.parts.daemon import Daemon, require
from tests.parts.ports import free_port
from tests.parts.stores import Place, new_folder

_SERVER = "org.apache.hadoop.hdfs.server"
# On a busy machine; alone it takes 6.
_START_S = 120
_MEMORY = {"name": "-Xmx256m", "data": "-Xmx128m", "tool": "-Xmx128m"}


class HdfsCluster:
    """The cluster and its data.

    Args:
        folder: an empty folder of its own.
        data_nodes: how many DataNodes; every block is on two.
    """

    def __init__(self, folder: Path, data_nodes: int = 2) -> None:
        self._jars = require("hdfs", "tier-hdfs") / "lib"
        self._folder = folder
        self.rpc_port = free_port()
        self._http_port = free_port()
        self._write_configuration()
        self.name_node = self._daemon("name", self.rpc_port, 0)
        self.data_nodes = [self._data_node(number) for number in range(data_nodes)]

    def start(self) -> None:
        """Format it if it is new, start all, wait until it writes."""
        if not (self._folder / "name").exists():
            self._run(f"{_SERVER}.namenode.NameNode", "-format", "-force", "-nonInteractive")
        # JVMs take long to start: side by side, the DataNodes look for the NameNode until it is up.
        daemons = (self.name_node, *self.data_nodes)
        for daemon in daemons:
            daemon.launch()
        for daemon in daemons:
            daemon.wait_until_ready(_START_S)
        self.wait_until_it_writes(_START_S)

    def stop(self) -> None:
        """End all; the data stay."""
        for daemon in (*self.data_nodes, self.name_node):
            daemon.kill()

    def restart(self) -> None:
        """Kill all with -9 and start them again."""
        self.stop()
        self.start()

    def wait_until_it_writes(self, timeout_s: float = _START_S) -> None:
        """Wait until all DataNodes are live and a file can be written: ports say nothing."""
        until_blocking(self._writes, timeout_s, step_s=0.2)

    def safe_mode(self, action: str) -> None:
        """`enter` or `leave` safe mode, in which nothing can be written."""
        self._run("org.apache.hadoop.hdfs.tools.DFSAdmin", "-safemode", action)

    def place(self) -> Place:
        """A new folder."""
        return Place(f"hdfs://127.0.0.1:{self.rpc_port}/tests/{new_folder()}?replication=2")

    def _writes(self) -> bool:
        query = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._http_port}/{query}", timeout=5
            ) as answer:
                state = json.load(answer)["beans"][0]
            if state["NumLiveDataNodes"] < len(self.data_nodes):
                return False
            self._write_once()
        except (OSError, RuntimeError, LookupError):
            return False
        return True

    def _write_once(self) -> None:
        client = Client(f"hdfs://127.0.0.1:{self.rpc_port}")
        with client.create("/ready", WriteOptions(overwrite=True)) as writer:
            writer.write(b"yes")

    def _data_node(self, number: int) -> Daemon:
        return self._daemon("data", free_port(), number)

    def _daemon(self, kind: str, port: int, number: int) -> Daemon:
        main = "namenode.NameNode" if kind == "name" else "datanode.DataNode"
        ipc = http = 0
        if kind == "data":
            ipc, http = free_port(), free_port()
        command = [
            *self._java(kind),
            f"-Ddata.folder={self._folder}/data{number}",
            f"-Ddata.port={port}",
            f"-Ddata.ipc={ipc}",
            f"-Ddata.http={http}",
            f"{_SERVER}.{main}",
        ]
        return Daemon(command, port, self._folder / f"{kind}{number}.log", folder=self._folder)

    def _java(self, kind: str) -> list[str]:
        return [
            *("java", _MEMORY[kind], "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            # The files of a killed JVM go with the folder.
            *(f"-Djava.io.tmpdir={self._folder}/tmp", "-XX:-UsePerfData"),
            *("-cp", f"{self._folder}/conf:{self._jars}/*"),
        ]

    def _run(self, main: str, *arguments: str) -> None:
        """Run a tool of Hadoop's to its end."""
        nothing = [f"-Ddata.{name}=0" for name in ("folder", "port", "ipc", "http")]
        done = subprocess.run(
            [*self._java("tool"), *nothing, main, *arguments],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=_START_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{main} {' '.join(arguments)}: {done.stdout}{done.stderr}"[-2000:])

    def _write_configuration(self) -> None:
        (self._folder / "tmp").mkdir()
        conf = self._folder / "conf"
        # The jars lack the web applications; the servers want their folders.
        for name in ("hdfs", "datanode", "static"):
            (conf / "webapps" / name).mkdir(parents=True)
        for name in ("hdfs", "datanode"):
            (conf / "webapps" / name / "WEB-INF").mkdir()
            (conf / "webapps" / name / "WEB-INF" / "web.xml").write_text("<web-app/>")
        (conf / "log4j.properties").write_text(
            "log4j.rootLogger=WARN,C\n"
            "log4j.appender.C=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.C.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.C.layout.ConversionPattern=%d %p %c{1} %m%n\n"
        )
        (conf / "core-site.xml").write_text(
            _site({"fs.defaultFS": f"hdfs://127.0.0.1:{self.rpc_port}"})
        )
        (conf / "hdfs-site.xml").write_text(
            _site(
                {
                    "dfs.namenode.name.dir": f"file://{self._folder}/name",
                    "dfs.namenode.http-address": f"127.0.0.1:{self._http_port}",
                    "dfs.namenode.rpc-bind-host": "127.0.0.1",
                    "dfs.datanode.data.dir": "file://${data.folder}",
                    "dfs.datanode.address": "127.0.0.1:${data.port}",
                    "dfs.datanode.ipc.address": "127.0.0.1:${data.ipc}",
                    "dfs.datanode.http.address": "127.0.0.1:${data.http}",
                    "dfs.datanode.hostname": "127.0.0.1",
                    "dfs.replication": "2",
                    "dfs.permissions.enabled": "false",
                    "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                    "dfs.namenode.fs-limits.min-block-size": "1024",
                    "dfs.namenode.safemode.extension": "0",
                    "dfs.heartbeat.interval": "1",
                    "dfs.namenode.heartbeat.recheck-interval": "1000",
                }
            )
        )


def _site(properties: dict[str, str]) -> str:
    lines = [
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])
