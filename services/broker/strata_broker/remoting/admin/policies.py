"""Policies as RocketMQ's tools see them: the ACL of each user, shown and listed.

Policies are not changed here: a policy has an id, and an ACL names its resource only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.answers import with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_remoting import AdminCode, RemotingCommand

_PAGE = 10_000
_SUBJECT = "User:"
_KIND = "Custom"


class AdminPolicies:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
    """

    def __init__(self, face: OperatorFace) -> None:
        self._face = face

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {AdminCode.AUTH_GET_ACL: self.one, AdminCode.AUTH_LIST_ACL: self.every}

    async def one(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the ACL of a user; without policies, if it has none.

        Raises:
            RemotingRefusal: the call was refused.
        """
        subject = exchange.request.text("subject")
        policies = await self._policies(exchange, subject.removeprefix(_SUBJECT))
        return with_json(exchange.request, shown_acl(subject, policies))

    async def every(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the ACLs whose subjects and resources have texts in them.

        Raises:
            RemotingRefusal: the call was refused.
        """
        subject = exchange.request.text("subjectFilter", "")
        resource = exchange.request.text("resourceFilter", "")
        by_user: dict[str, list[meta_pb2.Policy]] = {}
        for policy in await self._policies(exchange, ""):
            is_wanted = subject in _SUBJECT + policy.user
            if is_wanted and resource in shown_resource(policy.resource):
                by_user.setdefault(policy.user, []).append(policy)
        shown = [shown_acl(_SUBJECT + user, own) for user, own in by_user.items()]
        return with_json(exchange.request, shown)

    async def _policies(self, exchange: Exchange, user: str) -> list[meta_pb2.Policy]:
        """Return the policies of a user, or of all."""
        found: list[meta_pb2.Policy] = []
        token = ""
        while True:
            answer = await self._face.call(
                "ListPolicies",
                admin_pb2.ListPoliciesRequest(user=user, page_size=_PAGE, page_token=token),
                admin_pb2.ListPoliciesResponse,
                exchange.caller(),
            )
            found += answer.policies
            token = answer.next_page_token
            if not token:
                return found


def shown_acl(subject: str, policies: Iterable[meta_pb2.Policy]) -> dict[str, object]:
    """Return policies of a subject as tools show them."""
    entries = [
        {
            "actions": [action.capitalize() for action in policy.actions],
            "decision": meta_pb2.PolicyDecision.Name(policy.decision)
            .removeprefix("POLICY_DECISION_")
            .capitalize(),
            "resource": shown_resource(policy.resource),
            "sourceIps": list(policy.sources),
        }
        for policy in policies
    ]
    kinds = [{"entries": entries, "policyType": _KIND}] if entries else []
    return {"policies": kinds, "subject": subject}


def shown_resource(resource: str) -> str:
    """Return a resource with RocketMQ's word for its kind: `Topic:orders*`."""
    kind, separator, name = resource.partition(":")
    return f"{kind.capitalize()}{separator}{name}"
