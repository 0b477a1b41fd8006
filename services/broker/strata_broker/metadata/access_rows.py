"""Users, policies and cluster keys as a broker holds them: policies are parsed once, as they come.

A policy that this version cannot read fails safe: it allows nothing, and denies everything if it is
not plainly one that allows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from strata.meta.v1 import meta_pb2
from strata_metadata.tables import copy_row, put_row
from strata_mq.access import (
    Policy,
    PolicyDecision,
    parse_actions,
    parse_resource,
    parse_source,
)
from strata_runtime.logs import get_logger

_VALID_KEYS = 2

_NO_POLICIES: Mapping[int, Policy] = {}


class AccessRows:
    """See the module docstring. A reader that derives values from the rows compares `version`.

    Attributes:
        version: raised by each change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._users: dict[str, meta_pb2.User] = {}
        self._policies: dict[int, meta_pb2.Policy] = {}
        # user -> policy id -> the policy
        self._parsed: dict[str, dict[int, Policy]] = {}
        self._cluster_keys: dict[int, meta_pb2.ClusterKey] = {}

    def users(self) -> Collection[meta_pb2.User]:
        """Return all users, with their secrets, in no order."""
        return self._users.values()

    def user(self, name: str) -> meta_pb2.User | None:
        """Find a user by its name, which is its access key."""
        return self._users.get(name)

    def policies(self) -> Collection[meta_pb2.Policy]:
        """Return all policies as they are stored, in no order."""
        return self._policies.values()

    def policies_of(self, user: str) -> Collection[Policy]:
        """Return the policies of a user, in no order."""
        return self._parsed.get(user, _NO_POLICIES).values()

    def cluster_keys(self) -> Sequence[meta_pb2.ClusterKey]:
        """Return the valid cluster keys, the newest first."""
        newest = sorted(self._cluster_keys, reverse=True)[:_VALID_KEYS]
        return [self._cluster_keys[key_id] for key_id in newest]

    def take(self, change: meta_pb2.Change) -> None:
        """Take in the row of a user, a policy or a cluster key; nothing for other rows."""
        match change.WhichOneof("row"):
            case "user":
                put_row(self._users, change.user.name, change.user, deleted=change.deleted)
            case "policy":
                self._take_policy(change.policy, deleted=change.deleted)
            case "cluster_key":
                key = change.cluster_key
                put_row(self._cluster_keys, key.key_id, key, deleted=change.deleted)
            case _:
                return
        self.version += 1

    def replaces(self, others: AccessRows) -> None:
        """Replace other rows: what was derived from them is stale."""
        self.version += others.version + 1

    def _take_policy(self, policy: meta_pb2.Policy, *, deleted: bool) -> None:
        before = self._policies.pop(policy.policy_id, None)
        if before is not None:
            of_user = self._parsed[before.user]
            del of_user[before.policy_id]
            if not of_user:
                del self._parsed[before.user]
        if not deleted:
            self._policies[policy.policy_id] = copy_row(policy)
            self._parsed.setdefault(policy.user, {})[policy.policy_id] = parse_policy(policy)


def parse_policy(row: meta_pb2.Policy) -> Policy:
    """Read a policy's row; a row of a newer version denies, or says nothing."""
    allows = row.decision == meta_pb2.POLICY_DECISION_ALLOW
    decision = PolicyDecision.ALLOW if allows else PolicyDecision.DENY
    try:
        return Policy(
            row.policy_id,
            parse_resource(row.resource),
            parse_actions(row.actions),
            decision,
            tuple(parse_source(source) for source in row.sources),
        )
    except ValueError as error:
        get_logger("access").warning(
            "this version cannot read a policy",
            policy_id=row.policy_id,
            user=row.user,
            effect="allows nothing" if allows else "denies everything",
            error=str(error),
        )
    if allows:
        return Policy(row.policy_id, parse_resource("*"), frozenset(), decision)
    return Policy(row.policy_id, parse_resource("*"), parse_actions(["all"]), decision)
