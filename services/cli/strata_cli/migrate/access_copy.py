"""Makes planned users and policies at the target; what is there already stays as it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient, CallFailed
from strata_cli.migrate.access_plan import PlannedPolicy, PlannedUser
from strata_mq.access import parse_source

_PAGE = 1_000
_DECISIONS = {True: meta_pb2.POLICY_DECISION_ALLOW, False: meta_pb2.POLICY_DECISION_DENY}


@dataclass(slots=True)
class CopiedUser:
    """A user after it was copied, or as it would be.

    Attributes:
        plan: what was wanted.
        existed: the target had the user; its keys and flags were left alone.
        policies: made, or to be made.
        kept: policies that the target had already.
        secret_key: that was made, because the source does not tell its own; "": none was made.
        problem: why the user or one of its policies was not made.
        notes: of a user that existed, and is another one at the source.
    """

    plan: PlannedUser
    existed: bool = False
    policies: list[PlannedPolicy] = field(default_factory=list)
    kept: int = 0
    secret_key: str = ""
    problem: str = ""
    notes: list[str] = field(default_factory=list)


def copy_access(
    client: AdminClient, planned: Sequence[PlannedUser], *, is_dry: bool
) -> list[CopiedUser]:
    """Make the users and policies that are missing; return what was done.

    Args:
        client: of an admin of the target.
        planned: users with their policies.
        is_dry: make nothing.

    Raises:
        CliError: the target cannot be asked.
    """
    users, policies = _users(client), _policies(client)
    copied = []
    for plan in planned:
        present = users.get(plan.user.name)
        done = CopiedUser(plan, present is not None, notes=_differences(plan, present))
        known = policies.get(plan.user.name, set())
        done.policies = [policy for policy in plan.policies if policy not in known]
        done.kept = len(plan.policies) - len(done.policies)
        if not is_dry:
            _make(client, done)
        copied.append(done)
    return copied


def _make(client: AdminClient, done: CopiedUser) -> None:
    """Make a user and its policies; those that deny come first."""
    wanted, done.policies = sorted(done.policies, key=lambda each: each.allows), []
    try:
        if not done.existed:
            _make_user(client, done)
        for policy in wanted:
            client.call(client.admin.CreatePolicy, _request(done.plan.user.name, policy))
            done.policies.append(policy)
    except CallFailed as failure:
        done.problem = str(failure)


def _make_user(client: AdminClient, done: CopiedUser) -> None:
    """Make a user; a disabled one has no rights at any moment, whatever call fails."""
    user = done.plan.user
    request = admin_pb2.CreateUserRequest(
        name=user.name, admin=user.is_admin and not user.is_disabled, secret_key=user.secret_key
    )
    response = client.call(client.admin.CreateUser, request)
    if not user.secret_key:
        done.secret_key = response.secret_key
    if user.is_disabled:
        change = admin_pb2.UpdateUserRequest(
            user=admin_pb2.User(name=user.name, disabled=True, admin=user.is_admin),
            update_mask=["disabled", "admin"],
        )
        client.call(client.admin.UpdateUser, change)


def _request(user: str, policy: PlannedPolicy) -> admin_pb2.CreatePolicyRequest:
    row = meta_pb2.Policy(
        user=user,
        resource=policy.resource,
        actions=sorted(policy.actions),
        decision=_DECISIONS[policy.allows],
        sources=sorted(policy.sources),
    )
    return admin_pb2.CreatePolicyRequest(policy=row)


def _differences(plan: PlannedUser, present: admin_pb2.User | None) -> list[str]:
    if present is None:
        return []
    flags = (
        ("an admin", plan.user.is_admin, present.admin),
        ("disabled", plan.user.is_disabled, present.disabled),
    )
    return [
        f"it is {'' if there else 'not '}{name} at the source, and {'' if here else 'not '}here"
        for name, there, here in flags
        if there != here
    ]


def _users(client: AdminClient) -> Mapping[str, admin_pb2.User]:
    users: dict[str, admin_pb2.User] = {}
    request = admin_pb2.ListUsersRequest(page_size=_PAGE)
    while True:
        response = client.call(client.admin.ListUsers, request)
        users.update((user.name, user) for user in response.users)
        if not response.next_page_token:
            return users
        request.page_token = response.next_page_token


def _policies(client: AdminClient) -> Mapping[str, set[PlannedPolicy]]:
    """Return the policies of the target by user."""
    found: defaultdict[str, set[PlannedPolicy]] = defaultdict(set)
    request = admin_pb2.ListPoliciesRequest(page_size=_PAGE)
    while True:
        response = client.call(client.admin.ListPolicies, request)
        for policy in response.policies:
            found[policy.user].add(
                PlannedPolicy(
                    policy.resource,
                    frozenset(policy.actions),
                    policy.decision == meta_pb2.POLICY_DECISION_ALLOW,
                    frozenset(str(parse_source(source)) for source in policy.sources),
                )
            )
        if not response.next_page_token:
            return found
        request.page_token = response.next_page_token
