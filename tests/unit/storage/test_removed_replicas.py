"""Segments that stand aside, for how long, and the ones that go first (rule 32)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from strata_storage.base import removed_replicas
from strata_storage.base.removed_replicas import (
    AsideOptions,
    RemovedReplica,
    RemovedReplicaError,
    RemovedReplicas,
    read_note,
)
from tests.syncs import note_syncs

DAY_MS = 86_400_000


def replica(replica_id: int, removed_at_ms: int = 0, revision: int = 5) -> RemovedReplica:
    return RemovedReplica(replica_id, 1, "c1", revision, removed_at_ms, 1, 9, 2, 3, 9)


class Folder:
    """A log of some segments, and replicas aside."""

    def __init__(self, root: Path, options: AsideOptions | None = None) -> None:
        self.log = root / "log"
        self.log.mkdir()
        self.aside = RemovedReplicas(root / "removed", self.log, options or AsideOptions())

    def segment(self, name: str, size_bytes: int = 1_000) -> str:
        (self.log / name).write_bytes(name.encode() * (size_bytes // len(name)))
        return name

    def ids(self) -> list[int]:
        return [each.replica_id for each in self.aside.listed()]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path, AsideOptions(retention_ms=7 * DAY_MS, max_bytes=2_500))


def test_segments_outlive_the_log(folder: Folder) -> None:
    """They cost nothing while the log has them, and are whole when it gave them up."""
    names = [folder.segment("a.log"), folder.segment("b.log")]
    content = (folder.log / "b.log").read_bytes()
    folder.aside.put(replica(17), names)
    folder.aside.clean(0, disk_is_low=False)
    assert (folder.aside.count, folder.aside.held_bytes) == (1, 0)
    (folder.log / "b.log").unlink()
    folder.aside.clean(0, disk_is_low=False)
    assert folder.aside.held_bytes == 1_000
    assert (folder.aside.log_of(17) / "b.log").read_bytes() == content
    assert folder.aside.listed() == [replica(17)]


def test_a_file_system_without_links_gets_copies(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy that is put aside does not depend on the original."""

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    name = folder.segment("a.log")
    content = (folder.log / name).read_bytes()
    folder.aside.put(replica(17), [name])
    (folder.log / name).write_bytes(b"")
    assert (folder.aside.log_of(17) / name).read_bytes() == content


def test_what_is_too_old_goes(folder: Folder) -> None:
    """After the retention, not before."""
    name = folder.segment("a.log")
    folder.aside.put(replica(17, removed_at_ms=1_000), [name])
    assert folder.aside.clean(7 * DAY_MS, disk_is_low=False) == []
    (gone,) = folder.aside.clean(7 * DAY_MS + 1_000, disk_is_low=False)
    assert (gone.replica_id, folder.ids(), folder.aside.count) == (17, [], 0)


def test_the_oldest_go_when_they_are_too_much(folder: Folder) -> None:
    """Bytes that the log has, too, do not count; the newest stays however large it is."""
    for number in range(4):
        folder.aside.put(replica(number, number), [folder.segment(f"{number}.log")])
    assert folder.aside.clean(10, disk_is_low=False) == []
    for number in range(4):
        (folder.log / f"{number}.log").unlink()
    gone = folder.aside.clean(10, disk_is_low=False)
    assert [each.replica_id for each in gone] == [0, 1]
    folder.aside.put(replica(9, 9), [folder.segment("large.log", 9_000)])
    (folder.log / "large.log").unlink()
    folder.aside.clean(10, disk_is_low=False)
    assert folder.ids() == [9]


def test_a_full_disk_takes_one_at_a_look(folder: Folder) -> None:
    """The oldest first, and at last all, once the log has given their segments up."""
    for number in range(3):
        folder.aside.put(replica(number, number), [folder.segment(f"{number}.log")])
        (folder.log / f"{number}.log").unlink()
    for left in ([1, 2], [2], [], []):
        folder.aside.clean(10, disk_is_low=True)
        assert folder.ids() == left


def test_what_costs_nothing_is_not_deleted_for_a_full_disk(folder: Folder) -> None:
    """The oldest whose end gives bytes back goes; those whose segments the log has stay."""
    for number in range(3):
        folder.aside.put(replica(number, number), [folder.segment(f"{number}.log")])
    for _ in range(3):
        assert folder.aside.clean(10, disk_is_low=True) == []
    (folder.log / "1.log").unlink()
    assert folder.aside.clean(10, disk_is_low=True) == [replica(1, 1)]
    for _ in range(3):
        assert folder.aside.clean(10, disk_is_low=True) == []
    assert folder.ids() == [0, 2]


def test_the_limit_takes_nothing_for_nothing_either(folder: Folder) -> None:
    """A replica that the log still has is older than those that are too much, and stays."""
    for number in range(5):
        folder.aside.put(replica(number, number), [folder.segment(f"{number}.log")])
    for number in range(1, 5):
        (folder.log / f"{number}.log").unlink()
    folder.aside.clean(10, disk_is_low=False)
    assert (folder.ids(), folder.aside.held_bytes) == ([0, 3, 4], 2_000)


def test_replicas_that_share_what_must_go_go_together(folder: Folder) -> None:
    """One of two names of a segment gives nothing back."""
    shared = folder.segment("shared.log")
    for number in (1, 2):
        folder.aside.put(replica(number, number), [shared])
    folder.aside.put(replica(3, 3), [folder.segment("c.log")])
    for name in (shared, "c.log"):
        (folder.log / name).unlink()
    gone = folder.aside.clean(10, disk_is_low=True)
    assert [each.replica_id for each in gone] == [1, 2]
    assert (folder.ids(), folder.aside.held_bytes) == ([3], 1_000)


def test_a_segment_of_two_replicas_is_counted_once(folder: Folder) -> None:
    """And for the one that holds it longest."""
    name = folder.segment("a.log")
    for number in (1, 2):
        folder.aside.put(replica(number, number), [name])
    (folder.log / name).unlink()
    folder.aside.clean(10, disk_is_low=False)
    assert (folder.ids(), folder.aside.held_bytes) == ([1, 2], 1_000)


def test_putting_aside_again_replaces_what_is_there(folder: Folder) -> None:
    """A crash came between that and the end of the replica id: the later one is complete."""
    folder.aside.put(replica(17, revision=5), [folder.segment("a.log")])
    folder.aside.put(replica(17, revision=6), [folder.segment("b.log")])
    assert [each.revision for each in folder.aside.listed()] == [6]
    assert [file.name for file in folder.aside.log_of(17).iterdir()] == ["b.log"]


def test_what_was_not_finished_goes(folder: Folder) -> None:
    """Only a folder with its name counts."""
    unfinished = folder.aside.folder / "17.new"
    unfinished.mkdir(parents=True)
    assert folder.ids() == []
    folder.aside.clean(0, disk_is_low=False)
    assert not unfinished.exists()


def test_a_replica_that_is_back_is_remembered_without_its_files(folder: Folder) -> None:
    """For as long as the log has it: a row that was overruled must not remove it again."""
    folder.aside.put(replica(17), [folder.segment("a.log")])
    folder.aside.is_taken_back(replica(17))
    assert folder.aside.taken_back() == {17: 5}
    assert not folder.aside.log_of(17).exists()
    for now_ms in (10, 8 * DAY_MS, 800 * DAY_MS):
        assert folder.aside.clean(now_ms, disk_is_low=True, is_in_log=lambda _: True) == []
        assert folder.aside.taken_back() == {17: 5}
    assert folder.aside.count == 0, "nothing is kept to be taken back"
    folder.aside.clean(10, disk_is_low=False, is_in_log=lambda replica_id: replica_id != 17)
    assert folder.aside.taken_back() == {}


def test_a_replica_that_ends_again_is_not_forgotten_with_its_way_back(folder: Folder) -> None:
    """It is put aside, and ends, right while the old note is looked at: the new copy stays."""
    folder.aside.put(replica(17), [folder.segment("a.log")])
    folder.aside.is_taken_back(replica(17))

    def ends(replica_id: int) -> bool:
        folder.aside.put(replica(17, 5, revision=9), [folder.segment("b.log")])
        return False

    assert folder.aside.clean(10, disk_is_low=False, is_in_log=ends) == []
    assert folder.aside.listed() == [replica(17, 5, revision=9)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is damaged"),
        ('{"crc32c": "00000000", "replica": {}}', "its checksum is another one"),
        ("[]", "is damaged"),
        (None, "No such file"),
    ],
)
def test_a_damaged_note_is_an_error_with_the_file(
    folder: Folder, text: str | None, reason: str
) -> None:
    """The others are shown; it is deleted when it is as old as they may become, not before."""
    folder.aside.put(replica(17), [folder.segment("a.log")])
    folder.aside.put(replica(18), [folder.segment("b.log")])
    note = folder.aside.path(17) / "replica.json"
    if text is None:
        note.unlink()
    else:
        note.write_text(text)
    with pytest.raises(RemovedReplicaError, match=reason) as error:
        read_note(folder.aside.path(17))
    assert str(note) in str(error.value)
    assert folder.ids() == [18]
    changed_ms = folder.aside.path(17).stat().st_mtime_ns // 1_000_000
    folder.aside.clean(changed_ms + 7 * DAY_MS - 1, disk_is_low=False)
    assert folder.aside.path(17).exists()
    folder.aside.clean(changed_ms + 7 * DAY_MS, disk_is_low=False)
    assert not folder.aside.path(17).exists()


@pytest.mark.parametrize("is_newer", [False, True])
def test_a_note_that_may_be_read_later_is_logged_once_and_has_no_age(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, is_newer: bool
) -> None:
    """The disk does not read it now (rule 40), or another version wrote it."""
    events: list[str] = []
    logger = SimpleNamespace(warning=lambda event, **_: events.append(event))
    monkeypatch.setattr(folder.aside, "_logger", logger)
    folder.aside.put(replica(17), [folder.segment("a.log")])
    note = folder.aside.path(17) / "replica.json"
    content = note.read_bytes()
    if is_newer:
        folder.aside.put(replace(replica(17), version=99), ["a.log"])
    else:
        note.unlink()
        note.mkdir()
    for _ in range(3):
        folder.aside.clean(10**14, disk_is_low=False)
    assert folder.ids() == []
    assert events == ["a removed replica cannot be read"]
    if not is_newer:
        note.rmdir()
    note.write_bytes(content)
    assert folder.ids() == [17]


def test_what_is_put_aside_is_durable(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """From bottom to top: the log is about to be told that it may give the segments up."""
    synced = note_syncs(monkeypatch)
    folder.aside.put(replica(17), [folder.segment("a.log")])
    assert synced == ["log", "replica.json.new", "17.new", "removed"]


def test_a_replica_that_is_being_put_aside_is_no_leftover(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look for what is too old, in another thread, deletes leftovers of a crash only."""
    leftover = folder.aside.folder / "16.new"
    leftover.mkdir(parents=True)
    name = folder.segment("a.log")
    write_note, looks = removed_replicas._write_note, [0]

    def look_meanwhile(path: Path, note: RemovedReplica) -> None:
        folder.aside.clean(0, disk_is_low=True)
        looks[0] += 1
        write_note(path, note)

    monkeypatch.setattr(removed_replicas, "_write_note", look_meanwhile)
    folder.aside.put(replica(17), [name])
    assert looks == [1]
    assert not leftover.exists()
    assert (folder.aside.log_of(17) / name).read_bytes() == (folder.log / name).read_bytes()
    assert folder.ids() == [17]
