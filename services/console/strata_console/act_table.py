"""The table of all acts."""

from __future__ import annotations

from collections.abc import Mapping

from strata_console.acts import Act, Field, acts_by_name

_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY")
_LEVELS = ("DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE")
_LIMITS = ("messages_per_s", "bytes_per_s", "topics", "groups", "connections")

_NAME = Field(name="name", required=True)
_TOPIC = Field(name="topic", required=True)
_QUEUE = Field(name="queue", kind="number", required=True)
_NUMBER = Field(name="raft_group", kind="number", required=True)
_GROUP = Field(name="group", required=True)
_RETENTION = Field(name="retention", kind="duration", option="--retention")
_LOCAL = Field(name="local_retention", kind="duration", option="--local-retention")
_LEVEL = Field(
    name="tiered_storage_level", kind="choice", option="--tiered-storage-level", choices=_LEVELS
)
_ATTRIBUTES = Field(name="attributes", kind="texts", option="--attribute")
_READ_REPLICAS = Field(name="read_replicas", kind="number", option="--read-replicas")
_BACKOFF = (
    Field(name="max_attempts", kind="number", option="--max-attempts"),
    Field(name="backoff_ms", option="--backoff-ms"),
    Field(name="backoff_exp", option="--backoff-exp"),
)
_OF_TOPIC = Field(name="topic", option="--topic")
_USER = Field(name="user", required=True)

TOPICS = (
    Act(
        name="topic-create",
        words=("topic", "create"),
        fields=(
            _NAME,
            Field(name="type", kind="choice", option="--type", choices=_TYPES, default="NORMAL"),
            Field(name="queues", kind="number", option="--queues", default="8"),
            Field(name="retention", kind="duration", option="--retention", default="72h"),
            *(_LOCAL, _LEVEL, _READ_REPLICAS, _ATTRIBUTES),
        ),
        namespace=True,
        changes="topics",
    ),
    Act(
        name="topic-update",
        words=("topic", "update"),
        fields=(
            _NAME,
            Field(name="type", kind="choice", option="--type", choices=_TYPES),
            Field(name="queues", kind="number", option="--queues"),
            *(_RETENTION, _LOCAL, _LEVEL, _READ_REPLICAS, _ATTRIBUTES),
        ),
        namespace=True,
        changes="topics",
    ),
    Act(
        name="topic-delete",
        words=("topic", "delete"),
        fields=(_NAME,),
        namespace=True,
        danger=True,
        dry_run=True,
        asks=True,
        changes="topics",
    ),
    Act(
        name="queue-move",
        words=("queue", "move"),
        fields=(_TOPIC, _QUEUE, Field(name="to", kind="number", option="--to", required=True)),
        namespace=True,
        fixed=("--no-wait",),
    ),
)

GROUPS = (
    Act(
        name="group-create",
        words=("group", "create"),
        fields=(
            _NAME,
            Field(name="fifo", kind="flag", option="--fifo"),
            Field(name="broadcast", kind="flag", option="--broadcast"),
            *_BACKOFF,
        ),
        namespace=True,
        changes="groups",
    ),
    Act(
        name="group-update",
        words=("group", "update"),
        fields=(_NAME, *_BACKOFF),
        namespace=True,
        changes="groups",
    ),
    Act(
        name="group-reset",
        words=("group", "reset"),
        fields=(
            _NAME,
            Field(name="to_time", kind="time", option="--to", required=True, default="latest"),
            _OF_TOPIC,
        ),
        namespace=True,
        danger=True,
        dry_run=True,
        asks=True,
    ),
    Act(
        name="group-delete",
        words=("group", "delete"),
        fields=(_NAME,),
        namespace=True,
        danger=True,
        dry_run=True,
        asks=True,
        changes="groups",
    ),
    Act(
        name="dlq-redrive",
        words=("dlq", "redrive"),
        fields=(
            _GROUP,
            Field(name="message_id", option="--message-id"),
            Field(name="limit", kind="number", option="--limit", default="1000"),
        ),
        namespace=True,
        danger=True,
        dry_run=True,
    ),
)

MESSAGES = (
    Act(
        name="message-send",
        words=("message", "send"),
        fields=(
            _TOPIC,
            Field(name="body", kind="long", option="--body", required=True),
            Field(name="tag", option="--tag"),
            Field(name="keys", kind="texts", option="--key"),
            Field(name="properties", kind="texts", option="--property"),
            Field(name="message_group", option="--group"),
            Field(name="delay", kind="duration", option="--delay"),
            Field(name="deliver_at", kind="time", option="--at"),
            Field(name="priority", kind="number", option="--priority"),
        ),
        namespace=True,
    ),
    Act(
        name="message-recall",
        words=("message", "recall"),
        fields=(_TOPIC, Field(name="recall_handle", required=True)),
        namespace=True,
        danger=True,
    ),
    Act(
        name="transaction-commit",
        words=("transaction", "commit"),
        fields=(Field(name="id", required=True), _OF_TOPIC),
        namespace=True,
        danger=True,
    ),
    Act(
        name="transaction-rollback",
        words=("transaction", "rollback"),
        fields=(Field(name="id", required=True), _OF_TOPIC),
        namespace=True,
        danger=True,
    ),
)

_NODE = Field(name="node", option="--node", required=True)

CLUSTER = (
    Act(name="node-drain", words=("node", "drain"), fields=(_NAME,), danger=True),
    Act(name="node-undrain", words=("node", "drain"), fields=(_NAME,), fixed=("--undo",)),
    Act(
        name="node-remove",
        words=("node", "remove"),
        fields=(_NAME, Field(name="force", kind="flag", option="--force")),
        danger=True,
        dry_run=True,
        asks=True,
    ),
    Act(
        name="leader-transfer",
        words=("leader", "transfer"),
        fields=(_NUMBER, Field(name="to_node", option="--to")),
    ),
    Act(
        name="replica-add",
        words=("replica", "add"),
        fields=(_NUMBER, _NODE, Field(name="learner", kind="flag", option="--learner")),
    ),
    Act(
        name="replica-remove",
        words=("replica", "remove"),
        fields=(_NUMBER, _NODE),
        danger=True,
        dry_run=True,
        asks=True,
    ),
    Act(
        name="plan-make",
        words=("placement", "plan"),
        fields=(
            Field(
                name="loads",
                kind="choice",
                option="--loads",
                choices=("auto", "windows", "growth"),
                default="auto",
            ),
            Field(name="history", kind="duration", option="--history", default="15m"),
            Field(name="sample", kind="duration", option="--sample", default="2s"),
            Field(name="max_steps", kind="number", option="--max-steps", default="50"),
        ),
    ),
    Act(
        name="plan-apply",
        words=("placement", "apply"),
        fields=(Field(name="plan_id", kind="number", required=True),),
        danger=True,
    ),
    Act(
        name="plan-stop",
        words=("placement", "apply"),
        fields=(Field(name="plan_id", kind="number", required=True),),
        danger=True,
        fixed=("--stop",),
    ),
    Act(name="tier-pause", words=("tier", "pause"), danger=True),
    Act(name="tier-resume", words=("tier", "resume")),
    Act(
        name="tier-flush",
        words=("tier", "flush"),
        fields=(Field(name="raft_group", kind="number", option="--raft-group", required=True),),
    ),
)

_TABLE = Field(name="table", option="--table", required=True)

TABLES = (
    Act(
        name="table-create",
        words=("kv", "create"),
        fields=(
            _NAME,
            Field(
                name="engine",
                kind="choice",
                option="--engine",
                choices=("rocksdb", "memory"),
                default="rocksdb",
            ),
        ),
        namespace=True,
    ),
    Act(
        name="table-drop",
        words=("kv", "drop"),
        fields=(_NAME,),
        namespace=True,
        danger=True,
        dry_run=True,
        asks=True,
    ),
    Act(
        name="item-put",
        words=("kv", "put"),
        fields=(
            Field(name="key", required=True),
            Field(name="value", required=True),
            _TABLE,
            Field(name="ttl", kind="duration", option="--ttl"),
        ),
        namespace=True,
    ),
    Act(
        name="item-delete",
        words=("kv", "delete"),
        fields=(Field(name="key", required=True), _TABLE),
        namespace=True,
        danger=True,
    ),
)

ACCESS = (
    Act(
        name="quota-set",
        words=("quota", "set"),
        fields=(
            _OF_TOPIC,
            *(Field(name=limit, option=f"--{limit.replace('_', '-')}") for limit in _LIMITS),
        ),
        namespace=True,
    ),
    Act(
        name="user-create",
        words=("user", "create"),
        fields=(_NAME, Field(name="admin", kind="flag", option="--admin")),
    ),
    Act(
        name="user-rotate-key",
        words=("user", "rotate-key"),
        fields=(_NAME, Field(name="previous_valid", kind="duration", option="--previous-valid")),
        danger=True,
    ),
    Act(name="user-enable", words=("user", "enable"), fields=(_NAME,)),
    Act(name="user-disable", words=("user", "disable"), fields=(_NAME,), danger=True),
    Act(name="user-delete", words=("user", "delete"), fields=(_NAME,), danger=True, asks=True),
    Act(
        name="policy-create",
        words=("policy", "create"),
        fields=(
            _USER,
            Field(name="resource", option="--resource", required=True),
            Field(name="actions", option="--actions", required=True),
            Field(
                name="decision",
                kind="choice",
                option="--decision",
                choices=("allow", "deny"),
                default="allow",
            ),
            Field(name="sources", kind="texts", option="--source"),
        ),
    ),
    Act(
        name="policy-test",
        words=("policy", "test"),
        fields=(
            _USER,
            Field(name="resource", option="--resource", required=True),
            Field(name="action", option="--action", required=True),
            Field(name="source", option="--source"),
        ),
    ),
    Act(
        name="policy-delete",
        words=("policy", "delete"),
        fields=(Field(name="policy_id", kind="number", required=True),),
        danger=True,
        asks=True,
    ),
)

ACTS: Mapping[str, Act] = acts_by_name(TOPICS, GROUPS, MESSAGES, CLUSTER, TABLES, ACCESS)
