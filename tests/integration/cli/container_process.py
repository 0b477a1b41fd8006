"""A container in a process, a nameserver beside it, and the `strata` command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strata_testing import NotYet, until_blocking
from tests.integration.cli.conftest import STRATA

LIMIT_S = 120.0
SMALL = {
    "STRATA_STORAGE_LOG_SEGMENT_BYTES": str(8 << 20),
    "STRATA_STORAGE_BALLAST_BYTES": "0",
    "STRATA_STORAGE_REFUSE_APPENDS_FREE_BYTES": str(1 << 20),
}
"""A test has little room."""
OPTIONS = {
    **SMALL,
    "STRATA_NAMESERVER_REPLICATION_FACTOR": "1",
    "STRATA_NAMESERVER_INITIAL_STORAGE_NODES": "1",
}


class Running:
    """A process whose lines are read as they come.

    Args:
        arguments: of the command `strata`.
        options: variables of its configuration.
        program: what runs the command; by default it runs by itself.

    Attributes:
        lines: of standard output.
        errors: of standard error.
    """

    def __init__(
        self,
        *arguments: str,
        options: Mapping[str, str] = OPTIONS,
        program: Sequence[str] = (),
    ) -> None:
        self.process = subprocess.Popen(
            [*program, *STRATA, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | dict(options),
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self.process.stdout, self.lines),
                (self.process.stderr, self.errors),
            )
        ]
        for reader in self._readers:
            reader.start()

    def ready(self, key: str, value: str = "", *, count: int = 1) -> dict[str, str]:
        """Wait for the ready line with a key, the `count`-th of those; return its fields."""

        def found() -> list[dict[str, str]]:
            assert self.process.poll() is None, self.errors
            told = [dict(word.split("=", 1) for word in line.split()[1:]) for line in self.lines]
            return [each for each in told if key in each and value in ("", each[key])]

        until_blocking(lambda: len(found()) >= count or NotYet(self.errors[-5:]), LIMIT_S)
        return found()[count - 1]

    def stop(self) -> int:
        """End it in order; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        code = self.process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join(LIMIT_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        # One by one: a list of all would be there at the end only.
        for line in stream:
            lines += [line.rstrip()]


class Failed(Exception):
    """A command that failed; the message is its line."""


def strata(endpoint: str, *arguments: str) -> Any:
    """Run a command and return what it shows.

    Raises:
        Failed: it failed.
    """
    done = subprocess.run(
        [*STRATA, *arguments, "--endpoint", endpoint, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise Failed(done.stderr.strip())
    return json.loads(done.stdout) if done.stdout.strip() else None


def member_file(folder: Path, name: str, role: str, port: int, more: str = "") -> str:
    """Write the file of a member; return its name."""
    key = "grpc_port" if role == "broker" else "storage_port"
    text = (
        f'[member]\nname = "{name}"\nrole = "{role}"\ndata_dir = "{name}"\nisolate_log = true\n\n'
        f"[node]\n{key} = {port}\ndrain_ms = 500\n{more}"
    )
    (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return f"{name}.toml"
