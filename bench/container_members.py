"""Six members of one container against six processes: memory, and messages per second.

    python bench/container_members.py [--messages 6000] [--at-once 32] [--folder DIR]

Three storage nodes and three brokers, first as members of a container, then as processes, each time
over fresh folders with a nameserver beside them. Messages are sent through all brokers at the same
time, and then received and acknowledged. Prints one JSON object: memory of the six (`rss` counts
pages that processes share once for each of them, `pss` divides them), CPU and messages per second.
The container uses one core, so the processes send more where the machine has the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.run import machine
from strata_cli.local.plan import free_ports
from strata_testing import NotYet, until_blocking
from tests.e2e.client import Client
from tests.e2e.process import cpu_seconds, resident_bytes
from tests.integration.cli.container_process import Failed, Running, member_file, strata

ROLES = ("storage", "storage", "storage", "broker", "broker", "broker")
TOPIC, GROUP = "bench", "bench"
BODY = bytes(1_000)
LIMIT_S = 120.0
# The garbage of the start is collected, and the raft groups have leaders.
SETTLE_S = 3.0


class Six:
    """Six nodes that run, however.

    Attributes:
        pids: of their processes.
        endpoints: of their brokers.
    """

    def __init__(self, processes: Sequence[Running], endpoints: Sequence[str]) -> None:
        self.pids = [process.process.pid for process in processes]
        self.endpoints = endpoints

    def used_s(self) -> float:
        """Return the CPU seconds of all."""
        return sum(map(cpu_seconds, self.pids))

    def held(self) -> dict[str, float]:
        """Return the memory of all."""
        return {
            "rss_mib": round(sum(map(resident_bytes, self.pids)) / 2**20, 1),
            "pss_mib": round(sum(map(proportional_bytes, self.pids)) / 2**20, 1),
        }


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process, with its share of the pages that it has with others."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def in_container(folder: Path, nameservers: str, ports: Iterator[int], stack: ExitStack) -> Six:
    """Start the six as members of one container."""
    files, endpoints = [], []
    for number, role in enumerate(ROLES):
        port = next(ports)
        files.append(member_file(folder, f"n{number}", role, port))
        if role == "broker":
            endpoints.append(f"127.0.0.1:{port}")
    names = ", ".join(f'"{name}"' for name in files)
    (folder / "container.toml").write_text(
        f'[container]\nmembers = [{names}]\n[cluster]\nnameservers = "{nameservers}"\n'
        f'machine = "m1"\n[node]\nmetrics_port = {next(ports)}\n'
    )
    container = Running("container", f"--config={folder / 'container.toml'}")
    stack.callback(container.stop)
    assert container.ready("container")["serving"] == str(len(ROLES)), container.errors
    return Six([container], endpoints)


def as_processes(folder: Path, nameservers: str, ports: Iterator[int], stack: ExitStack) -> Six:
    """Start the six as processes."""
    processes, endpoints = [], []
    for number, role in enumerate(ROLES):
        port = next(ports)
        flag = "--grpc-port" if role == "broker" else "--port"
        process = Running(
            *(role, f"--data-dir={folder / f'n{number}'}", f"{flag}={port}"),
            f"--nameservers={nameservers}",
        )
        stack.callback(process.stop)
        process.ready("node")
        processes.append(process)
        if role == "broker":
            endpoints.append(f"127.0.0.1:{port}")
    return Six(processes, endpoints)


def measure(
    start: Callable[[Path, str, Iterator[int], ExitStack], Six], options: argparse.Namespace
) -> dict[str, Any]:
    """Start the six and a nameserver, and return their figures."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name, ExitStack() as stack:
        folder, ports = Path(name), free_ports()
        port = next(ports)
        nameservers = f"127.0.0.1:{port}"
        nameserver = Running(
            *("nameserver", f"--data-dir={folder / 'ns'}", f"--nameservers={nameservers}"),
            f"--port={port}",
        )
        stack.callback(nameserver.stop)
        nameserver.ready("nameserver")
        begun_s = time.monotonic()
        six = start(folder, nameservers, ports, stack)
        figures: dict[str, Any] = {"start_s": round(time.monotonic() - begun_s, 2)}
        endpoint = six.endpoints[0]
        until_blocking(
            lambda: strata(endpoint, "topic", "create", TOPIC, "--queues", "12"),
            LIMIT_S,
            forgiven=Failed,
        )
        strata(endpoint, "group", "create", GROUP)
        until_blocking(lambda: raft_groups_of(endpoint) > 1 or NotYet("one home"), LIMIT_S)
        time.sleep(SETTLE_S)
        figures["idle"] = six.held()
        asyncio.run(load(six, options, figures))
        figures["used"] = six.held()
    return figures


def raft_groups_of(endpoint: str) -> int:
    """Return how many raft groups have queues of the topic."""
    shown = strata(endpoint, "topic", "show", TOPIC)
    return len({queue["raft_group"] for queue in shown["queue_status"]})


async def load(six: Six, options: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Send messages and take them again; add the figures of both."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(one)) for one in six.endpoints]
        numbers = iter(range(options.messages))
        left = options.messages

        async def send(client: Client) -> None:
            for _ in numbers:
                await client.send(TOPIC, [(client.new_message_id(), BODY)])

        async def receive(client: Client) -> None:
            nonlocal left
            queues = await client.queues(TOPIC)
            turn = 0
            while left > 0:
                turn += 1
                messages = await client.receive(queues[turn % len(queues)], GROUP, 1)
                left -= len(messages)
                if messages:
                    await client.ack(TOPIC, GROUP, messages)

        for name, work in (("send", send), ("receive", receive)):
            figures[name] = await timed(six, clients, work, options)


async def timed(
    six: Six,
    clients: Sequence[Client],
    work: Callable[[Client], Coroutine[Any, Any, None]],
    options: argparse.Namespace,
) -> dict[str, float]:
    """Let the clients work, some times at once each; return what that took."""
    before_s, begun_s = six.used_s(), time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number in range(options.at_once):
            tasks.create_task(work(clients[number % len(clients)]))
    lasted_s, used_s = time.monotonic() - begun_s, six.used_s() - before_s
    return {
        "messages_per_s": round(options.messages / lasted_s),
        "cpu_us_per_message": round(used_s / options.messages * 1e6, 1),
        "cores": round(used_s / lasted_s, 2),
    }


def main() -> None:
    """Measure both and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=6_000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="disk to measure on")
    options = parser.parse_args()
    # Without compiled files every start would compile all modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    document = {
        "machine": machine(),
        "messages": options.messages,
        "container": measure(in_container, options),
        "processes": measure(as_processes, options),
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
