"""The console's process: uvicorn as a service, with our lifecycle, signals and metrics."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import replace

import uvicorn

from strata_cli.client import AdminClient
from strata_cli.options import Common
from strata_cli.processes.console_config import ConsoleSection
from strata_cli.processes.console_port import check_console, listen_console
from strata_cli.processes.ready_line import ReadyLine
from strata_cli.processes.supervision import SupervisorWatch
from strata_console.app import Console
from strata_console.sessions import ClientFactory
from strata_runtime import logs, loop
from strata_runtime.clock import SystemClock
from strata_runtime.health import ProcessHealth
from strata_runtime.lifecycle import Lifecycle, Service
from strata_runtime.listening import endpoint_of
from strata_runtime.metrics import Metrics
from strata_runtime.metrics_server import MetricsServer, MetricsServerOptions
from strata_runtime.tasks import OnFatal, Tasks

_GRACE_S = 5.0
_KEEP_ALIVE_S = 30


def run(
    config: ConsoleSection,
    common: Common,
    *,
    clients: str = "",
    listener: socket.socket | None = None,
    is_supervised: bool = False,
) -> None:
    """Run the console until it is told to stop.

    Args:
        config: of the console.
        common: the broker to ask; its keys are not used.
        clients: HOST:PORT of the broker's services for clients; empty: that of `common`.
        listener: socket to serve; None: the configured address is listened on.
        is_supervised: it ends when standard input closes.

    Raises:
        StrataError: it cannot start.
    """
    check_console(config)
    logs.configure(level="warning")
    connect = client_factory(config, common, clients)
    loop.run(_serve(config, connect, listener or listen_console(config), is_supervised))


class ConsoleServer:
    """Uvicorn with the console; a `Service`.

    Args:
        config: limits and TLS.
        console: the application.
        listener: socket to serve.
        on_fatal: told when the server ends by itself.
    """

    name = "console"

    def __init__(
        self,
        config: ConsoleSection,
        console: Console,
        listener: socket.socket,
        *,
        on_fatal: OnFatal,
    ) -> None:
        self._console = console
        self._listener = listener
        self._server = _Uvicorn(
            uvicorn.Config(
                console.app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                limit_concurrency=config.max_connections,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=round(_GRACE_S),
                ssl_certfile=config.certificate_file or None,
                ssl_keyfile=config.key_file or None,
            )
        )
        self._tasks = Tasks("console", on_fatal)

    async def start(self) -> None:
        """Begin to serve."""
        self._tasks.spawn("server", self._server.serve([self._listener]))

    async def stop(self, grace_s: float) -> None:
        """End live streams, finish requests, close the port."""
        self._console.stopping.set()
        self._server.should_exit = True
        await self._tasks.drain(grace_s)
        await self._tasks.stop()
        self._listener.close()


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the process's lifecycle."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(
    config: ConsoleSection, connect: ClientFactory, listener: socket.socket, is_supervised: bool
) -> None:
    metrics = Metrics(service="strata-console")
    lifecycle: Lifecycle

    def on_fatal(name: str, failure: BaseException) -> None:
        lifecycle.on_fatal(name, failure)

    console = Console(config, connect, SystemClock(), metrics=metrics)
    health = ProcessHealth(metrics)
    services: list[Service] = []
    if config.metrics_port is not None:
        options = MetricsServerOptions(host=config.host, port=config.metrics_port)
        services.append(MetricsServer(metrics, options, health=health))
    services.append(ConsoleServer(config, console, listener, on_fatal=on_fatal))
    if is_supervised:
        services.append(SupervisorWatch(lambda: lifecycle.request_stop()))
    shown = {"console": endpoint_of(config.host, listener.getsockname()[1])}
    lifecycle = Lifecycle([*services, ReadyLine(lambda: shown, health)], grace_s=_GRACE_S)
    await lifecycle.run()
    metrics.close()


def client_factory(config: ConsoleSection, common: Common, clients: str = "") -> ClientFactory:
    """Return what opens connections with the keys of users, never with keys of this process."""
    base = replace(
        common,
        output="json",
        profile="",
        access_key="",
        secret_key="",
        secret_key_file="",
        session_token="",
        timeout=f"{config.call_timeout_ms}ms",
    )

    def connect(access_key: str, secret_key: str, session_token: str) -> AdminClient:
        signed = replace(
            base, access_key=access_key, secret_key=secret_key, session_token=session_token
        )
        return AdminClient(signed, clients)

    return connect
