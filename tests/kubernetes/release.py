"""A release of the chart on the rig: helm, kubectl, the command in the toolbox, the load."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.kubernetes.rig import network
from tests.kubernetes.rig.binaries import ROOT
from tests.kubernetes.rig.cluster import Rig
from tests.kubernetes.rig.processes import PartError, wait_for

CHART = ROOT / "charts" / "strata"
VALUES = Path(__file__).with_name("values.yaml")
NAME, NAMESPACE = "demo", "messaging"
_TIMEOUT = "15m"
_REACH = """
import socket, sys
for target in sys.argv[1:]:
    host, port = target.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        print(target)
    except OSError:
        pass
"""


class Release:
    """The release `demo`.

    Args:
        rig: the cluster that it is installed on.
        image: REPOSITORY:TAG; also an attribute.
    """

    def __init__(self, rig: Rig, image: str) -> None:
        self.rig = rig
        self.control = rig.control
        repository, _, tag = image.rpartition(":")
        self.image = image
        self._values = [
            *("-f", str(VALUES), "--set", f"image.repository={repository}"),
            *("--set-string", f"image.tag={tag}"),
        ]

    def install(self) -> None:
        """Install it; returns when all pods are ready."""
        self.control.kubectl("create", "namespace", NAMESPACE)
        level = "pod-security.kubernetes.io/enforce=restricted"
        self.control.kubectl("label", "namespace", NAMESPACE, level)
        self._helm("install", NAME, str(CHART), *self._values, "--wait")

    def upgrade(self, *options: str) -> None:
        """Upgrade it; returns when the last hook has ended.

        Raises:
            PartError: a hook refused, or a pod did not get ready.
        """
        self._helm("upgrade", NAME, str(CHART), *self._values, *options, "--wait")

    def rollback(self) -> None:
        """Go back to the revision before."""
        self._helm("rollback", NAME, "--wait")

    def test(self) -> None:
        """Run `helm test`."""
        self._helm("test", NAME)

    def kubectl(self, *arguments: str) -> str:
        """Return the output of kubectl in the namespace."""
        return self.control.kubectl("-n", NAMESPACE, *arguments)

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return an object, or a list, of the namespace."""
        return self.control.get("-n", NAMESPACE, *arguments)

    def strata(self, *arguments: str) -> str:
        """Return the output of the command in the toolbox."""
        return self.kubectl("exec", f"deploy/{NAME}-toolbox", "--", "strata", *arguments)

    def python(self, program: str, *arguments: str) -> str:
        """Return the output of a program of Python in the toolbox."""
        pod = f"deploy/{NAME}-toolbox"
        return self.kubectl("exec", pod, "--", "python3", "-c", program, *arguments)

    def opened(self) -> dict[str, str]:
        """Return the ports that pods of the tiers open, ADDRESS:PORT to COMPONENT/NAME."""
        tiers = "app.kubernetes.io/component in (nameserver,storage,broker)"
        return {
            f"{pod['status']['podIP']}:{port['containerPort']}": (
                f"{pod['metadata']['labels']['app.kubernetes.io/component']}/{port['name']}"
            )
            for pod in self.get("pods", "-l", tiers)["items"]
            if not pod["metadata"].get("deletionTimestamp")
            for port in pod["spec"]["containers"][0]["ports"]
        }

    def start_stranger(self) -> str:
        """Start a pod of nobody in a namespace of its own; return the namespace."""
        space = "elsewhere"
        self.control.kubectl("create", "namespace", space)
        image = ("--image", self.image, "--image-pull-policy=Never")
        forever = ("--command", "--", "sleep", "infinity")
        self.control.kubectl("run", "stranger", "-n", space, *image, *forever)
        ready = ("--for=condition=Ready", "--timeout=120s")
        self.control.kubectl("wait", "pod/stranger", "-n", space, *ready)
        return space

    def stop_stranger(self) -> None:
        """Remove it."""
        self.control.kubectl("delete", "namespace", "elsewhere", "--wait=false")

    def reached(self, stranger: str | None, targets: list[str]) -> list[str]:
        """Return the targets that a connection reaches.

        Args:
            stranger: namespace of the stranger; None: from the toolbox.
            targets: ADDRESS:PORT.
        """
        if stranger is None:
            return self.python(_REACH, *targets).split()
        pod = ("exec", "-n", stranger, "stranger", "--")
        return self.control.kubectl(*pod, "python3", "-c", _REACH, *targets).split()

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes of the StrataMQ cluster."""
        found: list[dict[str, Any]] = json.loads(self.strata("node", "list", "-o", "json"))["nodes"]
        return found

    def storage_nodes(self, ordinal: int) -> set[str]:
        """Return the ids of the storage nodes of a pod that are up; one, but for a while."""
        prefix = f"{NAME}-storage-{ordinal}."
        return {
            str(node["node"])
            for node in self.nodes()
            if node["state"].lower() == "up"
            and any(each.startswith(prefix) for each in node["endpoints"])
        }

    def create_topic(self, name: str, *options: str) -> None:
        """Create a topic."""
        self.strata("topic", "create", name, *options)

    def create_group(self, name: str, *options: str) -> None:
        """Create a consumer group."""
        self.strata("group", "create", name, *options)

    def wait_healthy(self, limit_s: float = 300) -> float:
        """Wait until the cluster is healthy; return the seconds that it took."""

        def is_healthy() -> bool:
            try:
                self.strata("cluster", "health")
            except PartError:
                return False
            return True

        return wait_for(is_healthy, "the cluster is healthy", limit_s)

    def wait_ready(self, limit_s: float = 300) -> float:
        """Wait until each pod of the release is ready; return the seconds that it took."""
        return wait_for(self.is_ready, "all pods are ready", limit_s)

    def is_ready(self) -> bool:
        """Whether each workload has all its pods ready."""
        found = self.get("statefulsets,deployments").get("items", [])
        return bool(found) and all(
            item.get("status", {}).get("readyReplicas", 0) == item["spec"]["replicas"]
            for item in found
        )

    def keys(self) -> str:
        """Return ACCESS_KEY:SECRET_KEY of the first admin."""
        data = self.get("secret", f"{NAME}-first-admin")["data"]
        return ":".join(
            base64.b64decode(data[key]).decode() for key in ("access_key", "secret_key")
        )

    def _helm(self, *arguments: str) -> str:
        return self.control.helm(*arguments, "-n", NAMESPACE, "--timeout", _TIMEOUT)


class Clients:
    """The process of `tests.kubernetes.client`, in the network of node 0."""

    def __init__(self, release: Release, normal: str, fifo: str, group: str) -> None:
        resolver = release.rig.folder / "resolv.conf"
        resolver.write_text(
            f"nameserver {network.CONTROL_ADDRESS}\nsearch svc.cluster.local cluster.local\n"
            "options ndots:5\n"
        )
        endpoint = f"{NAME}-broker.{NAMESPACE}.svc:8081"
        inside = f'mount --bind {resolver} /etc/resolv.conf && exec "$@"'
        command = [
            *("nsenter", f"--net=/run/netns/{network.node_namespace(0)}"),
            *("unshare", "--mount", "sh", "-c", inside, "sh"),
            *(sys.executable, "-m", "tests.kubernetes.client"),
            *("--endpoint", endpoint, "--keys", release.keys()),
            *("--normal", normal, "--fifo", fifo, "--group", group),
        ]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def begin(self, change: str) -> int:
        """Say that a change begins; return the sends that were answered before."""
        return int(self._ask(f"begin {change}")["answered"])

    def end(self) -> dict[str, Any]:
        """Return what clients saw since the change began."""
        return self._ask("end")

    def wait_for_answers(self, count: int) -> None:
        """Wait until the load runs."""
        wait_for(lambda: self.begin("start") >= count, f"{count} sends are answered", 120)

    def stop(self) -> dict[str, Any]:
        """End the load; return the judgement."""
        answer = self._ask("stop")
        self._process.wait(60)
        return answer

    def kill(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PartError("the clients ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


def now_s() -> float:
    """Return the time for measurements."""
    return time.monotonic()
