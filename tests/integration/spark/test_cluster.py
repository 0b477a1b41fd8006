"""A real standalone master with two workers, each a process of its own, all on 127.0.0.1."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from strata_testing import until_blocking
from tests.integration.cli.conftest import Node
from tests.integration.spark.conftest import send
from tests.integration.spark.submitting import (
    NEEDS_SPARK,
    SPARK_HOME,
    complaint,
    environment,
    run,
)
from tests.parts.ports import free_port

MESSAGES, WORKERS, START_S = 4_000, 2, 120

pytestmark = list(NEEDS_SPARK)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """URL of a master with two workers of one core each."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    log = tmp_path / "master.log"
    with ExitStack() as stack:

        def start(role: str, to: Path, *arguments: str) -> None:
            command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{role}"]
            written = stack.enter_context(to.open("w"))
            process = subprocess.Popen(
                [*map(str, command), "--host", "127.0.0.1", "--webui-port", "0", *arguments],
                stdout=written,
                stderr=subprocess.STDOUT,
                env=environment(),
            )
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)

        start("master.Master", log, "--port", str(port))
        for number in range(WORKERS):
            folder = tmp_path / f"worker-{number}"
            limits = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder))
            start("worker.Worker", tmp_path / f"worker-{number}.log", *limits, url)
        until_blocking(
            lambda: log.read_text().count("Registering worker") >= WORKERS,
            START_S,
            step_s=0.3,
            tell=lambda: log.read_text()[-2_000:],
        )
        yield url


def test_a_cluster_reads_a_topic(node: Node, master: str, tmp_path: Path) -> None:
    """Executors on both workers read, and the result is that of local mode."""
    node.json("topic", "create", "spread", "--queues", "4")
    send(node, "spread", MESSAGES)
    job = Path(__file__).with_name("jobs") / "summarize.py"
    out, err = run(job, node.endpoint, "spread", master=master)
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    assert lines, complaint(err)
    result = json.loads(lines[0].removeprefix("RESULT "))
    assert result["ids"] == MESSAGES
    assert result["scanned_by_tag"] == MESSAGES // 2
    log = (tmp_path / "master.log").read_text()
    launched = set(re.findall(r"Launching executor \S+ on worker (\S+)", log))
    assert len(launched) == WORKERS, log[-2_000:]
