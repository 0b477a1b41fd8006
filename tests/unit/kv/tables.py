"""A table machine over a store in memory, with a decider that a test drives by hand."""

from __future__ import annotations

from collections.abc import Sequence

from strata.kv.v1 import kv_pb2, kv_storage_pb2
from strata.storage.v1 import storage_pb2
from strata_kv.commands import KvWrite, encode_kv_write
from strata_kv.decider import BatchDecision, Decider
from strata_kv.machine import TableMachine
from strata_kv.model import ChangeKind, Engine
from strata_kv.options import TableOptions
from strata_state.memory_store import MemoryStore
from strata_state.ports import RowBatch

RAFT_GROUP, TABLE = 1, 9
NOW_MS = 1_000_000


def put(key: bytes, value: bytes, ttl_ms: int = 0, **expected: object) -> kv_pb2.Operation:
    """Return a put; `version=` or `value_is=` is its condition."""
    operation = kv_pb2.Operation(key=key, put=value, ttl_ms=ttl_ms)
    return _conditioned(operation, expected)


def delete(key: bytes, **expected: object) -> kv_pb2.Operation:
    """Return a deletion."""
    return _conditioned(kv_pb2.Operation(key=key, delete=True), expected)


def check(key: bytes, **expected: object) -> kv_pb2.Operation:
    """Return an operation that only checks."""
    return _conditioned(kv_pb2.Operation(key=key, check=True), expected)


def _conditioned(operation: kv_pb2.Operation, expected: dict[str, object]) -> kv_pb2.Operation:
    if "version" in expected:
        operation.condition.version = expected["version"]  # type: ignore[assignment]
    if "value_is" in expected:
        operation.condition.value = expected["value_is"]  # type: ignore[assignment]
    return operation


def request_of(
    operations: Sequence[kv_pb2.Operation], engine: Engine = Engine.ROCKSDB
) -> kv_storage_pb2.TableWrite:
    """Return a request of the one table."""
    return kv_storage_pb2.TableWrite(
        table=storage_pb2.TopicRef(topic_id=TABLE),
        operations=operations,
        engine=kv_pb2.Engine.ValueType(engine),
    )


class Group:
    """A raft group's tables: entries are decided, kept in a log, and applied when a test says so.

    Attributes:
        log: payloads of all entries, from index 1.
        applied: index of the last one whose rows are in the store.
    """

    def __init__(
        self, options: TableOptions | None = None, engine: Engine = Engine.ROCKSDB
    ) -> None:
        self.options = options or TableOptions()
        self.engine = engine
        self.store = MemoryStore()
        self.dropped: set[int] = set()
        self.placed: list[int] = []
        self.log: list[bytes] = []
        self.applied = 0
        self.in_flight: list[BatchDecision] = []
        self.machine = self.open(self.store)
        self.decider = Decider(self.machine, self.options)

    def open(self, store: MemoryStore) -> TableMachine:
        """Return a machine over a store."""

        def place(_: RowBatch, table_id: int) -> None:
            self.placed.append(table_id)

        return TableMachine(
            store,
            RAFT_GROUP,
            self.options,
            is_dropped=self.dropped.__contains__,
            on_new_table=place,
        )

    def decide(
        self,
        *requests: Sequence[kv_pb2.Operation],
        now_ms: int = NOW_MS,
        broker: tuple[int, int] = (0, 0),
    ) -> BatchDecision:
        """Decide requests of one batch and put the entry into the log."""
        decision = BatchDecision()
        for operations in requests:
            self.decider.write(decision, TABLE, request_of(operations, self.engine), now_ms)
        self.propose(decision, now_ms, broker)
        return decision

    def propose(
        self, decision: BatchDecision, now_ms: int = NOW_MS, broker: tuple[int, int] = (0, 0)
    ) -> None:
        """Put a decision's entry into the log."""
        if decision.sections:
            command = KvWrite(now_ms, *broker, b"reply", decision.sections)
            self.log.append(encode_kv_write(command))
            self.decider.accept(decision)
            self.in_flight.append(decision)

    def apply(self) -> None:
        """Apply everything in the log, each entry with a batch of its own."""
        while self.applied < len(self.log):
            apply(self.machine, self.store, self.applied + 1, self.log[self.applied])
            self.applied += 1
            self.decider.applied(self.in_flight.pop(0))

    def write(self, *requests: Sequence[kv_pb2.Operation], now_ms: int = NOW_MS) -> BatchDecision:
        """Decide and apply."""
        decision = self.decide(*requests, now_ms=now_ms)
        self.apply()
        return decision

    def values(self) -> dict[bytes, bytes]:
        """Return the applied items."""
        return {key: item.value for key, item in self.machine.scan(TABLE, b"", b"")}

    def changes(self, first_revision: int = 1) -> list[tuple[int, ChangeKind, bytes, bytes]]:
        """Return the history."""
        found = self.machine.changes(TABLE, first_revision)
        return [(revision, one.kind, one.key, one.value) for revision, one in found]


def apply(machine: TableMachine, store: MemoryStore, index: int, payload: bytes) -> None:
    """Apply one entry."""
    batch = store.new_batch()
    machine.apply(batch, index, payload)
    store.write(batch)
    machine.written()
