"""The folder of a store in HDFS is made once, and never where objects must be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata_tier.store.drivers.hdfs import HdfsLocation, HdfsStore
from strata_tier.store.known import NothingKnown
from strata_tier.store.ports import StoreMissingError, StoreUnavailableError
from strata_tier.store.retrying import RequestGate
from strata_tier.store.store_options import StoreOptions
from tests.unit.tier.known import Known


class FolderClient:
    """A client of an HDFS that has folders only.

    Attributes:
        folders: that are there.
    """

    def __init__(self) -> None:
        self.folders: set[str] = set()

    async def get_file_info(self, path: str) -> Any:
        if path not in self.folders:
            raise FileNotFoundError(path)
        return SimpleNamespace(length=0, modification_time=0)

    async def mkdirs(self, path: str, *, create_parent: bool) -> None:
        assert create_parent
        self.folders |= {path, path.rpartition("/")[0]}

    async def create(self, path: str, options: object) -> None:
        if path.rpartition("/")[0] not in self.folders:
            raise FileNotFoundError(path)
        raise OSError("no DataNode takes it")


def store_of(client: FolderClient, known: NothingKnown, *, must_exist: bool = False) -> HdfsStore:
    gate = RequestGate("hdfs://tests", StoreOptions(attempts=1))
    location = HdfsLocation(("tests",), "/tier", must_exist=must_exist)
    return HdfsStore([cast("Any", client)], location, gate, known=known)


async def test_a_new_folder_is_made_and_remembered() -> None:
    """The first put makes the folder; a store that is opened later does not."""
    client, known = FolderClient(), Known()
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="no DataNode"):
            await store_of(client, known).put("a.bin", b"x")
    assert known.mark
    assert client.folders == {"/tier", "/tier/.uploads"}
    client.folders.clear()
    with pytest.raises(StoreMissingError):
        await store_of(client, known).put("a.bin", b"x")
    assert not client.folders


@pytest.mark.parametrize("why", ["it was used", "objects are known", "the URL says so"])
async def test_a_folder_that_must_be_there_is_not_made(why: str) -> None:
    """In another HDFS, or a formatted one, the store is missing until its folder is back."""
    known = Known("seen" if why == "it was used" else "", ["a"] if why.startswith("obj") else ())
    client = FolderClient()
    store = store_of(client, known, must_exist=why == "the URL says so")
    with pytest.raises(StoreMissingError, match="/tier is not there"):
        await store.put("a.bin", b"x")
    assert not client.folders
    client.folders.add("/tier")
    with pytest.raises(StoreUnavailableError, match="no DataNode"):
        await store.put("a.bin", b"x")
    assert client.folders == {"/tier", "/tier/.uploads"}
    assert known.mark
