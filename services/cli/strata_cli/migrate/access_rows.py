"""Users and their rights as RocketMQ has them: ACL 2.0 of a broker, ACL 1.0 in plain_acl.yml.

Both become the same values: users, and rules in the words of ACL 2.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_cli.errors import CliError, UsageError

_HIDDEN = frozenset(("", "***"))
_SUBJECT = "User:"
_BOTH = frozenset(("pub", "sub"))
# Words of ACL 1.0; what is missing is DENY.
_PERMISSIONS = {
    "": frozenset[str](),
    "DENY": frozenset[str](),
    "PUB": frozenset(("pub",)),
    "SUB": frozenset(("sub",)),
    "PUB|SUB": _BOTH,
    "SUB|PUB": _BOTH,
    "ANY": _BOTH,
}


@dataclass(frozen=True, slots=True)
class SourceUser:
    """A user of the source.

    Attributes:
        name: which is its access key.
        secret_key: "": the source does not tell it.
        is_admin: a super user.
        is_disabled: whether it may do nothing.
    """

    name: str
    secret_key: str = ""
    is_admin: bool = False
    is_disabled: bool = False

    def __repr__(self) -> str:
        """Return the user without its secret key."""
        return f"SourceUser({self.name!r}, admin={self.is_admin}, disabled={self.is_disabled})"


@dataclass(frozen=True, slots=True)
class SourceRule:
    """A right of a user of the source, or the lack of it.

    Attributes:
        user: name of the user.
        resource: as in ACL 2.0: `Topic:orders*`.
        actions: lower-case words.
        allows: whether it is granted.
        sources: addresses that it holds for; none: for all.
        is_default: of the policy type Default, which counts where no other rule matches.
    """

    user: str
    resource: str
    actions: frozenset[str]
    allows: bool = True
    sources: tuple[str, ...] = ()
    is_default: bool = False


@dataclass(slots=True)
class SourceAccess:
    """All users of a source, their rules, and what a person should know.

    Attributes:
        users: by name.
        rules: of all users.
        notes: of facts that have no counterpart.
    """

    users: dict[str, SourceUser] = field(default_factory=dict)
    rules: list[SourceRule] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, other: SourceAccess, where: str) -> None:
        """Take in what another broker or file has; what is known counts.

        Args:
            other: its users and rules.
            where: name of it, for notes.
        """
        for name, user in other.users.items():
            known = self.users.setdefault(name, user)
            if known != user:
                self.notes.append(f"user {name} differs at {where}: the first one counts")
        known_rules = set(self.rules)
        self.rules += [rule for rule in other.rules if rule not in known_rules]
        self.notes += other.notes


def users_of(data: bytes) -> list[SourceUser]:
    """Return the users in the answer to a list of users.

    Raises:
        CliError: it cannot be read.
    """
    return [
        SourceUser(
            str(row.get("username", "")),
            "" if (secret := str(row.get("password") or "")) in _HIDDEN else secret,
            str(row.get("userType", "")).lower() == "super",
            str(row.get("userStatus", "")).lower() == "disable",
        )
        for row in _rows(data, "the list of users")
    ]


def rules_of(data: bytes) -> list[SourceRule]:
    """Return the rules in the answer to a list of ACLs.

    Raises:
        CliError: it cannot be read.
    """
    return [
        SourceRule(
            str(row.get("subject", "")).removeprefix(_SUBJECT),
            str(entry.get("resource", "")),
            frozenset(str(word).lower() for word in entry.get("actions") or ()),
            str(entry.get("decision", "")).lower() == "allow",
            tuple(str(source) for source in entry.get("sourceIps") or ()),
            str(policy.get("policyType", "")).lower() == "default",
        )
        for row in _rows(data, "the list of ACLs")
        for policy in row.get("policies") or ()
        for entry in policy.get("entries") or ()
    ]


def plain_access(text: str) -> SourceAccess:
    """Return what a file plain_acl.yml says.

    A permission of one topic takes the place of the default: what the default grants beyond it is
    denied.

    Raises:
        UsageError: it is no such file.
    """
    found = SourceAccess()
    document = read_yaml(text)
    if not isinstance(document.get("accounts"), list):
        raise UsageError("a file of ACL 1.0 has the list accounts")
    if document.get("globalWhiteRemoteAddresses"):
        found.notes.append(
            "globalWhiteRemoteAddresses: these callers need no keys at the source; here they do"
        )
    for row in document["accounts"]:
        if not isinstance(row, dict) or not row.get("accessKey"):
            raise UsageError("an account has an accessKey")
        name = str(row["accessKey"])
        found.users[name] = SourceUser(
            name, str(row.get("secretKey") or ""), row.get("admin") is True
        )
        if row.get("whiteRemoteAddress"):
            found.notes.append(
                f"user {name}: whiteRemoteAddress lets callers in without a signature at the "
                "source; here they sign"
            )
        found.rules += _plain_rules(name, "Topic", row, "defaultTopicPerm", "topicPerms", _BOTH)
        only_sub = frozenset(("sub",))
        found.rules += _plain_rules(name, "Group", row, "defaultGroupPerm", "groupPerms", only_sub)
    return found


def read_yaml(text: str) -> Mapping[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises:
        UsageError: it is none.
    """
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError:
        # Its text would show lines of the file, and so secrets.
        raise UsageError("the file is not YAML") from None
    if not isinstance(document, dict):
        raise UsageError("the file is no YAML mapping")
    return document


def _plain_rules(
    user: str,
    kind: str,
    row: Mapping[str, Any],
    default: str,
    named: str,
    possible: frozenset[str],
) -> Iterable[SourceRule]:
    """Yield the rules for topics or for groups; a producer's group is no resource here."""
    by_default = _permission(row.get(default)) & possible
    if by_default:
        yield SourceRule(user, f"{kind}:*", by_default)
    entries: Sequence[object] = row.get(named) or ()
    for entry in entries:
        name, equals, word = str(entry).partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{named} of {user}: {entry!r} is no NAME=PERMISSION")
        granted = _permission(word) & possible
        resource = f"{kind}:{name.strip()}"
        if granted:
            yield SourceRule(user, resource, granted)
        if by_default - granted:
            yield SourceRule(user, resource, by_default - granted, allows=False)


def _permission(value: object) -> frozenset[str]:
    text = "" if value is None else str(value).strip().upper().replace(" ", "")
    if text not in _PERMISSIONS:
        raise UsageError(f"{text!r} is no permission: DENY, PUB, SUB or PUB|SUB")
    return _PERMISSIONS[text]


def _rows(data: bytes, what: str) -> list[dict[str, Any]]:
    try:
        rows = json.loads(data.decode(errors="replace") or "[]") or []
    except ValueError as error:
        raise CliError(f"{what} cannot be read: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CliError(f"{what} is no list of JSON objects")
    return rows
