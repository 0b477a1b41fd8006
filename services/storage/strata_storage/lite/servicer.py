"""`strata.storage.v1.LiteService`: protobuf to lite topics and back. No decision is made here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from strata.storage.v1 import lite_pb2
from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import CallContext
from strata_mq.layout import QueueRow
from strata_storage.base.disk_guard import DiskMark
from strata_storage.base.errors import Refused
from strata_storage.group.node_plugins import PluginNode
from strata_storage.group.translation import topic_of
from strata_storage.lite.group import LiteGroup
from strata_storage.lite.options import LiteOptions

_NO_MESSAGES = QueueRow(0, 0, 0, 0)


class LiteServicer:
    """Handler for Angelia.

    Args:
        node: the raft groups.
        group_of: the lite topics of a raft group that is hosted.
        options: limits.
    """

    def __init__(
        self, node: PluginNode, group_of: Callable[[int], LiteGroup], options: LiteOptions
    ) -> None:
        self._node = node
        self._group_of = group_of
        self._options = options

    async def number_lite_topics(
        self, request: lite_pb2.NumberLiteTopicsRequest, context: CallContext
    ) -> lite_pb2.NumberLiteTopicsResponse:
        """Return the numbers of lite topics."""
        if len(request.names) > self._options.max_names or not request.topic.queue_count:
            raise Refused(
                pb.OUTCOME_INVALID, f"a request names at most {self._options.max_names} lite topics"
            )
        engine = self._node.engine(request.raft_group)
        engine.leading()
        check_disk = partial(engine.check_disk, self._node.disk_guard, DiskMark.REFUSE_APPENDS)
        names = [name.encode() for name in request.names]
        numbers = (
            await self._group_of(request.raft_group)
            .leading()
            .numbers(
                topic_of(request.topic),
                names,
                before_new=None if request.known_only else check_disk,
            )
        )
        return lite_pb2.NumberLiteTopicsResponse(numbers=numbers)

    async def list_lite_topics(
        self, request: lite_pb2.ListLiteTopicsRequest, context: CallContext
    ) -> lite_pb2.ListLiteTopicsResponse:
        """Return a page of the lite topics of a parent, as of everything committed before."""
        engine = self._node.engine(request.raft_group)
        await engine.barrier()
        machine, topic_id = engine.machine, request.topic.topic_id
        most = min(request.max_lite_topics or self._options.max_names, self._options.max_names)
        response = lite_pb2.ListLiteTopicsResponse()
        after = machine.rows.lite.numbers.after(topic_id, request.after.encode())
        for name, number in islice(after, most + 1):
            if len(response.lite_topics) == most:
                response.more = True
                break
            row = machine.queues.get(topic_id, number) or _NO_MESSAGES
            response.lite_topics.add(
                name=name.decode(),
                number=number,
                min_offset=row.min_offset,
                next_offset=row.next_offset,
                last_active_ms=row.last_store_time_ms,
            )
        return response
