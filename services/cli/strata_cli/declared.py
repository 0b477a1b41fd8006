"""Topics and consumer groups as a file says they should be (`strata apply`, `strata export`).

The file is YAML or JSON with the lists `topics` and `groups`. Settings that an entry leaves out
stay as they are, or have their defaults when it is created. Nothing is deleted unless that is asked
for (`unnamed`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli import lags
from strata_cli.client import AdminClient
from strata_cli.errors import CliError, UsageError
from strata_cli.options import milliseconds
from strata_cli.views import View, group_view, topic_view
from strata_cli.yaml_files import documents_of
from strata_mq.requests import OWN_PREFIX, RETRY_PREFIX

DEFAULT_QUEUES = 8
DEFAULT_RETENTION_MS = 72 * 3_600_000

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000))
# Names of topics that the cluster makes by itself.
_OWN = (OWN_PREFIX, RETRY_PREFIX)
_TOPIC_KEYS = ("type", "queues", "retention", "attributes")
_GROUP_KEYS = ("fifo", "broadcast", "max_attempts", "backoff", "lite_topic", "lite_exclusive")
_MASKS = {"queues": "queue_count", "retention": "retention_ms"}
"""Names of fields in update masks where they differ from those in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredChange:
    """The difference between one entry of a file and the cluster.

    Attributes:
        kind: topic or group.
        namespace: of it.
        name: of it.
        is_new: it does not exist.
        is_unnamed: the file does not name it, and it is deleted.
        fields: by name: (value now, value that the file wants).
    """

    kind: str
    namespace: str
    name: str
    is_new: bool
    fields: Mapping[str, tuple[Any, Any]]
    is_unnamed: bool = False

    @property
    def action(self) -> str:
        """Whether it is created, updated, deleted or left alone."""
        if self.is_unnamed:
            return "delete"
        if self.is_new:
            return "create"
        return "update" if self.fields else "none"

    def view(self) -> View:
        """Return it as `strata apply -o json` prints it."""
        return {
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "action": self.action,
            "fields": [
                {"field": field, "before": before, "after": after}
                for field, (before, after) in self.fields.items()
            ],
        }


def read_entries(text: str, namespace: str) -> list[tuple[str, View]]:
    """Return (kind, entry) of every entry of a file, topics before consumer groups.

    Args:
        text: YAML or JSON; several documents count as one.
        namespace: of entries that name none.

    Raises:
        UsageError: it is no such file; the error names the entry.
    """
    documents = documents_of(text)
    found: dict[str, list[View]] = {"topic": [], "group": []}
    for document in documents:
        if not isinstance(document, dict) or set(document) - {"topics", "groups"}:
            raise UsageError("the file has the lists topics and groups, and nothing else")
        for kind, entries in found.items():
            entries += _checked(kind, document.get(f"{kind}s") or [], namespace)
    names = Counter(
        (kind, each["namespace"], each["name"]) for kind in found for each in found[kind]
    )
    for (kind, _, name), count in names.most_common(1):
        if count > 1:
            raise UsageError(f"{kind} {name} is in the file twice")
    for kind, entries in found.items():
        for entry in entries:
            _check_row(kind, entry)
    return [(kind, entry) for kind, entries in found.items() for entry in entries]


def compare(client: AdminClient, entries: Sequence[tuple[str, View]]) -> list[DeclaredChange]:
    """Return how the cluster differs from a file.

    Raises:
        UsageError: a change that is never possible.
    """
    namespaces = sorted({entry["namespace"] for _, entry in entries})
    there = {
        ("topic", row.namespace, row.name): topic_entry(row)
        for namespace in namespaces
        for row in lags.topic_rows(client, namespace)
    } | {
        ("group", row.namespace, row.name): group_entry(row)
        for namespace in namespaces
        for row in lags.group_rows(client, namespace)
    }
    changes = []
    for kind, entry in entries:
        present = there.get((kind, entry["namespace"], entry["name"]))
        keys = _TOPIC_KEYS if kind == "topic" else _GROUP_KEYS
        wanted = {key: entry[key] for key in keys if key in entry}
        if present is None:
            if kind == "topic":
                defaults = {"type": "NORMAL", "queues": DEFAULT_QUEUES}
                wanted = {**defaults, "retention": duration(DEFAULT_RETENTION_MS), **wanted}
            fields = {key: (None, value) for key, value in wanted.items()}
        else:
            fields = {
                key: (present[key], value) for key, value in wanted.items() if present[key] != value
            }
            _check_growth(entry["name"], fields)
        changes.append(
            DeclaredChange(
                kind=kind,
                namespace=entry["namespace"],
                name=entry["name"],
                is_new=present is None,
                fields=fields,
            )
        )
    return changes


def unnamed(client: AdminClient, entries: Sequence[tuple[str, View]]) -> list[DeclaredChange]:
    """Return what a file does not name: consumer groups first, as their topics go last.

    Only kinds of which the file has an entry count, in the namespaces in which it has one. Topics
    and consumer groups of StrataMQ itself, dead-letter topics, and topics in which messages wait
    for a retry are never among them.
    """
    named = {(kind, entry["namespace"], entry["name"]) for kind, entry in entries}
    places = sorted({(kind, namespace) for kind, namespace, _ in named})
    found: list[DeclaredChange] = []
    for kind, namespace in places:
        rows: Sequence[meta_pb2.Topic] | Sequence[meta_pb2.ConsumerGroup]
        rows = (lags.topic_rows if kind == "topic" else lags.group_rows)(client, namespace)
        found += [
            DeclaredChange(
                kind=kind,
                namespace=namespace,
                name=row.name,
                is_new=False,
                fields={},
                is_unnamed=True,
            )
            for row in rows
            if (kind, namespace, row.name) not in named and not row.name.startswith(_OWN)
        ]
    return found


def _delete(client: AdminClient, change: DeclaredChange) -> None:
    where = {"namespace": change.namespace, "name": change.name}
    if change.kind == "topic":
        client.call(client.admin.DeleteTopic, admin_pb2.DeleteTopicRequest(**where))
    else:
        delete = admin_pb2.DeleteConsumerGroupRequest(**where)
        client.call(client.admin.DeleteConsumerGroup, delete)


def carry_out(client: AdminClient, change: DeclaredChange) -> None:
    """Make one change.

    Raises:
        CliError: the broker refused it.
    """
    if change.is_unnamed:
        _delete(client, change)
        return
    values = {key: after for key, (_, after) in change.fields.items()}
    mask = [_MASKS.get(key, key) for key in values]
    admin = client.admin
    if change.kind == "topic":
        topic = _topic_row(change, values)
        if change.is_new:
            client.call(admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=topic))
        elif mask:
            request = admin_pb2.UpdateTopicRequest(topic=topic, update_mask=mask)
            client.call(admin.UpdateTopic, request)
        return
    group = _group_row(change, values)
    if change.is_new:
        create = admin_pb2.CreateConsumerGroupRequest(consumer_group=group)
        client.call(admin.CreateConsumerGroup, create)
    elif mask:
        update = admin_pb2.UpdateConsumerGroupRequest(consumer_group=group, update_mask=mask)
        client.call(admin.UpdateConsumerGroup, update)


def topic_entry(row: meta_pb2.Topic) -> View:
    """Return a topic as the file has it."""
    view = topic_view(row)
    return {
        "name": view["name"],
        "namespace": view["namespace"],
        "type": view["type"],
        "queues": view["queues"],
        "retention": duration(view["retention_ms"]),
        "attributes": view["attributes"],
    }


def group_entry(row: meta_pb2.ConsumerGroup) -> View:
    """Return a consumer group as the file has it."""
    view = group_view(row)
    return {"name": view["name"], "namespace": view["namespace"]} | {
        key: view[key] for key in _GROUP_KEYS
    }


def duration(value_ms: int) -> str:
    """Return a duration as the command line takes it, without loss."""
    for unit, length in _UNITS:
        if value_ms and value_ms % length == 0:
            return f"{value_ms // length}{unit}"
    return f"{value_ms}ms"


def _checked(kind: str, entries: Any, namespace: str) -> list[View]:
    if not isinstance(entries, list):
        raise UsageError(f"{kind}s is a list")
    keys = _TOPIC_KEYS if kind == "topic" else _GROUP_KEYS
    checked = []
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise UsageError(f"{kind}: an entry has no name: {entry}")
        name = f"{kind} {entry['name']}"
        if unknown := sorted(set(entry) - {*keys, "name", "namespace"}):
            raise UsageError(f"{name}: {unknown[0]}: unknown key; known are {', '.join(keys)}")
        made = {"namespace": namespace, **entry}
        for key, check in _CHECKS.items():
            if key in made:
                made[key] = _value(name, key, made[key], check)
        checked.append(made)
    return checked


def _check_row(kind: str, entry: View) -> None:
    """Refuse values that no request can hold, before the first change is made.

    Raises:
        UsageError: one is of another kind, or out of range.
    """
    change = DeclaredChange(
        kind=kind, namespace=entry["namespace"], name=entry["name"], is_new=True, fields={}
    )
    try:
        _topic_row(change, entry) if kind == "topic" else _group_row(change, entry)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{kind} {entry['name']}: {error}") from None


def _value(name: str, key: str, value: Any, check: Callable[[Any], Any]) -> Any:
    try:
        return check(value)
    except UsageError as error:
        raise UsageError(f"{name}: {key}: {error}") from None


def _of_type(kind: type, words: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise UsageError(f"{value!r} is not {words}")
        return value

    return check


def _at_least_one(value: Any) -> int:
    if int(_of_type(int, "a number")(value)) < 1:
        raise UsageError(f"{value} is less than 1")
    return int(value)


def _topic_type(value: Any) -> str:
    known = [name.removeprefix("TOPIC_TYPE_") for name in meta_pb2.TopicType.keys()[1:]]
    if value not in known:
        raise UsageError(f"{value!r} is none of {', '.join(known)}")
    return str(value)


def _retention(value: Any) -> str:
    return duration(milliseconds(str(value)))


def _attributes(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise UsageError(f"{value!r} is not a mapping")
    return {str(key): str(each) for key, each in value.items()}


def _backoff(value: Any) -> View | None:
    if value is None:
        return None
    made = dict(value) if isinstance(value, dict) else {}
    wanted = {"exponential": {"initial_ms", "max_ms", "multiplier"}, "customized": {"next_ms"}}
    if set(made) != {"kind", *wanted.get(str(made.get("kind")), {"?"})}:
        raise UsageError(
            "write kind: exponential with initial_ms, max_ms, multiplier, "
            "or kind: customized with next_ms"
        )
    return made


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "namespace": _of_type(str, "a text"),
    "type": _topic_type,
    "queues": _at_least_one,
    "retention": _retention,
    "attributes": _attributes,
    "fifo": _of_type(bool, "true or false"),
    "broadcast": _of_type(bool, "true or false"),
    "max_attempts": _at_least_one,
    "backoff": _backoff,
    "lite_topic": _of_type(str, "a text"),
    "lite_exclusive": _of_type(bool, "true or false"),
}


def _check_growth(name: str, fields: Mapping[str, tuple[Any, Any]]) -> None:
    if "queues" in fields and fields["queues"][1] < fields["queues"][0]:
        before, after = fields["queues"]
        raise CliError(
            f"topic {name} has {before} queues, the file says {after}: the number can only grow",
            "refused",
        )


def _topic_row(change: DeclaredChange, values: View) -> meta_pb2.Topic:
    row = meta_pb2.Topic(namespace=change.namespace, name=change.name)
    if "type" in values:
        row.type = meta_pb2.TopicType.Value(f"TOPIC_TYPE_{values['type']}")
    if "queues" in values:
        row.queue_count = values["queues"]
    if "retention" in values:
        row.retention_ms = milliseconds(values["retention"])
    row.attributes.update(values.get("attributes", {}))
    return row


def _group_row(change: DeclaredChange, values: View) -> meta_pb2.ConsumerGroup:
    row = meta_pb2.ConsumerGroup(namespace=change.namespace, name=change.name)
    for key in ("fifo", "broadcast", "max_attempts", "lite_topic", "lite_exclusive"):
        if key in values:
            setattr(row, key, values[key])
    backoff = cast("View | None", values.get("backoff"))
    if backoff is not None and backoff["kind"] == "customized":
        row.customized.next_ms.extend(backoff["next_ms"])
    elif backoff is not None:
        row.exponential.initial_ms = backoff["initial_ms"]
        row.exponential.max_ms = backoff["max_ms"]
        row.exponential.multiplier = backoff["multiplier"]
    return row
