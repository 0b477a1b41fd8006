"""Numbers of lite topics: a lite topic is a queue of its parent, which storage numbers.

Role: the broker's memory of the numbers, and the calls for those that it does not know. Invariants:
a number is never that of another name; a number may have ended (`forget`), which storage says at
the next use.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Sequence

from strata.storage.v1 import lite_pb2, storage_pb2
from strata_broker.base import errors
from strata_broker.base.lite_config import LiteSection
from strata_broker.base.shares import CallShares
from strata_broker.metadata.metadata import NO_RAFT_GROUP, MetadataView, TopicRow
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import Code, RequestError
from strata_mq.slots import fifo_queue
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

_SERVICE = "/strata.storage.v1.LiteService/"
# A storage node takes as many in one call.
_NAMES_PER_CALL = 1_000
_TOO_MANY = "too many lite topics are looked up (lite.max_lookups)"


class LiteDirectory:
    """See the module docstring. Used on the event loop only."""

    def __init__(
        self,
        view: MetadataView,
        client: StorageClient,
        config: LiteSection,
        *,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._client = client
        self._max_cached = config.max_cached_numbers
        self._lookups = Limit("lite topics", config.max_lookups, "lookups", metrics=metrics)
        # A raft group that does not answer leaves room for the others.
        most = {"raft group": max(1, config.max_lookups * 3 // 4)}
        self._asked = CallShares("lookups of lite topics", most, metrics=metrics, text=_TOO_MANY)
        self._numbers: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._names: dict[tuple[int, int], str] = {}
        metrics.gauge("strata_broker_lite_numbers", lambda: len(self._numbers))

    def number(self, topic: TopicRow, name: str) -> int:
        """Return the number of a lite topic, 0: it is not known here."""
        key = (topic.topic_id, name)
        number = self._numbers.get(key, 0)
        if number:
            self._numbers.move_to_end(key)
        return number

    def forget(self, topic_id: int, number: int) -> None:
        """Forget a number: storage says that there is no such lite topic any more."""
        name = self._names.pop((topic_id, number), None)
        if name is not None:
            self._numbers.pop((topic_id, name), None)

    def raft_group(self, topic: TopicRow, name: str) -> int:
        """Return the raft group of a lite topic, known or not.

        Raises:
            RequestError: FORBIDDEN, its queue of the parent has no owner.
        """
        owner = self._view.owner(topic, fifo_queue(name, topic.queue_count))
        if owner == NO_RAFT_GROUP:
            raise RequestError(Code.FORBIDDEN, "no writable queue")
        return owner

    async def numbers(
        self, topic: TopicRow, names: Collection[str], timeout_s: float | None = None
    ) -> dict[str, int]:
        """Return the numbers of lite topics; those that do not exist begin to.

        Raises:
            RequestError: LITE_TOPIC_QUOTA_EXCEEDED, TOO_MANY_REQUESTS, or no answer in time.
        """
        found = {name: number for name in names if (number := self.number(topic, name))}
        missing: defaultdict[int, list[str]] = defaultdict(list)
        for name in names:
            if name not in found:
                missing[self.raft_group(topic, name)].append(name)
        if not missing:
            return found
        if not self._lookups.try_take():
            raise errors.too_many_requests(_TOO_MANY)
        try:
            for raft_group, wanted in missing.items():
                with self._asked.holding((("raft group", str(raft_group)),)):
                    for at in range(0, len(wanted), _NAMES_PER_CALL):
                        some = wanted[at : at + _NAMES_PER_CALL]
                        found.update(await self._ask(raft_group, topic, some, timeout_s))
        finally:
            self._lookups.give_back()
        return found

    async def _ask(
        self, raft_group: int, topic: TopicRow, names: Sequence[str], timeout_s: float | None
    ) -> dict[str, int]:
        request = lite_pb2.NumberLiteTopicsRequest(
            raft_group=raft_group,
            topic=storage_pb2.TopicRef(
                topic_id=topic.topic_id, slot_base=topic.slot_base, queue_count=topic.queue_count
            ),
            names=names,
        )
        response = await self._client.call(
            raft_group,
            f"{_SERVICE}NumberLiteTopics",
            request,
            lite_pb2.NumberLiteTopicsResponse,
            timeout_s=timeout_s,
        )
        numbers = dict(zip(names, response.numbers, strict=True))
        for name, number in numbers.items():
            self._keep(topic.topic_id, name, number)
        return numbers

    def _keep(self, topic_id: int, name: str, number: int) -> None:
        before = self._numbers.get((topic_id, name), number)
        if before != number:
            self._names.pop((topic_id, before), None)
        self._numbers[topic_id, name] = number
        self._numbers.move_to_end((topic_id, name))
        self._names[topic_id, number] = name
        if len(self._numbers) > self._max_cached:
            (old_topic, _), old_number = self._numbers.popitem(last=False)
            self._names.pop((old_topic, old_number), None)
