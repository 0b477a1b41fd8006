"""The examples of peer deployments: each machine's container is killed in turn under sends."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import grpc
import pytest

from strata_cli.local.plan import free_ports
from strata_testing import NotYet, until, until_blocking
from tests.e2e.client import Client, RefusedError
from tests.integration.cli.container_process import SMALL, Failed, Running, strata

EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples/container"
LIMIT_S = 120.0
SENDERS = 6
ANSWERS = 40
TOPIC, GROUP = "orders", "readers"
_FAILURES = (grpc.aio.AioRpcError, RefusedError)


class Deployment:
    """A deployment's files with the addresses and folders of a test.

    Attributes:
        containers: the processes by machine number.
        brokers: endpoint of each machine's broker.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = folder / name
        shutil.copytree(EXAMPLES / name, self._folder)
        ports = free_ports()
        self._ports: dict[tuple[str, str], str] = defaultdict(lambda: str(next(ports)))
        text = (self._folder / "nameserver.toml").read_text()
        numbers = re.findall(r"10\.0\.0\.(\d):", text)
        for path in self._folder.rglob("*.toml"):
            path.write_text(self._here(path, path.read_text()))
        self.containers: dict[str, Running] = {}
        self.admins: dict[str, str] = {}
        self.brokers: dict[str, str] = {}
        self._nameservers = [self._nameserver(number) for number in numbers]

    def _here(self, path: Path, text: str) -> str:
        """Return a file's text for this machine: other ports instead of other addresses."""
        text = re.sub(
            r"10\.0\.0\.(\d):(\d+)", lambda m: f"127.0.0.1:{self._ports[m[1], m[2]]}", text
        )
        text = re.sub(r"10\.0\.0\.\d", "127.0.0.1", text)
        number = path.parent.name.removeprefix("machine-")
        if path.name != "nameserver.toml":
            text = re.sub(r"_port = (\d+)", lambda m: f"_port = {self._ports[number, m[1]]}", text)
        return text.replace('"/var/', f'"{path.parent}/var/')

    def _nameserver(self, number: str) -> Running:
        return Running(
            *("nameserver", f"--config={self._folder / 'nameserver.toml'}", "--host=127.0.0.1"),
            f"--port={self._ports[number, '9877']}",
            f"--data-dir={self._folder / f'nameserver-{number}'}",
            options=SMALL,
        )

    def up(self) -> None:
        machines = sorted(path.name for path in self._folder.glob("machine-*"))
        for machine in machines:
            self.start(machine)
        for machine in machines:
            self.ready(machine)

    def start(self, machine: str) -> None:
        self.containers[machine] = Running(
            *("container", f"--config={self._folder / machine / 'container.toml'}"), options=SMALL
        )

    def ready(self, machine: str) -> None:
        process = self.containers[machine]
        self.admins[machine] = process.ready("container")["admin"]
        for line in ("broker", "storage"):
            fields = process.ready("role", line)
            if "grpc" in fields:
                self.brokers[machine] = fields["grpc"]

    def down(self) -> None:
        for process in (*self.containers.values(), *self._nameservers):
            process.stop()


class Sends:
    """Senders that repeat a message at the next broker until it is answered.

    Attributes:
        acked: bodies of answered sends.
    """

    def __init__(self, brokers: list[str]) -> None:
        self._brokers = brokers
        self.acked: set[str] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send inside the block."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(SENDERS):
                tasks.create_task(self._send(number, stop))
            try:
                yield
            finally:
                stop.set()

    async def goes_on(self) -> None:
        """Wait for more answers."""
        wanted = len(self.acked) + ANSWERS
        await until(lambda: len(self.acked) >= wanted or NotYet(len(self.acked)), LIMIT_S)

    async def _send(self, number: int, stop: asyncio.Event) -> None:
        clients = [Client(broker, timeout_s=3.0) for broker in self._brokers]
        count, turn = 0, number
        while not stop.is_set():
            body = f"{number}-{count}"
            message = (clients[0].new_message_id(), body.encode())
            while not stop.is_set():
                try:
                    await clients[turn % len(clients)].send(TOPIC, [message])
                except _FAILURES:
                    turn += 1
                    await asyncio.sleep(0.05)
                else:
                    self.acked.add(body)
                    break
            count += 1
            await asyncio.sleep(0.02)
        for client in clients:
            await client.close()


@pytest.fixture(params=["three-machines", "two-machines"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(request.param, tmp_path)
    try:
        made.up()
        yield made
    finally:
        made.down()


def create(deployment: Deployment, *arguments: str) -> None:
    [first, *_] = deployment.brokers.values()
    until_blocking(
        lambda: strata(first, *arguments) is not None or NotYet("no answer"),
        LIMIT_S,
        forgiven=Failed,
    )


async def _missing(broker: str, wanted: set[str]) -> set[str]:
    """Receive the topic's messages until all wanted bodies came; return those that never come."""
    missing = set(wanted)
    with suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S), Client(broker) as client:
            while missing:
                # A leader may be elected still, and leases of lost answers have to run out.
                with suppress(*_FAILURES):
                    for queue in await client.queues(TOPIC):
                        messages = await client.receive(queue, GROUP, poll_s=1)
                        missing -= {message.body.decode() for message in messages}
                        if messages:
                            await client.ack(TOPIC, GROUP, messages)
    return missing


@pytest.mark.timeout(400)
async def test_the_kill_of_each_container_loses_no_acked_message(deployment: Deployment) -> None:
    """The examples run as written; with three machines the others go on meanwhile."""
    create(deployment, "topic", "create", TOPIC, "--queues", "6")
    create(deployment, "group", "create", GROUP)
    machines, sends = sorted(deployment.containers), Sends(list(deployment.brokers.values()))
    async with sends.running():
        await sends.goes_on()
        for machine in machines:
            await asyncio.to_thread(deployment.containers[machine].kill)
            if len(machines) == 3:
                await sends.goes_on()
            deployment.start(machine)
            await asyncio.to_thread(deployment.ready, machine)
            await sends.goes_on()

    assert await _missing(deployment.brokers[machines[0]], sends.acked) == set()
    for admin in deployment.admins.values():
        serve = partial(_all_serve, admin)
        await asyncio.to_thread(until_blocking, serve, LIMIT_S, forgiven=Failed)


def _all_serve(admin: str) -> object:
    """Whether both members of a container serve."""
    members = strata(admin, "container", "list")["members"]
    states = [member["state"] for member in members]
    return states == ["serving", "serving"] or NotYet(states)
