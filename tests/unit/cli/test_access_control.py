"""Whether a process checks who calls: by flags, configuration and the address it listens on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strata_cli.local.plan import new_plan
from strata_cli.local.serving import keys_of
from strata_cli.options import Common
from strata_cli.processes.access_control import (
    check_plaintext,
    shown_access_control,
    with_access_control,
)
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.data_folder import FolderRole
from strata_runtime.config import load
from strata_runtime.errors import ConfigError
from strata_runtime.listening import is_loopback


def config(host: str, **keys: object) -> ClusterConfig:
    """A process that listens on an address."""
    return ClusterConfig().with_flags(node={"host": host}, access_control=keys)


@pytest.mark.parametrize(
    ("host", "mode", "wanted"),
    [
        ("127.0.0.1", "auto", "off"),
        ("localhost", "auto", "off"),
        ("::1", "auto", "off"),
        ("0.0.0.0", "auto", "on"),
        ("", "auto", "on"),
        ("broker-1", "auto", "on"),
        ("127.0.0.1", "on", "on"),
        ("10.0.0.1", "on", "on"),
    ],
)
def test_it_is_on_unless_only_the_machine_itself_can_call(
    host: str, mode: str, wanted: str
) -> None:
    """The default asks the address; a choice holds; the choice is shown."""
    chosen = with_access_control(config(host, mode=mode))
    assert chosen.access_control.mode == wanted
    assert shown_access_control(chosen) == {"access_control": wanted}
    assert with_access_control(chosen) == chosen


def test_off_on_another_address_must_be_meant() -> None:
    """Without --insecure the start fails with one line that says what to do."""
    with pytest.raises(ConfigError) as refused:
        with_access_control(config("0.0.0.0", mode="off"))
    assert "\n" not in str(refused.value)
    assert "0.0.0.0" in str(refused.value)
    assert "--insecure" in str(refused.value)
    meant = with_access_control(config("0.0.0.0", mode="off", insecure=True))
    assert not meant.access_control.is_on


def test_insecure_alone_turns_nothing_off() -> None:
    """It allows `off`; it does not choose it."""
    assert with_access_control(config("10.0.0.1", insecure=True)).access_control.is_on


def test_keys_of_the_command_are_no_keys_of_a_server() -> None:
    """A container may hold STRATA_ACCESS_KEY for the command beside its server."""
    environment = {"STRATA_ACCESS_KEY": "ann", "STRATA_SECRET_KEY": "s"}
    assert load(ClusterConfig, None, environment) == ClusterConfig()
    environment["STRATA_ACCESS_CONTROL_MODE"] = "on"
    assert load(ClusterConfig, None, environment).access_control.mode == "on"


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.9.9.9", True),
        ("::ffff:127.0.0.1", True),
        ("[::1]", True),
        ("LOCALHOST", True),
        ("localhost.example", False),
        ("::ffff:10.0.0.1", False),
        ("::", False),
    ],
)
def test_loopback_addresses(host: str, wanted: bool) -> None:
    """Names other than localhost may be anything."""
    assert is_loopback(host) is wanted


def test_a_local_cluster_passes_it_on(tmp_path: Path) -> None:
    """Each process but the forwarder gets the flag; without a choice none gets it."""
    counts = {"nameserver": 1, "storage": 1, "broker": 1}
    plan = new_plan(counts, iter(range(20_000, 20_100)), virtual_address="127.0.0.1:0")  # type: ignore[arg-type]
    on = replace(plan, access_control="on")
    for member in plan.members:
        flags = [flag for flag in on.arguments(member, tmp_path) if "access-control" in flag]
        assert flags == ([] if member.role == "forwarder" else ["--access-control=on"])
        assert not any("access-control" in flag for flag in plan.arguments(member, tmp_path))


def test_a_local_cluster_asks_with_the_first_admins_keys(tmp_path: Path) -> None:
    """Keys that are given come first; a file that is no JSON is passed over."""
    for name, text in (
        ("nameserver-1", "no JSON"),
        ("nameserver-2", '{"access_key": "admin", "secret_key": "hush"}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "first-admin.json").write_text(text)
    found = keys_of(tmp_path, Common())
    assert (found.access_key, found.secret_key) == ("admin", "hush")
    given = Common(access_key="ann", secret_key="s")
    assert keys_of(tmp_path, given) is given
    assert keys_of(tmp_path / "nothing", Common()) == Common()


@pytest.mark.parametrize("role", [FolderRole.NAMESERVER, FolderRole.STORAGE])
def test_plaintext_between_processes_must_be_meant(role: FolderRole) -> None:
    """A nameserver or storage node that others reach needs certificates, or --insecure."""
    with pytest.raises(ConfigError) as refused:
        check_plaintext(config("0.0.0.0"), role)
    assert str(refused.value).startswith("there is no cluster certificate and the ")
    assert "\n" not in str(refused.value)
    check_plaintext(config("127.0.0.1"), role)
    check_plaintext(config("0.0.0.0", insecure=True), role)
    check_plaintext(config("0.0.0.0").with_flags(angelia={"certificate_folder": "/tls"}), role)
    # A broker serves no other process without certificates.
    check_plaintext(config("0.0.0.0"), FolderRole.BROKER)
