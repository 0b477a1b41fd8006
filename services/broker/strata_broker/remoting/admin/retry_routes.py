"""Routes of topics of retries that nobody has needed yet.

Tools look for a consumer group's broker by the route of its topic of retries. They must make
neither topic nor group by looking, so the route is answered without them. A remoting consumer asks
for the same route before its first heartbeat; the heartbeat then makes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from strata_broker.metadata.metadata import MetadataView
from strata_broker.remoting.answers import with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.heartbeats import HeartbeatData
from strata_broker.remoting.routes import RemotingRoutes
from strata_mq.requests import RETRY_PREFIX, RequestError, check_consumer_group
from strata_remoting import RemotingCommand, RequestCode

_RETRY_QUEUES = 1


class RetryRoutes:
    """See the module docstring.

    Args:
        routes: answer all other requests for routes, and make topics of retries.
        view: knows topics and consumer groups.
        is_checked: whether access is controlled; then the routes check who may see a group.
    """

    def __init__(self, routes: RemotingRoutes, view: MetadataView, *, is_checked: bool) -> None:
        self._routes = routes
        self._view = view
        self._is_checked = is_checked

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route}

    async def route(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the queues of a topic.

        Raises:
            RequestError: ILLEGAL_CONSUMER_GROUP; see `RemotingRoutes.route`.
        """
        name = exchange.request.text("topic")
        group = name.removeprefix(RETRY_PREFIX)
        if name == group or self._is_checked or self._view.topic("", name) is not None:
            return await self._routes.route(exchange)
        check_consumer_group(group)
        return with_json(exchange.request, self._routes.shown(name, _RETRY_QUEUES))

    async def heard(self, exchange: Exchange, data: HeartbeatData) -> None:
        """Make the topics of retries that the consumers of a heartbeat subscribe to."""
        for group, subscriptions in data.consumers.items():
            name = RETRY_PREFIX + group
            if name in subscriptions and self._view.topic("", name) is None:
                # A consumer lives without its retries, and its next heartbeat tries again.
                with suppress(RequestError):
                    await self._routes.topic(exchange, name)
