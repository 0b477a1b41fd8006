"""Profiles of the command line: which of their values hold, and which files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_cli.client import AdminClient
from strata_cli.errors import CliError, UsageError
from strata_cli.options import Common
from strata_cli.profiles import profiles_file

PROFILES = """
[ann]
endpoint = "broker:9000"
namespace = "shop"
tls = true
ca = "ca.pem"
access_key = "ann"
secret_key_file = "ann.key"
session_token_file = "ann.token"

[place]
endpoint = "other:9000"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with profiles and the secrets that they name."""
    for name, text in {
        "profiles.toml": PROFILES,
        "ann.key": "hush\n",
        "ann.token": "temporary\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    monkeypatch.setenv("STRATA_CONFIG", str(tmp_path / "profiles.toml"))
    return tmp_path


def test_a_profile_says_what_nothing_else_says(folder: Path) -> None:
    """Paths are relative to the file; secrets come from the files that it names."""
    common = Common(profile="ann")
    assert (common.endpoint, common.namespace, common.tls) == ("broker:9000", "shop", True)
    assert common.ca == str(folder / "ca.pem")
    assert (common.access_key, common.secret_key) == ("ann", "hush")
    assert common.session_token == "temporary"
    assert "hush" not in repr(common)
    assert "temporary" not in repr(common)


def test_the_command_line_wins() -> None:
    """Keys belong together: with another access key no secret of the profile is used."""
    common = Common(profile="ann", endpoint="here:1", access_key="bob")
    assert (common.endpoint, common.namespace) == ("here:1", "shop")
    assert (common.access_key, common.secret_key, common.session_token) == ("bob", "", "")


def test_without_a_profile_nothing_is_read(folder: Path) -> None:
    (folder / "profiles.toml").unlink()
    assert Common().endpoint == "127.0.0.1:8081"
    assert Common(endpoint="here:1").endpoint == "here:1"


def test_a_profile_may_say_little() -> None:
    common = Common(profile="place", namespace="mine")
    assert (common.endpoint, common.namespace, common.tls) == ("other:9000", "mine", False)
    assert common.access_key == ""


def test_a_session_token_is_sent() -> None:
    """With temporary keys the broker needs it, in each call."""
    common = Common(access_key="ann", secret_key="s", session_token="t")
    assert dict(AdminClient(common).metadata())["x-mq-session-token"] == "t"
    without = Common(access_key="ann", secret_key="s")
    assert "x-mq-session-token" not in dict(AdminClient(without).metadata())


@pytest.mark.parametrize(
    ("file", "mode", "reason"),
    [
        ("profiles.toml", 0o620, "other users can write it"),
        ("profiles.toml", 0o602, "other users can write it"),
        ("ann.key", 0o604, "secret_key_file: other users can read"),
        ("ann.token", 0o640, "session_token_file: other users can read"),
    ],
)
def test_files_of_other_users_are_refused(folder: Path, file: str, mode: int, reason: str) -> None:
    (folder / file).chmod(mode)
    with pytest.raises(CliError, match=reason) as error:
        Common(profile="ann")
    assert "hush" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        (None, CliError, "No such file"),
        ("[", CliError, r"profiles\.toml: "),
        ("", UsageError, "has no profiles"),
        ("ann = 1\n[bob]", UsageError, "--profile ann: .* has bob"),
        ("[ann]\nsecret_key = 'x'", CliError, "ann.secret_key: unknown key"),
        ("[ann]\ntls = 'yes'", CliError, "ann.tls: a truth value"),
        ("[ann]\nendpoint = 7", CliError, "ann.endpoint: a text"),
        ("[ann]\naccess_key = 'a'\nsecret_key_file = 'none'", CliError, "none: No such file"),
    ],
)
def test_profiles_that_cannot_be_used_are_named(
    folder: Path, text: str | None, kind: type[CliError], reason: str
) -> None:
    if text is None:
        (folder / "profiles.toml").unlink()
    else:
        (folder / "profiles.toml").write_text(text)
    with pytest.raises(kind, match=reason):
        Common(profile="ann")


def test_where_the_profiles_are() -> None:
    home = Path.home()
    assert profiles_file({"STRATA_CONFIG": "/a/b.toml"}) == Path("/a/b.toml")
    assert profiles_file({"XDG_CONFIG_HOME": "/x"}) == Path("/x/strata/profiles.toml")
    assert profiles_file({}) == home / ".config" / "strata" / "profiles.toml"
