"""The commands of `strata kv` against a standalone node, and a node without the plugin."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from strata.kv.v1 import kv_pb2, kv_pb2_grpc
from strata_cli.reference import JSON_KEYS
from strata_kv.aio import AsyncKvClient
from strata_kv.client import KvClient
from strata_kv.errors import KvRefusedError
from strata_kv.model import Operation
from tests.integration.cli.conftest import Node, StartNode

MIB = 1024 * 1024
TELLS_MODULES = Path(__file__).with_name("tells_modules.py")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node with the plugin for the tests of this module."""
    folder = tmp_path_factory.mktemp("node") / "data"
    started = Node(folder, environment={"STRATA_PLUGINS": "kv"})
    yield started
    code, _, err = started.stop()
    assert code == 0, err


def keys_of(command: str) -> set[str]:
    """Return the JSON keys that the reference names."""
    return set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS[command]))


def test_put_get_and_delete(node: Node) -> None:
    """An item is shown as it was put, with its version; a deleted one is not there."""
    assert node.json("kv", "put", "a", "1", "--table", "plain") == {
        "written": True,
        "revision": 1,
        "version": 1,
        "current": None,
    }
    item = node.json("kv", "get", "a", "--table", "plain")
    assert set(item) == keys_of("kv get")
    assert (item["key"], item["value"], item["version"]) == ("a", "1", 1)
    done = node.strata("kv", "put", "a", "2", "--table", "plain", "--if-absent", "-o", "json")
    again = json.loads(done.stdout)
    assert (done.returncode, again["written"], again["current"]["value"]) == (4, False, "1")
    assert node.json("kv", "delete", "a", "--table", "plain") == {"deleted": True}
    assert node.json("kv", "delete", "a", "--table", "plain") == {"deleted": False}
    missing = node.strata("kv", "get", "a", "--table", "plain")
    assert (missing.returncode, missing.stderr) == (
        3,
        "strata: there is no key a in table plain\n",
    )


def test_keys_and_values_of_any_bytes(node: Node) -> None:
    """Bytes that are no text go in and come out as base64."""
    node.json("kv", "put", "base64:/wA=", "base64:gIE=", "--table", "bytes")
    item = node.json("kv", "get", "base64:/wA=", "--table", "bytes")
    assert (item["key"], item["value"]) == ("base64:/wA=", "base64:gIE=")
    wrong = node.strata("kv", "put", "base64:x", "1", "--table", "bytes")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)


def test_compare_and_set_by_version_and_by_value(node: Node) -> None:
    """It changes what is as expected, and tells what is there otherwise."""
    cas = ("kv", "cas", "--table", "swaps")
    made = node.json(*cas, "k", "1", "--version", "0")
    assert (set(made), made["swapped"], made["version"]) == (keys_of("kv cas"), True, 1)
    done = node.strata(*cas, "k", "x", "--version", "0", "-o", "json")
    lost = json.loads(done.stdout)
    assert (done.returncode, lost["swapped"], lost["current"]["value"]) == (4, False, "1")
    assert node.json(*cas, "k", "2", "--expected", "1")["version"] == 2
    assert node.json(*cas, "k", "--delete", "--version", "2")["swapped"] is True
    for bad in (("k", "1"), ("k", "--version", "1"), ("k", "1", "--delete", "--version", "1")):
        assert node.strata(*cas, *bad).returncode == 2


def test_list_by_prefix_range_and_page(node: Node) -> None:
    """Items come in the order of their keys; a page tells where the next one begins."""
    with KvClient(node.endpoint) as client:
        for key in (b"b2", b"a1", b"b1", b"c1", b"b3"):
            client.table("listed").put(key, key.upper())
    listed = ("kv", "list", "--table", "listed")
    found = node.json(*listed, "--prefix", "b")
    assert set(found) == {"items", "continuation"}
    assert [(item["key"], item["value"]) for item in found["items"]] == [
        ("b1", "B1"),
        ("b2", "B2"),
        ("b3", "B3"),
    ]
    in_range = node.json(*listed, "--begin", "a1", "--end", "b2")["items"]
    assert [item["key"] for item in in_range] == ["a1", "b1"]
    first = node.json(*listed, "--limit", "2")
    rest = node.json(*listed, "--after", first["continuation"])
    keys = [item["key"] for item in first["items"] + rest["items"]]
    assert (keys, rest["continuation"]) == (["a1", "b1", "b2", "b3", "c1"], "")
    assert node.json("kv", "list", "--table", "never-made")["items"] == []


def test_an_item_with_a_time_to_live_ends(node: Node) -> None:
    """It is there at first, then it is not, and the watch tells that its time was over."""
    # A command takes as long as the machine likes, so another item shows what is there at first.
    node.json("kv", "put", "long", "1", "--table", "lasts", "--ttl", "1h")
    assert node.json("kv", "get", "long", "--table", "lasts")["expires_at_ms"] > 0
    node.json("kv", "put", "short", "1", "--table", "ends", "--ttl", "1500ms")
    shown = node.strata(
        *("kv", "watch", "--table", "ends", "--from-revision", "1", "--count", "2", "-o", "json")
    )
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [(line["revision"], line["kind"], line["key"]) for line in lines] == [
        (1, "put", "short"),
        (2, "expire", "short"),
    ]
    assert node.strata("kv", "get", "short", "--table", "ends").returncode == 3


@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_an_export_is_imported_equal(node: Node, tmp_path: Path, engine: str) -> None:
    """Export, import into another table, export: the same bytes and checksums."""
    table, copy = f"from-{engine}", f"to-{engine}"
    made = node.json("kv", "create", table, "--engine", engine)
    assert (set(made), made["engine"]) == (keys_of("kv create"), engine)
    with KvClient(node.endpoint) as client:
        for number in range(700):
            client.table(table).put(b"k%d" % (number % 600), b"v" * number)
        client.table(table).put(b"ends", b"1", ttl_s=3_600)
    first, second = tmp_path / "first.kv", tmp_path / "second.kv"
    exported = node.json("kv", "export", "--table", table, "--to", str(first))
    assert (set(exported), exported["items"]) == (keys_of("kv export"), 601)
    imported = node.json("kv", "import", "--table", copy, "--from", str(first))
    assert (imported["crc32c"], imported["items"]) == (exported["crc32c"], 601)
    node.json("kv", "export", "--table", copy, "--to", str(second))
    assert first.read_bytes() == second.read_bytes()
    damaged = bytearray(first.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    first.write_bytes(damaged)
    refused = node.strata("kv", "import", "--table", "never", "--from", str(first))
    assert refused.returncode == 1
    assert "never" not in node.json("kv", "tables")["tables"]


def test_what_is_no_whole_table_is_refused(node: Node, tmp_path: Path) -> None:
    """A file that is empty, something else, cut or longer: one line says so, nothing is written."""
    file = tmp_path / "table.kv"
    node.json("kv", "put", "a", "1", "--table", "whole")
    node.json("kv", "export", "--table", "whole", "--to", str(file))
    whole = file.read_bytes()
    for broken in (b"", b"not a table\n", whole[:-1], whole[:20], whole + b"x", whole + whole):
        file.write_bytes(broken)
        refused = node.strata("kv", "import", "--table", "not-made", "--from", str(file))
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert refused.stderr.startswith(f"strata: {file}: ")
    missing = node.strata("kv", "import", "--table", "not-made", "--from", f"{file}.other")
    assert missing.stderr == f"strata: {file}.other: No such file or directory\n"
    assert "not-made" not in node.json("kv", "tables")["tables"]


def test_values_of_a_mebibyte_and_no_more(node: Node) -> None:
    """Values and keys up to the limit come back, many of them in pages; larger ones are refused."""
    with KvClient(node.endpoint) as client:
        table = client.table("large")
        value = b"v" * MIB
        keys = [b"%02d" % number + b"k" * 4_000 for number in range(12)]
        for key in keys:
            table.put(key, value)
        assert [(item.key, item.value) for item in table.list()] == [(key, value) for key in keys]
        for key, too_large in ((b"k", value + b"v"), (b"k" * 4_097, b"v"), (b"", b"v")):
            with pytest.raises(KvRefusedError, match=r"has (at most|1 to)"):
                table.put(key, too_large)
        with pytest.raises(KvRefusedError, match="batch has at most"):
            table.batch([Operation(key, value) for key in keys])


async def test_large_values_asked_for_at_once(node: Node) -> None:
    """One answer has no room for all of them: what is left out is asked for again."""
    async with AsyncKvClient(node.endpoint) as client:
        table = client.table("large-at-once")
        await table.put(b"k", b"v" * MIB)
        items = await asyncio.gather(*(table.get(b"k") for _ in range(24)))
    assert [len(item.value) for item in items if item is not None] == [MIB] * 24


def test_an_export_to_an_object_store(node: Node, tmp_path: Path) -> None:
    """A URL of the tier takes the place of a file."""
    node.json("kv", "put", "a", "1", "--table", "stored")
    url = f"posix://{tmp_path}/exports/stored.kv"
    exported = node.json("kv", "export", "--table", "stored", "--to", url)
    imported = node.json("kv", "import", "--table", "stored-again", "--from", url)
    assert exported["crc32c"] == imported["crc32c"]


def test_tables_are_listed_shown_and_dropped(node: Node) -> None:
    """A dropped table is gone with its items; its name can be used again."""
    node.json("kv", "put", "a", "1", "--table", "dropped")
    assert "dropped" in node.json("kv", "tables")["tables"]
    assert node.json("kv", "show", "dropped")["key_count"] == 1
    planned = node.json("kv", "drop", "dropped", "--dry-run")
    assert (planned["would_drop"], planned["items"]) == ("dropped", 1)
    assert node.json("kv", "show", "dropped")["key_count"] == 1
    assert node.json("kv", "drop", "dropped") == {"dropped": "dropped"}
    assert node.strata("kv", "show", "dropped").returncode == 3
    node.json("kv", "put", "b", "2", "--table", "dropped")
    items = node.json("kv", "list", "--table", "dropped")["items"]
    assert [item["key"] for item in items] == ["b"]
    other = node.json("kv", "tables", "--namespace", "elsewhere")
    assert other["tables"] == []


def test_a_message_may_be_a_write(node: Node) -> None:
    """The message form of RIP-22: properties name operation and key, the topic the table."""
    send = ("message", "send", "by-message")
    node.json(*send, "--body", "1", "--property", "kv_opType=PUT", "--property", "key=a")
    assert node.json("kv", "get", "a", "--table", "by-message")["value"] == "1"
    base64_key = "key=base64:/w=="
    node.json(*send, "--body", "2", "--property", "kv_opType=put", "--property", base64_key)
    assert node.json("kv", "get", "base64:/w==", "--table", "by-message")["value"] == "2"
    node.json(*send, "--body", "none", "--property", "kv_opType=DELETE", "--property", "key=a")
    assert node.strata("kv", "get", "a", "--table", "by-message").returncode == 3
    refused = node.strata(*send, "--body", "x", "--property", "kv_opType=GET")
    assert refused.returncode == 4


@pytest.mark.parametrize("plugins", ["", "kv"])
def test_a_node_without_the_plugin_imports_nothing_of_it(
    start_node: StartNode, tmp_path: Path, plugins: str
) -> None:
    """Its calls are not implemented, and none of its modules and threads is in the process."""
    told = tmp_path / "told.json"
    node = start_node(
        program=(sys.executable, str(TELLS_MODULES)),
        STRATA_PLUGINS=plugins,
        TELL_MODULES_TO=str(told),
    )
    with grpc.insecure_channel(node.endpoint) as channel:
        request = kv_pb2.GetRequest(table=kv_pb2.TableName(name="t"), key=b"a")
        call = kv_pb2_grpc.KvServiceStub(channel).Get
        if plugins:
            assert not call(request, timeout=10).HasField("item")
        else:
            with pytest.raises(grpc.RpcError) as refused:
                call(request, timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            said = node.strata("kv", "get", "a", "--table", "t")
            assert (said.returncode, "STRATA_PLUGINS=kv" in said.stderr) == (4, True)
    node.stop()
    found = json.loads(told.read_text())
    loaded = [name for name in found["modules"] if re.search(r"(^|[._])kv($|[._])", name)]
    assert bool(loaded) is bool(plugins), loaded
    assert not [name for name in found["threads"] if "kv" in name]


def test_an_unknown_plugin_ends_the_start(start_node: StartNode) -> None:
    """One line names it and those that there are."""
    node = start_node(STRATA_PLUGINS="kv,typo")
    _, err = node.process.communicate(timeout=30)
    assert (node.process.returncode, err) == (
        1,
        "strata: plugins: there is no plugin 'typo'; there are: kv\n",
    )
