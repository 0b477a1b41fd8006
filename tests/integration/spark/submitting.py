"""Runs Spark applications by `spark-submit`, with what `make setup-spark` installed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SPARK = ROOT / "build" / "spark" / "venv"
SPARK_HOME = next((SPARK / "lib").glob("python3*/site-packages/pyspark"), SPARK)
LOCAL = "local[2]"
TIMEOUT_S = 600
# Spark gives a Python worker 10 s to start, whatever its settings: too little on a starved machine.
NO_WORKER = "Timed out while waiting for the Python worker to connect back"

NEEDS_SPARK = (
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (SPARK / "bin" / "spark-submit").exists() or shutil.which("java") is None,
        reason="needs `make setup-spark` and JDK 17",
    ),
)


def environment() -> dict[str, str]:
    """Return the environment of everything that is Spark's; all of it listens on 127.0.0.1."""
    return os.environ | {
        "PYSPARK_PYTHON": str(SPARK / "bin" / "python"),
        "PYSPARK_DRIVER_PYTHON": str(SPARK / "bin" / "python"),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{SPARK / 'bin'}:{os.environ['PATH']}",
    }


def submit(application: Path, *arguments: str, master: str = LOCAL) -> subprocess.Popen[str]:
    """Start an application, as the head of a process group of its own."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.python.filterPushdown.enabled": "true",
        # A busy machine starts Python workers slowly; Spark gives up after 15 s.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    conf = [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
    command = [str(SPARK / "bin" / "spark-submit"), "--master", master, *conf]
    return subprocess.Popen(
        [*command, str(application), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )


def run(application: Path, *arguments: str, master: str = LOCAL) -> tuple[str, str]:
    """Run an application to its end; one that Spark could start no worker for is run again."""
    for _ in range(3):
        job = submit(application, *arguments, master=master)
        try:
            out, err = job.communicate(timeout=TIMEOUT_S)
        finally:
            kill(job)
        if NO_WORKER not in err:
            break
    return out, err


def kill(job: subprocess.Popen[str]) -> None:
    """Kill an application with all its processes (SIGKILL), unless it has ended."""
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    if job.stdout is not None and not job.stdout.closed:
        job.communicate()


def complaint(err: str) -> str:
    """Return the lines of a job's log that say what went wrong."""
    telling = re.compile(r"(?:Error|Exception|Caused by|SQLSTATE)")
    return "\n".join([line for line in err.splitlines() if telling.search(line)][-40:])
