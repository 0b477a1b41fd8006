"""`strata tier inspect|verify|scrub` over a bucket, with no cluster."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from strata_cli.main import run
from strata_cli.reference import JSON_KEYS
from strata_tier.objects.archive import Description, encode_archive
from strata_tier.objects.names import ManifestName, checkpoint_key
from strata_tier.ranges.manifest import manifest_of
from strata_tier.store.opening import open_store
from tests.unit.tier.objects import HOME, RAFT_GROUP, Tier, messages_of, put_manifest, queue_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bucket in a folder, with one object, a manifest and a checkpoint."""

    async def fill() -> None:
        tier = Tier(await open_store(f"posix://{tmp_path}"))
        await tier.add([queue_of(messages_of(1, 0, range(9))), queue_of(messages_of(2, 3, [5]))])
        name = ManifestName(RAFT_GROUP, 2, 1)
        key = checkpoint_key(HOME, name)
        description = Description(HOME, RAFT_GROUP, 40, 2, 9_000, 9_500, {"1": "%orders"})
        await tier.store.put(key, b"".join(encode_archive(description, [(b"key", b"value")])))
        manifest = manifest_of(tier.metadata, HOME, name, 40, 9_000, key)
        await put_manifest(tier.store, manifest)
        await tier.store.close()

    asyncio.run(fill())
    return tmp_path


def _output(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(capsys.readouterr().out)
    return view


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for each in value.values() for key in _keys(each)}
    if isinstance(value, list):
        return {key for each in value for key in _keys(each)}
    return set()


def test_inspect_shows_raft_groups_topics_and_blocks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command shows all that the manifest names: the topic's name, an object block by block."""
    assert run(["tier", "inspect", "--from", f"posix://{folder}", "-o", "json"]) == 0
    contents = _output(capsys)
    assert contents["home"] == HOME
    assert [topic["name"] for topic in contents["topics"]] == ["%orders", ""]
    assert contents["topics"][0]["queues"] == [{"queue": 0, "first_offset": 0, "commit_offset": 9}]
    assert contents["raft_groups"][0]["objects"] == 1
    (path,) = folder.glob(f"{HOME}/sets/*/*.set")
    key = str(path.relative_to(folder))
    url = f"posix://{folder}"
    assert run(["tier", "inspect", "--from", url, "--object", key, "-o", "json"]) == 0
    of_object = _output(capsys)
    assert of_object["messages"] == 10
    assert of_object["blocks"][0]["first_offset"] == 0
    promised = set(re.findall(r"`([a-z_]+)`", JSON_KEYS["tier inspect"]))
    assert _keys(contents) | _keys(of_object) | {"reason"} == promised


def test_verify_finds_a_flipped_byte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole bucket is fine; with one byte flipped the exit code is 1 and the object is named."""
    command = ["tier", "verify", "--from", f"posix://{folder}", "-o", "json"]
    assert run(command) == 0
    view = _output(capsys)
    assert (view["ok"], view["messages"], view["findings"]) == (True, 10, [])
    (path,) = folder.glob(f"{HOME}/sets/*/*.set")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(bytes(data))
    assert run(command) == 1
    view = _output(capsys)
    assert [finding["key"] for finding in view["findings"]] == [str(path.relative_to(folder))]
    promised = set(re.findall(r"`([a-z_]+)`", JSON_KEYS["tier verify"]))
    assert _keys(view) == promised
    assert run(["tier", "scrub", *command[2:], "--mib-per-s", "100"]) == 1
    assert _output(capsys)["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["verify", "--from", "posix://{folder}/empty"], "holds no tier"),
        (["verify", "--from", "nothing://x"], "nothing"),
        (["verify", "--from", "posix://{folder}", "--home", "other"], "no manifest of other"),
        (["verify", "--from", "posix://{folder}", "--space", "acme"], "NAMESPACE=URL"),
        (["scrub", "--from", "posix://{folder}", "--mib-per-s", "0"], "more than 0"),
        (["scrub", "--from", "posix://{folder}", "--mib-per-s", "nan"], "more than 0"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    """Nothing to verify is an error, not a success."""
    assert run(["tier", *[text.format(folder=folder) for text in arguments]]) == 1
    assert reason in capsys.readouterr().err
