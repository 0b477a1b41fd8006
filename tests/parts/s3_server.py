"""A real S3 server: versitygw over a folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Protocol

import boto3
from botocore.config import Config

from strata_tier.store.credentials import S3Credentials
from tests.parts.daemon import Daemon, require
from tests.parts.ports import free_port
from tests.parts.stores import Place, new_folder

CREDENTIALS = S3Credentials("tier-tests", "the-secret-of-the-tests")


class Runnable(Protocol):
    """A server that can be ended in several ways: a process or a container."""

    def start(self) -> None:
        """Start it and wait until it is ready."""

    def stop(self) -> None:
        """End it as an operator would."""

    def kill(self) -> None:
        """End it at once."""

    def restart(self) -> None:
        """Kill it and start it again on the same port and data."""

    def pause(self) -> None:
        """Stop it without ending it."""

    def resume(self) -> None:
        """Let it go on."""


class S3Server:
    """The server, its data and its buckets.

    Args:
        folder: an empty folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self._program = require("s3", "tier-s3") / "versitygw"
        self._folder = folder
        self.data = folder / "data"
        self.data.mkdir()
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.daemon = self._daemon(CREDENTIALS)

    @staticmethod
    def secrets(credentials: S3Credentials) -> dict[str, str]:
        """Return what its environment must hold."""
        return {
            "ROOT_ACCESS_KEY_ID": credentials.access_key,
            "ROOT_SECRET_ACCESS_KEY": credentials.secret_key,
        }

    def _daemon(self, credentials: S3Credentials) -> Runnable:
        command = [str(self._program), "--quiet", "--port", f"127.0.0.1:{self.port}"]
        command += ["posix", str(self.data)]
        return Daemon(command, self.port, self._folder / "s3.log", self.secrets(credentials))

    def start(self) -> None:
        """Start it."""
        self.daemon.start()

    def stop(self) -> None:
        """End it; the data stay."""
        self.daemon.stop()

    def revoke(self) -> None:
        """Restart it with other credentials than every client has."""
        self.daemon.kill()
        self.daemon = self._daemon(S3Credentials(CREDENTIALS.access_key, "another-secret-now"))
        self.daemon.start()

    def restore_credentials(self) -> None:
        """Restart it with the credentials that clients have."""
        self.daemon.kill()
        self.daemon = self._daemon(CREDENTIALS)
        self.daemon.start()

    def new_bucket(self) -> str:
        """Make an empty bucket; return its name."""
        bucket = new_folder()
        client = self.client()
        client.create_bucket(Bucket=bucket)
        client.close()
        return bucket

    def place(self, bucket: str | None = None, endpoint: str | None = None) -> Place:
        """A place in a bucket, behind another address if a proxy stands before the server."""
        bucket = bucket or self.new_bucket()
        query = f"endpoint={endpoint or self.endpoint}&dialect=versitygw"
        return Place(f"s3://{bucket}/some/prefix?{query}", CREDENTIALS)

    @property
    def client(self) -> partial[Any]:
        """Makes a bare boto3 client."""
        return partial(
            boto3.session.Session().client,
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=CREDENTIALS.access_key,
            aws_secret_access_key=CREDENTIALS.secret_key,
            region_name="us-east-1",
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
