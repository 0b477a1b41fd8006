"""Principals: callers as policies see them, each with its remembered decisions.

A principal is made for one user at one address and one state of the users and policies; after a
change of these a new one is made. A decision costs a lookup in a dictionary once it was made.
"""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from functools import lru_cache

from strata_broker.metadata.metadata import Name
from strata_mq.access import Action, Policy, Resource, ResourceKind, Verdict, decide
from strata_mq.requests import (
    DEAD_LETTER_PREFIX,
    OWN_PREFIX,
    RETRY_PREFIX,
    TABLE_PREFIX,
    Code,
    RequestError,
)

Target = tuple[ResourceKind, Name]
"""A resource that a request uses: its kind and its (namespace, name)."""

CLUSTER: Name = ("", "")

_DERIVED_PREFIX = "%"
# Callers choose names, of any length: a longer one names nothing, and is neither kept nor shown.
_MOST_KEPT = 512
# As RocketMQ writes them.
_SHOWN_KINDS = {
    ResourceKind.TOPIC: "Topic",
    ResourceKind.GROUP: "Group",
    ResourceKind.TABLE: "Table",
    ResourceKind.NAMESPACE: "Namespace",
    ResourceKind.CLUSTER: "Cluster",
}


class AccessRefused(RequestError):
    """A caller that is unknown (UNAUTHORIZED), or may not do what it asks for (FORBIDDEN).

    Attributes:
        resource: that the request is about; empty: it did not come so far.
        reason: short and constant, for the audit trail.
    """

    def __init__(self, code: Code, text: str, *, reason: str, resource: str = "") -> None:
        super().__init__(code, text)
        self.reason = reason
        self.resource = resource


class Principal:
    """A user at an address. See the module docstring.

    Args:
        user: its name.
        address: of the caller, without a port.
        policies: of the user.
        is_admin: whether the user may do everything.
        max_decisions: most decisions to remember.
    """

    __slots__ = ("_decisions", "_max_decisions", "_policies", "address", "is_admin", "user")

    def __init__(
        self,
        user: str,
        address: str,
        *,
        policies: Collection[Policy],
        is_admin: bool,
        max_decisions: int,
    ) -> None:
        self.user = user
        self.address = address
        self.is_admin = is_admin
        self._policies = tuple(policies)
        self._decisions: dict[tuple[ResourceKind, Name, Action], Verdict] = {}
        self._max_decisions = max_decisions

    @property
    def is_broker(self) -> bool:
        """Whether it is another broker of the cluster."""
        return False

    def require(self, kind: ResourceKind, name: Name, action: Action) -> None:
        """Check that it may do something with a resource.

        Raises:
            AccessRefused: FORBIDDEN.
        """
        if not self.verdict(kind, name, action).allowed:
            raise self.refusal(kind, name, action)

    def may(self, kind: ResourceKind, name: Name, action: Action) -> bool:
        """Whether it may do something with a resource."""
        return self.verdict(kind, name, action).allowed

    def may_see(self, kind: ResourceKind, name: Name) -> bool:
        """Whether lists show it a resource: it may list it, or get it if nothing says otherwise."""
        listed = self.verdict(kind, name, Action.LIST)
        if listed.allowed or listed.policy_id:
            return listed.allowed
        return self.may(kind, name, Action.GET)

    def verdict(self, kind: ResourceKind, name: Name, action: Action) -> Verdict:
        """Return the decision on one use of a resource."""
        key = (kind, name, action)
        verdict = self._decisions.get(key)
        if verdict is None:
            verdict = self._decide(kind, name, action)
            if _is_long(name):
                return verdict
            if len(self._decisions) >= self._max_decisions:
                self._decisions.clear()
            self._decisions[key] = verdict
        return verdict

    def refusal(self, kind: ResourceKind, name: Name, action: Action) -> AccessRefused:
        """Return the refusal of one use of a resource, as RocketMQ words it."""
        denied = self.verdict(kind, name, action).policy_id
        detail = "the decision is deny." if denied else "no matched policies."
        shown = f"{_SHOWN_KINDS[kind]}:{_place(name)}"
        return AccessRefused(
            Code.FORBIDDEN,
            f"User:{self.user} has no permission to access {shown} from {self.address}, {detail}",
            reason=f"a policy denies {action}" if denied else f"no policy allows {action}",
            resource=str(Resource(kind, _cut(name[0]), _cut(name[1]))),
        )

    def _decide(self, kind: ResourceKind, name: Name, action: Action) -> Verdict:
        if self.is_admin:
            return Verdict(allowed=True)
        return decide(self._policies, Resource(kind, *name), action, self.address)


class Anybody(Principal):
    """Every caller, where access control is off, and the broker itself."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("", "", policies=(), is_admin=True, max_decisions=0)

    def require(self, kind: ResourceKind, name: Name, action: Action) -> None:
        """Allow it."""

    def verdict(self, kind: ResourceKind, name: Name, action: Action) -> Verdict:
        """Allow it."""
        return _ALLOWED


class BrokerPrincipal(Principal):
    """Another broker of the cluster: it may use the service for brokers, and nothing else."""

    __slots__ = ()

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name, address, policies=(), is_admin=False, max_decisions=1)

    @property
    def is_broker(self) -> bool:
        """See `Principal`."""
        return True


_ALLOWED = Verdict(allowed=True)
ANYBODY = Anybody()
ITSELF = Anybody()
"""The broker, when it writes topics that nobody else may write."""

_current: ContextVar[Principal] = ContextVar("principal", default=ANYBODY)


def current_principal() -> Principal:
    """Return the caller of the unary call that is served in this context."""
    return _current.get()


class Acting:
    """A block that runs for a principal: `current_principal` returns it there."""

    __slots__ = ("_principal", "_token")

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    def __enter__(self) -> None:
        self._token = _current.set(self._principal)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def topic_target(name: Name) -> Target:
    """Return what stands behind a topic's name.

    A topic of dead letters or of retries is its consumer group's, and the topic that stands for a
    table is the table.
    A topic of StrataMQ's own is a part of the cluster: `cluster:audit` for `__strata_audit`.
    """
    namespace, topic = name
    if topic.startswith(OWN_PREFIX):
        return ResourceKind.CLUSTER, ("", topic.removeprefix(OWN_PREFIX).removeprefix("_"))
    if topic.startswith(_DERIVED_PREFIX):
        if topic.startswith(DEAD_LETTER_PREFIX):
            return ResourceKind.GROUP, (namespace, topic.removeprefix(DEAD_LETTER_PREFIX))
        if topic.startswith(RETRY_PREFIX):
            return ResourceKind.GROUP, (namespace, topic.removeprefix(RETRY_PREFIX))
        if topic.startswith(TABLE_PREFIX):
            return ResourceKind.TABLE, (namespace, topic.removeprefix(TABLE_PREFIX))
    return ResourceKind.TOPIC, name


def send_right(name: Name) -> tuple[ResourceKind, Name, Action]:
    """Return the right that a send to a topic takes.

    Consumers send to the topic of their retries: as RocketMQ's, they need the right to consume.
    """
    return _send_right(name) if _is_long(name) else _short_send_right(name)


def _send_right(name: Name) -> tuple[ResourceKind, Name, Action]:
    kind, target = topic_target(name)
    is_retry = name[1].startswith(RETRY_PREFIX)
    return kind, target, Action.SUB if is_retry else Action.PUB


_short_send_right = lru_cache(maxsize=1024)(_send_right)


def _is_long(name: Name) -> bool:
    return len(name[0]) + len(name[1]) > _MOST_KEPT


def _cut(name: str) -> str:
    """Return a name as a text or the audit trail shows it."""
    return name if len(name) <= _MOST_KEPT else f"{name[:_MOST_KEPT]}..."


def _place(name: Name) -> str:
    namespace, shown = map(_cut, name)
    return f"{namespace}/{shown}" if namespace else shown
