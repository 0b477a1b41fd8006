"""docker-compose.yml: valid by the specification, loopback only, what the code needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from strata_cli.main import app
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.reference import commands
from strata_runtime.config import load

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
TIERS = {"nameserver": 3, "storage": 3, "broker": 2}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def members(compose: dict[str, Any], role: str) -> dict[str, dict[str, Any]]:
    """Return the services that run a role, by name."""
    services: dict[str, dict[str, Any]] = compose["services"]
    return {name: each for name, each in services.items() if each["command"][0] == role}


def config_of(service: dict[str, Any]) -> ClusterConfig:
    """Return what the process would make of its environment."""
    return load(ClusterConfig, None, service["environment"])


def test_compose_follows_the_specification() -> None:
    """Unknown keys and wrong types are refused by the Compose schema."""
    result = subprocess.run(
        [
            *(sys.executable, "-m", "check_jsonschema"),
            *("--builtin-schema", "vendor.compose-spec", str(COMPOSE)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    """An example on a laptop opens no port to the network."""
    for service in compose["services"].values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), port


def test_commands_and_flags_are_the_programs(compose: dict[str, Any]) -> None:
    """Every service runs a command that exists, with flags that it has."""
    known = dict(commands(app))
    for service in compose["services"].values():
        name, *flags = service["command"]
        collection = known[name].assemble_argument_collection(parse_docstring=True)
        options = {option for argument in collection for option in argument.names}
        assert {flag.partition("=")[0] for flag in flags} <= options, name


@pytest.mark.parametrize("role", TIERS)
def test_the_tiers_find_each_other(compose: dict[str, Any], role: str) -> None:
    """Each process advertises its own name, and all name every nameserver and storage node."""
    found = members(compose, role)
    assert len(found) == TIERS[role]
    expected = ClusterConfig()
    for name, service in found.items():
        assert f"--advertise={name}" in service["command"]
        config = config_of(service)
        assert list(config.cluster.nameservers) == [
            f"{each}:{expected.node.nameserver_port}" for each in members(compose, "nameserver")
        ]
        assert list(config.cluster.storage_seeds) == [
            f"{each}:{expected.node.storage_port}" for each in members(compose, "storage")
        ]
        grace_s = int(service["stop_grace_period"].removesuffix("s"))
        assert config.node.drain_ms < grace_s * 1_000, "a drain must end before the kill"


def test_data_is_kept_and_never_shared(compose: dict[str, Any]) -> None:
    """Whoever holds data has a volume of its own."""
    keepers = members(compose, "nameserver") | members(compose, "storage")
    volumes = [volume for each in keepers.values() for volume in each["volumes"]]
    assert sorted(volumes) == sorted(f"{name}:/var/lib/strata" for name in keepers)
    assert set(keepers) <= set(compose["volumes"])


def test_clients_reach_the_brokers_through_the_published_address(compose: dict[str, Any]) -> None:
    """The forwarder knows every broker, and routes name the address that it is published under."""
    port = ClusterConfig().node.grpc_port
    [forwarder] = members(compose, "forwarder").values()
    brokers = members(compose, "broker")
    named = re.findall(r"--broker=(\S+)", " ".join(forwarder["command"]))
    assert named == [f"{name}:{port}" for name in brokers]
    [published] = forwarder["ports"]
    for broker in brokers.values():
        advertised = config_of(broker).route.advertised_endpoint
        assert published.startswith(f"{advertised}:")


def test_health_checks_ask_the_port_of_the_process(compose: dict[str, Any]) -> None:
    """Nameservers and storage nodes are healthy when their own port accepts."""
    node = ClusterConfig().node
    for role, port in (("nameserver", node.nameserver_port), ("storage", node.storage_port)):
        for service in members(compose, role).values():
            assert f", {port})" in service["healthcheck"]["test"][-1]


def test_image_is_built_from_a_file_that_copies_existing_folders(compose: dict[str, Any]) -> None:
    """Every COPY source of the Dockerfile exists, and the packages are among them."""
    [dockerfile] = {ROOT / each["build"]["dockerfile"] for each in compose["services"].values()}
    text = dockerfile.read_text()
    copied = [line.split()[1] for line in text.splitlines() if line.startswith("COPY")]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
    # The wheel holds every package (tests/repo/test_distribution.py); its sources are copied whole.
    assert {"LICENSE", "README.md", "libs", "services"} <= {
        source for line in text.splitlines() if line.startswith("COPY") for source in line.split()
    }
    assert "--no-deps --no-build-isolation /src " in text
