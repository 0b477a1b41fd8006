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
DOCKERFILE = ROOT / "images/Dockerfile"
TIERS = {"nameserver": 3, "storage": 3, "broker": 2}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return loaded


def members(compose: dict[str, Any], role: str) -> dict[str, dict[str, Any]]:
    """Return the services that run a role, by name."""
    services: dict[str, dict[str, Any]] = compose["services"]
    ours = processes(compose)
    return {
        name: each for name, each in services.items() if name in ours and each["command"][0] == role
    }


def processes(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the services that run the `strata` command, by name."""
    services: dict[str, dict[str, Any]] = compose["services"]
    return {
        name: each
        for name, each in services.items()
        if each["image"].startswith("stratamq/") and "entrypoint" not in each
    }


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
    for service in processes(compose).values():
        name, *flags = service["command"]
        if service.get("profiles") == [name] and name not in known:
            # A program of its own, which this checkout may lack.
            continue
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
    """Each service that holds data has a volume of its own."""
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
    """Every process has a metrics port, and its health check asks it."""
    for name, service in processes(compose).items():
        assert service["healthcheck"]["test"] == ["CMD", "strata", "probe"], name
        port = service["environment"]["STRATA_NODE_METRICS_PORT"]
        for flag in service["command"]:
            assert not flag.startswith("--metrics-port=") or flag.endswith(f"={port}")


def test_prometheus_scrapes_every_process_of_the_cluster(compose: dict[str, Any]) -> None:
    """A process that is added to the file is added to the scrape."""
    config = yaml.safe_load((ROOT / "images/compose/prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    targets = {name for each in job["static_configs"] for name in each["targets"]}
    always = {name for name, each in processes(compose).items() if "profiles" not in each}
    assert targets == {f"{name}:5557" for name in always}


def test_processes_have_no_rights_that_they_do_not_need(compose: dict[str, Any]) -> None:
    """The root file system is read-only, no capability is left."""
    for name, service in processes(compose).items():
        assert service["read_only"], name
        assert service["tmpfs"] == ["/tmp"], name
        assert service["cap_drop"] == ["ALL"], name


def test_files_that_services_mount_exist(compose: dict[str, Any]) -> None:
    """A missing one would be made as an empty folder."""
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source


def test_images_are_built_from_a_file_that_copies_existing_folders(compose: dict[str, Any]) -> None:
    """Every service builds its target; every COPY source exists and is in the build's context."""
    stages = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE.read_text(), re.M)
    for service in processes(compose).values():
        build = service["build"]
        assert ROOT / build["dockerfile"] == DOCKERFILE
        assert build["target"] in stages
        assert service["image"].startswith(f"stratamq/{build['target']}:")
    listed = {
        line.removeprefix("!").rstrip("/")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = [
        source
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY") and "--from=" not in line
        for source in line.split()[1:-1]
    ]
    assert {"LICENSE", "README.md", "libs", "services"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(source == each or source.startswith(f"{each}/") for each in listed), source
