"""An emulator of Google Cloud Storage: fake-gcs-server, objects in memory."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from tests.parts.daemon import Daemon, require
from tests.parts.ports import free_port
from tests.parts.stores import Place, new_folder


class GcsServer:
    """The emulator and its buckets, which die with it.

    Args:
        folder: an empty folder of its own, for its log.
    """

    def __init__(self, folder: Path) -> None:
        program = require("gcs", "tier-gcs") / "fake-gcs-server"
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        command += ["-backend", "memory", "-log-level", "error"]
        command += ["-external-url", self.endpoint, "-public-host", f"127.0.0.1:{port}"]
        self.daemon = Daemon(command, port, folder / "gcs.log")

    def start(self) -> None:
        """Start it."""
        self.daemon.start()

    def stop(self) -> None:
        """End it."""
        self.daemon.stop()

    def place(self) -> Place:
        """A place in a new bucket."""
        bucket = new_folder()
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project=tests",
            data=json.dumps({"name": bucket}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10):
            return Place(f"gs://{bucket}/some/prefix?endpoint={self.endpoint}")
