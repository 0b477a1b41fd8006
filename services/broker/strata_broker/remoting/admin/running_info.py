"""One consumer, as brokers know it, in the form in which RocketMQ's clients tell of themselves.

A broker of RocketMQ asks the client. Clients of the gRPC protocol cannot say more than brokers
know, except for the stacks of their threads.
"""

from __future__ import annotations

from collections.abc import Mapping

from apache.rocketmq.v2 import admin_pb2, definition_pb2
from strata_broker.remoting.admin.audience import shown_subscription
from strata_broker.remoting.admin.bodies import object_keyed, shown_queue, with_object_keys
from strata_broker.remoting.admin.messages import StoredMessages
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.answers import RemotingRefusal, with_json
from strata_broker.remoting.exchange import Exchange, Handler, member_id
from strata_mq.requests import Code, RequestError
from strata_remoting import AdminCode, RemotingCommand, ResponseCode


class AdminRunningInfo:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
        places: know topics and queues.
        messages: find the message that a consumer is to consume at once.
    """

    def __init__(self, face: OperatorFace, places: AdminPlaces, messages: StoredMessages) -> None:
        self._face = face
        self._places = places
        self._messages = messages

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.GET_CONSUMER_RUNNING_INFO: self.info,
            AdminCode.CONSUME_MESSAGE_DIRECTLY: self.consume,
        }

    async def info(self, exchange: Exchange) -> RemotingCommand:
        """Answer with a consumer's subscriptions and queues, and its stacks if they are asked for.

        Raises:
            RemotingRefusal: CONSUMER_NOT_ONLINE, or the call was refused.
            RequestError: the group does not exist, or the call was refused.
        """
        request = exchange.request
        group, client_id = request.text("consumerGroup"), request.text("clientId")
        info = await self._info(exchange, group, client_id)
        queues = []
        for one in info.message_queue_table:
            queue, state = one.message_queue, one.process_queue_info
            topic = self._places.topic(queue.topic.name)
            home = self._places.view.home(topic, queue.broker.name) if topic is not None else None
            if topic is None or home is None or not 0 <= queue.id < len(home.queues):
                continue
            shown = {
                "cachedMsgCount": 0,
                "commitOffset": state.commit_offset,
                "droped": False,
                "lastConsumeTimestamp": state.last_consume_timestamp,
                "lastLockTimestamp": 0,
                "lastPullTimestamp": 0,
                "locked": False,
                "tryUnlockTimes": 0,
            }
            place = shown_queue(self._places.view, topic, home.queues[queue.id])
            queues.append((place, shown))
        body = {
            "jstack": await self._stacks(exchange, group, client_id),
            "mqTable": object_keyed(queues),
            "properties": _properties(info),
            "statusTable": {},
            "subscriptionSet": [
                shown_subscription(topic, one.expression, is_sql=one.type == definition_pb2.SQL)
                for topic, one in sorted(info.subscriptions.items())
            ],
        }
        return with_object_keys(request, body)

    async def consume(self, exchange: Exchange) -> RemotingCommand:
        """Let a gRPC push consumer consume a stored message once; answer with how it went.

        Raises:
            RemotingRefusal: there is no such message, or the call was refused.
            RequestError: the consumer is not connected, or cannot do that.
        """
        request = exchange.request
        message = await self._messages.by_any_id(
            exchange, request.text("topic"), request.text("msgId")
        )
        resource = definition_pb2.Resource
        answer = await self._face.call_rocketmq(
            "VerifyMessage",
            admin_pb2.VerifyMessageRequest(
                group=resource(name=request.text("consumerGroup")),
                client_id=request.text("clientId"),
                topic=resource(name=request.text("topic")),
                message_id=message.system_properties.message_id,
            ),
            admin_pb2.VerifyMessageResponse,
            exchange.caller(),
        )
        shown = {
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS",
            "order": False,
            "remark": answer.status.message,
            "spentTimeMills": 0,
        }
        return with_json(request, shown)

    async def _info(
        self, exchange: Exchange, group: str, client_id: str
    ) -> admin_pb2.ConsumerRunningInfo:
        """Return what brokers know; a remoting client has a session for each of its groups."""
        for wanted in (member_id(client_id, group), client_id):
            try:
                answer = await self._face.call_rocketmq(
                    "GetConsumerRunningInfo",
                    admin_pb2.GetConsumerRunningInfoRequest(
                        group=definition_pb2.Resource(name=group), client_id=wanted
                    ),
                    admin_pb2.GetConsumerRunningInfoResponse,
                    exchange.caller(),
                )
            except RequestError as failure:
                if failure.code is not Code.NOT_FOUND:
                    raise
            else:
                return answer.consumer_running_info
        raise RemotingRefusal(
            ResponseCode.CONSUMER_NOT_ONLINE, f"The Consumer <{group}> <{client_id}> not online"
        )

    async def _stacks(self, exchange: Exchange, group: str, client_id: str) -> str | None:
        if not exchange.request.truth("jstackEnable", default=False):
            return None
        try:
            answer = await self._face.call_rocketmq(
                "PrintThreadStackTrace",
                admin_pb2.PrintThreadStackTraceRequest(
                    group=definition_pb2.Resource(name=group), client_id=client_id
                ),
                admin_pb2.PrintThreadStackTraceResponse,
                exchange.caller(),
            )
        except RequestError as failure:
            return f"no stacks: {failure.text}"
        return answer.thread_stack_trace


def _properties(info: admin_pb2.ConsumerRunningInfo) -> dict[str, str]:
    return {
        "PROP_CLIENT_VERSION": info.properties.get("version", ""),
        "PROP_CONSUMEORDERLY": "false",
        "PROP_CONSUMER_START_TIMESTAMP": "0",
        # Brokers divide the messages among the members, so tools need not compare their queues.
        "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
        "PROP_NAMESERVER_ADDR": "",
        **info.properties,
    }
