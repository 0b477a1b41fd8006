"""One virtual address for brokers: a TCP forwarder that knows which of them serve.

    client -- accept -- choose a broker -- connect -- bytes both ways

It is meant for one machine; in Kubernetes a Service does this. A broker gets new connections while
grpc.health.v1 says SERVING; a broker that drains says so, and one that hangs says nothing.
Connections to a broker that stopped answering are closed, so that clients reconnect to another
broker. Invariants: a connection is in its broker's `links` from the choice to the end of both
sides. If no broker serves, all brokers are tried for a while before a client is closed: a broker on
a busy machine may only seem dead. A broker that closes a connection before it sent a byte was
dying when it accepted it: another broker gets the connection, a few times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from strata_cli.processes.forwarder_link import Link, Side
from strata_cli.processes.metrics import METRICS
from strata_cli.processes.ready_line import ReadyLine
from strata_runtime import logs, loop
from strata_runtime.addresses import host_and_port
from strata_runtime.errors import one_line
from strata_runtime.health import Health, Problem, ProcessHealth, Severity
from strata_runtime.lifecycle import Lifecycle, Service
from strata_runtime.listening import listening
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.metrics_server import MetricsServer, MetricsServerOptions
from strata_runtime.tasks import OnFatal, RequestTasks, Tasks
from strata_runtime.timeouts import Timeout

_CHANNEL_OPTIONS = (
    # A returned broker is seen at the next check, not after grpcio's own long pauses.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # In spite of its name: how long an attempt to connect may take, TLS included.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
_GRACE_S = 5.0
# Most brokers that one connection is given to if each closes it without a byte.
_MAX_TRIES = 4


@dataclass(frozen=True, slots=True)
class ForwarderOptions:
    """Limits of a forwarder.

    Attributes:
        host: address to listen on.
        port: port to listen on; 0: any free one.
        max_connections: clients at once; more are closed at once.
        connect_timeout_ms: for one broker to accept.
        patience_ms: for which brokers are tried again while none accepts.
        check_interval_ms: pause between two health checks of a broker.
        check_timeout_ms: for one health check.
        failures_to_drop: checks without an answer after which the connections of a broker that
            still listens are closed, if another one serves: else they have nowhere to go.
        buffer_bytes: kept for a side that reads slowly; beyond it the other side is not read.
    """

    host: str
    port: int
    max_connections: int = 10_000
    connect_timeout_ms: int = 500
    patience_ms: int = 2_000
    check_interval_ms: int = 200
    check_timeout_ms: int = 1_000
    failures_to_drop: int = 2
    buffer_bytes: int = 256 * 1024


@dataclass(slots=True, eq=False)
class Broker:
    """A broker as the forwarder sees it.

    Attributes:
        address: host:port.
        serving: it said so at the last check; None: not asked yet.
        failures: checks in a row to which it said nothing.
        links: its connections.
    """

    address: str
    serving: bool | None = None
    failures: int = 0
    links: set[Link] = field(default_factory=set)


def candidates(brokers: Iterable[Broker], silent: Sequence[str] = ()) -> list[Broker]:
    """Return the brokers in the order in which a new connection tries them.

    Brokers that serve come first, the least loaded one at the front. Other brokers follow, since
    they may serve again before the next check. The brokers at the addresses in `silent`, which
    closed the connection without a byte, come last.
    """
    return sorted(
        brokers,
        key=lambda each: (each.address in silent, each.serving is not True, len(each.links)),
    )


class BrokerList:
    """The addresses of the brokers: fixed, or read from a file that may change.

    The file may be incomplete or wrong: a line that is not an address is left out, and logged once
    for each change of the file.

    Args:
        addresses: fixed ones.
        file: one host:port per line; None: there is no file.

    Raises:
        ValueError: a fixed one is no address.
    """

    def __init__(self, addresses: Iterable[str], file: Path | None) -> None:
        self._fixed = tuple(addresses)
        for address in self._fixed:
            host_and_port(address)
        self._file = file
        self._read_at = (0, 0)
        self._from_file: tuple[str, ...] = ()
        self._unreadable = ""
        self._log = get_logger("forwarder")

    def addresses(self) -> tuple[str, ...]:
        """Return the present addresses; a missing or unreadable file changes nothing."""
        if self._file is not None:
            try:
                self._read(self._file)
                self._unreadable = ""
            except FileNotFoundError:
                pass
            except OSError as error:
                if str(error) != self._unreadable:
                    self._unreadable = str(error)
                    self._log.warning("list of brokers stays as it is", reason=one_line(error))
        return (*self._fixed, *self._from_file)

    def _read(self, file: Path) -> None:
        stat = file.stat()
        version = (stat.st_mtime_ns, stat.st_ino)
        if version == self._read_at:
            return
        found: list[str] = []
        for line in file.read_text(encoding="utf-8", errors="replace").split():
            try:
                host_and_port(line)
            except ValueError as error:
                self._log.warning("line of the brokers file left out", reason=one_line(error))
            else:
                found.append(line)
        self._from_file = tuple(found)
        self._read_at = version


class Forwarder:
    """See the module docstring; a `Service` of the runtime's lifecycle.

    Args:
        options: address and limits.
        brokers: who they are.
        metrics: connections and refusals.
        on_fatal: told when a background task failed.
    """

    name = "forwarder"

    def __init__(
        self,
        options: ForwarderOptions,
        brokers: BrokerList,
        metrics: Metrics,
        *,
        on_fatal: OnFatal,
    ) -> None:
        metrics.declare(METRICS)
        self.endpoint = ""
        self._options = options
        self._list = brokers
        self._brokers: dict[str, Broker] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._tasks = Tasks("forwarder", on_fatal, max_tasks=1)
        # One for each connection that looks for a broker, one for each broker.
        self._requests = RequestTasks(
            "forwarder", metrics, max_tasks=options.max_connections + 1_000
        )
        self._server: asyncio.Server | None = None
        self._connections = 0
        # Sockets of both kinds; `_closed` is set when the last one goes.
        self._sides: set[Side] = set()
        self._closed = asyncio.Event()
        self._refused = metrics.counter("strata_forwarder_refused_connections_total")
        self._gauges = (
            metrics.gauge("strata_forwarder_connections", lambda: self._connections),
            metrics.gauge("strata_forwarder_brokers_serving", lambda: len(self.serving)),
        )
        self._log = get_logger("forwarder")

    async def start(self) -> None:
        """Listen and begin to check the brokers.

        Raises:
            ListenError: the address cannot be listened on.
        """
        options = self._options
        running = asyncio.get_running_loop()
        with listening(options.host, options.port, "for clients"):
            self._server = await running.create_server(self._accept, options.host, options.port)
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.endpoint = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        self._tasks.spawn("follow brokers", self._follow_list())

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more and close everything."""
        if self._server is not None:
            self._server.close()
        await self._tasks.stop()
        await self._requests.stop()
        if not self._sides:
            self._closed.set()
        for broker in self._brokers.values():
            _drop(broker)
        for side in list(self._sides):
            side.abort()
        with suppress(TimeoutError):
            async with Timeout(grace_s):
                await self._closed.wait()
        for gauge in self._gauges:
            gauge.close()

    @property
    def brokers(self) -> Mapping[str, Broker]:
        """Return the forwarder's knowledge of the brokers, by address."""
        return self._brokers

    @property
    def serving(self) -> set[str]:
        """Addresses of the brokers that said they serve."""
        return {each.address for each in self._brokers.values() if each.serving is True}

    def health(self) -> Health:
        """Return whether a broker takes connections, and which do not."""
        problems = tuple(
            Problem("node", each.address, "DOWN", Severity.DEGRADED, "the broker does not serve")
            for each in self._brokers.values()
            if each.serving is False
        )
        return Health(serves=bool(self.serving), problems=problems)

    def load(self) -> dict[str, int]:
        """Return how many connections each broker has."""
        return {address: len(broker.links) for address, broker in self._brokers.items()}

    def _accept(self) -> Side:
        return Side(self._options.buffer_bytes, self._accepted, self._client_closed)

    def _accepted(self, client: Side) -> None:
        self._connections += 1
        self._sides.add(client)
        if self._server is None or not self._server.is_serving():
            client.abort()  # the kernel handed it over just before the stop
            return
        if self._connections > self._options.max_connections:
            self._refused.add(1, {"reason": "limit"})
            client.abort()
            return
        self._find_broker(client)

    def _client_closed(self, client: Side) -> None:
        self._connections -= 1
        self._forget(client)

    def _forget(self, side: Side) -> None:
        self._sides.discard(side)
        if not self._sides:
            self._closed.set()

    async def _connect(self, client: Side, silent: Sequence[str] = ()) -> None:
        """Give a client's connection to a broker; close it if no broker accepts it in time."""
        running = asyncio.get_running_loop()
        until_s = running.time() + self._options.patience_ms / 1_000
        while not await self._connect_once(client, silent):
            if client.lost:
                return
            if running.time() >= until_s:
                self._refused.add(1, {"reason": "no broker"})
                client.abort()
                return
            await asyncio.sleep(self._options.check_interval_ms / 1_000)

    def _unanswered(self, silent: Sequence[str], client: Side) -> None:
        """Give a connection to another broker: the last one closed it without a byte."""
        if self._server is None or not self._server.is_serving() or len(silent) >= _MAX_TRIES:
            client.abort()
            return
        self._find_broker(client, silent)

    def _find_broker(self, client: Side, silent: Sequence[str] = ()) -> None:
        """Connect a client; a failure costs this connection alone."""
        self._requests.spawn("connect", self._connect(client, silent), lambda _: client.abort())

    async def _connect_once(self, client: Side, silent: Sequence[str]) -> bool:
        """Give a client's connection to the first broker that accepts it; False: to none."""
        for broker in candidates(self._brokers.values(), silent):
            if client.lost:
                return False
            unanswered = partial(self._unanswered, (*silent, broker.address))
            server = Side(
                self._options.buffer_bytes, self._sides.add, self._forget, on_unanswered=unanswered
            )
            link = Link(client, server, broker.links.discard)
            # Counted while it connects: connections that come together spread as well.
            broker.links.add(link)
            if await self._reach(broker, server):
                link.join()
                return True
            broker.links.discard(link)
            broker.serving = False
        return False

    async def _reach(self, broker: Broker, server: Side) -> bool:
        host, port = host_and_port(broker.address)
        try:
            async with Timeout(self._options.connect_timeout_ms / 1_000):
                await asyncio.get_running_loop().create_connection(lambda: server, host, port)
        except (OSError, TimeoutError):
            return False
        return True

    async def _follow_list(self) -> None:
        """Check every broker of the list; forget those that left it."""
        while True:
            wanted = set(self._list.addresses())
            for address in wanted - self._brokers.keys():
                broker = self._brokers[address] = Broker(address)
                self._checks[address] = self._follow(broker)
            for address in self._brokers.keys() - wanted:
                self._checks.pop(address).cancel()
                _drop(self._brokers.pop(address))
            await asyncio.sleep(self._options.check_interval_ms / 1_000)

    def _follow(self, broker: Broker) -> asyncio.Task[None]:
        """Check a broker until it leaves the list; a check that fails is begun anew."""

        def failed(_: BaseException) -> None:
            broker.serving = False
            running = asyncio.get_running_loop()
            running.call_later(self._options.check_interval_ms / 1_000, again)

        def again() -> None:
            if self._brokers.get(broker.address) is broker and self._server is not None:
                self._checks[broker.address] = self._follow(broker)

        return self._requests.spawn("check", self._check(broker), failed)

    async def _check(self, broker: Broker) -> None:
        """Ask a broker for its health, again and again."""
        request = health_pb2.HealthCheckRequest()
        async with grpc.aio.insecure_channel(broker.address, _CHANNEL_OPTIONS) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while True:
                serving = False
                try:
                    answer = await stub.Check(
                        request, timeout=self._options.check_timeout_ms / 1_000
                    )
                    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
                    broker.failures = 0
                except grpc.aio.AioRpcError:
                    broker.failures = 0 if await self._refuses(broker) else broker.failures + 1
                self._note(broker, serving=serving)
                await asyncio.sleep(self._options.check_interval_ms / 1_000)

    async def _refuses(self, broker: Broker) -> bool:
        """Whether nothing listens at a broker's address.

        Such a broker stops and serves its connections to their end, or it died and its machine has
        closed them. Only a broker that accepts connections but does not answer holds clients.
        """
        host, port = host_and_port(broker.address)
        try:
            async with Timeout(self._options.connect_timeout_ms / 1_000):
                _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    def _note(self, broker: Broker, *, serving: bool) -> None:
        if broker.serving is not serving:
            self._log.info("broker", address=broker.address, serving=serving)
        broker.serving = serving
        silent = broker.failures >= self._options.failures_to_drop
        if silent and broker.links and self.serving:
            self._log.warning("broker does not answer", address=broker.address)
            _drop(broker)


def _drop(broker: Broker) -> None:
    for link in list(broker.links):
        link.abort()


def run(options: ForwarderOptions, brokers: BrokerList, metrics_port: int | None) -> None:
    """Run a forwarder until it is told to stop.

    Raises:
        StrataError: it cannot start, or failed.
    """
    logs.configure(level="info")
    loop.run(_serve(options, brokers, metrics_port))


async def _serve(options: ForwarderOptions, brokers: BrokerList, metrics_port: int | None) -> None:
    metrics = Metrics(service="strata-forwarder")
    lifecycle: Lifecycle
    forwarder = Forwarder(
        options, brokers, metrics, on_fatal=lambda name, failure: lifecycle.on_fatal(name, failure)
    )
    health = ProcessHealth(metrics)
    health.follow(forwarder.health)
    services: list[Service] = [forwarder]
    if metrics_port is not None:
        server = MetricsServerOptions(host=options.host, port=metrics_port)
        services.insert(0, MetricsServer(metrics, server, health=health))
    ready = ReadyLine(lambda: {"listen": forwarder.endpoint}, health)
    lifecycle = Lifecycle([*services, ready], grace_s=_GRACE_S)
    await lifecycle.run()
    metrics.close()
