"""Requests of operators that have no meaning here: each is refused with the reason, and a way."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from strata_broker.remoting.answers import RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_remoting import AdminCode, RemotingCommand, ResponseCode

_CONFIG = (
    "a broker reads its configuration at its start: change its file, environment or flags and "
    "restart it (strata config show tells what is in force)"
)
_PERMISSION = (
    "a broker name stands for topics here, not for a broker: take a broker out of service with "
    "strata node drain, and put it back with strata node drain --undo"
)
_KV = "a StrataMQ cluster keeps no KV configuration: topics need none"
_CLEANING = "there is nothing to clean by hand: messages and their indexes are deleted by retention"
_TIMERS = "delayed messages are rows of the raft groups here: there is no timer wheel"
_CONTROLLER = (
    "there is no controller: raft groups elect their leaders; see strata raft-group list, and "
    "strata leader transfer"
)
_STATIC = "queues are spread by slots, and moved by strata queue move: there is no static topic"
_ROCKSDB = "RocksDB is a cache of the log here, and holds no configuration"
_COLD = "reads of old messages have threads of their own: there is no cold data control"
_USERS = (
    "users are made with strata user create, which also makes the secret key; strata user "
    "rotate-key makes a new one"
)
_POLICIES = "rights are policies of users here: use strata policy"
_LITE = "lite topics are shown by the strata command and the console only"
_POP = "there is no table of modes: strata group show tells the topics that a group pops"
_REVIVE = "popped messages are leases in the raft groups here: there is no revive topic"

_REASONS: Mapping[AdminCode, str] = {
    AdminCode.ADD_BROKER: "brokers join by themselves: start one with strata broker",
    AdminCode.ADD_WRITE_PERM_OF_BROKER: _PERMISSION,
    AdminCode.AUTH_CREATE_ACL: _POLICIES,
    AdminCode.AUTH_CREATE_USER: _USERS,
    AdminCode.AUTH_DELETE_ACL: _POLICIES,
    AdminCode.AUTH_UPDATE_ACL: _POLICIES,
    AdminCode.AUTH_UPDATE_USER: _USERS,
    AdminCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB,
    AdminCode.CLEAN_BROKER_DATA: _CONTROLLER,
    AdminCode.CLEAN_EXPIRED_CONSUMEQUEUE: _CLEANING,
    AdminCode.CLEAN_UNUSED_TOPIC: "topics are deleted one by one: use deleteTopic",
    AdminCode.CONTROLLER_ELECT_MASTER: _CONTROLLER,
    AdminCode.CONTROLLER_GET_METADATA_INFO: _CONTROLLER,
    AdminCode.CONTROLLER_GET_SYNC_STATE_DATA: _CONTROLLER,
    AdminCode.DELETE_EXPIRED_COMMITLOG: _CLEANING,
    AdminCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
    AdminCode.GET_ALL_CONSUMER_OFFSET: "positions are in the raft groups: use consumerProgress",
    AdminCode.GET_ALL_DELAY_OFFSET: _TIMERS,
    AdminCode.GET_ALL_MESSAGE_REQUEST_MODE: _POP,
    AdminCode.GET_BROKER_EPOCH_CACHE: _CONTROLLER,
    AdminCode.GET_BROKER_HA_STATUS: "brokers have no slaves: see strata raft-group list",
    AdminCode.GET_BROKER_MEMBER_GROUP: "brokers have no slaves: see strata raft-group list",
    AdminCode.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    AdminCode.GET_BROKER_LITE_INFO: _LITE,
    AdminCode.GET_CONTROLLER_CONFIG: _CONTROLLER,
    AdminCode.GET_LITE_CLIENT_INFO: _LITE,
    AdminCode.GET_LITE_GROUP_INFO: _LITE,
    AdminCode.GET_LITE_TOPIC_INFO: _LITE,
    AdminCode.GET_PARENT_TOPIC_INFO: _LITE,
    AdminCode.SWITCH_TIMER_ENGINE: _TIMERS,
    AdminCode.TRIGGER_LITE_DISPATCH: _LITE,
    AdminCode.GET_TIMER_CHECK_POINT: _TIMERS,
    AdminCode.GET_TIMER_METRICS: _TIMERS,
    AdminCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "positions are those of consumerProgress",
    AdminCode.POP_ROLLBACK: _REVIVE,
    AdminCode.PUT_KV_CONFIG: _KV,
    AdminCode.QUERY_CORRECTION_OFFSET: "positions are those of consumerProgress",
    AdminCode.REGISTER_TOPIC_IN_NAMESRV: "topics are made by updateTopic: no broker registers them",
    AdminCode.REMOVE_BROKER: "a broker that has stopped leaves the routes by itself",
    AdminCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    AdminCode.RESET_MASTER_FLUSH_OFFSET: _CONTROLLER,
    AdminCode.RESUME_CHECK_HALF_MESSAGE: "use strata transaction list, commit and rollback",
    AdminCode.SET_COMMITLOG_READ_MODE: _COLD,
    AdminCode.UPDATE_AND_CREATE_STATIC_TOPIC: _STATIC,
    AdminCode.UPDATE_AND_GET_GROUP_FORBIDDEN: _POLICIES,
    AdminCode.UPDATE_BROKER_CONFIG: _CONFIG,
    AdminCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    AdminCode.UPDATE_CONTROLLER_CONFIG: _CONTROLLER,
    AdminCode.UPDATE_NAMESRV_CONFIG: _CONFIG,
    AdminCode.WIPE_WRITE_PERM_OF_BROKER: _PERMISSION,
}


class AdminRefusals:
    """See the module docstring."""

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        handlers: dict[int, Handler] = {
            code: partial(self._refuse, reason=reason) for code, reason in _REASONS.items()
        }
        handlers[AdminCode.DELETE_KV_CONFIG] = self.delete_kv
        handlers[AdminCode.GET_KVLIST_BY_NAMESPACE] = self.no_kv
        return handlers

    async def delete_kv(self, exchange: Exchange) -> RemotingCommand:
        """Confirm that there is no such entry, as after every deletion of a topic."""
        return succeeded(exchange.request)

    async def no_kv(self, exchange: Exchange) -> RemotingCommand:
        """Answer that a namespace has no entries.

        Raises:
            RemotingRefusal: always.
        """
        namespace = exchange.request.text("namespace", "")
        raise RemotingRefusal(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
        )

    async def _refuse(self, exchange: Exchange, *, reason: str) -> RemotingCommand:
        raise RemotingRefusal(ResponseCode.NO_PERMISSION, f"not supported by StrataMQ: {reason}")
