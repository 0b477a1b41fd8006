"""A real KEDA scales real brokers under load: no client sees an error; figures are printed.

    python -m tests.autoscaling.live_keda KUBECTL KUBECONFIG FOLDER

It needs an API server with its controllers, and KEDA's operator and metrics adapter, which reach
this machine's loopback. KEDA sets the replicas of a Deployment; this module stands for the kubelet:
it starts and stops a broker process of a local cluster for each replica, as pods would be.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from strata_testing import until
from tests.e2e.client import Client
from tests.e2e.cluster import STRATA, Cluster
from tests.e2e.history import check, skipped
from tests.e2e.load import Load

TARGET_PER_S = 25
MOST = 3
PAUSE_S = 0.15
LIMIT_S = 120.0
NAMES = {"name": "brokers", "namespace": "mq"}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": NAMES,
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "brokers"}},
        "template": {
            "metadata": {"labels": {"app": "brokers"}},
            "spec": {"containers": [{"name": "broker", "image": "stratamq/broker:0.2.0"}]},
        },
    },
}


def scaled_object(address: str) -> dict[str, Any]:
    """Return the ScaledObject: messages per second of the whole cluster."""
    metadata = {
        "scalerAddress": address,
        "metric": "messages_per_second",
        "target": str(TARGET_PER_S),
        "activation": "1",
    }
    behavior = {
        "scaleUp": {"stabilizationWindowSeconds": 0},
        "scaleDown": {"stabilizationWindowSeconds": 10},
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": NAMES,
        "spec": {
            "scaleTargetRef": {"name": "brokers"},
            "pollingInterval": 2,
            "minReplicaCount": 1,
            "maxReplicaCount": MOST,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
            "triggers": [{"type": "external-push", "metadata": metadata}],
        },
    }


class Kubernetes:
    """The API server, by kubectl."""

    def __init__(self, kubectl: str, kubeconfig: str) -> None:
        self._command = [kubectl, "--kubeconfig", kubeconfig]

    def run(self, *arguments: str, given: str | None = None) -> str:
        """Run a command; return what it prints."""
        done = subprocess.run(
            [*self._command, *arguments], input=given, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def apply(self, document: dict[str, Any]) -> None:
        """Create or change an object."""
        self.run("apply", "-f", "-", given=json.dumps(document))

    def replicas(self) -> int:
        """Return how many replicas the Deployment should have."""
        query = "jsonpath={.spec.replicas}"
        return int(self.run("get", "deployment", "brokers", "-n", "mq", "-o", query) or 0)


class Brokers:
    """Broker processes, as many as there are replicas."""

    def __init__(self, cluster: Cluster, kubernetes: Kubernetes) -> None:
        self._cluster = cluster
        self._kubernetes = kubernetes
        self.running = ["broker-1"]
        self._stopped: list[str] = []
        self.began_s = time.monotonic()
        self.story: list[tuple[float, str]] = []

    def note(self, text: str) -> None:
        """Remember and print what happened when."""
        at_s = time.monotonic() - self.began_s
        self.story.append((at_s, text))
        print(f"{at_s:6.1f} s  {text}", flush=True)

    async def follow(self) -> None:
        """Make it so, until cancelled."""
        before = 1
        while True:
            wanted = await asyncio.to_thread(self._kubernetes.replicas)
            if wanted != before:
                self.note(f"KEDA: {before} -> {wanted} replicas")
                before = wanted
            if wanted > len(self.running):
                await asyncio.to_thread(self._start)
            elif 0 < wanted < len(self.running):
                await asyncio.to_thread(self._stop)
            await asyncio.sleep(0.5)

    def _start(self) -> None:
        if self._stopped:
            name = self._stopped.pop()
            self._cluster.local("start", name)
        else:
            known = set(self._cluster.names("broker"))
            self._cluster.local("add", "broker")
            [name] = set(self._cluster.names("broker")) - known
        self.running.append(name)
        self.note(f"{name} serves")

    def _stop(self) -> None:
        name = self.running.pop()
        self._cluster.local("stop", name)
        self._stopped.append(name)
        self.note(f"{name} has drained and stopped")


@asynccontextmanager
async def autoscaler(endpoint: str) -> AsyncIterator[str]:
    """Run `strata autoscaler`; yield its address."""
    process = await asyncio.create_subprocess_exec(
        *(str(STRATA), "autoscaler", "--port", "0", "--endpoint", endpoint),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ
        | {
            "STRATA_AUTOSCALER_READ_INTERVAL_MS": "1000",
            "STRATA_AUTOSCALER_RATE_WINDOW_MS": "5000",
        },
    )
    assert process.stdout is not None
    ready = (await process.stdout.readline()).decode()
    fields = dict(part.split("=", 1) for part in ready.split()[1:])
    try:
        yield fields["listen"]
    finally:
        process.terminate()
        await process.wait()


async def shares(cluster: Cluster, connections: int) -> dict[str, int]:
    """Return where new connections of clients go, by the brokers' numbers of calls before."""
    before = loads(cluster)
    for _ in range(connections):
        async with Client(cluster.endpoint) as client:
            await client.queues("normal")
    after = loads(cluster)
    return {name: after[name] - before.get(name, 0) for name in after}


def loads(cluster: Cluster) -> dict[str, int]:
    """Return the calls that each broker has answered."""
    found = {}
    for each in cluster.local("status"):
        if each["role"] == "broker" and each["state"] == "running" and each.get("metrics"):
            with urllib.request.urlopen(f"http://{each['metrics']}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            found[each["name"]] = sum(
                int(float(line.rsplit(" ", 1)[1]))
                for line in text.splitlines()
                if line.startswith("rocketmq_rpc_latency_count")
            )
    return found


async def main() -> int:
    """Scale out, in, and say what it took."""
    kubectl, kubeconfig, folder = sys.argv[1:]
    kubernetes = Kubernetes(kubectl, kubeconfig)
    cluster = Cluster(Path(folder) / "cluster", nameservers=1, storage=1, brokers=1)
    cluster.up()
    try:
        cluster.settle()
        load = Load(cluster.endpoint, "normal", "fifo", "consumers", PAUSE_S)
        load.create_topics(cluster)
        kubernetes.apply(DEPLOYMENT)
        brokers = Brokers(cluster, kubernetes)
        async with autoscaler(cluster.endpoint) as address:
            kubernetes.apply(scaled_object(address))
            brokers.began_s = time.monotonic()
            following = asyncio.ensure_future(brokers.follow())
            try:
                await asyncio.sleep(10)
                brokers.note("load begins")
                async with load.running():
                    await until(lambda: len(brokers.running) == MOST, LIMIT_S, step_s=0.2)
                    print("calls of 60 new connections:", await shares(cluster, 60))
                    await asyncio.sleep(10)
                    rate = load.count() / (time.monotonic() - brokers.began_s - 10)
                    brokers.note(f"load ends: {load.count()} sends, {rate:.0f} a second")
                await until(lambda: len(brokers.running) == 1, LIMIT_S, step_s=0.2)
            finally:
                following.cancel()
        print("errors of clients:", load.errors)
        await load.drain()
        wrong = [*check(load.history), *skipped(load.history, load.group, load.normal)]
        print("acked and lost, or out of order:", wrong)
        return 1 if load.errors or wrong else 0
    finally:
        kubernetes.run("delete", "scaledobject", "brokers", "-n", "mq", "--ignore-not-found")
        cluster.down()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
