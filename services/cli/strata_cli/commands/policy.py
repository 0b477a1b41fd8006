"""The commands of `strata policy`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.access_views import policy_view
from strata_cli.client import AdminClient, connect
from strata_cli.confirming import Yes, confirm
from strata_cli.errors import CliError
from strata_cli.options import COMMON, Common
from strata_cli.output import show
from strata_cli.views import View

User = Annotated[str, Parameter(help="Name of the user.")]
PolicyId = Annotated[int, Parameter(help="Number of the policy.")]
Resource = Annotated[
    str,
    Parameter(
        help="topic:NAME, group:NAME, table:NAME, also with NAMESPACE/ before the name; "
        "namespace:NAME, cluster:NAME. Without NAMESPACE/ it is --namespace."
    ),
]

PAGE_SIZE = 1_000

_IN_NAMESPACES = ("topic", "group", "table")
_DECISIONS = {
    "allow": meta_pb2.POLICY_DECISION_ALLOW,
    "deny": meta_pb2.POLICY_DECISION_DENY,
}

app = App(name="policy", help="Policies: rights of users.")


@app.command
def create(
    user: User,
    /,
    *,
    resource: Resource,
    actions: str,
    decision: Literal["allow", "deny"] = "allow",
    source: Annotated[list[str] | None, Parameter(negative="")] = None,
    common: Common = COMMON,
) -> None:
    """Create a policy of a user. A policy that denies wins over all that allow.

    A name may end with *: it is a prefix then. * alone means everything.

    For instance: strata policy create shop --resource topic:orders* --actions pub,sub

    Args:
        actions: Any of pub, sub, create, update, delete, get, list, all, separated by commas.
        decision: Whether the user may do it.
        source: Address or network (CIDR) that the user must call from; may be repeated.
    """
    policy = meta_pb2.Policy(
        user=user,
        resource=_in_namespace(resource, common.namespace),
        actions=[word.strip() for word in actions.split(",") if word.strip()],
        decision=_DECISIONS[decision],
        sources=source or (),
    )
    with connect(common) as client:
        request = admin_pb2.CreatePolicyRequest(policy=policy)
        response = client.call(client.admin.CreatePolicy, request)
    show(policy_view(response.policy), common)


@app.command(name="list")
def list_(*, user: User = "", common: Common = COMMON) -> None:
    """List policies, of one user or of all.

    For instance: strata policy list --user shop -o json
    """
    with connect(common) as client:
        policies = _policies(client, user)
    show({"policies": policies}, common, rows="policies")


@app.command(name="show")
def show_(policy_id: PolicyId, /, *, common: Common = COMMON) -> None:
    """Show a policy.

    For instance: strata policy show 7
    """
    with connect(common) as client:
        found = [view for view in _policies(client, "") if view["policy_id"] == policy_id]
    if not found:
        raise CliError(f"policy {policy_id} does not exist", "not_found")
    show(found[0], common)


@app.command
def delete(policy_id: PolicyId, /, *, yes: Yes = False, common: Common = COMMON) -> None:
    """Delete a policy.

    For instance: strata policy delete 7 --yes
    """
    confirm(f"Policy {policy_id} is deleted", yes=yes)
    with connect(common) as client:
        request = admin_pb2.DeletePolicyRequest(policy_id=policy_id)
        client.call(client.admin.DeletePolicy, request)
    show({"deleted": policy_id}, common)


@app.command
def test(
    user: User,
    /,
    *,
    resource: Resource,
    action: str,
    source: str = "",
    common: Common = COMMON,
) -> None:
    """Tell whether a user may do something, and which policy decides; nothing is done.

    For instance: strata policy test shop --resource topic:orders --action pub --source 10.0.0.7

    Args:
        action: One of pub, sub, create, update, delete, get, list.
        source: Address that the user calls from; default: none that a policy with sources knows.
    """
    request = admin_pb2.TestPolicyRequest(
        user=user,
        resource=_in_namespace(resource, common.namespace),
        action=action,
        source=source,
    )
    with connect(common) as client:
        response = client.call(client.admin.TestPolicy, request)
    decides = response.HasField("policy")
    result = {
        "allowed": response.allowed,
        "reason": response.reason,
        "policy_id": response.policy.policy_id if decides else None,
        "policy": policy_view(response.policy) if decides else None,
    }
    show(result, common)


def _policies(client: AdminClient, user: str) -> list[View]:
    request = admin_pb2.ListPoliciesRequest(user=user, page_size=PAGE_SIZE)
    policies: list[View] = []
    while True:
        response = client.call(client.admin.ListPolicies, request)
        policies.extend(map(policy_view, response.policies))
        if not response.next_page_token:
            return policies
        request.page_token = response.next_page_token


def _in_namespace(resource: str, namespace: str) -> str:
    """Return a resource in the namespace of the command, unless it names one itself."""
    kind, colon, name = resource.partition(":")
    if not namespace or not colon or "/" in name or kind.lower() not in _IN_NAMESPACES:
        return resource
    return f"{kind}:{namespace}/{name}"
