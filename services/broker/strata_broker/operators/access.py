"""Operators' requests about users and policies; reads come from this broker's metadata.

No method returns a secret but those that make one. RocketMQ's own RPCs for users and ACLs can call
the same methods.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_broker.base.access_config import AccessControlSection
from strata_broker.base.config import BrokerConfig
from strata_broker.metadata.metadata import MetadataView
from strata_metadata.client import MetadataClient
from strata_metadata.errors import MetaRefused
from strata_mq.access import (
    Action,
    Resource,
    ResourceKind,
    Session,
    decide,
    issue_session,
    new_secret_key,
    parse_actions,
    parse_resource,
)
from strata_runtime.clock import Clock


class TestedAccess(NamedTuple):
    """Whether a user may do something, why, and the policy that decides (None: none does)."""

    allowed: bool
    reason: str
    policy: meta_pb2.Policy | None = None


class AccessOperations:
    """See the module docstring.

    Args:
        view: of the metadata.
        meta: to the nameservers.
        config: of the broker.
        clock: ends of sessions.
    """

    def __init__(
        self, view: MetadataView, meta: MetadataClient, *, config: BrokerConfig, clock: Clock
    ) -> None:
        self._view = view
        self._meta = meta
        self._config: AccessControlSection = config.access_control
        self._timeout_s = config.metadata.call_timeout_ms / 1000
        self._clock = clock

    # Users --------------------------------------------------------------------------------------

    async def create_user(self, name: str, secret_key: str, *, admin: bool) -> meta_pb2.User:
        """Make a user and return its row, with its secret key.

        Args:
            name: of the user, which is its access key.
            secret_key: empty: one is made.
            admin: whether the user may do everything.

        Raises:
            MetaRefused: the name is taken, a key cannot be used, or there are too many users.
            AngeliaError: no nameserver answers; so for every change here.
        """
        # Made here: a try without an answer is repeated, and means the same user then.
        user = meta_pb2.User(
            name=name, secret_key=secret_key or new_secret_key(secrets.token_bytes), admin=admin
        )
        request = meta_pb2.CreateUserRequest(user=user)
        response = await self._meta.call("CreateUser", request, meta_pb2.CreateUserResponse)
        await self._seen(response.user.revision)
        return response.user

    async def update_user(self, user: meta_pb2.User, update_mask: Sequence[str]) -> meta_pb2.User:
        """Change what the mask names and return the row.

        Raises:
            MetaRefused: there is no such user, it has another revision, or it is the last admin.
        """
        return await self._update(meta_pb2.UpdateUserRequest(user=user, update_mask=update_mask))

    async def rotate_key(
        self, name: str, secret_key: str, previous_valid_ms: int | None
    ) -> meta_pb2.User:
        """Give a user a new secret key and return the row, with that key.

        Args:
            name: of the user.
            secret_key: empty: one is made.
            previous_valid_ms: how long the former key stays valid; None: as configured.

        Raises:
            MetaRefused: there is no such user, or the key cannot be used.
        """
        if previous_valid_ms is None:
            previous_valid_ms = self._config.previous_key_valid_ms
        # Made here: a repeat that made another one would void the key that clients use.
        user = meta_pb2.User(
            name=name, secret_key=secret_key or new_secret_key(secrets.token_bytes)
        )
        return await self._update(
            meta_pb2.UpdateUserRequest(
                user=user,
                update_mask=["secret_key"],
                previous_valid_ms=previous_valid_ms,
            )
        )

    async def delete_user(self, name: str) -> None:
        """Delete a user with its policies.

        Raises:
            MetaRefused: there is no such user, or it is the last admin.
        """
        request = meta_pb2.DeleteUserRequest(name=name)
        response = await self._meta.call("DeleteUser", request, meta_pb2.DeleteUserResponse)
        await self._seen(response.revision)

    def user(self, name: str) -> meta_pb2.User:
        """Return a user's row, with its secrets.

        Raises:
            MetaRefused: NOT_FOUND.
        """
        user = self._view.access.user(name)
        if user is None:
            raise MetaRefused(meta_pb2.META_OUTCOME_NOT_FOUND, f"user {name} does not exist")
        return user

    def users(self) -> Collection[meta_pb2.User]:
        """Return all users, with their secrets, in no order."""
        return self._view.access.users()

    def create_session(self, name: str, duration_ms: int) -> Session:
        """Make temporary keys of a user.

        Args:
            name: of the user.
            duration_ms: how long they are valid; 0: as configured.

        Raises:
            MetaRefused: there is no such user, it is disabled, the time is too long, or the
                cluster has no key yet.
        """
        if self.user(name).disabled:
            raise MetaRefused(meta_pb2.META_OUTCOME_CONFLICT, f"user {name} is disabled")
        longest_ms = self._config.max_session_ms
        if duration_ms > longest_ms:
            raise _invalid(
                f"temporary keys for {duration_ms} ms; at most {longest_ms} ms are allowed "
                "(access_control.max_session_ms)"
            )
        keys = self._view.access.cluster_keys()
        if not keys:
            raise MetaRefused(
                meta_pb2.META_OUTCOME_CONFLICT,
                "the cluster has no key to sign with yet: is every node of this version?",
            )
        duration_ms = duration_ms or min(self._config.default_session_ms, longest_ms)
        ends_ms = self._clock.wall_ms() + duration_ms
        return issue_session(name, ends_ms, keys[0].key_id, keys[0].secret)

    # Policies -----------------------------------------------------------------------------------

    async def create_policy(self, policy: meta_pb2.Policy) -> meta_pb2.Policy:
        """Make a policy and return its row.

        Raises:
            MetaRefused: there is no such user, a text is wrong, or there are too many policies.
        """
        request = meta_pb2.CreatePolicyRequest(policy=policy)
        response = await self._meta.call("CreatePolicy", request, meta_pb2.CreatePolicyResponse)
        await self._seen(response.policy.revision)
        return response.policy

    async def delete_policy(self, policy_id: int) -> None:
        """Delete a policy.

        Raises:
            MetaRefused: there is no such policy.
        """
        request = meta_pb2.DeletePolicyRequest(policy_id=policy_id)
        response = await self._meta.call("DeletePolicy", request, meta_pb2.DeletePolicyResponse)
        await self._seen(response.revision)

    def policies(self, user: str = "") -> list[meta_pb2.Policy]:
        """Return the policies of a user (empty: of all users), in no order."""
        return [row for row in self._view.access.policies() if user in ("", row.user)]

    def test(self, user: str, resource: str, action: str, source: str) -> TestedAccess:
        """Return whether a user may do something, without doing it.

        Args:
            user: its name.
            resource: one resource, `topic:shop/orders`.
            action: one action other than all.
            source: address of the caller; empty: none.

        Raises:
            MetaRefused: there is no such user, or a text is wrong.
        """
        row = self.user(user)
        wanted, word = _one_resource(resource), _one_action(action)
        if row.disabled:
            return TestedAccess(False, f"user {user} is disabled")
        if row.admin:
            return TestedAccess(True, f"user {user} is an admin")
        rows = {policy.policy_id: policy for policy in self.policies(user)}
        verdict = decide(self._view.access.policies_of(user), wanted, word, source)
        policy = rows.get(verdict.policy_id)
        if policy is None:
            return TestedAccess(False, f"no policy of {user} allows {word} on {wanted}")
        says = "allows" if verdict.allowed else "denies"
        return TestedAccess(verdict.allowed, f"policy {policy.policy_id} {says} it", policy)

    # Cluster keys -------------------------------------------------------------------------------

    async def rotate_cluster_key(self) -> int:
        """Make a new cluster key and return its id.

        Raises:
            MetaRefused: a node is of an older version.
        """
        # A try without an answer is repeated: the repeat must not replace the key of the first.
        newest = max((key.key_id for key in self._view.access.cluster_keys()), default=0)
        response = await self._meta.call(
            "RotateClusterKey",
            meta_pb2.RotateClusterKeyRequest(newest_key_id=newest),
            meta_pb2.RotateClusterKeyResponse,
        )
        await self._seen(response.revision)
        return response.key_id

    async def _update(self, request: meta_pb2.UpdateUserRequest) -> meta_pb2.User:
        response = await self._meta.call("UpdateUser", request, meta_pb2.UpdateUserResponse)
        await self._seen(response.user.revision)
        return response.user

    async def _seen(self, revision: int) -> None:
        """Wait until this broker decides on the change."""
        await self._view.wait_for_revision(revision, self._timeout_s)


def _one_resource(text: str) -> Resource:
    try:
        pattern = parse_resource(text)
    except ValueError as error:
        raise _invalid(str(error)) from None
    is_prefix = pattern.name_is_prefix or pattern.namespace_is_prefix
    if is_prefix or pattern.kind is ResourceKind.ANY:
        raise _invalid(f"{text!r}: name one resource, without *")
    return Resource(pattern.kind, pattern.namespace, pattern.name)


def _one_action(text: str) -> Action:
    try:
        (action,) = parse_actions([text])
    except ValueError as error:
        raise _invalid(str(error)) from None
    if action is Action.ALL:
        raise _invalid("name one action, not all")
    return action


def _invalid(reason: str) -> MetaRefused:
    return MetaRefused(meta_pb2.META_OUTCOME_INVALID, reason)
