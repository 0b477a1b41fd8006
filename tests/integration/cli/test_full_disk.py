"""A disk that somebody else fills, for real: named in the cluster's health, and taken back.

The node has a mount namespace with a small tmpfs under its data folder; it goes with the process.
"""

from __future__ import annotations

import errno
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_testing import until_blocking
from tests.integration.cli.conftest import STRATA, Node
from tests.parts.required import absent

if TYPE_CHECKING:
    from tests.integration.cli.conftest import StartNode

MIB = 1024 * 1024
MOUNT = 'mkdir -p "$0" && mount -t tmpfs -o size=400m tmpfs "$0" && exec "$@"'


def require_own_disk() -> None:
    """Skip the test, or fail it when everything is required, where no process can have a disk."""
    command = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /mnt"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        absent("unshare is missing: apt-get install util-linux")
    if tried.returncode:
        absent(f"no mount namespaces here: {tried.stderr.strip()}")


def fill(file: Path) -> None:
    """Write until nothing more fits."""
    with file.open("wb", buffering=0) as opened:
        try:
            while True:
                opened.write(bytes(MIB))
        except OSError as error:
            assert error.errno == errno.ENOSPC


def health(node: Node) -> dict[str, Any]:
    """Return what `strata cluster health` says; its exit code tells the same."""
    done = node.strata("cluster", "health", "-o", "json")
    shown: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == ["healthy", "degraded", "down"].index(shown["status"])
    return shown


def stopped(node: Node) -> list[str]:
    """Return the roles of the nodes whose disk is named as full."""
    reasons = health(node)["reasons"]
    return sorted(
        reason["name"].partition("-")[0]
        for reason in reasons
        if (reason["kind"], reason["state"]) == ("disk", "STOP")
    )


def test_a_full_disk_is_named_and_taken_back(start_node: StartNode, tmp_path: Path) -> None:
    """Sends and new topics say why they are refused, the node stays up, and nothing is lost."""
    require_own_disk()
    data = tmp_path / "data"
    node = start_node(
        program=("unshare", "--mount", "sh", "-c", MOUNT, str(data), *STRATA),
        STRATA_STORAGE_LOG_SEGMENT_BYTES=str(32 * MIB),
        STRATA_STORAGE_REFUSE_APPENDS_FREE_BYTES=str(96 * MIB),
        STRATA_STORAGE_BALLAST_BYTES=str(16 * MIB),
    )
    node.json("topic", "create", "kept", "--queues", "1")
    node.json("message", "send", "kept", "--body", "before")
    assert health(node)["status"] == "healthy"
    # The node's own view of its folder.
    filler = Path(f"/proc/{node.process.pid}/root{data}/filler")

    fill(filler)
    until_blocking(lambda: any(reason["kind"] == "disk" for reason in health(node)["reasons"]))
    # The ballast is given back at a look, perhaps while the disk fills; somebody takes that, too.
    until_blocking(lambda: not filler.with_name("storage").joinpath("ballast").exists())
    fill(filler.with_name("filler-2"))
    until_blocking(lambda: stopped(node) == ["nameserver", "storage"])
    shown = health(node)
    assert all(
        "free some space" in reason["detail"]
        for reason in shown["reasons"]
        if reason["kind"] == "disk"
    )
    assert shown["status"] == "down", "the only storage node takes no sends"
    refused = node.strata("message", "send", "kept", "--body", "refused", "--timeout", "5s")
    assert refused.returncode == 4, refused.stderr
    assert "disk" in refused.stderr
    refused = node.strata("topic", "create", "refused", "--timeout", "5s")
    assert refused.returncode in (4, 5), refused.stderr
    assert "disk is full" in refused.stderr

    for name in ("filler", "filler-2"):
        filler.with_name(name).unlink()
    until_blocking(lambda: health(node)["status"] == "healthy")
    node.json("message", "send", "kept", "--body", "after")
    node.json("topic", "create", "new")
    found = node.json("message", "query", "kept")["messages"]
    assert [message["body"] for message in found] == ["before", "after"]
