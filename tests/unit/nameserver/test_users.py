"""Users, policies and cluster keys, as rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.rows import ROW_FORMAT
from strata_nameserver.base.config import NameserverConfig
from tests.unit.nameserver.conftest import Nameserver as new_nameserver

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver

CONFLICT = meta_pb2.META_OUTCOME_CONFLICT
INVALID = meta_pb2.META_OUTCOME_INVALID
LIMIT_REACHED = meta_pb2.META_OUTCOME_LIMIT_REACHED
NOT_FOUND = meta_pb2.META_OUTCOME_NOT_FOUND
SECRET = "a-secret-of-the-test"


async def rows(nameserver: Nameserver, kind: str) -> list[Any]:
    """The rows of one kind, by key."""
    _, changes = await nameserver.metadata.snapshot()
    return [getattr(change, kind) for change in changes if change.HasField(kind)]  # type: ignore[arg-type]


async def create(nameserver: Nameserver, name: str, **fields: object) -> meta_pb2.User:
    return await nameserver.metadata.access.create_user(meta_pb2.User(name=name, **fields))  # type: ignore[arg-type]


async def update(
    nameserver: Nameserver, mask: list[str], previous_valid_ms: int = 0, **fields: object
) -> meta_pb2.User:
    request = meta_pb2.UpdateUserRequest(
        user=meta_pb2.User(**fields),  # type: ignore[arg-type]
        update_mask=mask,
        previous_valid_ms=previous_valid_ms,
    )
    return await nameserver.metadata.access.update_user(request)


def policy(user: str, resource: str = "topic:orders*", **fields: object) -> meta_pb2.Policy:
    values = {"actions": ["pub"], "decision": meta_pb2.POLICY_DECISION_ALLOW} | fields
    return meta_pb2.Policy(user=user, resource=resource, **values)  # type: ignore[arg-type]


async def test_a_user_gets_a_key_that_nobody_can_guess(nameserver: Nameserver) -> None:
    """Without a secret key the nameserver draws one; a given one is kept."""
    drawn, other = await create(nameserver, "shop"), await create(nameserver, "mail", admin=True)
    given_ = await create(nameserver, "bank", secret_key=SECRET)

    assert len(drawn.secret_key) == 32
    assert drawn.secret_key != other.secret_key
    assert given_.secret_key == SECRET
    assert (drawn.created_at_ms, drawn.admin) == (nameserver.clock.wall_ms(), False)
    assert await rows(nameserver, "user") == [given_, other, drawn]
    assert nameserver.machine.speculative.counters.user_count == 3


@pytest.mark.parametrize(
    ("name", "secret_key", "reason"),
    [
        ("ab", "", "3 to 64 characters"),
        ("a" * 65, "", "3 to 64 characters"),
        ("a b c", "", "3 to 64 characters"),
        ("abc/def", "", "3 to 64 characters"),
        ("shop\n", "", "3 to 64 characters"),
        ("shop", "short", "8 to 128 printable"),
        ("shop", "with a space", "8 to 128 printable"),
        ("shop", "x" * 129, "8 to 128 printable"),
        ("shop", "umlauts-\N{LATIN SMALL LETTER A WITH DIAERESIS}", "8 to 128 printable"),
    ],
)
async def test_keys_that_cannot_be_signed_with_are_refused(
    nameserver: Nameserver, name: str, secret_key: str, reason: str
) -> None:
    """A refusal names the user and the limits, never the secret."""
    with pytest.raises(MetaRefused, match=reason) as refusal:
        await create(nameserver, name, secret_key=secret_key)
    assert refusal.value.outcome == INVALID
    assert not secret_key or secret_key not in refusal.value.reason
    assert await rows(nameserver, "user") == []


async def test_a_name_is_given_once(nameserver: Nameserver) -> None:
    await create(nameserver, "shop")
    with pytest.raises(MetaRefused, match="user shop exists already") as refusal:
        await create(nameserver, "shop")
    assert refusal.value.outcome == meta_pb2.META_OUTCOME_ALREADY_EXISTS


async def test_a_rotation_keeps_the_former_key_for_a_while(nameserver: Nameserver) -> None:
    """It ends at the named time, or at once; a second rotation keeps the one before it."""
    first = await create(nameserver, "shop")
    second = await update(nameserver, ["secret_key"], 60_000, name="shop")
    assert second.secret_key not in ("", first.secret_key)
    assert second.previous_secret_key == first.secret_key
    assert second.previous_valid_until_ms == nameserver.clock.wall_ms() + 60_000

    third = await update(nameserver, ["secret_key"], 1_000, name="shop", secret_key=SECRET)
    assert (third.secret_key, third.previous_secret_key) == (SECRET, second.secret_key)
    last = await update(nameserver, ["secret_key"], name="shop")
    assert (last.previous_secret_key, last.previous_valid_until_ms) == ("", 0)
    assert await rows(nameserver, "user") == [last]


async def test_a_former_key_is_not_valid_for_ever(nameserver: Nameserver) -> None:
    await create(nameserver, "shop")
    with pytest.raises(MetaRefused, match="at most 2592000000 ms"):
        await update(nameserver, ["secret_key"], 1 << 60, name="shop")


async def test_the_last_admin_stays(nameserver: Nameserver) -> None:
    """It is neither deleted, disabled nor demoted, as long as no other admin is enabled."""
    await create(nameserver, "root", admin=True)
    await create(nameserver, "spare", admin=True)
    await update(nameserver, ["disabled"], name="spare", disabled=True)
    for attempt in (
        nameserver.metadata.access.delete_user("root"),
        update(nameserver, ["disabled"], name="root", disabled=True),
        update(nameserver, ["admin"], name="root"),
    ):
        with pytest.raises(MetaRefused, match="root is the last admin") as refusal:
            await attempt
        assert refusal.value.outcome == CONFLICT
    await update(nameserver, ["secret_key"], name="root")
    await nameserver.metadata.access.delete_user("spare")

    await create(nameserver, "other", admin=True)
    await nameserver.metadata.access.delete_user("root")
    assert [row.name for row in await rows(nameserver, "user")] == ["other"]


async def test_two_admins_cannot_leave_at_once(nameserver: Nameserver) -> None:
    """A deletion that is still in flight counts: the second one is refused (rule 1)."""
    await create(nameserver, "one", admin=True)
    await create(nameserver, "two", admin=True)
    access = nameserver.metadata.access
    nameserver.replica.commit_at_once = False
    first = asyncio.ensure_future(access.delete_user("one"))
    second = asyncio.ensure_future(access.delete_user("two"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    nameserver.replica.commit()
    await first
    with pytest.raises(MetaRefused, match="two is the last admin"):
        await second


async def test_policies_go_with_their_user(nameserver: Nameserver) -> None:
    """In one change; those of others stay, and ids are never given again."""
    access = nameserver.metadata.access
    await create(nameserver, "shop")
    await create(nameserver, "mail")
    mine = await access.create_policy(policy("shop", "topic:orders*"))
    kept = await access.create_policy(policy("mail", "Topic:Mail"))
    other = await access.create_policy(policy("shop", "group:*", actions=["SUB", "sub"]))
    assert [mine.policy_id, kept.policy_id, other.policy_id] == [1, 2, 3]
    assert (kept.resource, list(other.actions)) == ("topic:Mail", ["sub"])

    before = nameserver.machine.revision
    await access.delete_user("shop")
    assert nameserver.machine.revision == before + 1
    assert await rows(nameserver, "policy") == [kept]
    assert nameserver.machine.speculative.counters.policy_count == 1

    await access.delete_policy(kept.policy_id)
    again = await access.create_policy(policy("mail"))
    assert again.policy_id == 4
    with pytest.raises(MetaRefused, match="policy 2 does not exist") as refusal:
        await access.delete_policy(2)
    assert refusal.value.outcome == NOT_FOUND


@pytest.mark.parametrize(
    ("wanted", "outcome", "reason"),
    [
        (policy("nobody"), NOT_FOUND, "user nobody does not exist"),
        (policy("shop", "orders"), INVALID, "is no resource"),
        (policy("shop", actions=["write"]), INVALID, "is no action"),
        (policy("shop", actions=[]), INVALID, "an action is needed"),
        (policy("shop", sources=["10.0"]), INVALID, "neither an address nor a network"),
        (policy("shop", decision=0), INVALID, "decision is missing"),
        (policy("shop", "topic:" + "a" * 600), INVALID, "512 are allowed"),
        (policy("shop", sources=["::1"] * 65), INVALID, "64 are allowed"),
    ],
)
async def test_a_policy_that_nobody_could_read_is_refused(
    nameserver: Nameserver, wanted: meta_pb2.Policy, outcome: int, reason: str
) -> None:
    await create(nameserver, "shop")
    with pytest.raises(MetaRefused, match=reason) as refusal:
        await nameserver.metadata.access.create_policy(wanted)
    assert refusal.value.outcome == outcome
    assert await rows(nameserver, "policy") == []


async def test_the_limits_hold(make_nameserver: MakeNameserver) -> None:
    """One more than allowed is refused with the key that says so; the first admin always fits."""
    config = NameserverConfig(max_users=2, max_policies=3, max_policies_per_user=2).alone()
    nameserver = make_nameserver(config)
    access = nameserver.metadata.access
    await create(nameserver, "one")
    await create(nameserver, "two")
    for attempt, key in (
        (lambda: create(nameserver, "three"), "max_users"),
        (lambda: access.create_policy(policy("one", "topic:1")), ""),
        (lambda: access.create_policy(policy("one", "topic:2")), ""),
        (lambda: access.create_policy(policy("one", "topic:3")), "max_policies_per_user"),
        (lambda: access.create_policy(policy("two", "topic:4")), ""),
        (lambda: access.create_policy(policy("two", "topic:5")), "max_policies"),
    ):
        if not key:
            await attempt()
            continue
        with pytest.raises(MetaRefused, match=rf"nameserver\.{key}\)") as refusal:
            await attempt()
        assert refusal.value.outcome == LIMIT_REACHED
    await access.ensure_admin("root", SECRET, unless_any=True)
    assert len(await rows(nameserver, "user")) == 3


async def test_the_two_newest_cluster_keys_are_kept(nameserver: Nameserver) -> None:
    """The first is made once; each rotation makes a new one and deletes those before the last."""
    access = nameserver.metadata.access
    await access.ensure_cluster_key()
    await access.ensure_cluster_key()
    keys = await rows(nameserver, "cluster_key")
    assert [(row.key_id, len(row.secret)) for row in keys] == [(1, 32)]
    for _ in range(3):
        await access.rotate_cluster_key()
    keys = await rows(nameserver, "cluster_key")
    assert [row.key_id for row in keys] == [3, 4]
    assert keys[0].secret != keys[1].secret


async def test_an_admin_is_ensured_whatever_was_there(nameserver: Nameserver) -> None:
    """It is made, enabled again, promoted; the former key of the lost one is gone at once."""
    access = nameserver.metadata.access
    await access.ensure_admin("root", SECRET, unless_any=True)
    revision = nameserver.machine.revision
    await access.ensure_admin("root", SECRET, unless_any=False)
    await access.ensure_admin("second", SECRET, unless_any=True)
    assert nameserver.machine.revision == revision, "nothing was changed"

    await create(nameserver, "spare")
    await update(nameserver, ["secret_key"], 60_000, name="spare")
    await update(nameserver, ["disabled"], name="spare", disabled=True)
    await access.ensure_admin("spare", SECRET, unless_any=False)
    [_, spare] = await rows(nameserver, "user")
    assert isinstance(spare, meta_pb2.User)
    assert (spare.admin, spare.disabled, spare.secret_key) == (True, False, SECRET)
    assert (spare.previous_secret_key, spare.previous_valid_until_ms) == ("", 0)


async def test_a_new_leader_decides_on_the_stored_rows(nameserver: Nameserver) -> None:
    """Admins, policies by user and cluster keys are read from the rows."""
    access = nameserver.metadata.access
    await access.ensure_cluster_key()
    await create(nameserver, "root", admin=True)
    await access.create_policy(policy("root"))
    again = nameserver.restarted()
    with pytest.raises(MetaRefused, match="last admin"):
        await again.metadata.access.delete_user("root")
    assert again.machine.speculative.access.policies_of("root") == [1]
    assert (await again.metadata.access.rotate_cluster_key()).key_id == 2


async def test_no_row_before_everybody_knows_its_kind(nameserver: Nameserver) -> None:
    """A storage node of an older version would stop at the first such row."""
    old = meta_pb2.Node(
        node_id="storage-b", kind=meta_pb2.NODE_KIND_STORAGE, endpoints=["b:1"], boot_id=1
    )
    await nameserver.metadata.register_node(old)
    access = nameserver.metadata.access
    for attempt in (access.ensure_cluster_key(), create(nameserver, "shop")):
        with pytest.raises(MetaRefused, match="storage-b runs an older version") as refusal:
            await attempt
        assert refusal.value.outcome == CONFLICT
    metadata = nameserver.metadata
    heartbeat = meta_pb2.HeartbeatRequest(node_id="storage-b", boot_id=1, row_format=ROW_FORMAT)
    assert metadata.should_register(heartbeat), "it is asked to register again"
    old.row_format = ROW_FORMAT
    await metadata.register_node(old)
    assert not metadata.should_register(heartbeat)
    await access.ensure_cluster_key()
    await create(nameserver, "shop")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("create", "delete", "policy", "drop", "demote", "disable", "enable")),
            st.sampled_from(("one", "two", "three")),
        ),
        max_size=30,
    )
)
async def test_counts_and_policies_follow_any_changes(
    steps: list[tuple[str, str]],
) -> None:
    """Counts are those of the rows, no policy is without its user, and an admin is left."""
    nameserver = new_nameserver(NameserverConfig().alone())
    access = nameserver.metadata.access
    await create(nameserver, "root", admin=True)
    for what, name in steps:
        try:
            match what:
                case "create":
                    await create(nameserver, name, admin=True)
                case "delete":
                    await access.delete_user("root" if name == "one" else name)
                case "policy":
                    await access.create_policy(policy(name))
                case "drop":
                    await access.delete_policy(len(name))
                case "demote":
                    await update(nameserver, ["admin"], name=name)
                case "disable":
                    await update(nameserver, ["disabled"], name=name, disabled=True)
                case "enable":
                    await update(nameserver, ["disabled", "admin"], name=name, admin=True)
        except MetaRefused:
            continue
    users = await rows(nameserver, "user")
    policies = await rows(nameserver, "policy")
    counters = nameserver.machine.speculative.counters
    assert (counters.user_count, counters.policy_count) == (len(users), len(policies))
    names = {row.name for row in users}
    assert {row.user for row in policies} <= names
    enabled = {row.name for row in users if row.admin and not row.disabled}
    assert enabled
    assert enabled == nameserver.machine.speculative.access.admins
    loaded = nameserver.restarted().machine.speculative.access
    assert loaded.admins == enabled
    for name in names:
        assert loaded.policies_of(name) == nameserver.machine.speculative.access.policies_of(name)


async def test_a_repeat_of_a_creation_gets_what_the_first_made(nameserver: Nameserver) -> None:
    """A call whose answer was lost is sent again."""
    user = await create(nameserver, "shop", secret_key=SECRET)
    assert await create(nameserver, "shop", secret_key=SECRET) == user
    with pytest.raises(MetaRefused, match="exists already"):
        await create(nameserver, "shop", secret_key=SECRET, admin=True)
    wanted = meta_pb2.Policy(
        user="shop",
        resource="topic:orders",
        actions=["get", "create"],
        decision=meta_pb2.POLICY_DECISION_ALLOW,
    )
    policy = await nameserver.metadata.access.create_policy(wanted)
    wanted.actions[:] = ["create", "get"]
    assert await nameserver.metadata.access.create_policy(wanted) == policy
    assert await rows(nameserver, "policy") == [policy]
    wanted.decision = meta_pb2.POLICY_DECISION_DENY
    other = await nameserver.metadata.access.create_policy(wanted)
    assert other.policy_id != policy.policy_id


async def test_a_repeat_of_a_rotation_keeps_the_key_that_signs(nameserver: Nameserver) -> None:
    """Two keys are valid: a third would void what was signed until now."""
    access = nameserver.metadata.access
    first = await access.rotate_cluster_key()
    second = await access.rotate_cluster_key(first.key_id)
    assert second.key_id == first.key_id + 1
    assert await access.rotate_cluster_key(first.key_id) == second
    assert [key.key_id for key in await rows(nameserver, "cluster_key")] == [
        first.key_id,
        second.key_id,
    ]
    assert (await access.rotate_cluster_key(second.key_id)).key_id == second.key_id + 1
