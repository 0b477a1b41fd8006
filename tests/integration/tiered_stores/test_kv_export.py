"""Tables are exported to and imported from every kind of object store, by the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.leftovers import free_disk
from tests.integration.cli.conftest import Node
from tests.parts.stores import SCHEMES, Scheme, UrlOf

ITEMS = 5


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the plugin."""
    folder = tmp_path_factory.mktemp("kv") / "data"
    started = Node(folder, environment={"STRATA_PLUGINS": "kv"})
    yield started
    code, _, err = started.stop()
    assert code == 0, err
    free_disk(folder)


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "memory"])
def test_a_table_goes_through_a_store(
    node: Node, scheme: Scheme, url_of: UrlOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same items and checksum come back; what is no export is refused and changes nothing."""
    place = url_of(scheme)
    if scheme == "posix":
        # Nothing is written where nothing is mounted.
        Path(place.url.removeprefix("posix://")).mkdir()
    if place.credentials is not None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", place.credentials.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", place.credentials.secret_key)
    base, _, query = place.url.partition("?")
    url = f"{base}/exports/items.kv" + (f"?{query}" if query else "")
    table, copy = f"of-{scheme}", f"copy-of-{scheme}"
    for number in range(ITEMS):
        node.json("kv", "put", f"k{number}", f"value {number}", "--table", table)
    exported = node.json("kv", "export", "--table", table, "--to", url)
    imported = node.json("kv", "import", "--table", copy, "--from", url)
    assert (exported["items"], imported["items"]) == (ITEMS, ITEMS)
    assert exported["crc32c"] == imported["crc32c"]
    items = node.json("kv", "list", "--table", copy)["items"]
    assert [(item["key"], item["value"]) for item in items] == [
        (f"k{number}", f"value {number}") for number in range(ITEMS)
    ]
    missing = url.replace("items.kv", "nothing.kv")
    refused = node.strata("kv", "import", "--table", "none", "--from", missing)
    assert refused.returncode == 1
    assert "nothing.kv" in refused.stderr
    assert "none" not in node.json("kv", "tables")["tables"]
