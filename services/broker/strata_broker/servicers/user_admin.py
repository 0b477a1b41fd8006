"""The users' part of `strata.admin.v1.AdminService`; it translates and decides nothing."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.operators.access import AccessOperations
from strata_broker.servicers.pages import page


class UserAdminServicer:
    """See the module docstring."""

    def __init__(self, operations: AccessOperations) -> None:
        self._operations = operations

    async def create_user(
        self, request: admin_pb2.CreateUserRequest
    ) -> admin_pb2.CreateUserResponse:
        """Make a user."""
        user = await self._operations.create_user(
            request.name, request.secret_key, admin=request.admin
        )
        return admin_pb2.CreateUserResponse(user=shown_user(user), secret_key=user.secret_key)

    async def get_user(self, request: admin_pb2.GetUserRequest) -> admin_pb2.GetUserResponse:
        """Show a user and its policies."""
        user = self._operations.user(request.name)
        policies = sorted(self._operations.policies(user.name), key=_by_id)
        return admin_pb2.GetUserResponse(user=shown_user(user), policies=policies)

    async def list_users(self, request: admin_pb2.ListUsersRequest) -> admin_pb2.ListUsersResponse:
        """List users by name."""
        rows, token = page(
            ((("", user.name), user) for user in self._operations.users()),
            request.page_size,
            request.page_token,
        )
        return admin_pb2.ListUsersResponse(users=map(shown_user, rows), next_page_token=token)

    async def update_user(
        self, request: admin_pb2.UpdateUserRequest
    ) -> admin_pb2.UpdateUserResponse:
        """Change a user."""
        wanted = request.user
        user = meta_pb2.User(
            name=wanted.name,
            admin=wanted.admin,
            disabled=wanted.disabled,
            revision=wanted.revision,
        )
        changed = await self._operations.update_user(user, request.update_mask)
        return admin_pb2.UpdateUserResponse(user=shown_user(changed))

    async def delete_user(
        self, request: admin_pb2.DeleteUserRequest
    ) -> admin_pb2.DeleteUserResponse:
        """Delete a user with its policies."""
        await self._operations.delete_user(request.name)
        return admin_pb2.DeleteUserResponse()

    async def rotate_user_key(
        self, request: admin_pb2.RotateUserKeyRequest
    ) -> admin_pb2.RotateUserKeyResponse:
        """Give a user a new secret key."""
        valid_ms = request.previous_valid_ms if request.HasField("previous_valid_ms") else None
        user = await self._operations.rotate_key(request.name, request.secret_key, valid_ms)
        return admin_pb2.RotateUserKeyResponse(user=shown_user(user), secret_key=user.secret_key)

    async def create_user_session(
        self, request: admin_pb2.CreateUserSessionRequest
    ) -> admin_pb2.CreateUserSessionResponse:
        """Make temporary keys of a user."""
        session = self._operations.create_session(request.name, request.duration_ms)
        return admin_pb2.CreateUserSessionResponse(
            access_key=session.user,
            secret_key=session.secret_key,
            session_token=session.token,
            ends_at_ms=session.ends_ms,
        )

    async def create_policy(
        self, request: admin_pb2.CreatePolicyRequest
    ) -> admin_pb2.CreatePolicyResponse:
        """Make a policy."""
        policy = await self._operations.create_policy(request.policy)
        return admin_pb2.CreatePolicyResponse(policy=policy)

    async def list_policies(
        self, request: admin_pb2.ListPoliciesRequest
    ) -> admin_pb2.ListPoliciesResponse:
        """List policies by user and id."""
        rows, token = page(
            (
                ((row.user, f"{row.policy_id:010}"), row)
                for row in self._operations.policies(request.user)
            ),
            request.page_size,
            request.page_token,
        )
        return admin_pb2.ListPoliciesResponse(policies=rows, next_page_token=token)

    async def delete_policy(
        self, request: admin_pb2.DeletePolicyRequest
    ) -> admin_pb2.DeletePolicyResponse:
        """Delete a policy."""
        await self._operations.delete_policy(request.policy_id)
        return admin_pb2.DeletePolicyResponse()

    async def test_policy(
        self, request: admin_pb2.TestPolicyRequest
    ) -> admin_pb2.TestPolicyResponse:
        """Tell whether a user may do something."""
        tested = self._operations.test(
            request.user, request.resource, request.action, request.source
        )
        return admin_pb2.TestPolicyResponse(
            allowed=tested.allowed, reason=tested.reason, policy=tested.policy
        )

    async def rotate_cluster_key(
        self, request: admin_pb2.RotateClusterKeyRequest
    ) -> admin_pb2.RotateClusterKeyResponse:
        """Make a new cluster key."""
        key_id = await self._operations.rotate_cluster_key()
        return admin_pb2.RotateClusterKeyResponse(key_id=key_id)


def shown_user(user: meta_pb2.User) -> admin_pb2.User:
    """Return what operators see of a user: no secret."""
    return admin_pb2.User(
        name=user.name,
        admin=user.admin,
        disabled=user.disabled,
        previous_valid_until_ms=user.previous_valid_until_ms,
        created_at_ms=user.created_at_ms,
        updated_at_ms=user.updated_at_ms,
        revision=user.revision,
    )


def _by_id(policy: meta_pb2.Policy) -> int:
    return policy.policy_id
