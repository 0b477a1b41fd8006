"""Access control is turned on in a running cluster, one process after the other, under load."""

import asyncio
import json
from collections.abc import Iterator

import grpc
import pytest

from strata_testing import until
from tests.e2e.client import INVISIBLE_S, Client
from tests.e2e.cluster import UP_TIMEOUT_S, Cluster
from tests.e2e.history import check, skipped
from tests.e2e.load import Load

STEADY_LIMIT_S = 60.0
PAUSE_S = 0.05
USER = "loader"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster without access control, as it was before there were users."""
    made = Cluster(tmp_path_factory.mktemp("cluster") / "c", nameservers=3, storage=3)
    made.up()
    made.settle()
    yield made
    made.down()


async def restart(cluster: Cluster, load: Load, name: str) -> None:
    """Stop a process, start it with access control, and go on when replicas have caught up."""
    before = load.count()
    await asyncio.to_thread(cluster.local, "stop", name)
    await asyncio.to_thread(cluster.local, "up", "--access-control", "on", timeout_s=UP_TIMEOUT_S)
    if not name.startswith("broker"):
        # Once a broker asks for keys, the admin's calls of this test would be refused.
        await asyncio.to_thread(cluster.settle)
    await until(lambda: load.count() > before, STEADY_LIMIT_S)


def keys_of(cluster: Cluster) -> tuple[str, str]:
    """Make a user while nobody is asked for keys; clients get its keys before they are needed."""
    made = cluster.strata("user", "create", USER)
    for resource, actions in (("topic:*", "pub,sub,get"), ("group:*", "sub,get")):
        cluster.strata(
            *("policy", "create", USER, "--resource", resource),
            *("--actions", actions, "--decision", "allow"),
        )
    return USER, made["secret_key"]


@pytest.mark.timeout(900)
async def test_clients_with_keys_see_no_error_while_access_control_is_turned_on(
    cluster: Cluster,
) -> None:
    """Every process is restarted, brokers last; clients send and sign from before the first on."""
    # A lease outlives the change of a leader on a busy machine: no ack may be refused.
    load = Load(cluster.endpoint, "normal", "fifo", "consumers", PAUSE_S, invisible_s=INVISIBLE_S)
    load.create_topics(cluster)
    load.keys = await asyncio.to_thread(keys_of, cluster)
    async with load.running():
        await until(lambda: load.count() > 0, STEADY_LIMIT_S)
        for role in ("nameserver", "storage", "broker"):
            for name in cluster.names(role):
                await restart(cluster, load, name)
            if role == "nameserver":
                assert_there_is_an_admin(cluster)
    print(f"{load.count()} answered, errors {sorted(set(load.errors))}")
    assert load.errors == []
    await load.drain()
    assert check(load.history) == []
    assert skipped(load.history, load.group, load.normal) == []
    async with Client(cluster.endpoint) as nobody:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await nobody.is_consumed("normal", load.group, 1)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def assert_there_is_an_admin(cluster: Cluster) -> None:
    """The nameservers have made it, once: no broker asks for keys before somebody has some."""
    (keys,) = cluster.data_dir.glob("nameserver-*/first-admin.json")
    assert json.loads(keys.read_text())["secret_key"]
