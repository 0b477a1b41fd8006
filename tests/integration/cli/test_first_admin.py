"""The first admin is made once, however often the node is killed; a lost key is replaced."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_state.metadata_keys import MetadataRowKind, kind_range
from strata_state.metadata_rocksdb import RocksDbMetadataStore
from tests.integration.cli.conftest import STRATA

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import StartNode

ON = ("--access-control", "on")
SECRET = "a-secret-of-the-test"


def users_of(data_dir: Path) -> list[meta_pb2.User]:
    """Rows of a stopped node."""
    store = RocksDbMetadataStore(data_dir / "nameserver" / "meta")
    try:
        rows = store.scan(*kind_range(MetadataRowKind.USER))
        return [meta_pb2.User.FromString(value) for _, value in rows]
    finally:
        store.close()


def keys_in(file: Path) -> tuple[str, str]:
    keys = json.loads(file.read_text())
    assert set(keys) == {"access_key", "secret_key"}
    assert file.stat().st_mode & 0o777 == 0o600
    return keys["access_key"], keys["secret_key"]


def recover(data_dir: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [*STRATA, "user", "recover", "--data-dir", str(data_dir), *more, "-o", "json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_first_admin_is_in_a_file(start_node: StartNode) -> None:
    """Its keys are there when the node is ready, and the same after a restart."""
    node = start_node(*ON)
    assert "access_control=on" in node.ready_line
    file = node.data_dir / "first-admin.json"
    name, secret = keys_in(file)
    assert node.stop()[0] == 0
    again = start_node(*ON)
    assert keys_in(file) == (name, secret)
    assert again.stop()[0] == 0
    [user] = users_of(node.data_dir)
    assert (user.name, user.secret_key, user.admin) == (name, secret, True)


def test_no_admin_is_made_where_access_is_not_controlled(start_node: StartNode) -> None:
    """Until it is: then one is made at the next start."""
    node = start_node()
    assert not (node.data_dir / "first-admin.json").exists()
    assert node.stop()[0] == 0
    assert users_of(node.data_dir) == []
    assert start_node(*ON).stop()[0] == 0
    assert len(users_of(node.data_dir)) == 1


def test_the_first_admin_may_be_given(start_node: StartNode, tmp_path: Path) -> None:
    """By a file; nothing is written, and it is not needed again."""
    given = tmp_path / "given.json"
    given.write_text(json.dumps({"access_key": "root", "secret_key": SECRET}))
    node = start_node(*ON, "--first-admin-file", str(given))
    assert not (node.data_dir / "first-admin.json").exists()
    assert node.stop()[0] == 0
    given.unlink()
    assert start_node(*ON, "--first-admin-file", str(given)).stop()[0] == 0
    assert [(user.name, user.secret_key) for user in users_of(node.data_dir)] == [("root", SECRET)]


@pytest.mark.parametrize("content", [None, "", "[]", '{"access_key": "root"}'])
def test_a_given_file_without_keys_ends_the_start(
    start_node: StartNode, tmp_path: Path, content: str | None
) -> None:
    """One line names the file and shows nothing of it."""
    given = tmp_path / "given.json"
    if content is not None:
        given.write_text(content)
    node = start_node(*ON, STRATA_ACCESS_CONTROL_FIRST_ADMIN_FILE=str(given))
    assert node.process.wait(30) == 1
    assert node.process.stderr is not None
    err = node.process.stderr.read()
    assert err.startswith("strata: ")
    assert str(given) in err
    assert err.count("\n") == 1


def test_kills_during_the_first_start_make_one_admin(tmp_path: Path) -> None:
    """The file and the row agree after the next start, whatever a kill left behind."""
    for place in ("first-admin.json.new", "first-admin.json"):
        data_dir = tmp_path / place
        command = [*STRATA, "standalone", "--data-dir", str(data_dir), "--grpc-port", "0", *ON]
        for _ in range(2):
            killed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            _until_there(killed, data_dir / place)
            killed.kill()
            killed.communicate()
        last = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert last.stdout is not None
        assert last.stdout.readline().startswith("ready")
        last.terminate()
        last.communicate(timeout=30)
        name, secret = keys_in(data_dir / "first-admin.json")
        assert [(user.name, user.secret_key) for user in users_of(data_dir)] == [(name, secret)]


def _until_there(process: subprocess.Popen[bytes], file: Path) -> None:
    """Wait until a file is there, or was: from the line that says ready it is too late."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    while process.poll() is None and not file.exists() and not process.stdout.read(1):
        continue


def test_a_file_without_its_row_is_used_again(start_node: StartNode) -> None:
    """A node that was killed between file and row proposes the same keys; half a file is none."""
    node = start_node()
    assert node.stop()[0] == 0
    (node.data_dir / "first-admin.json.new").write_text('{"access_key": "adm')
    file = node.data_dir / "first-admin.json"
    file.write_text(json.dumps({"access_key": "admin", "secret_key": SECRET}))
    file.chmod(0o600)
    assert start_node(*ON).stop()[0] == 0
    assert keys_in(file) == ("admin", SECRET)
    assert [(user.name, user.secret_key) for user in users_of(node.data_dir)] == [("admin", SECRET)]


def test_a_lost_key_is_replaced_on_the_machine(start_node: StartNode) -> None:
    """Only while the node is stopped; the new key is printed once, and the file of the old goes."""
    node = start_node(*ON)
    running = recover(node.data_dir)
    assert running.returncode == 1
    assert f"is in use by process {node.process.pid}" in running.stderr
    assert not (node.data_dir / "recover-admin.json").exists()
    assert node.stop()[0] == 0

    done = recover(node.data_dir)
    assert (done.returncode, done.stderr) == (0, "")
    keys = json.loads(done.stdout)
    assert set(keys) == {"access_key", "secret_key", "data_dir"}
    assert keys_in(node.data_dir / "recover-admin.json") == (keys["access_key"], keys["secret_key"])
    other = json.loads(recover(node.data_dir, "--name", "second").stdout)
    assert start_node(*ON).stop()[0] == 0
    assert not (node.data_dir / "recover-admin.json").exists()
    rows = {user.name: user for user in users_of(node.data_dir)}
    assert set(rows) == {"admin", "second"}
    assert rows["second"].secret_key == other["secret_key"], "the last order holds"
    assert rows["second"].admin

    assert json.loads(recover(node.data_dir).stdout)["access_key"] == "admin"
    assert start_node(*ON).stop()[0] == 0
    assert not (node.data_dir / "first-admin.json").exists(), "its key is not valid any more"


def test_a_recovery_that_a_kill_interrupts_is_carried_out(start_node: StartNode) -> None:
    """The order goes after the change is applied, so a killed node finds it again."""
    node = start_node(*ON)
    assert node.stop()[0] == 0
    keys = json.loads(recover(node.data_dir).stdout)
    command = [*STRATA, "standalone", "--data-dir", str(node.data_dir), "--grpc-port", "0", *ON]
    killed = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    _until_there(killed, node.data_dir / "recover-admin.json")
    killed.kill()
    killed.communicate()
    assert start_node(*ON).stop()[0] == 0
    [user] = users_of(node.data_dir)
    assert user.secret_key == keys["secret_key"]
    assert not (node.data_dir / "recover-admin.json").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--data-dir", "{none}"), "is not a data folder"),
        (("--data-dir", "{data}", "--name", "a b"), "--name a b: the name of a user has 3 to 64"),
    ],
)
def test_a_recovery_that_cannot_be_is_refused(
    start_node: StartNode, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    node = start_node()
    assert node.stop()[0] == 0
    places = {"none": tmp_path, "data": node.data_dir}
    command = [*STRATA, "user", "recover", *(each.format(**places) for each in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert reason in done.stderr
    assert not (tmp_path / "recover-admin.json").exists()
    assert not (tmp_path / "LOCK").exists()
