"""Nodes: containerd, kubelet and kube-proxy, each node killed as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kubernetes.rig import network
from tests.kubernetes.rig.binaries import FOLDER
from tests.kubernetes.rig.control import Control
from tests.kubernetes.rig.processes import Part, run, wait_for

_SCRIPT = Path(__file__).with_name("node.sh")
_PAUSE = "localhost/rig/pause:1"

_CONTAINERD = """\
version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""


class Node:
    """A node of the cluster.

    Args:
        control: the control plane.
        number: from 0.
        zone: its label topology.kubernetes.io/zone.
        images: archives that its containerd gets, the pause image first.
    """

    def __init__(self, control: Control, number: int, zone: str, images: list[Path]) -> None:
        self.name = f"node-{number}"
        self.number = number
        self.zone = zone
        self._control = control
        self._images = images
        self._folder = control.folder / self.name
        self._part: Part | None = None

    def start(self, others: list[int]) -> None:
        """Start the node.

        Args:
            others: numbers of the nodes that exist.
        """
        network.make_node(self.number, others)
        folder = self._folder
        (folder / "cni").mkdir(parents=True, exist_ok=True)
        (folder / "containerd.toml").write_text(_CONTAINERD.format(folder=folder, pause=_PAUSE))
        (folder / "cni" / "10-rig.conflist").write_text(json.dumps(self._cni()))
        (folder / "kubelet.yaml").write_text(json.dumps(self._kubelet()))
        (folder / "proxy.yaml").write_text(json.dumps(self._proxy()))
        enter = ["nsenter", f"--net=/run/netns/{network.node_namespace(self.number)}"]
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--mount-proc"]
        address = network.node_address(self.number)
        script = [str(_SCRIPT), str(folder), self.name, address, *map(str, self._images)]
        environment = {
            "BIN": str(FOLDER),
            "KUBECONFIG": str(self._control.kubeconfig),
            "LABELS": f"topology.kubernetes.io/zone={self.zone}",
            "SERVICES": network.SERVICES,
        }
        self._part = Part(self.name, [*enter, *unshare, *script], self._control.folder, environment)

    def wait(self) -> float:
        """Wait until the node is ready; return the seconds that it took."""
        return wait_for(self._is_ready, f"{self.name} is ready", 300)

    def kill(self) -> None:
        """Lose the node: its processes and containers end at once, its disk stays as it is."""
        assert self._part is not None
        self._part.kill()
        self._part = None

    def stop(self) -> None:
        """End the node's processes and remove its folder of containers."""
        if self._part is not None:
            self.kill()
        network.remove(network.node_namespace(self.number))
        # A whole image: much faster than by Python.
        run("rm", "-rf", str(self._folder))

    @property
    def pid(self) -> int:
        """Process that made the node's namespaces; its child is the first process inside."""
        assert self._part is not None
        return self._part.process.pid

    def _is_ready(self) -> bool:
        assert self._part is not None
        self._part.check()
        node = self._control.get("node", self.name)
        conditions = node.get("status", {}).get("conditions", [])
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _cni(self) -> dict[str, Any]:
        ranges = [[{"subnet": network.pod_subnet(self.number)}]]
        ipam = {
            "type": "host-local",
            "dataDir": str(self._folder / "cni-state"),
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        # A cable for each pod, no bridge: all traffic passes the node's tables, so policies see it.
        cable = {"type": "ptp", "ipMasq": False, "ipam": ipam}
        return {"cniVersion": "0.4.0", "name": "rig", "plugins": [cable]}

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": network.node_address(self.number),
            "port": 23_830,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": 23_831,
            "readOnlyPort": 0,
            "clusterDNS": [network.CONTROL_ADDRESS],
            "clusterDomain": "cluster.local",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": f"unix://{self._folder}/containerd.sock",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "1Mi",
                "nodefs.available": "0%",
                "imagefs.available": "0%",
            },
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "localStorageCapacityIsolation": False,
            "oomScoreAdj": 0,
            "syncFrequency": "10s",
            "nodeStatusUpdateFrequency": "5s",
        }

    def _proxy(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "hostnameOverride": self.name,
            "bindAddress": network.node_address(self.number),
            "healthzBindAddress": "127.0.0.1:23833",
            "metricsBindAddress": "127.0.0.1:23834",
            "clientConnection": {"kubeconfig": str(self._control.kubeconfig)},
            "clusterCIDR": network.PODS,
            "mode": "iptables",
            "oomScoreAdj": 0,
            # Policies must see who calls a service, not the node that it comes by.
            "iptables": {"masqueradeAll": False, "syncPeriod": "10s", "minSyncPeriod": "0s"},
            "conntrack": {"maxPerCore": 0, "min": 0},
        }


def restore_panic(before: dict[str, str]) -> None:
    """Write kernel settings back that a kubelet may have changed."""
    for name, value in before.items():
        Path("/proc/sys", name).write_text(value)


def panic_settings() -> dict[str, str]:
    """Return the kernel settings that a kubelet changes."""
    names = ("kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory")
    return {name: Path("/proc/sys", name).read_text() for name in names}
