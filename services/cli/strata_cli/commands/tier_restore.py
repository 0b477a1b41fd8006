"""`strata tier restore`: writes data folders of a node from an object store (rules 28 and 29).

The folder becomes a standalone node that hosts every raft group of the lost cluster, each with one
new replica. Or it is split into folders of a nameserver and a storage node, from which a cluster
grows: as new storage nodes join, raft groups get their other replicas there. The folder looks like
that of a node after a crash that lost its rows: its log begins behind a checkpoint. The first start
builds the rows from the log and reads the index of messages that are only in the tier from there.
So restored state is recovered like any other state.

Ids are never used twice: topics and consumer groups keep their ids, replicas get new ones, and new
ids are counted from far behind the last known id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from strata.meta.v1 import command_pb2, meta_pb2
from strata_cli.errors import CliError
from strata_cli.processes.data_folder import RESTORE_FILE, DataFolder, FolderRole, Identity
from strata_mq.layout import AppliedRow, RowKind
from strata_multiraft.replica import as_frame, void_frame
from strata_raft import Entry, EntryKind
from strata_runtime.files import replace_file, sync_folder
from strata_seglog.errors import Corruption
from strata_seglog.frames import FLAG_MOVED, Frame, FrameKind, hard_state_frame
from strata_seglog.log import CommitLog
from strata_seglog.options import LogOptions
from strata_seglog.real_disk import RealDisk
from strata_state.metadata import Row
from strata_state.metadata_keys import (
    APPLIED_KEY,
    MetadataRowKind,
    kind_of,
    names_of,
    raft_group_key,
)
from strata_state.metadata_rocksdb import RocksDbMetadataStore
from strata_storage.upkeep.checkpoint import encode_checkpoint
from strata_tier.upkeep import RaftGroupRestore, Restore

# Ids that the lost cluster may have assigned after its last archive.
_IDS_MARGIN = 1_000
_SEGMENT_BYTES = 64 * 1024 * 1024
_WRITE_BYTES = 4 * 1024 * 1024
# Rows of lost members, or rows that the restored nameserver decides anew.
_LEFT_OUT = frozenset(
    (
        MetadataRowKind.APPLIED,
        MetadataRowKind.CHANGE,
        MetadataRowKind.INSTALLING,
        MetadataRowKind.NODE,
        MetadataRowKind.PLACEMENT_PLAN,
        MetadataRowKind.PLACEMENT_MODEL,
    )
)


def topic_ids_of(rows: Sequence[Row], namespace: str, names: Collection[str]) -> set[int]:
    """Return the ids of topics by name.

    Raises:
        CliError: one of them is not in the archived rows.
    """
    found: dict[str, int] = {}
    for key, value in rows:
        if kind_of(key) is MetadataRowKind.TOPIC and names_of(key)[0] == namespace:
            found[names_of(key)[1]] = meta_pb2.Topic.FromString(value).topic_id
    missing = sorted(set(names) - set(found))
    if missing:
        raise CliError(f"the store holds no topic {', '.join(missing)} of namespace {namespace!r}")
    return {found[name] for name in names}


def write_data_folder(
    restore: Restore,
    path: Path,
    topic_ids: Collection[int] | None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> DataFolder:
    """Write a new data folder; the caller closes it.

    Args:
        restore: the content to restore.
        path: of the folder; it must be empty or missing.
        topic_ids: only these topics; None: all.
        tell: is told how many raft groups are written, and how many there are.

    Raises:
        CliError: the folder is not empty.
        DataFolderError, OSError, LogError, MetadataStoreError, MetadataSyncFailed: it cannot be
            written.
    """
    _check_new(path)
    _begin(path)
    folder = DataFolder.open(path, FolderRole.STANDALONE, restores=True)
    try:
        replica_ids = _replica_ids(restore)
        _write_metadata(restore, folder, replica_ids, topic_ids)
        write_log(restore.raft_groups, folder.storage / "log", replica_ids, tell)
        _end(path)
    except BaseException:
        folder.close()
        raise
    return folder


def write_split_folders(
    restore: Restore,
    path: Path,
    topic_ids: Collection[int] | None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Identity:
    """Write `nameserver` and `storage` under a new folder, for two processes of a cluster.

    Args:
        restore: the content to restore.
        path: of the folder; it must be empty or missing.
        topic_ids: only these topics; None: all.
        tell: is told how many raft groups are written, and how many there are.

    Returns:
        The nameserver's identity; the storage node's identity has the same ids.

    Raises:
        CliError, DataFolderError, OSError, LogError, MetadataStoreError: as `write_data_folder`.
    """
    _check_new(path)
    of_nameserver, of_storage = path / "nameserver", path / "storage"
    _begin(of_nameserver, of_storage)
    replica_ids = _replica_ids(restore)
    opened = DataFolder.open(of_nameserver, FolderRole.NAMESERVER, restores=True)
    with closing(opened) as folder:
        _write_metadata(restore, folder, replica_ids, topic_ids)
        identity = folder.identity
    same_ids = replace(identity, role=FolderRole.STORAGE)
    opened = DataFolder.open(of_storage, FolderRole.STORAGE, same_ids, restores=True)
    with closing(opened) as folder:
        write_log(restore.raft_groups, folder.storage / "log", replica_ids, tell)
    _end(of_nameserver, of_storage)
    return identity


def _check_new(path: Path) -> None:
    if path.exists() and any(path.iterdir()):
        raise CliError(f"{path} is not empty: restore into a new folder")


def _begin(*folders: Path) -> None:
    """Mark folders, durably: no process starts in them before everything is written."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / RESTORE_FILE, b"")


def _end(*folders: Path) -> None:
    """Let processes start in folders: everything in them is durable."""
    for folder in folders:
        (folder / RESTORE_FILE).unlink()
        sync_folder(folder)


def _raft_group_rows(restore: Restore) -> list[meta_pb2.RaftGroup]:
    return [
        meta_pb2.RaftGroup.FromString(value)
        for key, value in restore.metadata_rows
        if kind_of(key) is MetadataRowKind.RAFT_GROUP
    ]


def _replica_ids(restore: Restore) -> dict[int, int]:
    """Return a new replica id per raft group."""
    known = _raft_group_rows(restore)
    taken = [replica.replica_id for row in known for replica in (*row.replicas, *row.leaving)] + [
        replica_id for row in known for replica_id in row.initial_replica_ids
    ]
    numbers = sorted(
        {row.raft_group for row in known} | {group.raft_group for group in restore.raft_groups}
    )
    first = max(taken, default=0) + _IDS_MARGIN
    return {raft_group: first + at for at, raft_group in enumerate(numbers)}


# The nameserver's rows -------------------------------------------------------------------------


def _write_metadata(
    restore: Restore,
    folder: DataFolder,
    replica_ids: dict[int, int],
    topic_ids: Collection[int] | None,
) -> None:
    """Write the rows with which the metadata raft group of this folder begins."""
    revision = _revision(restore) + 1
    rows = [
        row
        for row in restore.metadata_rows
        if kind_of(row[0]) not in _LEFT_OUT and _is_wanted(row, topic_ids)
    ]
    rows = [row for row in rows if kind_of(row[0]) is not MetadataRowKind.RAFT_GROUP]
    for row in _raft_group_rows(restore):
        replica_id = replica_ids[row.raft_group]
        restored = meta_pb2.RaftGroup(
            raft_group=row.raft_group,
            replicas=[
                meta_pb2.Replica(replica_id=replica_id, node_id=folder.identity.storage_node_id)
            ],
            broker_name=row.broker_name,
            initial_replica_ids=[replica_id],
            # Written as if reported: otherwise the raft group gets no further replicas.
            membership=meta_pb2.Membership(voters=[replica_id]),
            revision=revision,
        )
        rows.append((raft_group_key(row.raft_group), restored.SerializeToString()))
    counters = _counters(restore, rows, replica_ids, revision)
    applied = command_pb2.AppliedState(counters=counters)
    store = RocksDbMetadataStore(folder.nameserver / "meta")
    try:
        store.write([*rows, (APPLIED_KEY, applied.SerializeToString())])
    finally:
        store.close()


def _is_wanted(row: Row, topic_ids: Collection[int] | None) -> bool:
    key, value = row
    if topic_ids is None:
        return True
    match kind_of(key):
        case MetadataRowKind.TOPIC:
            topic = meta_pb2.Topic.FromString(value)
            # Every consumer group comes back, and each names the topic of its dead letters.
            is_for_letters = topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER
            return is_for_letters or topic.topic_id in topic_ids
        case MetadataRowKind.QUEUE_OVERRIDE:
            return meta_pb2.QueueOverride.FromString(value).topic_id in topic_ids
        case (
            MetadataRowKind.CONSUMER_GROUP
            | MetadataRowKind.RAFT_GROUP
            | MetadataRowKind.SLOTS
            | MetadataRowKind.SLOT_MOVE
            # Nobody could use what is restored without its users.
            | MetadataRowKind.USER
            | MetadataRowKind.POLICY
            | MetadataRowKind.CLUSTER_KEY
        ):
            return True
    return False


def _revision(restore: Restore) -> int:
    """Return the newest revision on which any restored state was decided."""
    own = [
        int.from_bytes(value)
        for group in restore.raft_groups
        for key, value in group.rows
        if key[4] == RowKind.OWN_REVISION
    ]
    archived = int(restore.metadata_key.rpartition("/")[2].partition(".")[0], 16)
    return max([archived, *own])


def _counters(
    restore: Restore, rows: Sequence[Row], replica_ids: dict[int, int], revision: int
) -> command_pb2.Counters:
    """Count rows, and ids from far behind those that are known."""
    counts = {kind: 0 for kind in MetadataRowKind}
    topics = [queue.topic_id for group in restore.raft_groups for queue in group.queues]
    groups: list[int] = []
    policies: list[int] = []
    for key, value in restore.metadata_rows:
        match kind_of(key):
            case MetadataRowKind.TOPIC:
                topics.append(meta_pb2.Topic.FromString(value).topic_id)
            case MetadataRowKind.CONSUMER_GROUP:
                group = meta_pb2.ConsumerGroup.FromString(value)
                groups.append(group.consumer_group_id)
                topics.append(group.dead_letter_topic_id)
            case MetadataRowKind.TOMBSTONE:
                dropped = meta_pb2.Tombstone.FromString(value).id
                topics.append(dropped)
                groups.append(dropped)
            case MetadataRowKind.POLICY:
                policies.append(meta_pb2.Policy.FromString(value).policy_id)
    for key, _ in rows:
        counts[kind_of(key)] += 1
    return command_pb2.Counters(
        revision=revision,
        next_topic_id=max(topics, default=0) + _IDS_MARGIN,
        next_consumer_group_id=max(groups, default=0) + _IDS_MARGIN,
        next_raft_group=max(replica_ids, default=0) + 1,
        next_replica_id=max(replica_ids.values(), default=0) + 1,
        topic_count=counts[MetadataRowKind.TOPIC],
        consumer_group_count=counts[MetadataRowKind.CONSUMER_GROUP],
        tombstone_count=counts[MetadataRowKind.TOMBSTONE],
        queue_override_count=counts[MetadataRowKind.QUEUE_OVERRIDE],
        quota_count=counts[MetadataRowKind.QUOTA],
        user_count=counts[MetadataRowKind.USER],
        policy_count=counts[MetadataRowKind.POLICY],
        next_policy_id=max(policies, default=0) + _IDS_MARGIN,
    )


# The storage node's log -------------------------------------------------------------------------


def write_log(
    groups: Sequence[RaftGroupRestore],
    path: Path,
    replica_ids: Mapping[int, int],
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the log of a node that hosts one replica of each raft group.

    Args:
        groups: the raft groups to restore.
        path: folder of the log; new.
        replica_ids: raft group -> id of its replica.
        tell: is told how many raft groups are written, and how many there are.

    Raises:
        LogError, OSError: it cannot be written.
    """
    log = CommitLog.open(
        RealDisk(path), LogOptions(segment_bytes=_SEGMENT_BYTES), report=_never_damaged
    )
    try:
        for number, group in enumerate(groups):
            tell(number, len(groups))
            for frames in _writes(_frames(group, replica_ids[group.raft_group])):
                log.write(frames)
            log.sync()
    finally:
        log.close()


def _frames(group: RaftGroupRestore, replica_id: int) -> Iterator[Frame]:
    """Yield a replica's log: entries that are still needed, a checkpoint, and one entry behind it.

    The last entry does nothing; it makes the log begin behind the checkpoint.
    """
    raft_group, index, term = group.raft_group, group.raft_index, group.term
    yield hard_state_frame(replica_id, raft_group, term, 0, index)
    yield void_frame(replica_id, raft_group, (0, 0))
    for entry in group.entries:
        yield Frame(
            FrameKind.ENTRY,
            replica_id,
            raft_group,
            entry.term,
            entry.raft_index,
            EntryKind.NORMAL,
            FLAG_MOVED,
            (entry.payload,),
        )
    yield as_frame(replica_id, raft_group, Entry(term, index + 1, EntryKind.NO_OP, ()))
    applied = AppliedRow(index, term, group.group_time_ms)
    yield from encode_checkpoint(group.rows, raft_group, replica_id, applied)


def _writes(frames: Iterator[Frame]) -> Iterator[list[Frame]]:
    """Group frames into writes that fit into a segment."""
    write: list[Frame] = []
    size = 0
    for frame in frames:
        write.append(frame)
        size += sum(map(len, frame.payload))
        if size >= _WRITE_BYTES:
            yield write
            write, size = [], 0
    if write:
        yield write


def _never_damaged(corruption: Corruption) -> None:
    raise CliError(f"the new log is damaged: {corruption}")
