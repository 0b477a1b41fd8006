"""Lists of topics: of the nameserver, of a cluster, and of system topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata_broker.base.slices import slices
from strata_broker.remoting.addresses import broker_names
from strata_broker.remoting.admin.bodies import LONG_SLICE, long_list
from strata_broker.remoting.admin.listing import ResourceListing
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.answers import with_body
from strata_broker.remoting.exchange import Exchange, Handler
from strata_mq.requests import RETRY_PREFIX
from strata_remoting import AdminCode, RemotingCommand


class AdminTopicLists:
    """See the module docstring.

    Args:
        places: know this broker.
        listing: of all topics and consumer groups.
    """

    def __init__(self, places: AdminPlaces, listing: ResourceListing) -> None:
        self._places = places
        self._listing = listing

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.every,
            AdminCode.GET_TOPICS_BY_CLUSTER: self.of_cluster,
            AdminCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system,
            AdminCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system,
            AdminCode.GET_UNIT_TOPIC_LIST: self.none,
            AdminCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self.none,
            AdminCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.none,
        }

    async def every(self, exchange: Exchange) -> RemotingCommand:
        """Answer with all topics; each consumer group counts as having its topic of retries.

        Tools find consumer groups by the names of these topics.

        Raises:
            RemotingRefusal: the answer would be too large, or the call was refused.
        """
        names = await self._listing.topics(exchange, lambda row: row.name)
        names += await self._listing.groups(exchange, lambda row: RETRY_PREFIX + row.name)
        # Two sorted runs cost no more than a copy.
        names.sort()
        once: dict[str, None] = {}
        size_bytes = 0
        async for some in slices(names, LONG_SLICE):
            new = [name for name in dict.fromkeys(some) if name not in once]
            once.update(dict.fromkeys(new))
            size_bytes += sum(len(name) + len('"",') for name in new)
            self._listing.check_bytes(size_bytes)
        return await self._listed(exchange, list(once))

    async def of_cluster(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the topics of a cluster: all, or none if the cluster is another one.

        Raises:
            RemotingRefusal: the answer would be too large, or the call was refused.
        """
        if exchange.request.text("cluster") != self._places.cluster_name:
            return await self._listed(exchange, ())
        names = await self._listing.topics(exchange, lambda row: row.name)
        return await self._listed(exchange, names)

    async def system(self, exchange: Exchange) -> RemotingCommand:
        """Answer with topics that RocketMQ makes for itself: the names of cluster and brokers."""
        return await self._listed(exchange, [self._places.cluster_name, *broker_names()])

    async def none(self, exchange: Exchange) -> RemotingCommand:
        """Answer with no topic: there are no units."""
        return await self._listed(exchange, ())

    async def _listed(self, exchange: Exchange, names: Sequence[str]) -> RemotingCommand:
        body = await long_list({"brokerAddr": None}, "topicList", names)
        return with_body(exchange.request, body)
