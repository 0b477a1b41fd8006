"""RocketMQ's own command for operators, `mqadmin`, unmodified: one process for many commands."""

import json
import os
import subprocess
import threading
from typing import Self

from tests.compat.drivers import BUILD, end_by_input
from tests.parts.required import absent

TIMEOUT_S = 90.0


class MqAdmin:
    """A process that runs mqadmin again and again; a context manager that ends it.

    Args:
        nameserver: HOST:PORT.
    """

    def __init__(self, nameserver: str) -> None:
        folder = BUILD / "mqadmin"
        if not (folder / ".installed").exists():
            absent("mqadmin is missing: make compat-mqadmin")
        self._nameserver = nameserver
        self.home = BUILD / "home" / "mqadmin"
        self.home.mkdir(parents=True, exist_ok=True)
        options = [f"-Duser.home={self.home}", f"-Drocketmq.client.logRoot={self.home}"]
        options += ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]
        classes = f"{folder}/classes:{folder}/lib/*"
        with (self.home / "driver.log").open("a") as log:
            self._process = subprocess.Popen(
                ["java", *options, "-cp", classes, "compat.MqAdmin"],
                cwd=self.home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, "HOME": str(self.home), "ROCKETMQ_HOME": str(self.home)},
            )

    def run(self, verb: str, *arguments: str) -> str:
        """Run `mqadmin VERB -n NAMESERVER ...`; return what it printed, stacks of errors too.

        Raises:
            AssertionError: it did not end in time, or ended the process.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps([verb, "-n", self._nameserver, *arguments])
        timer = threading.Timer(TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            timer.cancel()
        assert answer, f"mqadmin {verb} ended the process, or took more than {TIMEOUT_S} s"
        return str(json.loads(answer)["printed"])

    def close(self) -> None:
        """End the process."""
        assert self._process.stdout is not None
        end_by_input(self._process)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
