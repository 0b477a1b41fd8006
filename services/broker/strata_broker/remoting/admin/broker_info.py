"""Load and configuration of this broker, and how much a topic gets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin_pb2
from strata.admin.v1 import admin_pb2
from strata_broker.metadata.recorder import Recorder
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.answers import VERSION, RemotingRefusal, with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_mq.access import Action
from strata_remoting import AdminCode, RemotingCommand, ResponseCode
from strata_runtime.clock import Clock

_PERIODS_S = {"statsMinute": 60, "statsHour": 3_600, "statsDay": 86_400}
_TOPIC_PUTS = "TOPIC_PUT_NUMS"


class AdminBrokerInfo:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
        places: know this broker's address.
        recorder: counts messages since the start.
        clock: wall time.
    """

    def __init__(
        self, face: OperatorFace, places: AdminPlaces, recorder: Recorder, *, clock: Clock
    ) -> None:
        self._face = face
        self._places = places
        self._recorder = recorder
        self._clock = clock
        self._started_ms = clock.wall_ms()

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            AdminCode.GET_BROKER_CONFIG: self.config,
            AdminCode.GET_NAMESRV_CONFIG: self.config,
            AdminCode.VIEW_BROKER_STATS_DATA: self.stats,
        }

    async def runtime_info(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the load of this broker, under RocketMQ's names.

        Totals of today are those since the start; yesterday's are not kept.

        Raises:
            RemotingRefusal: the call was refused.
        """
        stats = await self._face.call_rocketmq(
            "GetProxyRuntimeStats",
            rocketmq_admin_pb2.GetProxyRuntimeStatsRequest(),
            rocketmq_admin_pb2.GetProxyRuntimeStatsResponse,
            exchange.caller(),
        )
        recorder = self._recorder
        in_tps, out_tps = f"{stats.in_tps:.2f}", f"{stats.out_tps:.2f}"
        table = {
            "bootTimestamp": str(self._started_ms),
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": f"StrataMQ {stats.version}",
            "connections": str(stats.connections),
            "consumers": str(stats.consumers),
            # RocketMQ's dashboard draws the total, and reads no broker without it.
            "getTotalTps": out_tps,
            "getFoundTps": out_tps,
            "getMissTps": "0.00",
            "getTransferredTps": out_tps,
            "msgGetTotalTodayMorning": "0",
            "msgGetTotalTodayNow": str(recorder.messages_out),
            "msgGetTotalYesterdayMorning": "0",
            "msgPutTotalTodayMorning": "0",
            "msgPutTotalTodayNow": str(recorder.messages_in),
            "msgPutTotalYesterdayMorning": "0",
            "nodeId": stats.proxy_name,
            "pageCacheLockTimeMills": "0",
            "producers": str(stats.producers),
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "putTps": in_tps,
            "runtime": _duration(self._clock.wall_ms() - self._started_ms),
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "sendThreadPoolQueueSize": "0",
        }
        return with_json(exchange.request, {"table": table})

    async def config(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the configuration in force, a property per key, secrets masked.

        Raises:
            RemotingRefusal: the call was refused.
        """
        answer = await self._face.call(
            "GetConfig",
            admin_pb2.GetConfigRequest(),
            admin_pb2.GetConfigResponse,
            exchange.caller(),
        )
        own = self._places.addresses.own
        host, _, port = own.rpartition(":")
        properties = {
            "brokerClusterName": self._places.cluster_name,
            "brokerIP1": host,
            "brokerId": "0",
            "listenPort": port,
            "namesrvAddr": own,
            **dict(_flat("", json.loads(answer.json))),
        }
        lines = (f"{name}={_property(value)}\n" for name, value in properties.items())
        return exchange.request.answered(
            ResponseCode.SUCCESS,
            fields={"version": "0"},
            body="".join(lines).encode(),
            version=VERSION,
        )

    async def stats(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the messages that a topic got in the last minute, hour and day.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: these numbers are not kept, or the call was refused.
        """
        request = exchange.request
        name, key = request.text("statsName"), request.text("statsKey")
        if name == _TOPIC_PUTS:
            # A caller who may not look at a topic is not told that there is none.
            exchange.require_topic(key, Action.GET)
        if name != _TOPIC_PUTS or self._places.topic(key) is None:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist"
            )
        shown = {}
        for field, period_s in _PERIODS_S.items():
            count = await self._stored_since(exchange, key, period_s)
            shown[field] = {"avgpt": 0.0, "sum": count, "tps": count / period_s}
        return with_json(request, shown)

    async def _stored_since(self, exchange: Exchange, topic: str, period_s: int) -> int:
        answer = await self._face.call(
            "ListQueueSpans",
            admin_pb2.ListQueueSpansRequest(
                topic=topic, begin_ms=self._clock.wall_ms() - period_s * 1_000
            ),
            admin_pb2.ListQueueSpansResponse,
            exchange.caller(),
        )
        return sum(span.end_offset - span.first_offset for span in answer.spans)


def _flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), item)
    else:
        yield prefix, value if isinstance(value, str) else json.dumps(value)


def _property(value: str) -> str:
    """Return a value as Java's properties files have it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _duration(milliseconds: int) -> str:
    """Return a time as RocketMQ shows it."""
    seconds = milliseconds // 1_000
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
