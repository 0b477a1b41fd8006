"""Keys of test users: headers as the official clients sign them, and rows of users and policies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from strata.meta.v1 import meta_pb2
from strata_mq.access import date_of, sign

CLUSTER_KEY = bytes(range(32))
KEY_MADE_MS = 1_700_000_000_000


def secret_of(user: str) -> str:
    """Return the secret key of a test user."""
    return f"secret of {user}"


def signed(
    user: str, secret: str | None = None, date: datetime | None = None, token: str = ""
) -> dict[str, str]:
    """Return the headers of a call.

    Args:
        user: whose access key is named.
        secret: None: the user's own.
        date: None: now.
        token: of a session; empty: none.
    """
    written = date_of(date or datetime.now(UTC))
    headers = {
        "x-mq-date-time": written,
        "authorization": sign(user, secret_of(user) if secret is None else secret, written),
    }
    return headers | ({"x-mq-session-token": token} if token else {})


def user_row(name: str, **fields: object) -> meta_pb2.Change:
    """Return the row of a test user."""
    row = {"secret_key": secret_of(name)} | fields
    return meta_pb2.Change(user=meta_pb2.User(name=name, **row))  # type: ignore[arg-type]


def policy_row(
    policy_id: int,
    user: str,
    resource: str,
    *actions: str,
    allow: bool = True,
    sources: Sequence[str] = (),
) -> meta_pb2.Change:
    """Return the row of a policy."""
    decision = meta_pb2.POLICY_DECISION_ALLOW if allow else meta_pb2.POLICY_DECISION_DENY
    return meta_pb2.Change(
        policy=meta_pb2.Policy(
            policy_id=policy_id,
            user=user,
            resource=resource,
            actions=actions,
            decision=decision,
            sources=sources,
        )
    )


def cluster_key_row(key_id: int = 1, secret: bytes = CLUSTER_KEY) -> meta_pb2.Change:
    """Return the row of a cluster key that is old enough to sign."""
    key = meta_pb2.ClusterKey(key_id=key_id, secret=secret, created_at_ms=KEY_MADE_MS + key_id)
    return meta_pb2.Change(cluster_key=key)
