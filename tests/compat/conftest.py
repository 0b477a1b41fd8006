"""One standalone node for the session, and the clients of four languages on it.

With STRATA_TEST_CLUSTER=1 it is a cluster behind one virtual address; the tests are the same.
A client that is not installed skips its tests with the target that installs it;
STRATA_TEST_REQUIRE=all turns that into a failure.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.drivers import LANGUAGES, TLS_BY_DEFAULT, Driver, Options, installed
from tests.e2e.cluster import Cluster
from tests.e2e.standalone import Standalone
from tests.parts.required import absent

# RocketMQ is installed and started as the benchmarks do it, and they are no installed package.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)


class DriverPool:
    """The drivers of a session, one process for each language and way to connect."""

    def __init__(self, node: Standalone | Cluster) -> None:
        self._node = node
        self._drivers: dict[tuple[str, bool, str], Driver] = {}

    def get(self, language: str, *, tls: bool | None = None, namespace: str = "") -> Driver:
        """Return a driver, started when first asked for; `tls` None is the client's default."""
        require(language)
        tls = TLS_BY_DEFAULT[language] if tls is None else tls
        key = (language, tls, namespace)
        if key not in self._drivers or self._drivers[key].ended:
            options = Options(endpoint=self._node.endpoint, tls=tls, namespace=namespace)
            self._drivers[key] = Driver(language, options)
        return self._drivers[key]

    def close(self) -> None:
        """End all drivers."""
        for driver in self._drivers.values():
            driver.close()


def require(language: str) -> None:
    """Skip, or fail when everything is required, unless the client is installed."""
    if installed(language):
        return
    absent(f"the official {language} client is missing: make compat-{language}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if "tests/compat/" in item.path.as_posix():
            item.add_marker(pytest.mark.compat)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone | Cluster]:
    """The node all tests share; each test has topics and consumer groups of its own."""
    if os.environ.get("STRATA_TEST_CLUSTER"):
        cluster = Cluster(tmp_path_factory.mktemp("compat") / "cluster")
        cluster.up()
        yield cluster
        cluster.down()
        return
    standalone = Standalone(tmp_path_factory.mktemp("compat") / "data")
    standalone.start()
    yield standalone
    standalone.close()


@pytest.fixture(scope="session")
def drivers(node: Standalone | Cluster) -> Iterator[DriverPool]:
    """The drivers of the session."""
    pool = DriverPool(node)
    yield pool
    pool.close()


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """Each language in turn."""
    assert isinstance(request.param, str)
    require(request.param)
    return request.param


@pytest.fixture
def driver(language: str, drivers: DriverPool) -> Driver:
    """The driver of the language, connected as its users find it."""
    return drivers.get(language)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for topics and consumer groups that no other test uses."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")
