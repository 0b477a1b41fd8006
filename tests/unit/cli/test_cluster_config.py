"""Configuration and identity of a cluster's processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from strata_cli.processes.cluster import Surroundings
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import DataFolder, DataFolderError, FolderRole
from strata_cli.processes.standalone_config import StandaloneConfig, standalone_part
from strata_runtime.clock import SystemClock
from strata_runtime.config import load
from strata_runtime.errors import ConfigError
from strata_runtime.metrics import Metrics


def ignore(name: str, failure: BaseException) -> None:
    """A fatal failure nobody expects."""


def surroundings(config: ClusterConfig, folder: DataFolder) -> Surroundings:
    return Surroundings(
        config=config,
        folder=folder,
        boot_id=1,
        clock=SystemClock(),
        metrics=Metrics.disabled(),
        on_fatal=ignore,
    )


def test_one_file_serves_a_standalone_node_too(tmp_path: Path) -> None:
    """Values for the processes of a cluster are passed over; values for both are taken."""
    file = tmp_path / "strata.toml"
    file.write_text(
        'plugins = ["kv"]\n[node]\ngrpc_port = 7\nstorage_port = 8\n'
        '[cluster]\nnameservers = ["a:1"]\n[tier]\nsecret_key = "hush"\n'
    )
    whole = load(ClusterConfig, file, {})
    config = standalone_part(whole)
    assert (config.node.grpc_port, config.plugins, config.tier) == (7, ("kv",), whole.tier)
    assert "cluster" not in type(config).model_fields
    assert standalone_part(ClusterConfig()) == StandaloneConfig()


def test_endpoints_from_flags_variables_and_files(tmp_path: Path) -> None:
    """A list may be written with commas; flags win over the file, absent flags change nothing."""
    file = tmp_path / "strata.toml"
    file.write_text('[cluster]\nnameservers = ["a:1", "b:2"]\nrack = "r1"\n[storage]\n')
    config = load(ClusterConfig, file, {"STRATA_CLUSTER_STORAGE_SEEDS": "s:1, s:2"})
    assert config.cluster.nameservers == ("a:1", "b:2")
    assert config.cluster.storage_seeds == ("s:1", "s:2")
    changed = config.with_flags(
        cluster={"nameservers": "c:3", "rack": None}, node={"storage_port": 5}
    )
    assert (changed.cluster.nameservers, changed.cluster.rack) == (("c:3",), "r1")
    assert (changed.node.storage_port, changed.node.nameserver_port) == (5, 9877)


@pytest.mark.parametrize("value", ["a", ":1", "a:b", "a:1,a:1"])
def test_what_is_no_list_of_endpoints_is_refused(value: str) -> None:
    """Each endpoint is host:port and stands there once."""
    with pytest.raises(ValidationError):
        ClusterConfig().with_flags(cluster={"nameservers": value})


@pytest.mark.parametrize(
    ("node", "advertised"),
    [
        ({"host": "10.0.0.7"}, "10.0.0.7:9877"),
        ({"host": "0.0.0.0", "advertised_host": "ns-0.ns"}, "ns-0.ns:9877"),
        ({"host": "::1"}, "[::1]:9877"),
    ],
)
def test_the_address_that_others_are_told(
    tmp_path: Path, node: dict[str, str], advertised: str
) -> None:
    """The advertised host wins; an IPv6 address is bracketed."""
    folder = DataFolder.open(tmp_path, FolderRole.NAMESERVER)
    around = surroundings(ClusterConfig().with_flags(node=node), folder)
    assert around.advertised(9877) == advertised
    folder.close()


def test_a_process_without_nameservers_says_what_is_missing(tmp_path: Path) -> None:
    """The error names the key and the flag."""
    folder = DataFolder.open(tmp_path, FolderRole.NAMESERVER)
    with pytest.raises(ConfigError, match="--nameservers"):
        surroundings(ClusterConfig(), folder).nameservers()
    folder.close()


def test_an_identity_is_formed_once(tmp_path: Path) -> None:
    """A nameserver remembers whom it began with; another cluster is refused, a repeat is not."""
    folder = DataFolder.open(tmp_path, FolderRole.NAMESERVER)
    assert folder.identity.initial_metadata_replica_ids == ()
    folder.form("c1", [3, 1, 2])
    folder.form("c1", [1, 2, 3])
    with pytest.raises(DataFolderError, match="belongs to cluster c1, not c2"):
        folder.form("c2", [1, 2, 3])
    folder.close()

    again = DataFolder.open(tmp_path, FolderRole.NAMESERVER)
    assert again.identity == folder.identity
    assert again.identity.initial_metadata_replica_ids == (1, 2, 3)
    assert again.identity.cluster_id == "c1"
    again.close()


def test_a_folder_from_before_clusters_can_be_read(tmp_path: Path) -> None:
    """An identity without the later field is whole."""
    folder = DataFolder.open(tmp_path, FolderRole.NAMESERVER)
    folder.close()
    file = tmp_path / "identity.json"
    values = json.loads(file.read_text())
    del values["initial_metadata_replica_ids"]
    file.write_text(json.dumps(values))
    again = DataFolder.open(tmp_path, FolderRole.NAMESERVER)
    assert again.identity == folder.identity
    again.close()
