"""Decides which topics and consumer groups a source gets at the target; carries nothing out.

Decisions (docs/migration.md has them for people):

- A topic has at the target as many queues as it has at all brokers of the source together. The
  source queues take the numbers in order of broker name and queue; a queue that appears later takes
  the next number.
- Copied messages are plain messages, whatever they were: a delay has passed, a transaction is
  committed. DELAY and TRANSACTION topics would refuse them, so these become MIXED.
- Topics and groups of RocketMQ itself are skipped, and so are `%DLQ%` topics.
- A `%RETRY%` topic belongs to one consumer group, which finishes its retries at the source. The
  waiting ones are copied if a person wants it, for consumers of the remoting protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strata_cli.migrate.source_rows import (
    WRITABLE,
    BrokerDescription,
    SourceGroup,
    SourceQueue,
    SourceTopic,
)
from strata_mq.requests import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    TRACE_TOPIC,
    RequestError,
    check_new_consumer_group,
    check_new_topic,
)

_SAME_TYPES = ("NORMAL", "FIFO", "MIXED")
_PLAIN_TYPES = ("DELAY", "TRANSACTION", "PRIORITY")
_GROUPED_TYPES = ("FIFO", "MIXED")
_REPLY_SUFFIX = "_REPLY_TOPIC"
_SYSTEM_TOPICS = frozenset(("DefaultHeartBeatSyncerTopic", TRACE_TOPIC))
_SYSTEM_GROUPS = frozenset(
    (
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER", "SELF_TEST_C_GROUP"),
        *("CLIENT_INNER_PRODUCER", "CID_ONS-HTTP-PROXY", "DEFAULT_CONSUMER"),
    )
)
_SYSTEM_GROUP_PREFIXES = ("CID_ONSAPI_", "CID_RMQ_SYS_", "CID_SYS_RMQ_TRANS")
_DEFAULT_RETRIES = 16
_SYSTEM = "a topic of RocketMQ itself"
_SYSTEM_TEXT = "cannot access system topic"


@dataclass(frozen=True, slots=True)
class Choices:
    """Decisions of a person.

    Attributes:
        topics: only these; empty: all.
        untyped_as: type of topics that have none at the source, MIXED or NORMAL.
        with_retries: whether retries that wait are copied.
    """

    topics: frozenset[str] = frozenset()
    untyped_as: str = "MIXED"
    with_retries: bool = False


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A topic of the target.

    Attributes:
        name: the same at source and target.
        topic_type: NORMAL, FIFO or MIXED.
        queues: source queue -> number of its queue at the target.
        notes: what a person should know.
        is_retries: whether it has the retries of a consumer group.
        begins: of a topic of retries: first offset of a source queue that waits, if it is known.
    """

    name: str
    topic_type: str
    queues: Mapping[SourceQueue, int]
    notes: Sequence[str] = ()
    is_retries: bool = False
    begins: Mapping[SourceQueue, int] = field(default_factory=dict)

    @property
    def queue_count(self) -> int:
        """Queues that the topic needs at the target."""
        return max(self.queues.values(), default=0) + 1

    @property
    def has_message_groups(self) -> bool:
        """Whether a message may belong to a message group, which has a queue of its own."""
        return self.topic_type in _GROUPED_TYPES and not self.is_retries


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A consumer group of the target.

    Attributes:
        name: the same at source and target.
        is_fifo: whether it consumes message groups in order.
        max_attempts: deliveries before a message becomes a dead letter.
        delays_ms: delays before redeliveries; empty: the target's default, unless
        exponential_ms: there are (initial, longest, multiplier) of growing delays.
    """

    name: str
    is_fifo: bool
    max_attempts: int
    delays_ms: tuple[int, ...] = ()
    exponential_ms: tuple[int, int, float] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something of the source that is not copied.

    Attributes:
        kind: "topic" or "group".
        name: of it.
        reason: why.
    """

    kind: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """See the module docstring.

    Attributes:
        topics: by name.
        groups: by name.
        skipped: the rest, by kind and name.
        positions: (consumer group, topic) -> source queue -> offset; of planned groups and topics.
    """

    topics: Mapping[str, PlannedTopic]
    groups: Mapping[str, PlannedGroup]
    skipped: Sequence[Skipped]
    positions: Mapping[tuple[str, str], Mapping[SourceQueue, int]] = field(default_factory=dict)


def plan_of(
    rows: Sequence[BrokerDescription],
    choices: Choices,
    known: Mapping[SourceQueue, int],
    types: Mapping[str, str],
) -> MigrationPlan:
    """Return what becomes of a source.

    Args:
        rows: what its brokers say.
        choices: of a person.
        known: queues that already have a number at the target.
        types: topics that already have a type at the target.
    """
    skipped: list[Skipped] = []
    groups = _planned_groups(rows, skipped)
    own_names = {name for row in rows for name in (row.broker.name, row.broker.cluster)}
    topics: dict[str, PlannedTopic] = {}
    waiting = retrying(rows)
    for name in sorted({name for row in rows for name in row.topics}):
        reason = _topic_refusal(name, own_names, choices, groups)
        parts = {row.broker.name: row.topics[name] for row in rows if name in row.topics}
        if not reason and any(part.message_type == "LITE" for part in parts.values()):
            reason = "topics of type LITE cannot be copied"
        if reason:
            skipped.append(Skipped("topic", name, reason))
            continue
        if name.startswith(RETRY_PREFIX):
            begins = dict(waiting.get(name.removeprefix(RETRY_PREFIX), ()))
            topics[name] = _planned_retries(name, parts, known, begins)
        else:
            topics[name] = _planned_topic(name, parts, choices, known, types.get(name))
    return MigrationPlan(topics, groups, skipped, _positions(rows, topics, groups))


def _planned_groups(
    rows: Sequence[BrokerDescription], skipped: list[Skipped]
) -> dict[str, PlannedGroup]:
    groups: dict[str, PlannedGroup] = {}
    for name in sorted({name for row in rows for name in row.groups}):
        reason = _group_refusal(name)
        if reason:
            skipped.append(Skipped("group", name, reason))
        else:
            groups[name] = _planned_group([row.groups[name] for row in rows if name in row.groups])
    for group in sorted({group for row in rows for group, _ in row.positions} - set(groups)):
        # A group that was made by its consumers, and that no broker describes.
        if not _group_refusal(group):
            groups[group] = PlannedGroup(group, False, _DEFAULT_RETRIES + 1)
    return groups


def retrying(rows: Sequence[BrokerDescription]) -> dict[str, list[tuple[SourceQueue, int]]]:
    """Return consumer group -> queues of its retry topics, each with the group's offset there."""
    found: dict[str, list[tuple[SourceQueue, int]]] = {}
    for row in rows:
        for (group, topic), offsets in row.positions.items():
            if topic.startswith(RETRY_PREFIX):
                queues = found.setdefault(group, [])
                queues += (
                    (SourceQueue(topic, row.broker.name, queue), offset)
                    for queue, offset in sorted(offsets.items())
                )
    return found


def _topic_refusal(
    name: str, own_names: Iterable[str], choices: Choices, groups: Mapping[str, PlannedGroup]
) -> str:
    """Return why a topic is not copied; "": it is."""
    if name.startswith(RETRY_PREFIX):
        if not choices.with_retries:
            return "retries of one consumer group, which finishes them at the source (or --retries)"
        if name.removeprefix(RETRY_PREFIX) not in groups:
            # So are those of consumers that pop: `%RETRY%GROUP_TOPIC`, `%RETRY%GROUP+TOPIC`.
            return "retries of no copied consumer group, or of one that pops: finish them there"
    if name.startswith(DEAD_LETTER_PREFIX):
        return "dead letters of one consumer group stay at the source"
    if name in _SYSTEM_TOPICS or name in own_names or name.endswith(_REPLY_SUFFIX):
        return _SYSTEM
    if choices.topics and name not in choices.topics:
        return "not asked for"
    try:
        check_new_topic(name)
    except RequestError as bad:
        return _SYSTEM if bad.text == _SYSTEM_TEXT else f"no name here: {bad.text}"
    return ""


def _group_refusal(name: str) -> str:
    if name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIXES):
        return "a consumer group of RocketMQ itself"
    try:
        check_new_consumer_group(name)
    except RequestError as bad:
        return f"no name here: {bad.text}"
    return ""


def _planned_retries(
    name: str,
    parts: Mapping[str, SourceTopic],
    known: Mapping[SourceQueue, int],
    begins: Mapping[SourceQueue, int],
) -> PlannedTopic:
    """Return the topic of a consumer group's retries, as its remoting consumers use it."""
    return PlannedTopic(
        name,
        "MIXED",
        _numbered(name, parts, known),
        ("retries that wait, for consumers of the remoting protocol",),
        is_retries=True,
        begins=begins,
    )


def _numbered(
    name: str, parts: Mapping[str, SourceTopic], known: Mapping[SourceQueue, int]
) -> dict[SourceQueue, int]:
    """Return the number at the target of each source queue of a topic."""
    queues = {queue: number for queue, number in known.items() if queue.topic == name}
    following = max(queues.values(), default=-1) + 1
    for broker, part in sorted(parts.items()):
        for number in range(part.read_queues):
            queue = SourceQueue(name, broker, number)
            if queue not in queues:
                queues[queue] = following
                following += 1
    return queues


def _planned_topic(
    name: str,
    parts: Mapping[str, SourceTopic],
    choices: Choices,
    known: Mapping[SourceQueue, int],
    type_before: str | None,
) -> PlannedTopic:
    notes: list[str] = []
    topic_type = type_before or _type_of(parts.values(), choices, notes)
    for broker, part in sorted(parts.items()):
        if part.write_queues > part.read_queues:
            notes.append(
                f"{broker} lets nobody read {part.write_queues - part.read_queues} of its queues"
            )
        if not part.permission & WRITABLE:
            notes.append(f"{broker} takes no messages (permission {part.permission})")
    if any(part.is_ordered for part in parts.values()):
        notes.append("the topic is ordered: its queues keep their order")
    return PlannedTopic(name, topic_type, _numbered(name, parts, known), notes)


def _type_of(parts: Iterable[SourceTopic], choices: Choices, notes: list[str]) -> str:
    types = Counter(part.message_type for part in parts)
    if len(types) > 1:
        notes.append(f"the brokers have different types: {', '.join(sorted(types))}")
        return "MIXED"
    (only,) = types
    if only in _SAME_TYPES:
        return only
    if only in _PLAIN_TYPES:
        notes.append(f"{only} at the source: copied messages are plain, and MIXED takes both")
        return "MIXED"
    notes.append(f"no type at the source: {choices.untyped_as} was chosen")
    return choices.untyped_as


def _planned_group(parts: Sequence[SourceGroup]) -> PlannedGroup:
    most = max(part.max_retries for part in parts)
    first = parts[0]
    return PlannedGroup(
        first.name,
        any(part.is_orderly for part in parts),
        max(0, most) + 1,
        first.delays_ms,
        first.exponential_ms,
    )


def _positions(
    rows: Sequence[BrokerDescription],
    topics: Mapping[str, PlannedTopic],
    groups: Mapping[str, PlannedGroup],
) -> dict[tuple[str, str], dict[SourceQueue, int]]:
    positions: dict[tuple[str, str], dict[SourceQueue, int]] = {}
    for row in rows:
        for (group, topic), offsets in row.positions.items():
            if topic not in topics or group not in groups:
                continue
            of_topic = positions.setdefault((group, topic), {})
            for queue, offset in offsets.items():
                of_topic[SourceQueue(topic, row.broker.name, queue)] = offset
    return positions
