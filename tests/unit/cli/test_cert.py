"""`strata cert`: an authority, certificates and what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata_cli.main import run


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Run a command with JSON output."""
    assert run(["cert", *arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_init_issue_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An authority signs a certificate, which says role, hosts and end."""
    authority = output(capsys, "init", "--out", str(tmp_path / "ca"))
    assert (authority["is_authority"], authority["role"]) == (True, "")
    assert 3_649 < authority["days_left"] <= 3_650
    issued = output(
        capsys,
        *("issue", "--ca", str(tmp_path / "ca"), "--role", "storage", "--out", str(tmp_path / "s")),
        *("--host", "s1.example", "--host", "10.0.0.7,::1", "--days", "30"),
    )
    assert issued["key_file"] == str(tmp_path / "s" / "tls.key")
    shown = output(capsys, "show", str(tmp_path / "s" / "tls.crt"))
    assert shown == {key: value for key, value in issued.items() if key != "key_file"}
    assert shown["subject"] == "s1.example"
    assert shown["issuer"] == authority["subject"]
    assert shown["role"] == "storage"
    assert shown["hosts"] == ["s1.example", "10.0.0.7", "::1"]
    assert shown["not_after"].endswith("Z")
    assert 29.9 < shown["days_left"] <= 30
    assert sorted(file.name for file in (tmp_path / "s").iterdir()) == [
        "ca.crt",
        "tls.crt",
        "tls.key",
    ]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("show", "{}/missing.crt"), "missing.crt does not exist"),
        (("issue", "--ca", "{}", "--role", "broker", "--out", "{}"), "needs hosts"),
        (("init", "--out", "{}", "--days", "0"), "--days 0: write 1 to 36500"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    """A mistake is told in one line, and nothing is written."""
    assert run(["cert", *(each.format(tmp_path) for each in arguments)]) != 0
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
