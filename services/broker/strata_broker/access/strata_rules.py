"""Rules of `strata.admin.v1`, of tables, and of the service between brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from strata.admin.v1 import admin_pb2
from strata_broker.access.principals import Principal, topic_target
from strata_broker.access.rules import (
    Asked,
    Need,
    Needs,
    Rule,
    Rules,
    keep,
    no_needs,
    of_cluster,
    of_group,
    of_known_topic,
    of_topic,
)
from strata_broker.metadata.metadata import Name
from strata_mq.access import Action, ResourceKind
from strata_mq.requests import BadHandleError

_ByTransaction = admin_pb2.GetTransactionRequest | admin_pb2.EndTransactionRequest


def _topic(name_of: Callable[[Any], Name], *actions: Action) -> Needs:
    return lambda request, _: (of_topic(name_of(request), *actions),)


def _group(name_of: Callable[[Any], Name], *actions: Action) -> Needs:
    return lambda request, _: (of_group(name_of(request), *actions),)


def _named(request: Any) -> Name:
    return request.namespace, request.name


def _of_topic_row(request: Any) -> Name:
    return request.topic.namespace, request.topic.name


def _new_topics(request: admin_pb2.CreateTopicsRequest, _: Asked) -> Iterable[Need]:
    return [of_topic((topic.namespace, topic.name), Action.CREATE) for topic in request.topics]


def _of_group_row(request: Any) -> Name:
    return request.consumer_group.namespace, request.consumer_group.name


def _with_topic(request: Any) -> Name:
    return request.namespace, request.topic


def _with_group(request: Any) -> Name:
    return request.namespace, request.consumer_group


def _transaction(action: Action) -> Needs:
    """Return needs on the topic of a transaction: its id says which."""

    def needs(request: _ByTransaction, asked: Asked) -> Iterable[Need]:
        if request.topic:
            yield of_topic((request.namespace, request.topic), action)
            return
        try:
            handle = asked.handles.read_pending(request.id)
        except BadHandleError:
            # No transaction has this id, whoever asks.
            return
        topic = asked.view.topic_by_id(handle.topic_id)
        if topic is not None:
            yield of_topic((topic.namespace, topic.name), action)

    return needs


def _reset(request: admin_pb2.ResetConsumerGroupRequest, _: Asked) -> Iterable[Need]:
    yield of_group(_named(request), Action.UPDATE)
    if request.topic:
        yield of_known_topic(_with_topic(request))


def _of_listed_topic(request: admin_pb2.ListTransactionsRequest, _: Asked) -> Iterable[Need]:
    if request.topic:
        yield of_topic(_with_topic(request), Action.LIST, Action.GET)


def _quota(request: admin_pb2.GetQuotaRequest, _: Asked) -> Iterable[Need]:
    if request.topic:
        yield of_topic((request.namespace, request.topic), Action.GET)
    else:
        yield Need(ResourceKind.NAMESPACE, ("", request.namespace), (Action.GET,))


def _hide_transactions(response: admin_pb2.ListTransactionsResponse, principal: Principal) -> None:
    keep(
        response.transactions,
        lambda one: principal.may_see(*topic_target((one.namespace, one.topic))),
    )


def _name_of(request: admin_pb2.GetUserRequest) -> str:
    return request.name


def _user_of(request: admin_pb2.ListPoliciesRequest | admin_pb2.TestPolicyRequest) -> str:
    return request.user


ADMIN_RULES: Rules = {
    "CreateTopic": Rule(_topic(_of_topic_row, Action.CREATE)),
    "CreateTopics": Rule(_new_topics),
    "GetTopic": Rule(_topic(_named, Action.GET)),
    # Lists leave out what their caller may not see before they divide the rest into pages.
    "ListTopics": Rule(no_needs),
    "UpdateTopic": Rule(_topic(_of_topic_row, Action.UPDATE)),
    "DeleteTopic": Rule(_topic(_named, Action.DELETE)),
    "PurgeTopic": Rule(_topic(_named, Action.DELETE)),
    "CreateConsumerGroup": Rule(_group(_of_group_row, Action.CREATE)),
    "GetConsumerGroup": Rule(_group(_named, Action.GET)),
    "ListConsumerGroups": Rule(no_needs),
    "UpdateConsumerGroup": Rule(_group(_of_group_row, Action.UPDATE)),
    "DeleteConsumerGroup": Rule(_group(_named, Action.DELETE)),
    "ResetConsumerGroup": Rule(_reset),
    # A caller that reads messages this way could as well consume them.
    "FindMessages": Rule(_topic(_with_topic, Action.SUB)),
    "ListQueueSpans": Rule(_topic(_with_topic, Action.GET, Action.SUB)),
    "ListLiteTopics": Rule(_topic(_with_topic, Action.GET)),
    "ScanQueue": Rule(_topic(_with_topic, Action.SUB)),
    "TraceMessage": Rule(_topic(_with_topic, Action.SUB)),
    "ListDeadLetterTopics": Rule(no_needs),
    "ListDeadLetters": Rule(_group(_with_group, Action.SUB)),
    # Each letter that is sent takes PUB on its topic, too.
    "RedriveDeadLetters": Rule(_group(_with_group, Action.UPDATE)),
    "ListTransactions": Rule(_of_listed_topic, _hide_transactions),
    "GetTransaction": Rule(_transaction(Action.SUB)),
    "EndTransaction": Rule(_transaction(Action.PUB)),
    "ListClients": Rule(of_cluster("clients", Action.LIST, Action.GET)),
    "GetConfig": Rule(of_cluster("config", Action.GET)),
    "GetCluster": Rule(of_cluster("nodes", Action.GET, Action.LIST)),
    "GetHealth": Rule(of_cluster("health", Action.GET)),
    "GetRaftGroup": Rule(of_cluster("raft_groups", Action.GET)),
    "DrainNode": Rule(of_cluster("nodes", Action.UPDATE)),
    "RemoveNode": Rule(of_cluster("nodes", Action.DELETE)),
    "ChangeReplicas": Rule(of_cluster("raft_groups", Action.UPDATE)),
    "TransferLeader": Rule(of_cluster("raft_groups", Action.UPDATE)),
    "GetQueue": Rule(_topic(_with_topic, Action.GET)),
    "MoveQueue": Rule(of_cluster("placement", Action.UPDATE)),
    "ListSlots": Rule(of_cluster("placement", Action.LIST, Action.GET)),
    "MoveSlots": Rule(of_cluster("placement", Action.UPDATE)),
    # A tenant does not set its own limits.
    "SetQuota": Rule(of_cluster("quotas", Action.UPDATE)),
    "GetQuota": Rule(_quota),
    "ListQuotas": Rule(no_needs),
    "ProposePlan": Rule(of_cluster("placement", Action.CREATE)),
    "ApplyPlan": Rule(of_cluster("placement", Action.UPDATE)),
    "GetPlacement": Rule(of_cluster("placement", Action.GET)),
    "SetPlacementModel": Rule(of_cluster("placement", Action.UPDATE)),
    "GetTier": Rule(of_cluster("tier", Action.GET)),
    "PauseTier": Rule(of_cluster("tier", Action.UPDATE)),
    "FlushTier": Rule(of_cluster("tier", Action.UPDATE)),
    "ReplaceTierRanges": Rule(of_cluster("tier", Action.UPDATE)),
    "PlanTierSweep": Rule(of_cluster("tier", Action.GET)),
    "ForgetTierObjects": Rule(of_cluster("tier", Action.DELETE)),
}


USER_RULES: Rules = {
    "CreateUser": Rule(no_needs, for_admins=True),
    "GetUser": Rule(no_needs, for_admins=True, unless_of=_name_of),
    "ListUsers": Rule(no_needs, for_admins=True),
    "UpdateUser": Rule(no_needs, for_admins=True),
    "DeleteUser": Rule(no_needs, for_admins=True),
    # Not of oneself: whoever has temporary keys would get keys for good.
    "RotateUserKey": Rule(no_needs, for_admins=True),
    "CreateUserSession": Rule(no_needs, for_admins=True),
    "CreatePolicy": Rule(no_needs, for_admins=True),
    "ListPolicies": Rule(no_needs, for_admins=True, unless_of=_user_of),
    "DeletePolicy": Rule(no_needs, for_admins=True),
    "TestPolicy": Rule(no_needs, for_admins=True, unless_of=_user_of),
    "RotateClusterKey": Rule(no_needs, for_admins=True),
}


def _table(*actions: Action) -> Needs:
    return lambda request, _: (
        Need(ResourceKind.TABLE, (request.table.namespace, request.table.name), actions),
    )


KV_RULES: Rules = {
    # Items of a table are its content: to delete one is an update.
    "Put": Rule(_table(Action.UPDATE)),
    "Get": Rule(_table(Action.GET)),
    "Delete": Rule(_table(Action.UPDATE)),
    "CompareAndSet": Rule(_table(Action.UPDATE)),
    "List": Rule(_table(Action.GET)),
    "Batch": Rule(_table(Action.UPDATE)),
    "Watch": Rule(_table(Action.GET)),
    "Export": Rule(_table(Action.GET)),
    "CreateTable": Rule(_table(Action.CREATE)),
    "GetTable": Rule(_table(Action.GET)),
    "ListTables": Rule(no_needs),
    "DeleteTable": Rule(_table(Action.DELETE)),
}

CONTAINER_RULES: Rules = {
    "AddBroker": Rule(of_cluster("containers", Action.CREATE)),
    "RemoveBroker": Rule(of_cluster("containers", Action.DELETE)),
    "ListMembers": Rule(of_cluster("containers", Action.LIST, Action.GET)),
    "GetMemberConfig": Rule(of_cluster("containers", Action.GET)),
    "UpdateMemberConfig": Rule(of_cluster("containers", Action.UPDATE)),
}

PEER_RULES: Rules = {
    "ListClients": Rule(no_needs, for_brokers=True),
    "CommandClient": Rule(no_needs, for_brokers=True),
    "CountConnections": Rule(no_needs, for_brokers=True),
    "SyncLite": Rule(no_needs, for_brokers=True),
    "PushReply": Rule(no_needs, for_brokers=True),
    "TellReset": Rule(no_needs, for_brokers=True),
    "AwaitRevision": Rule(no_needs, for_brokers=True),
}
