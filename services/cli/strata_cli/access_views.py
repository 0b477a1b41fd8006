"""Users and policies as the command line shows them: never with a secret."""

from __future__ import annotations

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.views import View


def user_view(user: admin_pb2.User) -> View:
    """Return a user; `previous_valid_until_ms` is 0 if no former secret key is valid."""
    return {
        "name": user.name,
        "admin": user.admin,
        "disabled": user.disabled,
        "previous_valid_until_ms": user.previous_valid_until_ms,
        "created_at_ms": user.created_at_ms,
        "updated_at_ms": user.updated_at_ms,
        "revision": user.revision,
    }


def policy_view(policy: meta_pb2.Policy) -> View:
    """Return a policy."""
    name = meta_pb2.PolicyDecision.Name(policy.decision)
    return {
        "policy_id": policy.policy_id,
        "user": policy.user,
        "resource": policy.resource,
        "actions": list(policy.actions),
        "decision": name.removeprefix("POLICY_DECISION_").lower(),
        "sources": list(policy.sources),
        "created_at_ms": policy.created_at_ms,
    }
