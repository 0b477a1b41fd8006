"""The tier's metadata: one suite over all adapters of `TierMetadata`, against a plain model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata_state.memory_store import MemoryStore
from strata_state.ports import StateStore
from strata_state.rocksdb_store import RocksdbStore
from strata_tier.base.errors import TierError
from strata_tier.objects.layout import ObjectKind
from strata_tier.objects.state import (
    CommitRanges,
    DropRanges,
    DropTopics,
    ForgetObjects,
    ObjectRef,
    ReplaceRanges,
    TierChange,
    TieredObject,
    TieredQueue,
    TieredRange,
    decode_change,
    encode_change,
)
from strata_tier.ranges.metadata import ChangeError, TierMetadata
from strata_tier.ranges.metadata_json import JsonMetadataOptions, JsonTierMetadata
from strata_tier.ranges.metadata_memory import MemoryTierMetadata
from strata_tier.ranges.metadata_mirrored import MirroredTierMetadata
from strata_tier.ranges.metadata_rows import RowTierMetadata
from tests.syncs import note_syncs

RAFT_GROUP = 7


class _Adapter:
    """An adapter and the store behind it."""

    def __init__(self, metadata: TierMetadata, store: StateStore) -> None:
        self.metadata = metadata
        self.store = store
        self.raft_index = 0

    def apply(self, change: TierChange) -> None:
        """Apply a change as a replica does: from its bytes, in a batch of its own."""
        batch = self.store.new_batch()
        self.raft_index += 1
        self.metadata.apply(batch, decode_change(encode_change(change)), self.raft_index)
        self.store.write(batch)


Open = Callable[[], _Adapter]


@pytest.fixture(params=["memory", "rows in memory", "rows in RocksDB", "JSON", "rows and JSON"])
def open_adapter(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens an empty adapter."""
    count = 0

    def opened() -> _Adapter:
        nonlocal count
        count += 1
        store: StateStore = MemoryStore()
        if request.param == "memory":
            return _Adapter(MemoryTierMetadata(RAFT_GROUP), store)
        if request.param == "JSON":
            files = JsonTierMetadata.open(tmp_path / f"json {count}", RAFT_GROUP)
            return _Adapter(files, store)
        if request.param == "rows in RocksDB":
            store = RocksdbStore(tmp_path / str(count))
            request.addfinalizer(store.close)
        _strangers(store)
        if request.param == "rows and JSON":
            mirrored = MirroredTierMetadata(tmp_path / f"json {count}", store, RAFT_GROUP)
            mirrored.reload(0)
            return _Adapter(mirrored, store)
        return _Adapter(RowTierMetadata(store, RAFT_GROUP), store)

    return opened


def _strangers(store: StateStore) -> None:
    """Put rows of the neighbouring raft groups, which must never be seen."""
    for raft_group in (RAFT_GROUP - 1, RAFT_GROUP + 1):
        batch = store.new_batch()
        metadata = RowTierMetadata(store, raft_group)
        metadata.put_queue(batch, (1, 0), TieredQueue(0, 99))
        metadata.put_range(batch, _range(1, 0, 0, 99, 77))
        metadata.put_object(batch, TieredObject(_ref(77), 1, 1, 1))
        store.write(batch)


def _ref(object_id: int, kind: ObjectKind = ObjectKind.STREAM_SET) -> ObjectRef:
    key = f"home/sets/00000007/{object_id:016x}.set"
    return ObjectRef(object_id, kind, key, "acme" if object_id % 2 else "", 5_000, 17, RAFT_GROUP)


def _range(topic_id: int, queue: int, first: int, end: int, object_id: int) -> TieredRange:
    count = end - first
    times = 1_000 + first, 1_000 + end
    return TieredRange(topic_id, queue, first, end, 3, 2, count, count * 10, *times, object_id)


def test_a_commit_is_seen(open_adapter: Open) -> None:
    """Ranges, queues and objects of a commit are found by offset, in order, and counted."""
    adapter = open_adapter()
    ranges = [_range(1, 0, 5, 10, 1), _range(1, 2, 0, 4, 1), _range(2, 0, 7, 8, 1)]
    adapter.apply(CommitRanges(_ref(1), ranges, 50))
    adapter.apply(CommitRanges(_ref(2), [_range(1, 0, 10, 30, 2)], 60))
    metadata = adapter.metadata
    assert list(metadata.objects()) == [
        TieredObject(_ref(1), 3, 100, 50, 0, 100),
        TieredObject(_ref(2), 1, 200, 60, 0, 200),
    ]
    assert metadata.queue(1, 0) == TieredQueue(5, 30)
    assert metadata.queue(1, 1) is None
    assert [key for key, _ in metadata.queues()] == [(1, 0), (1, 2), (2, 0)]
    assert [key for key, _ in metadata.queues(1)] == [(1, 0), (1, 2)]
    assert metadata.covering(1, 0, 9) == ranges[0]
    assert metadata.covering(1, 0, 10) == _range(1, 0, 10, 30, 2)
    assert [metadata.covering(*at) for at in ((1, 0, 4), (1, 0, 30), (1, 1, 0))] == [None] * 3
    assert [each.first_offset for each in metadata.ranges(1, 0, 12)] == [10]
    assert [each.first_offset for each in metadata.ranges(1, 0)] == [5, 10]


def test_a_later_commit_continues(open_adapter: Open) -> None:
    """A range below the commit offset is refused, also beside one that is not."""
    adapter = open_adapter()
    adapter.apply(CommitRanges(_ref(1), [_range(1, 0, 0, 10, 1)], 50))
    ranges = [_range(1, 0, 9, 20, 2), _range(1, 1, 0, 5, 2)]
    with pytest.raises(ChangeError, match="tiered up to 10, a commit begins at 9"):
        adapter.apply(CommitRanges(_ref(2), ranges, 60))


def test_a_long_commit_is_cut(open_adapter: Open) -> None:
    """The parts of a commit add up to the object that one entry would have given."""
    adapter = open_adapter()
    ranges = [_range(1, queue, 0, 5, 1) for queue in range(7)]
    for first in (0, 3, 6):
        adapter.apply(CommitRanges(_ref(1), ranges[first : first + 3], 50))
    assert adapter.metadata.object(1) == TieredObject(_ref(1), 7, 350, 50, 0, 350)


def test_other_bytes_under_an_id_are_refused(open_adapter: Open) -> None:
    """An object that was committed is never committed with another length or checksum."""
    adapter = open_adapter()
    adapter.apply(CommitRanges(_ref(1), [_range(1, 0, 0, 10, 1)], 50))
    ref = _ref(1)
    other = ObjectRef(1, ref.kind, ref.key, ref.space, ref.length + 1, 17, RAFT_GROUP)
    with pytest.raises(ChangeError, match="other bytes"):
        adapter.apply(CommitRanges(other, [_range(1, 0, 10, 20, 1)], 60))


def test_a_replacement_takes_the_place_of_whole_ranges(open_adapter: Open) -> None:
    """Compaction moves offsets to its object; what it emptied is dropped at that time."""
    adapter = open_adapter()
    for object_id in range(3):
        first = object_id * 10
        ranges = [
            _range(1, 0, first, first + 10, object_id),
            _range(1, 1, first, first + 10, object_id),
        ]
        adapter.apply(CommitRanges(_ref(object_id), ranges, 50))
    merged = _range(1, 0, 0, 20, 9)
    adapter.apply(ReplaceRanges(_ref(9, ObjectKind.ONE_QUEUE), [merged], 70))
    metadata = adapter.metadata
    assert list(metadata.ranges(1, 0)) == [merged, _range(1, 0, 20, 30, 2)]
    assert [held.live_ranges for held in metadata.objects()] == [1, 1, 2, 1]
    adapter.apply(ReplaceRanges(_ref(8), [_range(1, 1, 0, 30, 8)], 80))
    assert {held.ref.object_id: held.dropped_at_ms for held in metadata.objects()} == {
        0: 80,
        1: 80,
        2: 0,
        8: 0,
        9: 0,
    }
    for first, end in ((5, 20), (0, 25), (0, 40)):
        with pytest.raises(ChangeError, match="are replaced, whole ranges end at"):
            adapter.apply(ReplaceRanges(_ref(7), [_range(1, 0, first, end, 7)], 90))


def test_a_drop_ends_whole_ranges(open_adapter: Open) -> None:
    """Ranges below the bound go, a range that is partly kept stays, and the queue begins there."""
    adapter = open_adapter()
    for object_id in range(3):
        first = object_id * 10
        adapter.apply(
            CommitRanges(_ref(object_id), [_range(1, 0, first, first + 10, object_id)], 50)
        )
    adapter.apply(DropRanges([(1, 0, 15), (5, 5, 100)], 70))
    metadata = adapter.metadata
    assert metadata.queue(1, 0) == TieredQueue(15, 30)
    assert metadata.queue(5, 5) is None
    assert [each.first_offset for each in metadata.ranges(1, 0)] == [10, 20]
    assert metadata.object(0) == TieredObject(_ref(0), 0, 0, 50, 70, 100)
    adapter.apply(DropRanges([(1, 0, 12)], 75))
    assert metadata.queue(1, 0) == TieredQueue(15, 30)
    adapter.apply(DropRanges([(1, 0, 45)], 80))
    assert metadata.queue(1, 0) == TieredQueue(45, 45)
    assert list(metadata.ranges(1, 0)) == []


def test_a_topic_is_dropped_and_its_objects_forgotten(open_adapter: Open) -> None:
    """Nothing of a dropped topic stays but objects to delete; live ones cannot be forgotten."""
    adapter = open_adapter()
    adapter.apply(CommitRanges(_ref(1), [_range(1, 0, 0, 5, 1), _range(2, 0, 0, 5, 1)], 50))
    adapter.apply(CommitRanges(_ref(2), [_range(1, 1, 0, 5, 2)], 50))
    adapter.apply(DropTopics([1, 3], 70))
    metadata = adapter.metadata
    assert [key for key, _ in metadata.queues()] == [(2, 0)]
    assert metadata.object(1) == TieredObject(_ref(1), 1, 50, 50, 0, 100)
    assert metadata.object(2) == TieredObject(_ref(2), 0, 0, 50, 70, 50)
    with pytest.raises(ChangeError, match="live"):
        adapter.apply(ForgetObjects([1], 80))
    adapter.apply(ForgetObjects([2, 99], 80))
    assert [held.ref.object_id for held in metadata.objects()] == [1]


def test_what_is_iterated_is_the_state_of_before(open_adapter: Open) -> None:
    """A walk over many queues lets changes in between; it goes on with the state at its start."""
    adapter = open_adapter()
    for object_id in (1, 2, 3):
        ranges = [_range(object_id, queue, 0, 5, object_id) for queue in (0, 1)]
        adapter.apply(CommitRanges(_ref(object_id), ranges, 50))
    metadata = adapter.metadata
    every, one_topic, objects = metadata.queues(), metadata.queues(2), metadata.objects()
    first = next(every), next(one_topic), next(objects)
    adapter.apply(DropTopics([1, 2, 3], 70))
    adapter.apply(ForgetObjects([1, 2, 3], 80))
    adapter.apply(CommitRanges(_ref(9), [_range(2, 5, 0, 5, 9)], 90))
    keys = [(topic_id, queue) for topic_id in (1, 2, 3) for queue in (0, 1)]
    assert [key for key, _ in (first[0], *every)] == keys
    assert [key for key, _ in (first[1], *one_topic)] == [(2, 0), (2, 1)]
    assert [held.ref.object_id for held in (first[2], *objects)] == [1, 2, 3]
    assert [key for key, _ in metadata.queues()] == [(2, 5)]


def test_the_rows_are_the_state(open_adapter: Open) -> None:
    """Rows for a checkpoint, put into another store, give the same state."""
    adapter = open_adapter()
    adapter.apply(CommitRanges(_ref(1), [_range(1, 0, 3, 5, 1), _range(2, 0, 0, 5, 1)], 50))
    adapter.apply(DropRanges([(1, 0, 5)], 60))
    store = MemoryStore()
    batch = store.new_batch()
    for key, value in adapter.metadata.rows():
        batch.put(key, value)
    store.write(batch)
    copy = RowTierMetadata(store, RAFT_GROUP)
    assert list(copy.objects()) == list(adapter.metadata.objects())
    assert list(copy.queues()) == list(adapter.metadata.queues())
    assert list(copy.ranges(2, 0)) == list(adapter.metadata.ranges(2, 0))


class _Model:
    """The tier state as a dict (topic, queue) -> ranges as (first, end, object id)."""

    def __init__(self) -> None:
        self.ranges: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self.offsets: dict[tuple[int, int], tuple[int, int]] = {}
        self.objects: set[int] = set()

    def holding(self, key: tuple[int, int], offset: int) -> int | None:
        """Return the object that holds an offset."""
        found = [each for each in self.ranges.get(key, []) if each[0] <= offset < each[1]]
        return found[0][2] if found else None


steps = st.lists(
    st.tuples(
        st.sampled_from(("commit", "commit", "replace", "drop", "topic", "forget")),
        st.integers(0, 2),
        st.integers(1, 6),
    ),
    max_size=30,
)


@settings(
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=steps)
def test_the_state_follows_a_model(open_adapter: Open, steps: list[tuple[str, int, int]]) -> None:
    """After any changes each offset is in the object the model says, and counts are right."""
    adapter = open_adapter()
    model = _Model()
    for number, (what, queue, size) in enumerate(steps):
        _step(adapter, model, what, (1 + queue // 2, queue), size, number + 1)
        _compare(adapter.metadata, model)


def _step(
    adapter: _Adapter, model: _Model, what: str, key: tuple[int, int], size: int, number: int
) -> None:
    first, commit = model.offsets.get(key, (3, 3))
    ranges = model.ranges.get(key, [])
    if what == "commit":
        adapter.apply(
            CommitRanges(_ref(number), [_range(*key, commit, commit + size, number)], number)
        )
        model.ranges.setdefault(key, []).append((commit, commit + size, number))
        model.offsets[key] = first, commit + size
        model.objects.add(number)
    elif what == "replace" and ranges:
        begin, end = ranges[0][0], ranges[:size][-1][1]
        adapter.apply(ReplaceRanges(_ref(number), [_range(*key, begin, end, number)], number))
        ranges[:size] = [(begin, end, number)]
        model.objects.add(number)
    elif what == "drop" and key in model.offsets:
        kept = first + size
        adapter.apply(DropRanges([(*key, kept)], number))
        model.ranges[key] = [each for each in ranges if each[1] > kept]
        model.offsets[key] = kept, max(commit, kept)
    elif what == "topic":
        adapter.apply(DropTopics([key[0]], number))
        for other in [other for other in model.offsets if other[0] == key[0]]:
            del model.offsets[other]
            model.ranges.pop(other, None)
    elif what == "forget":
        live = {object_id for each in model.ranges.values() for _, _, object_id in each}
        dead = sorted(model.objects - live)
        adapter.apply(ForgetObjects(dead, number))
        model.objects -= set(dead)


def _compare(metadata: TierMetadata, model: _Model) -> None:
    assert dict(metadata.queues()) == {
        key: TieredQueue(*offsets) for key, offsets in sorted(model.offsets.items())
    }
    for key, ranges in model.ranges.items():
        found = [
            (each.first_offset, each.end_offset, each.object_id) for each in metadata.ranges(*key)
        ]
        assert found == ranges
        for offset in range(0, 40):
            covering = metadata.covering(*key, offset)
            assert (covering and covering.object_id) == model.holding(key, offset)
    assert {held.ref.object_id for held in metadata.objects()} == model.objects
    for held in metadata.objects():
        of_object = [
            end - first
            for ranges in model.ranges.values()
            for first, end, object_id in ranges
            if object_id == held.ref.object_id
        ]
        assert (held.live_ranges, held.live_bytes) == (len(of_object), 10 * sum(of_object))
        assert bool(held.dropped_at_ms) == (not of_object)


def test_other_bytes_are_no_change() -> None:
    """A change that is cut, longer or of another version is refused, never half taken."""
    data = encode_change(CommitRanges(_ref(1), [_range(1, 0, 0, 5, 1)], 50))
    for bad in (data[:-1], data + b"\0", b"\x09" + data[1:], data[:1] + b"\x02" + data[2:], b""):
        with pytest.raises(TierError):
            decode_change(bad)
    assert decode_change(encode_change(DropTopics([4], 2))) == DropTopics([4], 2)


def _state(metadata: TierMetadata) -> list[tuple[bytes, bytes]]:
    return sorted(metadata.rows())


def _changes() -> list[TierChange]:
    """Return changes of which each needs those before it."""
    changes: list[TierChange] = []
    for number in range(12):
        first = number * 10
        ranges = [_range(1, 0, first, first + 10, number)]
        changes.append(CommitRanges(_ref(number), ranges, number))
        if number % 4 == 3:
            changes.append(DropRanges([(1, 0, first - 5)], number))
    return changes


@pytest.mark.parametrize("changes_bytes", [1, 300, 10**6])
def test_json_files_bring_the_state_back(tmp_path: Path, changes_bytes: int) -> None:
    """Reopened after any change the state is the same, however often it was written anew."""
    batch = MemoryStore().new_batch()
    model = MemoryTierMetadata(RAFT_GROUP)
    options = JsonMetadataOptions(changes_bytes)
    for raft_index, change in enumerate(_changes(), 1):
        files = JsonTierMetadata.open(tmp_path, RAFT_GROUP, options)
        files.apply(batch, change, raft_index)
        # The raft log brings it again after a crash.
        files.apply(batch, change, raft_index)
        model.apply(batch, change, raft_index)
        again = JsonTierMetadata.open(tmp_path, RAFT_GROUP, options)
        assert (_state(again), again.applied_index) == (_state(model), raft_index)
    assert len(list(tmp_path.iterdir())) == 2


def test_json_files_are_durable_when_they_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change before it is applied; a state, and its name, before older files go."""
    synced = note_syncs(monkeypatch)
    folder = tmp_path / "tier"
    files = JsonTierMetadata.open(folder, RAFT_GROUP)
    assert synced[-2:] == ["00000007-0000000000000001.json.new", "tier"]
    del synced[:]
    files.apply(MemoryStore().new_batch(), _changes()[0], 1)
    assert synced == ["00000007-0000000000000001.changes"]


def test_json_files_end_at_the_last_whole_change(tmp_path: Path) -> None:
    """A crash while a change is written loses that change alone, which the raft log has."""
    batch = MemoryStore().new_batch()
    files = JsonTierMetadata.open(tmp_path, RAFT_GROUP)
    states = []
    for raft_index, change in enumerate(_changes()[:3], 1):
        files.apply(batch, change, raft_index)
        states.append(_state(files))
    (path,) = tmp_path.glob("*.changes")
    data = path.read_bytes()
    for cut in range(len(data) - 1, len(data) * 2 // 3, -7):
        path.write_bytes(data[:cut])
        files = JsonTierMetadata.open(tmp_path, RAFT_GROUP)
        assert (files.applied_index, _state(files)) == (2, states[1])
        files.apply(batch, _changes()[2], 3)
        assert _state(files) == states[2]


def test_damaged_json_is_refused(tmp_path: Path) -> None:
    """A state file with a changed byte is not read as another state."""
    JsonTierMetadata.open(tmp_path, RAFT_GROUP)
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(path.read_bytes().replace(b'"raft_index": 0', b'"raft_index": 7'))
    with pytest.raises(TierError, match="checksum"):
        JsonTierMetadata.open(tmp_path, RAFT_GROUP)


def test_a_snapshot_replaces_json(tmp_path: Path) -> None:
    """Rows of another replica take the place of everything, as of their raft index."""
    batch = MemoryStore().new_batch()
    model = MemoryTierMetadata(RAFT_GROUP)
    for raft_index, change in enumerate(_changes(), 1):
        model.apply(batch, change, raft_index)
    files = JsonTierMetadata.open(tmp_path, RAFT_GROUP)
    files.apply(batch, CommitRanges(_ref(99), [_range(5, 0, 0, 5, 99)], 1), 1)
    files.replace(model.rows(), 40)
    files = JsonTierMetadata.open(tmp_path, RAFT_GROUP)
    assert (_state(files), files.applied_index) == (_state(model), 40)


def _mirrored(folder: Path, store: StateStore, raft_index: int) -> MirroredTierMetadata:
    metadata = MirroredTierMetadata(folder, store, RAFT_GROUP)
    metadata.reload(raft_index)
    return metadata


def test_files_follow_the_rows(tmp_path: Path) -> None:
    """Files that are ahead of the rows, behind them, damaged or gone say what the rows say."""
    store = MemoryStore()
    changes = _changes()
    states = []
    for raft_index, change in enumerate(changes[:-1], 1):
        batch = store.new_batch()
        metadata = _mirrored(tmp_path, store, raft_index - 1)
        metadata.apply(batch, change, raft_index)
        store.write(batch)
        states.append(_state(metadata))
        assert states[-1] == _state(RowTierMetadata(store, RAFT_GROUP))
    ahead = _mirrored(tmp_path, store, len(changes) - 1)
    ahead.apply(store.new_batch(), changes[-1], len(changes))
    assert _state(JsonTierMetadata.open(tmp_path, RAFT_GROUP)) != states[-1]
    # The batch was never written: the node crashed.
    assert _state(_mirrored(tmp_path, store, len(changes) - 1)) == states[-1]
    assert _state(JsonTierMetadata.open(tmp_path, RAFT_GROUP)) == states[-1]
    (path,) = tmp_path.glob("*.json")
    path.write_bytes(path.read_bytes()[:-9])
    assert _state(_mirrored(tmp_path, store, len(changes) - 1)) == states[-1]
    for path in tmp_path.iterdir():
        path.unlink()
    again = _mirrored(tmp_path, store, len(changes) - 1)
    batch = store.new_batch()
    again.apply(batch, changes[-1], len(changes))
    store.write(batch)
    assert _state(again) == _state(RowTierMetadata(store, RAFT_GROUP)) != states[-1]
