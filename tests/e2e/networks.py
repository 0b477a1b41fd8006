"""Networks of a test's own: a bridge, and hosts on it whose cable can be pulled.

Works inside a network namespace that nothing else uses (`unshare --net`), so that the machine's
network is never touched; when that namespace goes, all of it goes. Needs root and iproute2.
"""

import os
import shutil
import subprocess
from pathlib import Path

from strata_testing import until_blocking

BRIDGE = "br0"
HUB = "10.87.0.1"
# Environment: the network namespace that `unshare` was called in.
OUTSIDE = "STRATA_TEST_OUTSIDE_NETWORK"
NEEDED = ("ip", "unshare", "nsenter")
START_LIMIT_S = 60.0


def missing() -> str:
    """Return what is missing for networks of one's own; empty when nothing is."""
    for tool in NEEDED:
        if shutil.which(tool) is None:
            return f"{tool} (apt-get install iproute2 util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "ip", "link", "add", BRIDGE, "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"network namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Host:
    """A host on the bridge; processes started through `enter` have its network.

    Args:
        number: from 1; its address ends with 10 + number.
    """

    def __init__(self, number: int) -> None:
        self.address = f"10.87.0.{10 + number}"
        self._cable = f"cable{number}"
        # The namespace lives as long as a process that is in it.
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._wait_for_namespace()
        pid = str(self._holder.pid)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
        _run("ip", "link", "set", self._cable, "master", BRIDGE, "up")
        for command in (
            ["ip", "addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["ip", "link", "set", "eth0", "up"],
            ["ip", "link", "set", "lo", "up"],
        ):
            _run(*self.enter(*command))

    def enter(self, *command: str) -> list[str]:
        """Return a command that runs another one on this host."""
        return ["nsenter", "--target", str(self._holder.pid), "--net", *command]

    def cut(self) -> None:
        """Pull the cable: nothing comes or goes, and nobody is told."""
        _run("ip", "link", "set", self._cable, "down")

    def mend(self) -> None:
        """Put the cable back."""
        _run("ip", "link", "set", self._cable, "up")

    def close(self) -> None:
        """Remove the host."""
        self._holder.kill()
        self._holder.wait()

    def _wait_for_namespace(self) -> None:
        own = Path("/proc/self/ns/net").readlink()
        its = Path(f"/proc/{self._holder.pid}/ns/net")
        until_blocking(lambda: its.readlink() != own, START_LIMIT_S, step_s=0.01)


def network() -> str:
    """Name the network namespace of this process."""
    return str(Path("/proc/self/ns/net").readlink())


def make_bridge() -> None:
    """Make the bridge that all hosts are on; this namespace is `HUB` on it."""
    assert os.environ.get(OUTSIDE) not in (None, network()), "not in a network that others use"
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    _run("ip", "addr", "add", f"{HUB}/24", "dev", BRIDGE)
    _run("ip", "link", "set", BRIDGE, "up")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
