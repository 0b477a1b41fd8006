"""The control plane: etcd, API server, controller manager, scheduler, CoreDNS."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kubernetes.rig.binaries import DEFINITIONS, program
from tests.kubernetes.rig.network import CONTROL, CONTROL_ADDRESS, SERVICES
from tests.kubernetes.rig.processes import Part, run, wait_for

API_PORT = 23_801
_ETCD_PORT, _ETCD_PEER_PORT = 23_810, 23_811

_CLUSTER_NAMES = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:10.96.0.1"


class Control:
    """The control plane.

    Args:
        folder: for its data, keys and logs.
        in_namespace: whether it listens in the rig's namespace, for nodes; else on loopback.
    """

    def __init__(self, folder: Path, *, in_namespace: bool) -> None:
        self.folder = folder
        self.address = CONTROL_ADDRESS if in_namespace else "127.0.0.1"
        self.kubeconfig = folder / "kubeconfig"
        self.ca_file = folder / "ca.crt"
        self._enter = ["nsenter", f"--net=/run/netns/{CONTROL}"] if in_namespace else []
        self._parts: list[Part] = []

    def start_server(self) -> None:
        """Start etcd and the API server; `kubectl` works then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_keys()
        etcd = f"http://{self.address}:{_ETCD_PORT}"
        peer = f"http://{self.address}:{_ETCD_PEER_PORT}"
        self._start(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            *(f"--listen-client-urls={etcd}", f"--advertise-client-urls={etcd}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        folder = self.folder
        self._start(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            f"--bind-address={self.address}",
            f"--advertise-address={CONTROL_ADDRESS}",
            *([] if self._enter else ["--endpoint-reconciler-type=none"]),
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={folder / 'api.crt'}",
            f"--tls-private-key-file={folder / 'api.key'}",
            f"--service-cluster-ip-range={SERVICES}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens'}",
            "--service-account-issuer=https://kubernetes.default.svc.invalid",
            f"--service-account-key-file={folder / 'accounts.pub'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            "--allow-privileged=true",
            "--kubelet-preferred-address-types=InternalIP",
        )
        wait_for(self._is_ready, "the API server")

    def start_controllers(self) -> None:
        """Start what turns objects into pods, and CoreDNS."""
        self.start_scheduling()
        corefile = self.folder / "Corefile"
        corefile.write_text(
            f".:53 {{\n  bind {self.address}\n  errors\n  kubernetes cluster.local {{\n"
            f"    kubeconfig {self.kubeconfig}\n    pods insecure\n    ttl 1\n  }}\n}}\n"
        )
        self._start("coredns", "-conf", str(corefile))

    def start_scheduling(self, *, are_nodes_real: bool = True) -> None:
        """Start what turns objects into pods and chooses their nodes.

        Args:
            are_nodes_real: they have kubelets; else nobody misses their heartbeats.
        """
        common = [
            f"{option}={self.kubeconfig}"
            for option in (
                *("--kubeconfig", "--authentication-kubeconfig"),
                "--authorization-kubeconfig",
            )
        ]
        common += [f"--bind-address={self.address}", "--leader-elect=false"]
        self._start(
            "kube-controller-manager",
            *common,
            f"--service-account-private-key-file={self.folder / 'accounts.key'}",
            f"--root-ca-file={self.ca_file}",
            "--controllers=*,-node-ipam-controller"
            + ("" if are_nodes_real else ",-node-lifecycle-controller"),
            "--node-monitor-grace-period=20s",
            "--horizontal-pod-autoscaler-sync-period=2s",
            f"--cert-dir={self.folder / 'controllers'}",
        )
        self._start("kube-scheduler", *common, f"--cert-dir={self.folder / 'scheduler'}")

    def define(self) -> None:
        """Install the kinds of operators: cert-manager, KEDA, the Prometheus operator."""
        self.kubectl("apply", "--server-side", "-f", str(DEFINITIONS))
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")

    def start_loop(self, name: str, *arguments: str, enter: Sequence[str] = ()) -> Part:
        """Start a loop of an operator; it ends with the control plane.

        Args:
            name: of the program.
            arguments: after the kubeconfig.
            enter: command that it runs under; empty: as the control plane does.
        """
        command = [*(enter or self._enter), program(name), str(self.kubeconfig), *arguments]
        part = Part(name, command, self.folder)
        self._parts.append(part)
        return part

    def end_loop(self, part: Part) -> None:
        """End a loop before the control plane ends."""
        part.kill()
        self._parts.remove(part)

    def check(self) -> None:
        """Raise if a part has ended."""
        for part in self._parts:
            part.check()

    def stop(self) -> None:
        """End all parts, the last one first; nobody needs their data any more."""
        for part in reversed(self._parts):
            part.kill()

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        """Return the output of kubectl."""
        return run(
            *self._enter,
            *(program("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments),
            text=text,
            check=check,
        )

    def helm(self, *arguments: str) -> str:
        """Return the output of helm."""
        command = [program("helm"), f"--kubeconfig={self.kubeconfig}", *arguments]
        return run(*self._enter, *command)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create or change objects."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", text=json.dumps(listing))

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return an object or a list of objects; empty: it does not exist."""
        text = self.kubectl("get", *arguments, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def _start(self, name: str, *arguments: str) -> None:
        command = [*self._enter, program(name), *arguments]
        self._parts.append(Part(name, command, self.folder))

    def _is_ready(self) -> bool:
        self.check()
        return self.kubectl("get", "--raw", "/readyz", check=False) == "ok"

    def _make_keys(self) -> None:
        folder, file = self.folder, str
        _openssl("genrsa", "-out", file(folder / "accounts.key"), "2048")
        _openssl(
            *("rsa", "-in", file(folder / "accounts.key")),
            *("-pubout", "-out", file(folder / "accounts.pub")),
        )
        new = ("req", "-newkey", "rsa:2048", "-nodes", "-x509", "-days", "30")
        ca = ("-keyout", file(folder / "ca.key"), "-out", file(self.ca_file))
        _openssl(*new, *ca, "-subj", "/CN=rig")
        _openssl(
            *(*new, "-keyout", file(folder / "api.key"), "-out", file(folder / "api.crt")),
            *("-CA", file(self.ca_file), "-CAkey", file(folder / "ca.key")),
            *("-subj", "/CN=api", "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-addext", f"subjectAltName=IP:{self.address},IP:127.0.0.1,{_CLUSTER_NAMES}"),
        )
        token = secrets.token_hex(16)
        (folder / "tokens").write_text(f'{token},admin,1,"system:masters"\n')
        server = f"https://{self.address}:{API_PORT}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "rig",
                    "cluster": {"server": server, "certificate-authority": file(self.ca_file)},
                }
            ],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "admin"}}],
            "current-context": "rig",
        }
        self.kubeconfig.write_text(json.dumps(config))
        self.kubeconfig.chmod(0o600)


def _openssl(*arguments: str) -> None:
    run("openssl", *arguments)
