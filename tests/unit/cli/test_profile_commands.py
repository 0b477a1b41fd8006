"""`strata profile`: connections are kept, shown and removed; what people wrote stays."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from strata_cli.main import run
from strata_cli.options import Common
from strata_cli.reference import JSON_KEYS

WRITTEN = '# mine\n[old]\nendpoint = "o:1"  # note\n\n[other]\nendpoint = "x:2"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of this user."""
    path = tmp_path / "strata" / "profiles.toml"
    monkeypatch.setenv("STRATA_CONFIG", str(path))
    for name in ("STRATA_PROFILE", "STRATA_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    return path


def test_a_connection_is_kept_and_used(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is new, only its owner can read it, and --profile finds what was kept."""
    key = file.parent.parent / "key"
    key.write_text("secret")
    key.chmod(0o600)
    options = ["--endpoint", "b:9", "--namespace", "shop", "--access-key", "me"]
    command = ["profile", "set", "p", *options, "--secret-key-file", str(key), "-o", "json"]
    assert run(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS["profile set"]))
    assert file.stat().st_mode & 0o077 == 0
    used = Common(profile="p")
    assert (used.endpoint, used.namespace, used.access_key) == ("b:9", "shop", "me")
    assert used.secret_key == "secret"
    assert "secret" not in file.read_text().replace("secret_key_file", "")


def test_the_rest_of_the_file_stays(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Comments and other profiles are as they were."""
    file.parent.mkdir()
    file.write_text(WRITTEN)
    assert run(["profile", "set", "old", "--endpoint", "n:3"]) == 0
    assert file.read_text() == ('# mine\n[other]\nendpoint = "x:2"\n\n[old]\nendpoint = "n:3"\n')
    capsys.readouterr()
    assert run(["profile", "list", "-o", "name"]) == 0
    assert capsys.readouterr().out == "other\nold\n"
    assert run(["profile", "delete", "other"]) == 0
    assert file.read_text() == '# mine\n[old]\nendpoint = "n:3"\n'
    capsys.readouterr()
    assert run(["profile", "show", "old", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["endpoint"] == "n:3"


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["delete", "none"], 3, "has no profile none"),
        (["show", "none"], 3, "has no profile none"),
        (["set", "a b"], 2, "is not a name"),
        (["set", "p", "--secret-key", "x"], 2, "give --secret-key-file"),
    ],
)
def test_what_is_refused(
    file: Path, arguments: list[str], code: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and no file was made."""
    assert run(["profile", *arguments]) == code
    assert reason in capsys.readouterr().err
    assert not file.exists()
