"""Keys of the command line: what is signed with them, and where they may come from."""

from __future__ import annotations

import hashlib
import hmac
import io
import re
import sys
from pathlib import Path

import pytest

from strata_cli.client import AdminClient, secret_key_of
from strata_cli.main import run
from strata_cli.options import Common


def signature_of(common: Common) -> str:
    """Return what a call is signed with, after it was checked against its own date."""
    headers = dict(AdminClient(common).metadata())
    found = re.fullmatch(
        r"MQv2-HMAC-SHA1 Credential=me, SignedHeaders=x-mq-date-time, Signature=([0-9A-F]{40})",
        headers["authorization"],
    )
    assert found is not None
    date = headers["x-mq-date-time"].encode()
    assert found[1] == hmac.new(b"hush", date, hashlib.sha1).hexdigest().upper()
    return found[1]


def test_a_secret_key_may_be_in_a_file(tmp_path: Path) -> None:
    """Nobody sees it in the list of processes; the line's end is not part of it."""
    file = tmp_path / "key"
    file.write_text("hush\n")
    file.chmod(0o600)
    assert signature_of(Common(access_key="me", secret_key_file=str(file)))
    assert signature_of(Common(access_key="me", secret_key="hush"))
    assert "authorization" not in dict(AdminClient(Common()).metadata())


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o602, 0o610])
def test_a_key_that_others_can_read_is_told_to_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_terminal: bool
) -> None:
    """It is used: secrets that are mounted into containers have such modes."""
    file = tmp_path / "key"
    file.write_text("hush\n")
    file.chmod(mode)
    errors = io.StringIO()
    monkeypatch.setattr(errors, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", errors)
    assert secret_key_of(Common(access_key="me", secret_key_file=str(file))) == "hush"
    told = f"warning: --secret-key-file: other users can read {file}; chmod 600 {file}\n"
    assert errors.getvalue() == (told if is_terminal else "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file or directory"), (b"\xff\xfe", "the file is not text")],
)
def test_a_file_without_a_key_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, reason: str
) -> None:
    """The option and the file are named, never the content."""
    file = tmp_path / "key"
    if content is not None:
        file.write_bytes(content)
        file.chmod(0o600)
    arguments = ["topic", "list", "--access-key", "me", "--secret-key-file", str(file)]
    assert run([*arguments, "--endpoint", "127.0.0.1:1"]) == 1
    output = capsys.readouterr()
    assert output.err == f"strata: --secret-key-file {file}: {reason}\n"
