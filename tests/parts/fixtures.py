"""Fixtures for suites that need object stores: import them in a folder's conftest.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts.gcs_server import GcsServer
from tests.parts.hdfs_cluster import HdfsCluster
from tests.parts.s3_container import ContainerS3Server, engine_answers
from tests.parts.s3_server import S3Server
from tests.parts.stores import Place, Scheme, UrlOf


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running S3 server: in a container where an engine answers, else as a process."""
    folder = tmp_path_factory.mktemp("s3")
    server = ContainerS3Server(folder) if engine_answers() else S3Server(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def hdfs_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """A running HDFS with two DataNodes."""
    cluster = HdfsCluster(tmp_path_factory.mktemp("hdfs"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """A running emulator of Google Cloud Storage."""
    server = GcsServer(tmp_path_factory.mktemp("gcs"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> UrlOf:
    """Returns a new place in a kind of store; starts its server, or skips without it."""

    def place(scheme: Scheme) -> Place:
        if scheme == "memory":
            return Place("memory://tests")
        if scheme == "posix":
            return Place(f"posix://{tmp_path}/store")
        if scheme == "hdfs":
            cluster: HdfsCluster = request.getfixturevalue("hdfs_cluster")
            return cluster.place()
        if scheme == "gs":
            emulator: GcsServer = request.getfixturevalue("gcs_server")
            return emulator.place()
        server: S3Server = request.getfixturevalue("s3_server")
        return server.place()

    return place
