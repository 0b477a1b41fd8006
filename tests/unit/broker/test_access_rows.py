"""Users, policies and cluster keys in the metadata view of a broker."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_broker.metadata.metadata import MetadataView
from strata_mq.access import Action, Resource, ResourceKind, decide

Row = meta_pb2.User | meta_pb2.Policy | meta_pb2.ClusterKey
ORDERS = Resource(ResourceKind.TOPIC, "", "orders")


def change_of(row: Row, *, deleted: bool = False) -> meta_pb2.Change:
    """The change that writes or deletes a row."""
    if isinstance(row, meta_pb2.User):
        return meta_pb2.Change(user=row, deleted=deleted)
    if isinstance(row, meta_pb2.Policy):
        return meta_pb2.Change(policy=row, deleted=deleted)
    return meta_pb2.Change(cluster_key=row, deleted=deleted)


def apply(view: MetadataView, *rows: Row, deleted: bool = False, snapshot: bool = False) -> None:
    """Let a view take in rows."""
    changes = [change_of(row, deleted=deleted) for row in rows]
    revision = view.revision + 1
    view.apply(meta_pb2.WatchResponse(revision=revision, snapshot=snapshot, changes=changes))


def policy(policy_id: int, user: str = "ann", **fields: object) -> meta_pb2.Policy:
    """A policy that allows to publish to `orders`."""
    row = {
        "resource": "topic:orders",
        "actions": ["pub"],
        "decision": meta_pb2.POLICY_DECISION_ALLOW,
    } | fields
    return meta_pb2.Policy(policy_id=policy_id, user=user, **row)  # type: ignore[arg-type]


def allowed(view: MetadataView, user: str = "ann") -> bool:
    """Whether a user may publish to `orders`."""
    return decide(view.access.policies_of(user), ORDERS, Action.PUB, "10.0.0.1").allowed


def test_users_and_their_policies_are_found_by_name() -> None:
    """Each user has its own policies, and a deleted one has none."""
    view = MetadataView()
    apply(view, meta_pb2.User(name="ann", secret_key="s3cret"), policy(1), policy(2, "bob"))
    user = view.access.user("ann")
    assert user is not None
    assert user.secret_key == "s3cret"
    assert view.access.user("bob") is None
    assert allowed(view)
    assert [one.policy_id for one in view.access.policies_of("bob")] == [2]
    apply(view, meta_pb2.Policy(policy_id=1), deleted=True)
    assert not allowed(view)
    assert [row.policy_id for row in view.access.policies()] == [2]
    apply(view, meta_pb2.User(name="ann"), deleted=True)
    assert not view.access.users()


def test_each_change_and_each_snapshot_raises_the_version() -> None:
    """Caches compare the version, so no two sets of rows share one."""
    view = MetadataView()
    versions = [view.access.version]
    for rows in ([policy(1)], [meta_pb2.User(name="ann")], [meta_pb2.ClusterKey(key_id=1)]):
        apply(view, *rows)
        versions.append(view.access.version)
    apply(view, meta_pb2.User(name="ann"), snapshot=True)
    versions.append(view.access.version)
    apply(view, snapshot=True)
    versions.append(view.access.version)
    assert versions == sorted(set(versions))
    assert not view.access.policies()
    assert not view.access.users()


def test_a_policy_of_a_newer_version_allows_nothing_and_denies_what_it_may() -> None:
    """Rows that cannot be read never give a right."""
    view = MetadataView()
    apply(view, policy(1, resource="planet:mars"))
    assert not allowed(view)
    apply(view, policy(2))
    assert allowed(view)
    apply(view, policy(3, actions=["fly"], decision=meta_pb2.POLICY_DECISION_DENY))
    assert not allowed(view)
    apply(view, policy(3, decision=meta_pb2.POLICY_DECISION_UNSPECIFIED))
    assert not allowed(view)


def test_two_cluster_keys_are_valid() -> None:
    """The newest comes first; the third does not count any more."""
    view = MetadataView()
    for key_id in (1, 3, 2):
        apply(view, meta_pb2.ClusterKey(key_id=key_id, secret=bytes([key_id]) * 32))
    assert [key.key_id for key in view.access.cluster_keys()] == [3, 2]
