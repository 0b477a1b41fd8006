"""Users and policies as operators ask a broker for them: reads, sessions, tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_edge.ports import CallError
from strata_mq.access import read_session
from strata_testing import until
from strata_testing.broker.fake_edge import ADMIN

if TYPE_CHECKING:
    from strata_broker.app import BrokerApp
    from strata_testing.broker.fake_edge import FakeEdge
    from strata_testing.broker.fake_meta import FakeMeta

KEY = bytes(range(32))
ALLOW, DENY = meta_pb2.POLICY_DECISION_ALLOW, meta_pb2.POLICY_DECISION_DENY


@pytest.fixture(autouse=True)
async def rows(meta: FakeMeta, app: BrokerApp) -> None:
    """Four users, two policies and a cluster key."""
    users = [
        meta_pb2.User(name="root", secret_key="planted", admin=True),
        meta_pb2.User(name="shop", secret_key="planted", previous_secret_key="planted"),
        meta_pb2.User(name="gone", secret_key="planted", admin=True, disabled=True),
    ]
    policies = [
        meta_pb2.Policy(
            policy_id=2, user="shop", resource="topic:secret", actions=["all"], decision=DENY
        ),
        meta_pb2.Policy(
            policy_id=1,
            user="shop",
            resource="topic:*",
            actions=["pub"],
            decision=ALLOW,
            sources=["10.0.0.0/8"],
        ),
        meta_pb2.Policy(policy_id=3, user="root", resource="*", actions=["sub"], decision=DENY),
    ]
    meta.put(
        *(meta_pb2.Change(user=user) for user in users),
        *(meta_pb2.Change(policy=policy) for policy in policies),
        meta_pb2.Change(cluster_key=meta_pb2.ClusterKey(key_id=4, secret=KEY)),
    )
    await until(lambda: app.view.access.cluster_keys())


async def call(edge: FakeEdge, rpc: str, **fields: Any) -> Any:
    request = getattr(admin_pb2, f"{rpc}Request")(**fields)
    return await edge.call(ADMIN + rpc, request, getattr(admin_pb2, f"{rpc}Response"))


async def test_reads_carry_no_secret(edge: FakeEdge) -> None:
    """Users by name and policies by id, in pages."""
    first = await call(edge, "ListUsers", page_size=2)
    rest = await call(edge, "ListUsers", page_token=first.next_page_token)
    shown = await call(edge, "GetUser", name="shop")
    assert [user.name for user in (*first.users, *rest.users)] == ["gone", "root", "shop"]
    assert [policy.policy_id for policy in shown.policies] == [1, 2]
    assert "planted" not in f"{first}{rest}{shown}"
    page = await call(edge, "ListPolicies", page_size=1)
    more = await call(edge, "ListPolicies", page_token=page.next_page_token)
    listed = [policy.policy_id for policy in (*page.policies, *more.policies)]
    assert listed == [3, 1, 2]
    of_root = await call(edge, "ListPolicies", user="root")
    assert [policy.policy_id for policy in of_root.policies] == [3]


async def test_temporary_keys_end(edge: FakeEdge, app: BrokerApp) -> None:
    """They are signed with the cluster key and end in time; the longest time is configured."""
    made = await call(edge, "CreateUserSession", name="shop", duration_ms=60_000)
    session = read_session(made.session_token, {4: KEY}.get)
    assert session is not None
    assert (session.user, session.secret_key) == ("shop", made.secret_key)
    assert session.ends_ms == made.ends_at_ms
    left_ms = made.ends_at_ms - app._clock.wall_ms()
    assert 0 < left_ms <= 60_000
    default = await call(edge, "CreateUserSession", name="shop")
    assert default.ends_at_ms > made.ends_at_ms
    for name, duration_ms, reason in (
        ("shop", 1 << 40, "FAILED|at most 43200000 ms"),
        ("gone", 0, "user gone is disabled"),
        ("nobody", 0, "user nobody does not exist"),
    ):
        with pytest.raises(CallError, match=reason):
            await call(edge, "CreateUserSession", name=name, duration_ms=duration_ms)


async def test_without_a_cluster_key_there_are_no_temporary_keys(
    edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    gone = meta_pb2.Change(deleted=True, cluster_key=meta_pb2.ClusterKey(key_id=4))
    meta.put(gone)
    await until(lambda: not app.view.access.cluster_keys())
    with pytest.raises(CallError, match="no key to sign with yet"):
        await call(edge, "CreateUserSession", name="shop")


@pytest.mark.parametrize(
    ("user", "resource", "source", "allowed", "policy", "reason"),
    [
        ("shop", "topic:orders", "10.1.1.1", True, 1, "policy 1 allows it"),
        ("shop", "topic:secret", "10.1.1.1", False, 2, "policy 2 denies it"),
        ("shop", "topic:orders", "11.1.1.1", False, 0, "no policy of shop allows pub"),
        ("shop", "topic:orders", "", False, 0, "no policy of shop allows pub"),
        ("shop", "topic:other/orders", "10.1.1.1", False, 0, "no policy of shop allows pub"),
        ("root", "cluster:nodes", "", True, 0, "user root is an admin"),
        ("gone", "topic:orders", "", False, 0, "user gone is disabled"),
    ],
)
async def test_a_test_says_which_policy_decides(
    edge: FakeEdge,
    user: str,
    resource: str,
    source: str,
    allowed: bool,
    policy: int,
    reason: str,
) -> None:
    tested = await call(
        edge, "TestPolicy", user=user, resource=resource, action="pub", source=source
    )
    assert (tested.allowed, tested.policy.policy_id) == (allowed, policy)
    assert reason in tested.reason


@pytest.mark.parametrize(
    ("resource", "action", "reason"),
    [
        ("topic:a*", "pub", "name one resource"),
        ("*", "pub", "name one resource"),
        ("orders", "pub", "is no resource"),
        ("topic:a", "all", "name one action"),
        ("topic:a", "write", "is no action"),
    ],
)
async def test_a_test_is_about_one_use_of_one_resource(
    edge: FakeEdge, resource: str, action: str, reason: str
) -> None:
    with pytest.raises(CallError, match=reason) as error:
        await call(edge, "TestPolicy", user="shop", resource=resource, action=action)
    assert error.value.status == "INVALID_ARGUMENT"
