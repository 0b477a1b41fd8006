"""Lists the lite topics of a parent in pages, raft group by raft group.

A page costs a page: one call of one raft group, and one of each further raft group as long as the
page has room. So the order is that of the raft groups, and of the names in each of them.
"""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata.storage.v1 import lite_pb2
from strata_broker.clients.provision import topic_not_found
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.receives.receive import topic_ref
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.requests import Code, RequestError

_LIST = "/strata.storage.v1.LiteService/ListLiteTopics"
# A storage node gives no more at once.
_MAX_PAGE = 1_000
# Digits of the largest raft group.
_MOST_DIGITS = 10


class LiteTopicLists:
    """See the module docstring."""

    def __init__(self, view: MetadataView, storage: StorageClient) -> None:
        self._view = view
        self._storage = storage

    async def page(
        self, request: admin_pb2.ListLiteTopicsRequest
    ) -> admin_pb2.ListLiteTopicsResponse:
        """Return a page of lite topics.

        A token is `raft group/name` of the last one given.

        Raises:
            RequestError: TOPIC_NOT_FOUND; ILLEGAL_TOPIC, the topic has no lite topics; BAD_REQUEST,
                the token is none; or storage refused.
        """
        topic = self._parent(request.namespace, request.topic)
        begin_at, after = _place_of(request.page_token)
        size = min(request.page_size or _MAX_PAGE, _MAX_PAGE)
        response = admin_pb2.ListLiteTopicsResponse()
        raft_groups = [number for number in self._view.holders(topic) if number >= begin_at]
        for raft_group in raft_groups:
            name = after if raft_group == begin_at else ""
            more = await self._fill(response, topic, raft_group, after=name, size=size)
            if len(response.lite_topics) == size:
                # The next raft group may have none: then the next page is empty.
                if more or raft_group != raft_groups[-1]:
                    last = response.lite_topics[-1]
                    response.next_page_token = f"{last.raft_group}/{last.name}"
                break
        return response

    async def _fill(
        self,
        response: admin_pb2.ListLiteTopicsResponse,
        topic: TopicRow,
        raft_group: int,
        *,
        after: str,
        size: int,
    ) -> bool:
        """Add lite topics of one raft group to a page; return whether it has more."""
        listed = await self._storage.call(
            raft_group,
            _LIST,
            lite_pb2.ListLiteTopicsRequest(
                raft_group=raft_group,
                topic=topic_ref(topic),
                after=after,
                max_lite_topics=size - len(response.lite_topics),
            ),
            lite_pb2.ListLiteTopicsResponse,
        )
        for each in listed.lite_topics:
            response.lite_topics.add(
                name=each.name,
                raft_group=raft_group,
                queue=each.number,
                min_offset=each.min_offset,
                next_offset=each.next_offset,
                last_active_ms=each.last_active_ms,
            )
        return listed.more

    def _parent(self, namespace: str, name: str) -> TopicRow:
        topic = self._view.topic(namespace, name)
        if topic is None:
            raise topic_not_found(name)
        if not topic.is_lite:
            raise RequestError(Code.ILLEGAL_TOPIC, f"topic {name} is not of type LITE")
        return topic


def _place_of(token: str) -> tuple[int, str]:
    """Return the raft group and the name behind which a page begins."""
    if not token:
        return 0, ""
    number, slash, name = token.partition("/")
    is_number = number.isascii() and number.isdecimal() and len(number) <= _MOST_DIGITS
    if not slash or not is_number:
        raise RequestError(Code.BAD_REQUEST, f"{token[:255]!r} is no page token of lite topics")
    return int(number), name
