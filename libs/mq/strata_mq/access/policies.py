"""Policies in the words of RocketMQ's ACL 2.0: resource, actions, sources, decision.

A resource pattern is `KIND:NAME`, `KIND:NAMESPACE/NAME`, `namespace:NAME`, `cluster:*` or `*`. A
name may end with `*`: then it is a prefix. A pattern without a namespace means the default
namespace; `topic:*/*` means every topic of every namespace. A pattern `namespace:NAME` covers all
topics, consumer groups and tables of that namespace, so its owner is the tenant's admin; it says
nothing about the cluster.

The decision: a policy that denies wins over all others; without a policy that allows, the answer is
no.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

Source = IPv4Network | IPv6Network
"""Where callers must come from."""


class ResourceKind(StrEnum):
    """Kinds of resources; the word before the colon."""

    TOPIC = "topic"
    GROUP = "group"
    TABLE = "table"
    NAMESPACE = "namespace"
    CLUSTER = "cluster"
    ANY = "*"


class Action(StrEnum):
    """Actions of ACL 2.0."""

    PUB = "pub"
    SUB = "sub"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    GET = "get"
    LIST = "list"
    ALL = "all"


class PolicyDecision(StrEnum):
    """Decision of a policy."""

    ALLOW = "allow"
    DENY = "deny"


class Resource(NamedTuple):
    """A resource that a request uses. A resource of the cluster has the name of a part: `nodes`."""

    kind: ResourceKind
    namespace: str
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind}:{place}{self.name}"


class ResourcePattern(NamedTuple):
    """Subject of a policy. `name` and `namespace` are prefixes where their flag says so."""

    kind: ResourceKind
    namespace: str
    name: str
    namespace_is_prefix: bool
    name_is_prefix: bool

    def covers(self, resource: Resource) -> bool:
        """Whether the resource is one of the pattern's."""
        if self.kind is ResourceKind.ANY:
            return True
        if self.kind is ResourceKind.NAMESPACE:
            if resource.kind is ResourceKind.CLUSTER:
                return False
            named = resource.name if resource.kind is ResourceKind.NAMESPACE else resource.namespace
            return _matches(self.name, named, prefix=self.name_is_prefix)
        return (
            self.kind is resource.kind
            and _matches(self.namespace, resource.namespace, prefix=self.namespace_is_prefix)
            and _matches(self.name, resource.name, prefix=self.name_is_prefix)
        )


class Policy(NamedTuple):
    """One policy of a user."""

    policy_id: int
    pattern: ResourcePattern
    actions: frozenset[Action]
    decision: PolicyDecision
    # None of them: callers may come from anywhere.
    sources: tuple[Source, ...] = ()

    def concerns(self, resource: Resource, action: Action, address: str) -> bool:
        """Whether the policy has a say in a request of a caller at this address."""
        return (
            (action in self.actions or Action.ALL in self.actions)
            and self.pattern.covers(resource)
            and (not self.sources or _comes_from(address, self.sources))
        )


class Verdict(NamedTuple):
    """Whether a request is allowed, and the policy that says so; 0: none has a say."""

    allowed: bool
    policy_id: int = 0


def decide(policies: Iterable[Policy], resource: Resource, action: Action, address: str) -> Verdict:
    """Decide on one use of one resource.

    Args:
        policies: all policies of the caller.
        resource: what it uses.
        action: how; never ALL.
        address: of the caller, without a port.
    """
    verdict = Verdict(allowed=False)
    for policy in policies:
        if policy.concerns(resource, action, address):
            if policy.decision is PolicyDecision.DENY:
                return Verdict(allowed=False, policy_id=policy.policy_id)
            if not verdict.allowed:
                verdict = Verdict(allowed=True, policy_id=policy.policy_id)
    return verdict


def parse_resource(text: str) -> ResourcePattern:
    """Read a resource pattern; kinds may be written in any case.

    Raises:
        ValueError: the text is none; the message says why.
    """
    if text == "*":
        return ResourcePattern(ResourceKind.ANY, "", "", True, True)
    word, colon, rest = text.partition(":")
    kinds = {kind.value: kind for kind in ResourceKind if kind is not ResourceKind.ANY}
    kind = kinds.get(word.lower())
    if not colon or kind is None:
        raise ValueError(
            f"{text!r} is no resource; write *, or one of {', '.join(kinds)} and a name: topic:a*"
        )
    namespace, slash, name = rest.rpartition("/")
    if slash and kind in (ResourceKind.NAMESPACE, ResourceKind.CLUSTER):
        raise ValueError(f"{text!r}: a {kind} is in no namespace")
    if not name or "*" in name[:-1] or "*" in namespace[:-1]:
        raise ValueError(f"{text!r}: a name is needed, and * may only end it")
    return ResourcePattern(
        kind,
        namespace.removesuffix("*"),
        name.removesuffix("*"),
        namespace.endswith("*"),
        name.endswith("*"),
    )


def parse_actions(words: Iterable[str]) -> frozenset[Action]:
    """Read actions; they may be written in any case.

    Raises:
        ValueError: a word is no action, or there is none.
    """
    actions = set()
    for word in words:
        try:
            actions.add(Action(word.strip().lower()))
        except ValueError:
            raise ValueError(
                f"{word!r} is no action; the actions are {', '.join(Action)}"
            ) from None
    if not actions:
        raise ValueError(f"an action is needed; the actions are {', '.join(Action)}")
    return frozenset(actions)


def parse_source(text: str) -> Source:
    """Read an address or a network in CIDR form.

    Raises:
        ValueError: the text is neither.
    """
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither an address nor a network; write 10.0.0.0/8"
        ) from None


def _matches(wanted: str, given: str, *, prefix: bool) -> bool:
    return given.startswith(wanted) if prefix else given == wanted


def _comes_from(address: str, sources: Iterable[Source]) -> bool:
    try:
        caller = ip_address(address.partition("%")[0])
    except ValueError:
        # A caller of the same process, or through a socket file, has no address.
        return False
    mapped = getattr(caller, "ipv4_mapped", None)
    caller = mapped or caller
    return any(caller.version == one.version and caller in one for one in sources)
