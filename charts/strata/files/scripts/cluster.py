"""The cluster as hooks see it: the command `strata` against the operators' port, and its nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, NoReturn

import kube

PAUSE_S = 2.0


@dataclass(frozen=True)
class Settings:
    """What the chart tells a hook, as JSON in CHART_SETTINGS.

    Attributes:
        namespace: of the release.
        replicas: pods that are wanted, by StatefulSet.
        sizes: volumes that are wanted, by StatefulSet.
        storage: StatefulSet of the storage nodes.
        nameserver: StatefulSet of the nameservers.
        operators: Service of the operators' port.
        is_gated: an upgrade of a cluster that is not healthy is refused.
        wait_s: time limit for the cluster's health.
        drain_s: time limit to drain one storage node.
    """

    namespace: str
    replicas: dict[str, int]
    sizes: dict[str, str]
    storage: str
    nameserver: str
    operators: str
    is_gated: bool
    wait_s: int
    drain_s: int


def settings() -> Settings:
    """Return what the chart tells."""
    return Settings(**json.loads(os.environ["CHART_SETTINGS"]))


def refuse(reason: str) -> NoReturn:
    """End the hook, and with it the upgrade."""
    print(f"refused: {reason}", flush=True)
    sys.exit(1)


def strata(*arguments: str) -> Any:
    """Return what a command answers, from JSON.

    Raises:
        RuntimeError: it failed; the message is its one line.
    """
    command = ["strata", *arguments, "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"strata {' '.join(arguments)}: {done.stderr.strip() or done.stdout}")
    return json.loads(done.stdout)


def is_healthy(wait_s: int) -> bool:
    """Whether the cluster is healthy, at once or within a time; prints what is wrong."""
    command = ["strata", "cluster", "health", "--wait", str(max(wait_s, 1))]
    return subprocess.run(command, check=False).returncode == 0


def nodes_of(stateful_set: str) -> dict[int, list[dict[str, Any]]]:
    """Return the storage nodes by the ordinal of their pod; a pod with shards has several."""
    pattern = re.compile(rf"{re.escape(stateful_set)}-(\d+)\.")
    found: dict[int, list[dict[str, Any]]] = {}
    for node in strata("node", "list")["nodes"]:
        for endpoint in node["endpoints"][:1]:
            if match := pattern.match(endpoint):
                found.setdefault(int(match[1]), []).append(node)
    return found


def replicas_of(stateful_set: str, namespace: str) -> int | None:
    """Return how many pods a StatefulSet has been told to have; None: there is none."""
    found = kube.get(f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{stateful_set}")
    return None if found is None else int(found["spec"]["replicas"])


def until(done: Callable[[], bool], limit_s: float) -> bool:
    """Wait until something holds; return whether it did in time."""
    deadline_s = monotonic() + limit_s
    while not done():
        if monotonic() > deadline_s:
            return False
        sleep(PAUSE_S)
    return True
