"""Writes of many clients, in batches to the leaders of raft groups.

Repeats of a batch keep its number, so that storage carries it out once, whatever leaders get it.
If its time ends without an answer, nobody knows whether it was carried out: the callers get
UNAVAILABLE, and the next batch has another number.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from strata.kv.v1 import kv_pb2, kv_storage_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.table_config import KvSection
from strata_broker.kv.lanes import Lanes, WaitingRequest
from strata_broker.kv.tables import Tables
from strata_broker.metadata.metadata import TopicRow
from strata_broker.receives.receive import topic_ref
from strata_broker.servicers.plugins import PluginParts
from strata_mq.requests import Code, RequestError

SERVICE = "/strata.kv.v1.KvStorageService/"

_MAX_BATCH = 512
_MAX_BATCH_BYTES = 1024 * 1024

_Write = WaitingRequest[kv_storage_pb2.TableWrite, kv_storage_pb2.TableWriteResult]


class Writes:
    """See the module docstring.

    Args:
        parts: of the broker.
        tables: where tables are.
        config: limits.
    """

    def __init__(self, parts: PluginParts, tables: Tables, config: KvSection) -> None:
        self._cluster = parts.cluster
        self._calls = parts.calls
        self._boot_id = parts.boot_id
        self._tables = tables
        self._config = config
        self._sequences = count(1)
        self.bytes_in_flight = 0
        self._lanes: Lanes[int, kv_storage_pb2.TableWrite, kv_storage_pb2.TableWriteResult] = Lanes(
            "kv-write",
            self._exchange,
            parts.calls.requests,
            clock=parts.calls.clock,
            max_batch=_MAX_BATCH,
            max_batch_bytes=_MAX_BATCH_BYTES,
        )
        self._batch_writes = parts.calls.metrics.histogram("strata_kv_batch_writes")
        self._latency = parts.calls.metrics.histogram("strata_kv_write_latency")

    async def write(
        self,
        topic: TopicRow,
        operations: Sequence[kv_pb2.Operation],
        deadline_s: float,
        engine: kv_pb2.Engine.ValueType = kv_pb2.ENGINE_UNSPECIFIED,
    ) -> kv_storage_pb2.TableWriteResult:
        """Carry out operations of one table, all or none; return the result.

        Raises:
            RequestError: nothing was done; PROXY_TIMEOUT: the result is unknown.
        """
        self._check(operations)
        # The whole batch is one log entry.
        write = kv_storage_pb2.TableWrite(
            table=topic_ref(topic), operations=operations, engine=engine
        )
        size_bytes = write.ByteSize()
        if size_bytes > self._config.max_batch_bytes:
            raise _bad(
                f"a batch has at most {self._config.max_batch_bytes} bytes (kv.max_batch_bytes)"
            )
        if self.bytes_in_flight + size_bytes > self._config.max_bytes_in_flight:
            raise errors.too_many_requests("too many writes are under way (kv.max_bytes_in_flight)")

        async def at(raft_group: int) -> kv_storage_pb2.TableWriteResult:
            return await self._lanes.call(raft_group, write, size_bytes, deadline_s)

        self.bytes_in_flight += size_bytes
        try:
            return await self._tables.at_raft_group(topic, deadline_s, at)
        finally:
            self.bytes_in_flight -= size_bytes

    def _check(self, operations: Sequence[kv_pb2.Operation]) -> None:
        config = self._config
        if len(operations) > config.max_operations:
            raise _bad(
                f"a batch has at most {config.max_operations} operations (kv.max_operations)"
            )
        for operation in operations:
            if not 0 < len(operation.key) <= config.max_key_bytes:
                raise _bad(f"a key has 1 to {config.max_key_bytes} bytes (kv.max_key_bytes)")
            if len(operation.put) > config.max_value_bytes:
                raise _bad(
                    f"a value has at most {config.max_value_bytes} bytes (kv.max_value_bytes)"
                )

    async def _exchange(self, raft_group: int, batch: Sequence[_Write], deadline_s: float) -> None:
        """Send one batch until it is answered, or its time is over."""
        clock = self._calls.clock
        began_s = clock.monotonic_s()
        request = kv_storage_pb2.WriteRequest(
            raft_group=raft_group,
            broker_boot_id=self._boot_id,
            sequence=next(self._sequences),
            writes=[one.wanted for one in batch],
        )
        try:
            response = await self._cluster.storage.client.call(
                raft_group,
                SERVICE + "Write",
                request,
                kv_storage_pb2.WriteResponse,
                timeout_s=deadline_s - began_s,
            )
        except RequestError as failure:
            for one in batch:
                one.settle(_unknown(failure))
            return
        self._latency.record((clock.monotonic_s() - began_s) * 1000)
        self._batch_writes.record(len(batch))
        # A node of another version may answer fewer: the lane fails the rest.
        for one, result in zip(batch, response.results, strict=False):
            one.settle(_answer(result))


def _answer(
    result: kv_storage_pb2.TableWriteResult,
) -> kv_storage_pb2.TableWriteResult | RequestError:
    """Return the result of one request, or why it was not carried out."""
    if result.outcome == storage_pb2.OUTCOME_OK:
        return result
    if result.outcome == storage_pb2.OUTCOME_INVALID:
        return _bad(result.reason)
    if result.outcome == storage_pb2.OUTCOME_OVERLOADED:
        return errors.too_many_requests(result.reason)
    return errors.refused(result.outcome, result.reason)


def _unknown(failure: RequestError) -> RequestError:
    """Return the error of a write whose batch failed: an earlier try may have been carried out."""
    if failure.code is Code.NOT_IMPLEMENTED:
        # A storage node without the plugin carries nothing out.
        return failure
    text = f"{failure.text}; the write may or may not have been carried out"
    return RequestError(Code.PROXY_TIMEOUT, text)


def _bad(reason: str) -> RequestError:
    return RequestError(Code.BAD_REQUEST, reason)
