"""Secrets of a whole cluster: of users, stores, the cluster and its certificates; shown by nobody.

`tests/integration/cli/test_audit.py` plants keys of users on one node; here are those of a cluster
with mutual TLS, at the lowest log level, in every place that somebody without them can look at.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.factory import open_channel
from strata_angelia.options import AngeliaOptions
from strata_angelia.tls import PeerFiles, PeerTls
from strata_cli.local.plan import CERTIFICATES
from strata_runtime.roles import PeerRole
from strata_testing import until, until_blocking
from tests.e2e.cluster import STRATA, Cluster
from tests.integration.cli.test_observability import Collector

PLANTED = "PLANTED"
STORE, SPACE, TOKEN = (f"{PLANTED}-{name}-secret" for name in ("store", "space", "token"))
ROLES = ("nameserver", "storage", "broker")
LEAST_PLACES = 20


@pytest.fixture
def collector() -> Iterator[Collector]:
    """It takes metrics and traces."""
    made = Collector()
    yield made
    made.stop()


@pytest.fixture
def cluster(tmp_path: Path, collector: Collector) -> Iterator[Cluster]:
    """A cluster with certificates, access control and a tier that is configured with keys."""
    store = f"posix://{tmp_path / 'tier'}"
    config = tmp_path / "strata.toml"
    config.write_text(
        f"""
        [node]
        log_level = "debug"
        audit_file = "{tmp_path / "audit.json"}"
        [access_control]
        mode = "on"
        [tier]
        url = "{store}"
        access_key = "visible"
        secret_key = "{STORE}"
        session_token = "{TOKEN}"
        flush_age_ms = 100
        [tier.spaces.shop]
        url = "posix://{tmp_path / "space"}"
        secret_key = "{SPACE}"
        [observability]
        otlp_endpoint = "{collector.endpoint}"
        otlp_interval_ms = 200
        trace_clients = true
        """
    )
    made = Cluster(
        tmp_path / "c",
        *(1, 1, 1, config),
        forwarder=False,
        cluster_tls="required",
    )
    made.up()
    yield made
    made.down()


def keys_of(cluster: Cluster) -> dict[str, str]:
    """The admin's keys, as the command takes them."""
    [file] = cluster.data_dir.glob("nameserver-*/first-admin.json")
    admin = json.loads(file.read_text())
    return {"STRATA_ACCESS_KEY": admin["access_key"], "STRATA_SECRET_KEY": admin["secret_key"]}


def open_sockets() -> int:
    """Return how many sockets this process has."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += each.readlink().name.startswith("socket:")
    return count


async def cluster_keys(cluster: Cluster) -> list[bytes]:
    """Return the secrets of the cluster, as a broker gets them from a nameserver."""
    [broker] = cluster.names("broker")
    tls = PeerTls(PeerFiles.in_folder(cluster.data_dir / broker / CERTIFICATES), PeerRole.BROKER)
    tls.load()
    [nameserver] = cluster.names("nameserver")
    identity = json.loads((cluster.data_dir / nameserver / "identity.json").read_text())
    cluster_id = identity["cluster_id"]
    before = open_sockets()
    channel = open_channel(
        cluster.address(nameserver),
        "tcp",
        options=AngeliaOptions(),
        cluster=ClusterId(cluster_id),
        tls=tls,
    )
    request = meta_pb2.WatchRequest(cluster_id=cluster_id)
    stream = channel.stream("/strata.meta.v1.MetaService/Watch", request, meta_pb2.WatchResponse)
    found: list[bytes] = []
    try:
        async with aclosing(stream) as responses:  # type: ignore[type-var]
            async for response in responses:
                found += [
                    change.cluster_key.secret
                    for change in response.changes
                    if change.HasField("cluster_key")
                ]
                if response.revision:
                    return found
    finally:
        await channel.close()
        # The end of TLS takes an answer of the peer.
        await until(lambda: open_sockets() <= before)
    return found


def said(*arguments: str, keys: dict[str, str]) -> str:
    """Return all that a command says, whether it works or not."""
    done = subprocess.run(
        [str(STRATA), *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=os.environ | keys,
    )
    assert done.stdout or done.stderr, arguments
    return done.stdout + done.stderr


def scraped(cluster: Cluster) -> dict[str, str]:
    """Return what the pages of each process show."""
    pages = {}
    for process in cluster.local("status"):
        if process["metrics"]:
            for page in ("metrics", "health"):
                with urllib.request.urlopen(f"http://{process['metrics']}/{page}") as response:
                    pages[f"{process['name']}/{page}"] = response.read().decode()
    assert len(pages) >= 2 * len(ROLES)
    return pages


def secrets_of(cluster: Cluster, keys: dict[str, str], made: list[bytes]) -> dict[str, list[str]]:
    """Return every secret with the forms that it may be shown in."""
    found = {"store": [STORE], "space": [SPACE], "token": [TOKEN]}
    found["admin"] = [keys["STRATA_SECRET_KEY"]]
    for number, secret in enumerate(made):
        found[f"cluster key {number}"] = [secret.hex(), b64encode(secret).decode(), repr(secret)]
    for pem in cluster.data_dir.glob(f"*/{CERTIFICATES}/tls.key"):
        # The first line of a key says the same for every key.
        found[f"key of {pem.parent.parent.name}"] = pem.read_text().splitlines()[2:-1]
    return found


@pytest.mark.timeout(300)
def test_no_secret_of_a_cluster_is_shown(
    cluster: Cluster, collector: Collector, tmp_path: Path
) -> None:
    """Neither logs at debug nor commands, pages, dumps, the tier's manifests, traces or metrics."""
    keys = keys_of(cluster)
    endpoint = ("--endpoint", cluster.endpoint)
    commands = [
        *(("topic", "create", "orders"), ("message", "send", "orders", "--body", "x")),
        *(("user", "create", "shop"), ("user", "session", "shop", "--duration", "10m")),
        ("cluster", "rotate-key"),
    ]

    def has_raft_groups() -> bool:
        told = said("raft-group", "list", *endpoint, "-o", "json", keys=keys)
        return bool(json.loads(told)["raft_groups"])

    until_blocking(has_raft_groups, forgiven=ValueError)
    made = [json.loads(said(*one, *endpoint, "-o", "json", keys=keys)) for one in commands]
    secrets = secrets_of(cluster, keys, asyncio.run(cluster_keys(cluster)))
    assert len(secrets) >= 4 + 2 + 3
    secrets["user"] = [made[2]["secret_key"]]
    secrets["session"] = [made[3]["secret_key"], made[3]["session_token"]]

    wrong = keys | {"STRATA_SECRET_KEY": f"{PLANTED}-wrong"}
    places = {"refused": said("topic", "list", *endpoint, keys=wrong)}
    for command in (
        *(("config", "show"), ("cluster", "show"), ("cluster", "health"), ("user", "list")),
        *(("user", "show", "shop"), ("policy", "list"), ("node", "list"), ("tier", "show")),
        ("tier", "flush"),
    ):
        for form in ((), ("-o", "json")):
            places[" ".join((*command, *form))] = said(*command, *endpoint, *form, keys=keys)
    places["local status"] = json.dumps(cluster.local("status"))
    places |= scraped(cluster)
    inspect = ("tier", "inspect", "--from", f"posix://{tmp_path / 'tier'}", "-o", "json")
    places["tier inspect"] = said(*inspect, keys={})
    places["otlp"] = repr(collector.metrics) + repr(collector.spans)
    cluster.local("down", "--wait", "10s")
    for role in ROLES:
        for folder in cluster.data_dir.glob(f"{role}-*"):
            places[f"log of {folder.name}"] = (folder / "log").read_text()
            places[f"config of {folder.name}"] = "".join(
                file.read_text() for file in folder.glob("*.json") if "admin" not in file.name
            )
            if role != "broker":
                places[f"dump of {folder.name}"] = said("log", "dump", str(folder), keys={})
                places[f"verify of {folder.name}"] = said("log", "verify", str(folder), keys={})
    for file in tmp_path.glob("audit.json*"):
        places[file.name] = file.read_text()

    assert len(places) >= LEAST_PLACES
    assert '"level": "info"' in places["log of broker-1"], "the logs are those of the default level"
    found = {
        place: [name for name, forms in secrets.items() if any(form in text for form in forms)]
        for place, text in places.items()
    }
    assert {place: names for place, names in found.items() if names} == {}
    assert [place for place, text in places.items() if PLANTED in text] == []
