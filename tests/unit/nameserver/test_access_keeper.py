"""The first admin and orders to replace a key, with a crash between any two steps."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_multiraft.base.snapshots import SnapshotRows
from strata_nameserver.base.admin_keys import AdminKeyFiles, AdminKeys, read_keys, write_keys
from strata_nameserver.leading import access_keeper
from strata_nameserver.leading.access_keeper import AccessKeeper
from strata_nameserver.state.snapshots import MetadataSnapshots
from strata_raft import Configuration, SnapshotMetadata
from strata_runtime.audit import AuditEvent
from strata_runtime.errors import ConfigError
from strata_state.metadata_keys import APPLIED_KEY, MetadataRowKind, kind_range, user_key

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver

SECRET = "a-secret-of-the-test"


class Sink:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def write(self, event: AuditEvent) -> None:
        self.events.append(event)


class Crash(Exception):
    """The process ends here."""


def keeper_of(
    nameserver: Nameserver,
    files: AdminKeyFiles | None,
    *,
    call_leader: Any = None,
    sink: Sink | None = None,
) -> AccessKeeper:
    return AccessKeeper(
        nameserver.machine,
        nameserver.metadata.access,
        files,
        call_leader=call_leader,
        audit=sink or Sink(),
        clock=nameserver.clock,
    )


def lead(nameserver: Nameserver) -> Nameserver:
    nameserver.machine.on_leader(1)
    return nameserver


def users_of(nameserver: Nameserver) -> dict[str, meta_pb2.User]:
    rows = nameserver.machine.rows(*kind_range(MetadataRowKind.USER))
    return {user.name: user for user in map(meta_pb2.User.FromString, rows)}


async def test_a_leader_makes_what_is_missing(nameserver: Nameserver, tmp_path: Path) -> None:
    """A cluster key and one admin, whose keys are in a file; a second look changes nothing."""
    sink, files = Sink(), AdminKeyFiles(tmp_path, is_wanted=True)
    keeper = keeper_of(lead(nameserver), files, sink=sink)
    await keeper.step()
    keys = read_keys(files.first_admin)
    assert keys is not None
    [admin] = users_of(nameserver).values()
    assert (admin.name, admin.secret_key, admin.admin) == ("admin", keys.secret_key, True)
    assert nameserver.machine.speculative.access.cluster_keys == {1}
    revision = nameserver.machine.revision
    await keeper.step()
    assert nameserver.machine.revision == revision
    assert [(event["event"], event["user"]) for event in sink.events] == [
        ("first admin made", "admin")
    ]
    assert keys.secret_key not in repr(sink.events) + repr(keys)


async def test_a_follower_makes_nothing(nameserver: Nameserver, tmp_path: Path) -> None:
    await keeper_of(nameserver, AdminKeyFiles(tmp_path, is_wanted=True)).step()
    assert not (tmp_path / "first-admin.json").exists()
    assert users_of(nameserver) == {}


@pytest.mark.parametrize("before", ["write_keys", "ensure_admin"])
async def test_a_crash_before_a_step_is_made_good(
    nameserver: Nameserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Before the file nothing is there; between file and row the same keys are proposed again."""
    files = AdminKeyFiles(tmp_path, is_wanted=True)
    with monkeypatch.context() as patch:
        if before == "write_keys":
            patch.setattr(access_keeper, "write_keys", _crash)
        else:
            patch.setattr(nameserver.metadata.access, "ensure_admin", _crash)
        with pytest.raises(Crash):
            await keeper_of(lead(nameserver), files).step()
    assert users_of(nameserver) == {}
    left = read_keys(files.first_admin)
    again = lead(nameserver.restarted())
    await keeper_of(again, files).step()
    keys = read_keys(files.first_admin)
    assert keys is not None
    assert left in (None, keys)
    assert [user.secret_key for user in users_of(again).values()] == [keys.secret_key]


def _crash(*_: object, **__: object) -> None:
    raise Crash


async def test_the_file_of_a_slower_nameserver_goes(nameserver: Nameserver, tmp_path: Path) -> None:
    """Another nameserver made the admin while this one had only written its file."""
    (tmp_path / "other").mkdir()
    mine = AdminKeyFiles(tmp_path, is_wanted=True)
    write_keys(mine.first_admin, AdminKeys("admin", "mine-was-too-late"))
    keeper = keeper_of(nameserver, mine)
    await keeper.step()
    assert mine.first_admin.exists(), "who is admin is not known yet"

    theirs = AdminKeyFiles(tmp_path / "other", is_wanted=True)
    await keeper_of(lead(nameserver), theirs).step()
    nameserver.machine.on_follower(2, 2)
    await keeper.step()
    assert not mine.first_admin.exists()
    assert theirs.first_admin.exists()


async def test_a_file_stays_while_the_former_key_is_valid(
    nameserver: Nameserver, tmp_path: Path
) -> None:
    files = AdminKeyFiles(tmp_path, is_wanted=True)
    await keeper_of(lead(nameserver), files).step()
    request = meta_pb2.UpdateUserRequest(
        user=meta_pb2.User(name="admin"), update_mask=["secret_key"], previous_valid_ms=1_000
    )
    await nameserver.metadata.access.update_user(request)
    await keeper_of(nameserver, files).step()
    assert files.first_admin.exists()
    request.previous_valid_ms = 0
    await nameserver.metadata.access.update_user(request)
    await keeper_of(nameserver, files).step()
    assert not files.first_admin.exists()


async def test_given_keys_are_used_and_not_written(nameserver: Nameserver, tmp_path: Path) -> None:
    """They are read only while there is no admin."""
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"access_key": "root", "secret_key": SECRET}))
    files = AdminKeyFiles(tmp_path, is_wanted=True, given=given)
    keeper = keeper_of(lead(nameserver), files)
    await keeper.check()
    await keeper.step()
    given.unlink()
    await keeper.check()
    await keeper.step()
    assert [(user.name, user.secret_key) for user in users_of(nameserver).values()] == [
        ("root", SECRET)
    ]
    assert not files.first_admin.exists()


async def test_given_keys_that_are_missing_are_named(
    nameserver: Nameserver, tmp_path: Path
) -> None:
    keeper = keeper_of(
        lead(nameserver), AdminKeyFiles(tmp_path, is_wanted=True, given=tmp_path / "none")
    )
    for attempt in (keeper.check, keeper.step):
        with pytest.raises(ConfigError, match="none: there is no such file"):
            await attempt()


async def test_an_order_is_carried_out_also_where_access_is_not_controlled(
    nameserver: Nameserver, tmp_path: Path
) -> None:
    """It outlives a crash before it is deleted, and waits while another nameserver leads."""
    files, sink = AdminKeyFiles(tmp_path, is_wanted=False), Sink()
    write_keys(files.recovery, AdminKeys("root", SECRET))
    keeper = keeper_of(nameserver, files, sink=sink)
    await keeper.step()
    assert files.recovery.exists(), "nobody leads, and there is nobody to ask"
    await _with_crash(nameserver, files)
    assert files.recovery.exists()
    assert users_of(nameserver)["root"].secret_key == SECRET
    await keeper.step()
    assert not files.recovery.exists()
    assert [event["event"] for event in sink.events] == ["admin recovered"]


async def _with_crash(nameserver: Nameserver, files: AdminKeyFiles) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(access_keeper, "delete_keys", _crash)
        await keeper_of(lead(nameserver), files).step()


@pytest.mark.parametrize("exists", [True, False])
async def test_a_follower_has_its_order_carried_out_by_the_leader(
    nameserver: Nameserver, tmp_path: Path, exists: bool
) -> None:
    files, asked = AdminKeyFiles(tmp_path, is_wanted=True), []

    async def call(rpc: str, request: Any, response_type: Callable[[], Any]) -> Any:
        asked.append((rpc, request))
        if exists and rpc == "CreateUser":
            raise MetaRefused(meta_pb2.META_OUTCOME_ALREADY_EXISTS, "it is there")
        return response_type()

    write_keys(files.recovery, AdminKeys("root", SECRET))
    await keeper_of(nameserver, files, call_leader=call).step()
    assert not files.recovery.exists()
    assert [rpc for rpc, _ in asked] == ["CreateUser", "UpdateUser"][: 1 + exists]
    user = asked[-1][1].user
    assert (user.name, user.secret_key, user.admin, user.disabled) == ("root", SECRET, True, False)


async def test_an_order_that_the_leader_refuses_stays(
    nameserver: Nameserver, tmp_path: Path
) -> None:
    files = AdminKeyFiles(tmp_path, is_wanted=True)

    def refuse(*_: object) -> Awaitable[object]:
        raise MetaRefused(meta_pb2.META_OUTCOME_UNAVAILABLE, "the disk is full")

    write_keys(files.recovery, AdminKeys("root", SECRET))
    with pytest.raises(MetaRefused):
        await keeper_of(nameserver, files, call_leader=refuse).step()
    assert files.recovery.exists()


async def test_nothing_is_made_without_files(nameserver: Nameserver) -> None:
    """Beside the cluster key: signed handles need it whether access is controlled or not."""
    await keeper_of(lead(nameserver), None).step()
    assert users_of(nameserver) == {}
    assert nameserver.machine.speculative.access.cluster_keys == {1}


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"access_key": 1, "secret_key": "x"}'])
def test_a_file_without_keys_is_an_error_that_shows_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"keys\.json: it must be JSON") as error:
        read_keys(file)
    assert error.value.__cause__ is None


async def test_rows_that_are_being_replaced_say_nothing_about_a_file(
    nameserver: Nameserver, make_nameserver: MakeNameserver, tmp_path: Path
) -> None:
    """Half of the users are here: the admin whose only keys the file has may be in the other."""
    files = AdminKeyFiles(tmp_path, is_wanted=True)
    await keeper_of(lead(nameserver), files).step()
    keys = read_keys(files.first_admin)
    await nameserver.metadata.access.ensure_admin("aaa-first", SECRET, unless_any=False)
    rows = nameserver.store.scan(b"", b"\xff")
    target = make_nameserver(nameserver.config)
    installs = MetadataSnapshots(target.store, target.machine, target.hub)
    installs.begin_install(SnapshotMetadata(9, 1, Configuration(frozenset({1}))))
    half = [row for row in rows if row[0] != APPLIED_KEY and row[0] < user_key("admin")]
    installs.install_rows(SnapshotRows([key for key, _ in half], [value for _, value in half]))
    with pytest.raises(MetaRefused, match="a snapshot is replacing"):
        await keeper_of(target, files).step()
    assert read_keys(files.first_admin) == keys is not None
    # A start does not fail for want of a file with given keys either: they may not be needed.
    given = AdminKeyFiles(tmp_path, is_wanted=True, given=tmp_path / "gone")
    await keeper_of(target, given).check()
    target.hub.resume()
    with pytest.raises(ConfigError, match="there is no such file"):
        await keeper_of(make_nameserver(nameserver.config), given).check()
