"""Changes of policies: decided by the metadata leader, in one draft each.

A policy is never changed, only created and deleted, and its id is never given again. Its texts are
those of `strata_mq.access`; they are kept in the form in which every reader understands them.
"""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_mq.access import parse_actions, parse_resource, parse_source
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.drafts.users import stored_user
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import policy_key

_MAX_RESOURCE_LENGTH = 512
_MAX_SOURCES = 64
_DECISIONS = (meta_pb2.POLICY_DECISION_ALLOW, meta_pb2.POLICY_DECISION_DENY)


def create_policy(
    draft: Draft, wanted: meta_pb2.Policy, config: NameserverConfig
) -> meta_pb2.Policy:
    """Make a policy of a user and return its row.

    Raises:
        MetaRefused: NOT_FOUND: there is no such user; INVALID or LIMIT_REACHED.
    """
    stored_user(draft, wanted.user)
    policy = _checked(wanted)
    policy_ids = draft.access.policies_of(policy.user)
    for policy_id in policy_ids:
        known = meta_pb2.Policy.FromString(draft.get(policy_key(policy_id)) or b"")
        if _says(known) == _says(policy):
            # The answer of a first try was lost. A second row would change nothing, and would stay
            # when somebody deletes the one that was answered.
            return known
    of_user = len(policy_ids)
    if of_user >= config.max_policies_per_user:
        raise _limit_reached(
            f"user {policy.user} has {of_user} policies already (nameserver.max_policies_per_user)"
        )
    if draft.counters.policy_count >= config.max_policies:
        raise _limit_reached(
            f"there are {config.max_policies} policies already (nameserver.max_policies)"
        )
    # Counters of an older version have no next id.
    policy.policy_id = max(1, draft.counters.next_policy_id)
    draft.counters.next_policy_id = policy.policy_id + 1
    draft.counters.policy_count += 1
    policy.created_at_ms = draft.now_ms
    draft.put(policy)
    return policy


def delete_policy(draft: Draft, policy_id: int) -> None:
    """Delete a policy.

    Raises:
        MetaRefused: NOT_FOUND.
    """
    if draft.get(policy_key(policy_id)) is None:
        raise MetaRefused(meta_pb2.META_OUTCOME_NOT_FOUND, f"policy {policy_id} does not exist")
    draft.delete(meta_pb2.Policy(policy_id=policy_id))
    draft.counters.policy_count -= 1


def _checked(wanted: meta_pb2.Policy) -> meta_pb2.Policy:
    """Return a policy with its texts in their usual form.

    Raises:
        MetaRefused: INVALID: a text is none that policies may have.
    """
    if wanted.decision not in _DECISIONS:
        raise invalid("a policy allows or denies: decision is missing")
    if len(wanted.resource) > _MAX_RESOURCE_LENGTH:
        raise invalid(
            f"the resource has {len(wanted.resource)} characters; {_MAX_RESOURCE_LENGTH} are "
            "allowed"
        )
    if len(wanted.sources) > _MAX_SOURCES:
        raise invalid(f"there are {len(wanted.sources)} sources; {_MAX_SOURCES} are allowed")
    try:
        pattern = parse_resource(wanted.resource)
        actions = parse_actions(wanted.actions)
        sources = [str(parse_source(text)) for text in wanted.sources]
    except ValueError as error:
        raise invalid(str(error)) from None
    _, colon, name = wanted.resource.partition(":")
    return meta_pb2.Policy(
        user=wanted.user,
        resource=f"{pattern.kind}{colon}{name}",
        actions=sorted(actions),
        decision=wanted.decision,
        sources=sources,
    )


def _says(policy: meta_pb2.Policy) -> tuple[object, ...]:
    sources = frozenset(policy.sources)
    return policy.resource, frozenset(policy.actions), policy.decision, sources


def _limit_reached(reason: str) -> MetaRefused:
    return MetaRefused(meta_pb2.META_OUTCOME_LIMIT_REACHED, reason)
