"""The console of a standalone node: a port from the start, a process when a browser first asks.

The node listens; the first connection starts `python -m strata_console`, which inherits the
listening socket. So a node whose console nobody uses pays for a socket only, and a busy console
takes no time from the node's event loop. After a console has ended, the next connection starts one.
Standard input tells the process its orders and, when it closes, to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strata_cli.processes.console_config import ConsoleSection
from strata_runtime.errors import ConfigError
from strata_runtime.listening import endpoint_of, is_loopback, listening
from strata_runtime.logs import get_logger

_BACKLOG = 128
_PAUSE_S = 1.0
_PACKAGE = "strata_console"


@dataclass(frozen=True, slots=True)
class ConsoleTarget:
    """The ports of the node that its console calls.

    Attributes:
        operators: HOST:PORT of the services for operators.
        clients: HOST:PORT of the services for clients; empty: the same.
    """

    operators: str
    clients: str = ""


class ConsolePort:
    """See the module docstring; a `Service`.

    Args:
        config: of the console.
        target: tells which ports to call; asked when the console starts.
    """

    name = "console port"

    def __init__(self, config: ConsoleSection, target: Callable[[], ConsoleTarget]) -> None:
        self._config = config
        self._target = target
        self._log = get_logger("console")
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = -1
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: the configuration would show keys to a network.
            ListenError: the address cannot be listened on.
        """
        if not self._config.enabled or importlib.util.find_spec(_PACKAGE) is None:
            return
        check_console(self._config)
        self._listener = listen_console(self._config)
        self._wait()

    def shown(self) -> Mapping[str, object]:
        """Return what the line of a node that serves says about the port."""
        if self._listener is None:
            return {}
        port = self._listener.getsockname()[1]
        return {"console": endpoint_of(self._config.host, port)}

    async def stop(self, grace_s: float) -> None:
        """End the console and close the port."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            loop.remove_reader(self._listener.fileno())
            self._listener.close()
        if self._process is not None:
            loop.remove_reader(self._ended)
            await asyncio.to_thread(_end, self._process, grace_s)
            os.close(self._ended)
            self._process = None

    def _wait(self) -> None:
        """Wait for the first connection; the console accepts it."""
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener.fileno(), self._begin)

    def _begin(self) -> None:
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        target = self._target()
        orders = {
            "config": self._config.model_dump(mode="json"),
            "operators": target.operators,
            "clients": target.clients,
            "listener": self._listener.fileno(),
        }
        try:
            process = subprocess.Popen(  # noqa: S603 - our own module, by this interpreter
                [sys.executable, "-m", _PACKAGE],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[self._listener.fileno()],
            )
            try:
                self._ended = os.pidfd_open(process.pid)
            except OSError:
                # Nobody would learn of its end.
                with process:
                    process.kill()
                raise
        except OSError as error:
            self._log.warning("the console cannot start", error=str(error))
            self._timer = loop.call_later(_PAUSE_S, self._wait)
            return
        assert process.stdin is not None
        self._process = process
        loop.add_reader(self._ended, self._has_ended)
        with contextlib.suppress(BrokenPipeError):  # it has ended, which is told
            # A line is far smaller than a pipe: nothing waits.
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            process.stdin.flush()

    def _has_ended(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._ended)
        os.close(self._ended)
        with contextlib.suppress(BrokenPipeError):  # orders that it did not read
            self._process.stdin.close()
        self._log.warning("the console has ended", exit_code=self._process.wait())
        self._process = None
        self._timer = loop.call_later(_PAUSE_S, self._wait)


def check_console(config: ConsoleSection) -> None:
    """Refuse what would show keys to a network.

    Raises:
        ConfigError: the console would serve other machines without TLS, or half a certificate.
    """
    if bool(config.certificate_file) != bool(config.key_file):
        raise ConfigError("console: give certificate_file and key_file, or none of them")
    is_safe = config.certificate_file or config.behind_tls or config.insecure
    if not is_loopback(config.host) and not is_safe:
        raise ConfigError(
            f"the console listens on {config.host or 'all addresses'} without TLS: give it a "
            "certificate, or set console.behind_tls where a proxy has TLS, or console.host to a "
            "loopback address"
        )


def listen_console(config: ConsoleSection) -> socket.socket:
    """Return the console's listening socket.

    Raises:
        ListenError: the address cannot be listened on.
    """
    with listening(config.host, config.port, "for the console"):
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((config.host, config.port))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    return listener


def reachable(endpoint: str) -> str:
    """Return an endpoint of this process under which this machine reaches it."""
    host, _, port = endpoint.rpartition(":")
    everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}  # noqa: S104
    return f"{everywhere.get(host, host)}:{port}"


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended by itself
        process.stdin.close()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
