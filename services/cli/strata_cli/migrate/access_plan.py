"""Decides which users and policies a source's access control becomes; carries nothing out.

RocketMQ asks the most specific rule that matches: an exact name before a prefix, a longer prefix
before a shorter one, a Custom policy before a Default one, and of two equals the one that denies.
Here a policy that denies wins over all others. So a rule that denies is left out where it takes
nothing away, because what nobody allows is refused anyway; where it stays, and a more specific rule
allows a part of it, that part is lost, and a note says so. Nobody gets a right that it did not
have: a user with a rule that denies something unknown gets no policies.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strata_cli.migrate.access_rows import SourceAccess, SourceRule, SourceUser
from strata_mq.access import ResourceKind, ResourcePattern, parse_actions, parse_resource

_WILDCARD = re.compile(r"(?:\d{1,3}\.){1,3}\*(?:\.\*)*")
_IN_NAMESPACES = (ResourceKind.TOPIC, ResourceKind.GROUP)
_OF_OPERATORS = ("cluster:", "namespace:")
_ALL = "all"


class PlannedPolicy(NamedTuple):
    """A policy of the target; two of the same content are equal.

    Attributes:
        resource: as `strata policy create` takes it.
        actions: lower-case words.
        allows: whether it allows or denies.
        sources: addresses or networks; none: from anywhere.
    """

    resource: str
    actions: frozenset[str]
    allows: bool
    sources: frozenset[str]


@dataclass(frozen=True, slots=True)
class PlannedUser:
    """A user of the target.

    Attributes:
        user: as the source has it.
        policies: in the source's order.
        notes: what a person should know: rights that differ.
    """

    user: SourceUser
    policies: Sequence[PlannedPolicy] = ()
    notes: Sequence[str] = field(default_factory=tuple)


class _Rule(NamedTuple):
    """A rule and its pattern."""

    rule: SourceRule
    pattern: ResourcePattern
    policy: PlannedPolicy


def plan_access(access: SourceAccess, namespace: str) -> list[PlannedUser]:
    """Return what becomes of the users of a source, by name.

    Args:
        access: users and rules.
        namespace: of topics and consumer groups at the target.
    """
    by_user: dict[str, list[SourceRule]] = {name: [] for name in access.users}
    for rule in access.rules:
        by_user.setdefault(rule.user, []).append(rule)
    return [
        _planned(access.users.get(name) or SourceUser(name), by_user[name], namespace)
        for name in sorted(by_user)
        if name
    ]


def _planned(user: SourceUser, rules: Iterable[SourceRule], namespace: str) -> PlannedUser:
    notes: list[str] = []
    known: list[_Rule] = []
    for rule in rules:
        try:
            known.append(_read(rule, namespace))
        except ValueError as bad:
            notes.append(f"left out: {_shown(rule)}: {bad}")
            if not rule.allows and not rule.resource.lower().startswith(_OF_OPERATORS):
                notes.append("no policy was made: it would allow what the source denies")
                return PlannedUser(user, (), tuple(notes))
    allowing = [each for each in known if each.rule.allows]
    policies: dict[PlannedPolicy, None] = {}
    for each in known:
        if not each.rule.allows:
            meeting = [other for other in allowing if _meet(each, other)]
            if all(_comes_first(other, each) for other in meeting):
                # It takes nothing away.
                continue
            notes += [
                f"{each.rule.resource} is denied, and so is {other.rule.resource}, which the "
                "source allows: a policy that denies wins here"
                for other in meeting
                if _comes_first(other, each)
            ]
        policies[each.policy] = None
    return PlannedUser(user, tuple(policies), tuple(notes))


def _read(rule: SourceRule, namespace: str) -> _Rule:
    """Return a rule with its pattern.

    Raises:
        ValueError: it says something that cannot be said here.
    """
    resource = _resource(rule.resource, namespace)
    actions = frozenset(str(action) for action in parse_actions(rule.actions))
    policy = PlannedPolicy(resource, actions, rule.allows, _sources(rule.sources))
    return _Rule(rule, parse_resource(resource), policy)


def _shown(rule: SourceRule) -> str:
    return (
        f"{'allow' if rule.allows else 'deny'} {', '.join(sorted(rule.actions))} on {rule.resource}"
    )


def _resource(text: str, namespace: str) -> str:
    """Return a resource in this cluster's words.

    Raises:
        ValueError: its kind has another meaning here.
    """
    kind, colon, name = text.partition(":")
    word = kind.lower()
    if text in ("*", "*:*") or word == "any":
        return f"namespace:{namespace}" if namespace else "*"
    if word not in _IN_NAMESPACES:
        raise ValueError("operators have other rights here (strata policy create --help)")
    return f"{word}:{namespace}/{name}" if namespace else f"{word}{colon}{name}"


def _sources(texts: Iterable[str]) -> frozenset[str]:
    """Return networks; RocketMQ also writes `10.1.*.*`.

    Raises:
        ValueError: a text is no address.
    """
    found = set()
    for text in texts:
        if text in ("*", "*.*.*.*"):
            return frozenset()
        if _WILDCARD.fullmatch(text):
            parts = [part for part in text.split(".") if part != "*"]
            whole = ".".join([*parts, *["0"] * (4 - len(parts))])
            text = f"{whole}/{8 * len(parts)}"
        found.add(str(ipaddress.ip_network(text, strict=False)))
    return frozenset(found)


def _meet(left: _Rule, right: _Rule) -> bool:
    """Whether both may have a say in one request."""
    actions = left.policy.actions, right.policy.actions
    share = bool(actions[0] & actions[1]) or any(_ALL in words for words in actions)
    return share and (_covers(left.pattern, right.pattern) or _covers(right.pattern, left.pattern))


def _covers(wide: ResourcePattern, narrow: ResourcePattern) -> bool:
    """Whether each resource of a pattern is one of another pattern's."""
    if wide.kind is ResourceKind.ANY:
        return True
    if wide.kind is not narrow.kind or wide.namespace != narrow.namespace:
        return False
    if not wide.name_is_prefix:
        return not narrow.name_is_prefix and wide.name == narrow.name
    return narrow.name.startswith(wide.name)


def _comes_first(one: _Rule, other: _Rule) -> bool:
    """Whether RocketMQ asks one rule before another; both match."""
    return _rank(one) < _rank(other)


def _rank(each: _Rule) -> tuple[bool, bool, bool, int, bool]:
    pattern = each.pattern
    return (
        each.rule.is_default,
        pattern.kind is ResourceKind.ANY,
        pattern.name_is_prefix,
        -len(pattern.name),
        each.rule.allows,
    )
