"""`strata debug bundle`: everything that helps, and no secret of anybody."""

from __future__ import annotations

import json
import re
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli import debug_bundle
from strata_cli.main import run
from strata_cli.redacting import REDACTED, Redactor
from strata_cli.reference import JSON_KEYS

if TYPE_CHECKING:
    from tests.unit.cli.conftest import ScriptedAdmin

PLANTED = [f"planted-{number:02}-Zq8" for number in range(12)]
"""Each of them is put into another place, and none of them may be in the bundle."""

KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('secret_key = "abc"', 'secret_key = "<redacted>"'),
        ("STRATA_TIER_SECRET_KEY=abc next=1", "STRATA_TIER_SECRET_KEY=<redacted> next=1"),
        ('{"secret_key": "a\\"b", "n": 1}', '{"secret_key": "<redacted>", "n": 1}'),
        ("x-mq-session-token: abc", "x-mq-session-token: <redacted>"),
        ("Authorization: MQv2-HMAC-SHA1 Credential=me, Signature=AB", "<redacted>"),
        ("s3://u:pw@store.invalid/x?X-Amz-Signature=ab&n=1", "<redacted>@store.invalid"),
        ("key AKIAABCDEFGHIJKLMNOP used", "key <redacted> used"),
        (f"a\n{KEY}\nb", "a\n<redacted>\nb"),
        ('secret_key_file = "/etc/strata/key"', 'secret_key_file = "/etc/strata/key"'),
        ("previous_key_valid_ms = 86400000", "previous_key_valid_ms = 86400000"),
        ("a known-secret in words", "a <redacted> in words"),
        ("tokens are words, 5 tokens", "tokens are words, 5 tokens"),
    ],
)
def test_secrets_are_taken_out(text: str, left: str) -> None:
    """By the names of keys, by their form, and by what is known; the rest stays readable."""
    redacted = Redactor(["known-secret"]).text(text)
    assert left in redacted
    for secret in ("abc", "pw@", "MHcCAQEE", "Signature=AB", "Signature=ab"):
        assert secret not in redacted


def test_a_log_that_ends_in_a_key_keeps_nothing_of_it() -> None:
    """Also if the end of the key was cut off."""
    assert Redactor().text(f"x {KEY[:50]}") == f"x {REDACTED}"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Files with secrets in them, as people have them."""
    made = {name: tmp_path / name for name in ("strata.toml", "broker.log", "key")}
    made["strata.toml"].write_text(
        f'[tier]\nurl = "s3://b/p"\naccess_key = "{PLANTED[0]}"\nsecret_key = "{PLANTED[1]}"\n'
        f'[tier.spaces.shop]\nurl = "s3://me:{PLANTED[2]}@store.invalid"\n'
        f'secret_key = "{PLANTED[3]}"\n'
    )
    made["broker.log"].write_text(
        json.dumps({"event": "signed", "authorization": f"x {PLANTED[4]}"})
        + f"\npassword={PLANTED[5]} at 10:00\nkept: the store refused {PLANTED[3]}\n"
        + f"{KEY.replace('MHcCAQEE', PLANTED[6])}\nstays: line 4\n"
    )
    made["key"].write_text(PLANTED[7])
    made["key"].chmod(0o600)
    return made


@pytest.fixture
def metrics_port() -> str:
    """A metrics port that says too much."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f'up{{url="s3://k:{PLANTED[8]}@b"}} 1\nstrata_up 1\n'.encode())

        def log_message(self, *_: object) -> None:
            """Keep the output of the test clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}"


def answers(scripted: ScriptedAdmin) -> None:
    """Let a broker tell what it should not."""
    scripted.answers = {
        "GetHealth": admin_pb2.GetHealthResponse(status="healthy", broker_node_id="broker-1"),
        "GetCluster": admin_pb2.GetClusterResponse(version="1.2.3"),
        "GetConfig": admin_pb2.GetConfigResponse(text=f'[tier]\nsecret_key = "{PLANTED[9]}"\n'),
        "ListTopics": admin_pb2.ListTopicsResponse(
            topics=[meta_pb2.Topic(name="orders", attributes={"api_key": PLANTED[10]})]
        ),
        "ListConsumerGroups": admin_pb2.ListConsumerGroupsResponse(),
        "GetTier": admin_pb2.GetTierResponse(),
    }


def test_a_bundle_holds_much_and_no_secret(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    files: dict[str, Path],
    metrics_port: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every planted secret is searched in every file; what explains a problem is still there."""
    answers(scripted)
    monkeypatch.setenv("STRATA_TIER_SECRET_KEY", PLANTED[11])
    monkeypatch.setattr(debug_bundle, "MAX_LOG_BYTES", 100_000)
    target = tmp_path / "bundle.tar.gz"
    command = [
        *("debug", "bundle", "--out", str(target), "--endpoint", endpoint_of_scripted),
        *("--access-key", "me", "--secret-key-file", str(files["key"])),
        *("--log", str(files["broker.log"]), "--log", str(tmp_path / "gone.log")),
        *("--config", str(files["strata.toml"]), "--metrics", metrics_port, "-o", "json"),
    ]
    assert run(command) == 0
    told = json.loads(capsys.readouterr().out)
    promised = set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS["debug bundle"]))
    keys = {key for each in (*told["files"], *told["missing"]) for key in each}
    assert {*told, *keys} <= promised
    assert target.stat().st_mode & 0o077 == 0
    held: dict[str, str] = {}
    with tarfile.open(target) as tar:
        for entry in tar.getmembers():
            content = tar.extractfile(entry)
            assert content is not None
            held[entry.name.partition("/")[2]] = content.read().decode()
    leaked = [(secret, name) for secret in PLANTED for name in held if secret in held[name]]
    assert leaked == []
    everything = "".join(held.values())
    for kept in ("kept: the store refused", "stays: line 4", "strata_up 1", "s3://b/p", "orders"):
        assert kept in everything
    assert json.loads(held["versions.json"])["packages"]["cyclopts"]
    assert {each["check"] for each in json.loads(held["doctor.json"])} >= {"disk", "clock"}
    missing = {each["name"] for each in json.loads(held["manifest.json"])["missing"]}
    assert any(name.endswith("gone.log") for name in missing)
    # A call that the broker does not offer is named too.
    assert "placement.txt" in missing
    assert run(command) == 1
    assert "exists already" in capsys.readouterr().err


def test_no_broker_no_hindrance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a bad day the broker is what is gone; the end of a long log is taken."""
    log = tmp_path / "long.log"
    log.write_text("".join(f"line {number}\n" for number in range(10)))
    target = tmp_path / "b.tar.gz"
    command = ["debug", "bundle", "--out", str(target), "--log", str(log)]
    assert run([*command, "--endpoint", "127.0.0.1:1", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "health.json" in {each["name"] for each in told["missing"]}
    assert {"versions.json", "doctor.json"} <= {each["name"] for each in told["files"]}


def test_the_end_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole lines only."""
    monkeypatch.setattr(debug_bundle, "MAX_LOG_BYTES", 10)
    log = tmp_path / "log"
    log.write_text("first line\nsecond\nthird\n")
    assert debug_bundle._end_of(log) == "third\n"
