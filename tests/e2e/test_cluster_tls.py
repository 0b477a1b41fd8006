"""A cluster changes from plaintext to mutual TLS, and from one authority to the next, under load.

Clients see latency and no loss: every send is answered, as with any rolling restart.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strata_cli.local.plan import AUTHORITY, CERTIFICATES
from strata_runtime.authority import CA_FILE, issue, make_authority
from strata_runtime.roles import PeerRole
from strata_testing import until, until_blocking
from tests.e2e.client import INVISIBLE_S
from tests.e2e.cluster import Cluster
from tests.e2e.history import check, skipped
from tests.e2e.load import Load
from tests.e2e.test_cluster_changes import restart_everything

ROLES = ("nameserver", "storage", "broker")
HOSTS = ["127.0.0.1", "localhost"]
PAUSE_S = 2.0
LEAST_ANSWERS = 100
RELOAD_LIMIT_S = 60.0


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a cluster."""
    return tmp_path_factory.mktemp("cluster") / "c"


@contextmanager
def running(folder: Path, cluster_tls: str = "") -> Iterator[Cluster]:
    """Run a cluster."""
    made = Cluster(folder, nameservers=1, cluster_tls=cluster_tls)
    made.up()
    try:
        made.settle()
        yield made
    finally:
        made.down()


def ready_lines(cluster: Cluster, name: str) -> list[str]:
    """Return the ready lines of a process, the newest last."""
    log = (cluster.data_dir / name / "log").read_text()
    return [line for line in log.splitlines() if line.startswith("ready ")]


def reloads(cluster: Cluster, name: str) -> int:
    """Return how often a process took new files since it was created."""
    log = (cluster.data_dir / name / "log").read_text()
    assert "new certificate cannot be used" not in log
    return log.count("certificate reloaded for new connections")


async def use_tls(cluster: Cluster, load: Load, mode: str) -> None:
    """Restart every process with another mode, one after the other."""
    await asyncio.to_thread(cluster.local, "up", "--cluster-tls", mode)
    await restart_everything(cluster, load)
    for role in ROLES:
        for name in cluster.names(role):
            assert f"cluster_tls={mode}" in ready_lines(cluster, name)[-1]


def wait_for_reload(cluster: Cluster, name: str, before: int) -> None:
    """Return when a process has read its certificates again."""
    until_blocking(lambda: reloads(cluster, name) > before, RELOAD_LIMIT_S)


async def replace_authority(cluster: Cluster) -> None:
    """Accept both authorities, issue new certificates, accept only the new one; no restart."""
    new = cluster.data_dir / "new-ca"
    make_authority(new)
    both = (cluster.data_dir / AUTHORITY / CA_FILE).read_bytes() + (new / CA_FILE).read_bytes()
    for step in ("both", "issue", "new"):
        for role in ROLES:
            for name in cluster.names(role):
                folder = cluster.data_dir / name / CERTIFICATES
                before = reloads(cluster, name)
                take_step(step, new, folder, PeerRole(role), both)
                await asyncio.to_thread(wait_for_reload, cluster, name, before)
    # Connections that began before go on; this makes new ones.
    [first, *_] = cluster.names("storage")
    await asyncio.to_thread(cluster.local, "kill", first)
    await asyncio.to_thread(cluster.local, "start", first)
    await asyncio.to_thread(cluster.settle)


def take_step(step: str, new: Path, folder: Path, role: PeerRole, both: bytes) -> None:
    """Change the files of one process."""
    draft = folder.with_name("draft")
    draft.mkdir(exist_ok=True)
    if step == "issue":
        issue(new, draft, role, HOSTS)
    (draft / CA_FILE).write_bytes((new / CA_FILE).read_bytes() if step == "new" else both)
    # As a mounted secret changes: none is seen half written, and all change together.
    for file in list(draft.iterdir()):
        file.replace(folder / file.name)


async def under_load(cluster: Cluster, change: Callable[[Load], Awaitable[None]]) -> Load:
    """Change a cluster under load, then drain and judge; return the load."""
    # A lease outlives the change of a leader on a busy machine: no ack may be refused.
    load = Load(
        cluster.endpoint,
        *("tls-normal", "tls-fifo", "tls-consumers", PAUSE_S),
        invisible_s=INVISIBLE_S,
    )
    load.create_topics(cluster)
    async with load.running():
        await change(load)
        await until(lambda: load.count() > LEAST_ANSWERS)
    print(f"{load.count()} answered; {len(load.errors)} repeated, {sorted(set(load.errors))[:4]}")
    await load.drain()
    violations = check(load.history)
    print(*violations[:10], sep="\n")
    assert violations == []
    assert skipped(load.history, load.group, load.normal) == []
    return load


@pytest.mark.timeout(1200)
async def test_from_plaintext_to_tls(folder: Path) -> None:
    """No acked message is lost and every sender gets its answers, all the way."""

    async def change(load: Load) -> None:
        await use_tls(cluster, load, "optional")
        await use_tls(cluster, load, "required")

    with running(folder) as cluster:
        await under_load(cluster, change)


@pytest.mark.timeout(400)
async def test_from_one_authority_to_the_next(folder: Path) -> None:
    """The files change under a running cluster: nothing is restarted for them, no call fails."""
    with running(folder, "required") as cluster:
        load = await under_load(cluster, lambda _: replace_authority(cluster))
    assert load.errors == []
