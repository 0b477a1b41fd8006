"""A member of a container whose own disk is full, for real: the other members go on serving.

The container has a mount namespace with a small tmpfs under the data folder of one storage node
and a large one under that of the other: raft groups keep off disks that others have filled.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from strata_cli.local.plan import free_ports
from strata_testing import NotYet, until_blocking
from tests.e2e.client import Client, RefusedError
from tests.integration.cli.container_process import (
    LIMIT_S,
    OPTIONS,
    Failed,
    Running,
    member_file,
    strata,
)
from tests.integration.cli.test_full_disk import fill, require_own_disk

MIB = 1024 * 1024
MOUNT = (
    'mkdir -p "$0" "$1" && mount -t tmpfs -o size=200m tmpfs "$0" && '
    'mount -t tmpfs -o size=2g tmpfs "$1" && shift && exec "$@"'
)
SMALL_DISK = {
    **OPTIONS,
    "STRATA_STORAGE_BALLAST_BYTES": str(8 * MIB),
    "STRATA_STORAGE_REFUSE_APPENDS_FREE_BYTES": str(48 * MIB),
}
SENT = 40


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what a test started."""
    with ExitStack() as made:
        yield made


async def send(endpoint: str, first: int) -> tuple[set[bytes], set[bytes]]:
    """Send messages, each by itself; return the bodies that were stored and those that were not."""
    stored, refused = set(), set()

    async def one(client: Client, body: bytes) -> None:
        try:
            await client.send("t", [(client.new_message_id(), body)])
            stored.add(body)
        except RefusedError:
            refused.add(body)

    # Side by side: a send to a raft group whose node has gone is refused at its deadline only.
    async with Client(endpoint) as client, asyncio.TaskGroup() as sends:
        for number in range(first, first + SENT):
            sends.create_task(one(client, b"%d" % number))
    return stored, refused


async def receive(endpoint: str, wanted: set[bytes]) -> set[bytes]:
    """Receive and acknowledge until all wanted bodies came; return all that came."""
    got: set[bytes] = set()
    async with asyncio.timeout(LIMIT_S), Client(endpoint) as client:
        while not got >= wanted:
            for queue in await client.queues("t"):
                # The raft group with the full disk refuses, under its own broker name.
                with suppress(RefusedError):
                    messages = await client.receive(queue, "g", 1)
                    got |= {one.body for one in messages}
                    if messages:
                        await client.ack("t", "g", messages)
    return got


def started(stack: ExitStack, tmp_path: Path) -> tuple[Running, str, str]:
    """Start a nameserver and a container, each of its two storage members on a disk of its own.

    Returns:
        The container, its port for operators, and the endpoint of its broker.
    """
    ports = free_ports()
    nameserver_port, grpc = next(ports), next(ports)
    nameservers = f"127.0.0.1:{nameserver_port}"
    nameserver = Running(
        *("nameserver", f"--data-dir={tmp_path / 'ns'}", f"--nameservers={nameservers}"),
        f"--port={nameserver_port}",
        options=SMALL_DISK,
    )
    stack.callback(nameserver.stop)
    nameserver.ready("nameserver")
    members = [
        member_file(tmp_path, "small", "storage", next(ports)),
        member_file(tmp_path, "large", "storage", next(ports)),
        member_file(tmp_path, "front", "broker", grpc),
    ]
    names = ", ".join(f'"{name}"' for name in members)
    (tmp_path / "container.toml").write_text(
        f"[container]\nmembers = [{names}]\n"
        f'[cluster]\nnameservers = "{nameservers}"\nmachine = "m1"\n',
        encoding="utf-8",
    )
    disks = (tmp_path / "small", tmp_path / "large")
    container = Running(
        *("container", f"--config={tmp_path / 'container.toml'}"),
        options=SMALL_DISK,
        program=("unshare", "--mount", "sh", "-c", MOUNT, *map(str, disks)),
    )
    stack.callback(container.stop)
    admin = container.ready("container")["admin"]
    container.ready("member", "DefaultCluster_front_0")
    return container, admin, f"127.0.0.1:{grpc}"


@pytest.mark.timeout(600)
def test_a_member_with_a_full_disk_leaves_the_others_serving(
    stack: ExitStack, tmp_path: Path
) -> None:
    """Its own raft groups refuse sends and say so; all others take them; nothing is lost."""
    require_own_disk()
    container, admin, endpoint = started(stack, tmp_path)

    def states() -> dict[str, str]:
        listed = strata(admin, "container", "list")["members"]
        return {each["member"].split("_")[1]: each["state"] for each in listed}

    def leaders() -> dict[int, int]:
        listed = strata(endpoint, "raft-group", "list")["raft_groups"]
        return {one["raft_group"]: one["leader"] for one in listed if one["leader"]}

    def has_queues_on_two_nodes() -> bool:
        nodes = leaders()
        shown = strata(endpoint, "topic", "show", "t")["queue_status"]
        return len({nodes.get(queue["raft_group"]) for queue in shown} - {None}) > 1

    # A topic takes the raft groups that are there when it is made: one member may be first.
    until_blocking(lambda: len(set(leaders().values())) > 1, LIMIT_S, forgiven=Failed)
    until_blocking(
        lambda: strata(endpoint, "topic", "create", "t") is not None, LIMIT_S, forgiven=Failed
    )
    strata(endpoint, "group", "create", "g")
    until_blocking(has_queues_on_two_nodes, LIMIT_S, forgiven=Failed)
    stored, refused = asyncio.run(send(endpoint, 0))
    assert not refused

    small = Path(f"/proc/{container.process.pid}/root{tmp_path / 'small'}")
    sent: list[tuple[set[bytes], set[bytes]]] = []

    def some_are_refused() -> object:
        """Fill what the member may have given back, and send; whether it was full all the time."""
        fill(small / f"filler-{len(sent)}")
        sent.append(asyncio.run(send(endpoint, 1_000 + SENT * len(sent))))
        is_full = len(sent) > 1 and all(refused for _, refused in sent[-2:])
        return is_full or NotYet([(len(ok), len(refused)) for ok, refused in sent[-2:]])

    def no_send_is_refused() -> object:
        _, refused = asyncio.run(send(endpoint, 100_000))
        return not refused or NotYet((len(refused), states(), shutil.disk_usage(small)))

    until_blocking(some_are_refused, LIMIT_S)
    while_full, refused = sent[-1]
    assert while_full and refused, "some raft groups are on the full disk, and some are not"
    assert {name: states()[name] for name in ("large", "front")} == {
        "large": "serving",
        "front": "serving",
    }
    # Messages of the raft groups that are left are delivered meanwhile.
    got = asyncio.run(receive(endpoint, while_full))

    for filler in small.glob("filler-*"):
        filler.unlink()
    until_blocking(no_send_is_refused, LIMIT_S)
    until_blocking(lambda: set(states().values()) == {"serving"} or NotYet(states()), LIMIT_S)
    assert got | asyncio.run(receive(endpoint, stored - got)) >= stored | while_full
