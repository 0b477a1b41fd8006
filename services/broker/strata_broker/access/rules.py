"""Rules: what a request uses, and how, read from its own fields.

Each served RPC has one rule in a table (`RULES_OF` in `table.py`); an RPC without a rule cannot be
served. A rule names rights on resources; a caller needs every one of them. The tables are the only
place that knows which right an RPC takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.access.principals import Principal, Target, topic_target
from strata_broker.metadata.metadata import MetadataView, Name
from strata_broker.metadata.requests import Caller
from strata_mq.access import Action, ResourceKind

Item = TypeVar("Item", bound=Message)

KNOWN_BY = (Action.GET, Action.SUB, Action.UPDATE)
"""Rights by which a topic is known to who names it in a request about another resource."""


class Need(NamedTuple):
    """A right that a request takes: one of the actions on a resource."""

    kind: ResourceKind
    name: Name
    actions: tuple[Action, ...]


class Asked(NamedTuple):
    """Facts that a rule may look at beside the request.

    Attributes:
        caller: its namespace is that of resources that name none.
        view: topics by id.
        handles: reads transaction ids.
    """

    caller: Caller
    view: MetadataView
    handles: HandleSigner


Needs = Callable[[Any, Asked], Iterable[Need]]
Hides = Callable[[Any, Principal], None]
Tells = Callable[[Any, Asked, Principal], bool]


class Needed(NamedTuple):
    """Rights that one request takes.

    Attributes:
        rights: the caller needs all of them.
        about: the user whose own request this may be; empty: there is none.
    """

    rights: tuple[Need, ...] = ()
    about: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one RPC.

    Attributes:
        needs: reads the rights from a request.
        hides: takes out of a response what the caller may not see.
        tells: whether the caller may see one response of a stream; the others go on.
        for_brokers: only other brokers of the cluster may call it.
        for_admins: only admins may call it; no policy gives this right.
        unless_of: reads the user from a request that it may make about itself, too.
    """

    needs: Needs
    hides: Hides | None = None
    tells: Tells | None = None
    for_brokers: bool = False
    for_admins: bool = False
    unless_of: Callable[[Any], str] | None = None

    def needs_of(self, request: Any, asked: Asked) -> Needed:
        """Read what a request takes."""
        about = self.unless_of(request) if self.unless_of is not None else ""
        return Needed(tuple(self.needs(request, asked)), about)


Rules = Mapping[str, Rule]
"""RPC -> its rule."""


def check(principal: Principal, rule: Rule, needed: Needed) -> None:
    """Check a principal against a rule.

    Raises:
        AccessRefused: FORBIDDEN, for the first right that is missing.
    """
    if rule.for_brokers != principal.is_broker:
        raise principal.refusal(ResourceKind.CLUSTER, ("", "brokers"), Action.ALL)
    if rule.for_admins and not principal.is_admin and needed.about != principal.user:
        raise principal.refusal(ResourceKind.CLUSTER, ("", "users"), Action.ALL)
    for kind, name, actions in needed.rights:
        if not any(principal.may(kind, name, action) for action in actions):
            raise principal.refusal(kind, name, actions[0])


def no_needs(_: Any, __: Asked) -> Sequence[Need]:
    """Take no right: any user may call it."""
    return ()


def of_cluster(part: str, *actions: Action) -> Needs:
    """Return needs on a part of the cluster."""
    need = (Need(ResourceKind.CLUSTER, ("", part), actions),)
    return lambda _, __: need


def of_topic(name: Name, *actions: Action) -> Need:
    """Return the need of a right on what stands behind a topic's name."""
    return need_of(topic_target(name), *actions)


def of_known_topic(name: Name) -> Need:
    """Return the need of a right that shows a topic, of a request that uses another resource.

    Without it the answer would tell whoever asks which topics there are.
    """
    return of_topic(name, *KNOWN_BY)


def of_group(name: Name, *actions: Action) -> Need:
    """Return the need of a right on a consumer group."""
    return Need(ResourceKind.GROUP, name, actions)


def need_of(target: Target, *actions: Action) -> Need:
    """Return the need of a right on a resource."""
    kind, name = target
    return Need(kind, name, actions)


def shared_namespace(caller: Caller, *resources: definition_pb2.Resource) -> str:
    """Return the namespace of the first resource with a name; the others must have the same."""
    named = [resource for resource in resources if resource.name]
    return (named[0].resource_namespace if named else "") or caller.namespace


def keep(items: Any, is_kept: Callable[[Any], bool]) -> None:
    """Take items out of a repeated field."""
    kept = [item for item in items if is_kept(item)]
    if len(kept) != len(items):
        del items[:]
        items.extend(kept)
