"""Processes that others can reach start with access control and certificates, or not at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.cli.conftest import STRATA
from tests.parts.ports import free_port

EVERYWHERE = ("--host", "0.0.0.0")


def end_of(*arguments: str, data_dir: Path, **environment: str) -> str:
    """Run a server that must not start; return the one line that it says."""
    done = subprocess.run(
        [*STRATA, arguments[0], "--data-dir", str(data_dir), *arguments[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    assert (done.returncode, done.stdout) == (1, "")
    [*_, line] = done.stderr.splitlines()
    assert line.startswith("strata: ")
    return line


@pytest.mark.parametrize("role", ["nameserver", "storage"])
def test_no_port_between_the_tiers_is_open_to_others_in_plaintext(
    tmp_path: Path, role: str
) -> None:
    """It takes certificates of the cluster, or somebody who writes --insecure."""
    said = end_of(role, *EVERYWHERE, data_dir=tmp_path / role)
    assert "there is no cluster certificate" in said
    assert "--cluster-certificates DIR" in said
    assert "--insecure" in said


@pytest.mark.parametrize("role", ["standalone", "broker"])
def test_no_port_for_clients_is_open_to_others_unasked(tmp_path: Path, role: str) -> None:
    """--access-control off is for loopback, or for somebody who writes --insecure."""
    said = end_of(role, *EVERYWHERE, "--access-control", "off", data_dir=tmp_path / role)
    assert "access control is off and the process listens on 0.0.0.0" in said
    assert "--insecure" in said


def test_a_broker_that_never_reached_a_nameserver_lets_nobody_in(tmp_path: Path) -> None:
    """It does not even listen: it knows no user, and no topic."""
    said = end_of(
        *("broker", "--nameservers", f"127.0.0.1:{free_port()}", "--access-control", "on"),
        *("--grpc-port", "0"),
        data_dir=tmp_path / "broker",
        STRATA_METADATA_START_TIMEOUT_MS="500",
    )
    assert "no metadata from a nameserver or a storage seed within 0.5 s" in said
