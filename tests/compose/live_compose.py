"""docker-compose.yml on a real engine: all services healthy, official clients through it.

`make test-compose` runs it; the images have to be there (`make images`, or a registry). COMPOSE is
the command of Compose (default: docker compose), DOCKER that of the engine, COMPOSE_FILE another
file.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.drivers import BUILD, LANGUAGES, Driver, Options
from tests.parts.required import absent

ROOT = Path(__file__).resolve().parents[2]
DOCKER = os.environ.get("DOCKER", "docker")
COMPOSE = shlex.split(os.environ.get("COMPOSE", f"{DOCKER} compose"))
PROJECT = "strata-test"
ENDPOINT = "127.0.0.1:8081"
PROMETHEUS = "http://127.0.0.1:9090"
START_S = 400.0
WAIT_S = 90.0
TIERS = ("nameserver", "storage", "broker")
HAD = {
    *(f"{tier}-{number}" for tier in ("nameserver", "storage") for number in (1, 2, 3)),
    *("broker-1", "broker-2", "forwarder", "console"),
}
"""Services with a health check. Grafana and the OpenTelemetry collector are in a profile of their
own and are not started here."""


def docker(*arguments: str) -> str:
    """Run a command of the engine; return what it prints."""
    done = subprocess.run([DOCKER, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compose(*arguments: str) -> str:
    """Run a command of Compose on the project of this test; return what it prints."""
    command = [*COMPOSE, "--project-directory", str(ROOT), "-p", PROJECT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def states() -> dict[str, dict[str, Any]]:
    """Return the state of each service's container."""
    ids = docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={PROJECT}").split()
    if not ids:
        return {}
    return {
        each["Config"]["Labels"]["com.docker.compose.service"]: each
        for each in json.loads(docker("inspect", *ids))
    }


def health(container: dict[str, Any]) -> str:
    """Return what the container's health check says."""
    return str(container["State"].get("Health", {}).get("Status", "none"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, dict[str, Any]]]:
    """The services, all healthy; with their volumes they are gone afterwards."""
    if (
        shutil.which(DOCKER) is None
        or subprocess.run([DOCKER, "info"], capture_output=True).returncode
    ):
        absent("no Docker engine answers: install Docker and start it")
    compose("up", "-d", "--no-build")
    try:
        end_s = time.monotonic() + START_S
        while {name for name, each in states().items() if health(each) == "healthy"} < HAD:
            shown = {name: health(each) for name, each in states().items()}
            assert time.monotonic() < end_s, shown
            time.sleep(1)
        yield states()
    finally:
        compose("down", "-v", "--remove-orphans")


def strata(*arguments: str) -> dict[str, Any]:
    """Run a command in a broker's container; return its JSON."""
    container = states()["broker-1"]["Id"]
    result: dict[str, Any] = json.loads(
        docker(
            "exec", container, "strata", *arguments, "--endpoint", "forwarder:8081", "-o", "json"
        )
    )
    return result


def test_every_service_is_healthy_and_never_restarted(
    cluster: dict[str, dict[str, Any]],
) -> None:
    """Services with a health check are healthy; the bucket was made; nothing crashed on its way."""
    assert {name for name, each in cluster.items() if health(each) == "healthy"} == HAD
    assert cluster["bucket"]["State"]["ExitCode"] == 0
    running = {name for name, each in cluster.items() if each["State"]["Running"]}
    assert running == HAD | {"s3", "prometheus"}
    assert {
        name: each["RestartCount"] for name, each in cluster.items() if each["RestartCount"]
    } == {}


def test_processes_write_to_their_volume_only(cluster: dict[str, dict[str, Any]]) -> None:
    """No root, no writable root file system, no capability."""
    for name in sorted(HAD):
        container = cluster[name]
        assert container["HostConfig"]["ReadonlyRootfs"], name
        assert container["Config"]["User"] == "10001:10001", name
        assert container["HostConfig"]["CapDrop"] == ["ALL"], name
        assert docker("diff", container["Id"]) == "", name


def test_images_have_what_their_tier_needs(cluster: dict[str, dict[str, Any]]) -> None:
    """The native edge is with the brokers, clients of object stores with the storage nodes."""
    found = {
        tier: {
            module
            for module in ("strata_edge_native", "boto3", "hdfs_native", "pip", "hatchling")
            if subprocess.run(
                [DOCKER, "exec", cluster[f"{tier}-1"]["Id"], "python3", "-c", f"import {module}"],
                capture_output=True,
            ).returncode
            == 0
        }
        for tier in TIERS
    }
    assert found == {
        "nameserver": set(),
        "storage": {"boto3", "hdfs_native"},
        "broker": {"strata_edge_native"},
    }


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.timeout(300)
def test_a_client_of_each_language_sends_and_receives(
    cluster: dict[str, dict[str, Any]], language: str
) -> None:
    """Through the published address: what was sent comes back, and is acked."""
    if not (BUILD / language).is_dir():
        absent(f"the {language} client is not installed: make compat-{language}")
    topic, group = f"compose-{language}", f"compose-{language}"
    strata("topic", "create", topic)
    strata("group", "create", group)
    # The certificate is self-signed, so that clients that want TLS do not check it.
    with Driver(language, Options(endpoint=ENDPOINT, tls=language in ("java", "go"))) as driver:
        consumer = driver.simple(group, {topic: "*"})
        producer = driver.producer(topic)
        sent = {producer.send(f"body {number}".encode()).message_id for number in range(10)}
        received: set[str] = set()
        end_s = time.monotonic() + WAIT_S
        while received != sent and time.monotonic() < end_s:
            for message in consumer.receive():
                consumer.ack(message)
                received.add(message.message_id)
        assert received == sent


def test_old_messages_reach_the_object_store(cluster: dict[str, dict[str, Any]]) -> None:
    """The storage nodes upload to the S3 store of the file."""
    strata("topic", "create", "tiered")
    strata("message", "send", "tiered", "--body", "kept in the store")
    flushed = strata("tier", "flush")
    assert flushed["raft_groups"]
    stored = sum(each["objects"] for each in strata("tier", "status")["raft_groups"])
    assert stored > 0
    listed = docker("exec", cluster["s3"]["Id"], "find", "/data/strata", "-type", "f")
    assert "cluster" in listed


def test_prometheus_sees_every_process_and_has_our_rules(
    cluster: dict[str, dict[str, Any]],
) -> None:
    """Every target is up, every alert is loaded, and none fires for a healthy cluster."""
    end_s = time.monotonic() + WAIT_S
    while sum(float(each["value"][1]) for each in query("up")) < len(HAD):
        assert time.monotonic() < end_s, query("up")
        time.sleep(1)
    rules = fetch("/api/v1/rules")["groups"]
    loaded = {rule["name"] for group in rules for rule in group["rules"]}
    text = (ROOT / "charts/strata/files/rules.yaml").read_text()
    assert set(re.findall(r"- alert: (\w+)", text)) <= loaded
    alerts = fetch("/api/v1/alerts")["alerts"]
    assert [each["labels"] for each in alerts if each["state"] == "firing"] == []


def query(expression: str) -> list[dict[str, Any]]:
    """Return what Prometheus answers to an expression."""
    result: list[dict[str, Any]] = fetch(f"/api/v1/query?query={expression}")["result"]
    return result


def fetch(path: str) -> dict[str, Any]:
    """Return the data of an answer of Prometheus."""
    with urllib.request.urlopen(PROMETHEUS + path, timeout=10) as answer:
        data: dict[str, Any] = json.loads(answer.read())["data"]
    return data
