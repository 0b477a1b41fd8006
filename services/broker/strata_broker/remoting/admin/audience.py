"""The consumer groups that read a topic, and the topics that a consumer group reads."""

from __future__ import annotations

from collections.abc import Mapping

from apache.rocketmq.v2 import admin_pb2, definition_pb2
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.answers import with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_remoting import AdminCode, RemotingCommand

# With this group tools pull messages to print them; nobody consumes with it.
_TOOLS_GROUP = "TOOLS_CONSUMER"


class AdminAudience:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
    """

    def __init__(self, face: OperatorFace) -> None:
        self._face = face

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups,
            AdminCode.QUERY_TOPICS_BY_CONSUMER: self.topics,
            AdminCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
        }

    async def groups(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the consumer groups of a topic, whether they are connected or not.

        Raises:
            RequestError: the topic does not exist, or the call was refused.
        """
        found = await self._find(exchange, topic=exchange.request.text("topic"))
        names = {one.group.name for one in found} - {_TOOLS_GROUP}
        return with_json(exchange.request, {"groupList": sorted(names)})

    async def topics(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the topics of a consumer group.

        Raises:
            RequestError: the group does not exist, or the call was refused.
        """
        found = await self._find(exchange, group=exchange.request.text("group"))
        names = sorted({one.topic.name for one in found})
        return with_json(exchange.request, {"brokerAddr": None, "topicList": names})

    async def subscription(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the expression with which a consumer group subscribes to a topic.

        Raises:
            RequestError: topic or group do not exist, or the call was refused.
        """
        request = exchange.request
        topic, group = request.text("topic"), request.text("group")
        found = await self._find(exchange, topic=topic, group=group)
        shown = None
        for one in found:
            if one.online:
                is_sql = one.expression.type == definition_pb2.SQL
                shown = shown_subscription(topic, one.expression.expression, is_sql=is_sql)
        return with_json(request, {"group": group, "subscriptionData": shown, "topic": topic})

    async def _find(
        self, exchange: Exchange, *, topic: str = "", group: str = ""
    ) -> list[admin_pb2.SubscriptionInfo]:
        answer = await self._face.call_rocketmq(
            "ListSubscription",
            admin_pb2.ListSubscriptionRequest(
                topic=definition_pb2.Resource(name=topic), group=definition_pb2.Resource(name=group)
            ),
            admin_pb2.ListSubscriptionResponse,
            exchange.caller(),
        )
        return list(answer.subscription_info)


def shown_subscription(topic: str, expression: str, *, is_sql: bool) -> dict[str, object]:
    """Return a subscription as SubscriptionData."""
    tags = [tag.strip() for tag in expression.split("||") if tag.strip() not in ("", "*")]
    return {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "SQL92" if is_sql else "TAG",
        "subString": expression or "*",
        "subVersion": 0,
        "tagsSet": [] if is_sql else tags,
        "topic": topic,
    }
