"""The S3 server in a container: what `s3_server` gives where a container engine answers.

The image holds nothing but versitygw's binary; it is built here, from no registry.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, NotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from strata_tier.store.credentials import S3Credentials
from tests.parts.s3_server import S3Server

IMAGE = "stratamq-tests/versitygw"
_READY_S = 60
_UNIX = "unix://"
_USUAL_SOCKET = "unix:///var/run/docker.sock"


def engine_answers() -> bool:
    """Whether a container engine is there (DOCKER_HOST, or its usual socket)."""
    host = os.environ.get("DOCKER_HOST", _USUAL_SOCKET)
    # The client library leaves a socket open that could not connect.
    if host.startswith(_UNIX) and not _accepts(host.removeprefix(_UNIX)):
        return False
    try:
        client = docker.from_env(timeout=5)
    except DockerException:
        return False
    try:
        return bool(client.ping())
    except DockerException:
        return False
    finally:
        client.close()


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


class ContainerDaemon:
    """One server in a container, with the calls of `tests.parts.daemon.Daemon`.

    Args:
        command: arguments of the image's program.
        port: it is ready when this accepts connections on 127.0.0.1.
        environment: of the program.
        data: a folder of this machine that it sees under the same path.
    """

    def __init__(
        self, command: Sequence[str], port: int, environment: Mapping[str, str], data: Path
    ) -> None:
        self._command = list(command)
        self._port = port
        self._environment = dict(environment)
        self._data = str(data)
        self._container: DockerContainer | None = None

    def start(self) -> None:
        """Start it and wait until its port accepts."""
        container = DockerContainer(IMAGE).with_kwargs(network_mode="host")
        container = container.with_volume_mapping(self._data, self._data, "rw")
        for name, value in self._environment.items():
            container = container.with_env(name, value)
        self._container = container.with_command(self._command).start()
        deadline_s = time.monotonic() + _READY_S
        while not self._accepts():
            if time.monotonic() > deadline_s:
                said = self._container.get_logs()
                self.kill()
                raise RuntimeError(f"the container is not ready: {said}")
            time.sleep(0.05)

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def stop(self) -> None:
        """End it as an operator would."""
        self._remove()

    def kill(self) -> None:
        """End it at once."""
        if self._container is not None:
            self._wrapped().kill()
        self._remove()

    def _remove(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            with suppress(NotFound):
                container.stop()

    def restart(self) -> None:
        """Kill it and start it again on the same port and data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop it without ending it: connections stay open and nothing answers."""
        self._wrapped().pause()

    def resume(self) -> None:
        """Let it go on."""
        self._wrapped().unpause()

    def _wrapped(self) -> Any:
        assert self._container is not None, "it was started"
        return self._container.get_wrapped_container()


class ContainerS3Server(S3Server):
    """`S3Server` in a container; see the module docstring."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # There is no registry that its helper image could come from.
        testcontainers_config.ryuk_disabled = True
        context = folder / "image"
        context.mkdir()
        shutil.copy(self._program, context / "versitygw")
        (context / "Dockerfile").write_text(
            'FROM scratch\nCOPY versitygw /versitygw\nENTRYPOINT ["/versitygw"]\n'
        )
        client = docker.from_env()
        client.images.build(path=str(context), tag=IMAGE, rm=True)
        client.close()

    def _daemon(self, credentials: S3Credentials) -> ContainerDaemon:
        command = ["--quiet", "--port", f"127.0.0.1:{self.port}", "posix", str(self.data)]
        return ContainerDaemon(command, self.port, self.secrets(credentials), self.data)
