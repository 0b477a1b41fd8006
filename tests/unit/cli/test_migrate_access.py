"""Access control of RocketMQ as users and policies: what the forms say, and which rule wins."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from strata_cli.errors import CliError, UsageError
from strata_cli.migrate.access_plan import PlannedPolicy, PlannedUser, plan_access
from strata_cli.migrate.access_rows import (
    SourceAccess,
    SourceRule,
    SourceUser,
    plain_access,
    rules_of,
    users_of,
)
from strata_mq.access import (
    Action,
    Policy,
    PolicyDecision,
    Resource,
    ResourceKind,
    decide,
    parse_actions,
    parse_resource,
    parse_source,
)

# As RocketMQ 5.5.0 answered.
USERS = (
    b'[{"password":"bosssecret1","userStatus":"enable","userType":"Super","username":"boss"},'
    b'{"password":"shopsecret1","userStatus":"disable","userType":"Normal","username":"shop"}]'
)
ACLS = (
    b'[{"policies":[{"entries":[{"actions":["Pub","Sub"],"decision":"Allow",'
    b'"resource":"Topic:orders*","sourceIps":["127.0.0.1","10.0.0.0/8"]},{"actions":["Sub"],'
    b'"decision":"Allow","resource":"Group:*"},{"actions":["Pub"],"decision":"Deny",'
    b'"resource":"Topic:orders-x"}],"policyType":"Custom"}],"subject":"User:shop"}]'
)
PLAIN = """
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
  - accessKey: shop
    secretKey: shopsecret1
    whiteRemoteAddress: 192.168.0.*
    admin: false
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: DENY
    topicPerms: [orders=SUB, secrets=DENY, "more = PUB | SUB"]
    groupPerms: [readers=PUB|SUB, writers=PUB]
  - accessKey: boss
    secretKey: 12345678
    admin: true
"""


def policy(
    resource: str, *actions: str, allows: bool = True, sources: Sequence[str] = ()
) -> PlannedPolicy:
    return PlannedPolicy(resource, frozenset(actions), allows, frozenset(sources))


def rule(resource: str, *actions: str, allows: bool = True, **more: object) -> SourceRule:
    return SourceRule("u", resource, frozenset(actions), allows, **more)  # type: ignore[arg-type]


def planned(*rules: SourceRule, namespace: str = "") -> PlannedUser:
    access = SourceAccess({"u": SourceUser("u", "secret12")}, list(rules))
    (only,) = plan_access(access, namespace)
    return only


def test_what_a_broker_says_becomes_users_and_policies() -> None:
    """Secret keys, super users and disabled users are what they were."""
    users = {user.name: user for user in users_of(USERS)}
    assert users == {
        "boss": SourceUser("boss", "bosssecret1", is_admin=True),
        "shop": SourceUser("shop", "shopsecret1", is_disabled=True),
    }
    boss, shop = plan_access(SourceAccess(users, rules_of(ACLS)), "")
    assert (boss.user.name, boss.policies) == ("boss", ())
    assert shop.policies == (
        policy("topic:orders*", "pub", "sub", sources=("127.0.0.1/32", "10.0.0.0/8")),
        policy("group:*", "sub"),
        policy("topic:orders-x", "pub", allows=False),
    )
    assert "secret" not in repr(users["boss"])


def test_brokers_that_hide_passwords_tell_none() -> None:
    """So do answers without anything."""
    (user,) = users_of(b'[{"username":"shop","userType":"Normal","password":"***"}]')
    assert user == SourceUser("shop")
    assert users_of(b"") == []
    assert rules_of(b"null") == []
    with pytest.raises(CliError, match="list of ACLs"):
        rules_of(b'{"a":1}')


def test_a_file_of_acl_1_becomes_users_and_policies() -> None:
    """The permission of a topic takes the place of the default, also where it is less."""
    found = plain_access(PLAIN)
    assert found.users == {
        "shop": SourceUser("shop", "shopsecret1"),
        "boss": SourceUser("boss", "12345678", is_admin=True),
    }
    assert len(found.notes) == 2
    _, shop = plan_access(found, "")
    assert set(shop.policies) == {
        policy("topic:*", "pub", "sub"),
        policy("topic:orders", "sub"),
        policy("topic:orders", "pub", allows=False),
        policy("topic:secrets", "pub", "sub", allows=False),
        policy("topic:more", "pub", "sub"),
        policy("group:readers", "sub"),
    }


@pytest.mark.parametrize(
    "text",
    [
        *("a: [", "[]", "accounts: 1", "accounts: [{}]"),
        "accounts: [{accessKey: u, topicPerms: [x]}]",
        "accounts: [{accessKey: u, defaultTopicPerm: MAYBE}]",
    ],
)
def test_another_file_is_refused(text: str) -> None:
    """Its text is not shown: it may hold secrets."""
    with pytest.raises(UsageError):
        plain_access(text)


def test_a_rule_that_takes_nothing_away_is_left_out() -> None:
    """It would win over the more specific rule that allows something."""
    only = planned(
        rule("Topic:*", "pub", "sub", allows=False), rule("Topic:orders", "pub"), namespace="n"
    )
    assert (only.policies, only.notes) == ((policy("topic:n/orders", "pub"),), ())


def test_a_part_that_cannot_be_told_is_lost_and_noted() -> None:
    """Nobody gets a right that it did not have."""
    only = planned(
        rule("Topic:*", "pub"),
        rule("Topic:secret*", "all", allows=False),
        rule("Topic:secret-no-more", "pub"),
    )
    assert policy("topic:secret*", "all", allows=False) in only.policies
    assert len(only.notes) == 1
    assert "Topic:secret-no-more" in only.notes[0]


def test_what_means_something_else_here_is_left_out() -> None:
    """Rights of operators; and all of a user whose denial cannot be understood."""
    only = planned(rule("Cluster:*", "get"), rule("Topic:a", "pub", sources=("10.1.*.*", "::1")))
    assert only.policies == (policy("topic:a", "pub", sources=("10.1.0.0/16", "::1/128")),)
    assert "operators" in only.notes[0]
    unclear = planned(rule("Topic:*", "pub"), rule("Topic:a", "pub", allows=False, sources=("x",)))
    assert unclear.policies == ()
    assert "would allow what the source denies" in unclear.notes[-1]
    assert planned(rule("Cluster:*", "get", allows=False), rule("Topic:a", "pub")).policies
    assert planned(rule("*", "all"), namespace="n").policies == (policy("namespace:n", "all"),)


def test_brokers_that_differ_are_told() -> None:
    """The first one counts; equal rules of both are one."""
    access = SourceAccess({"u": SourceUser("u", "secret12")}, [rule("Topic:a", "pub")])
    access.add(
        SourceAccess(
            {"u": SourceUser("u", "another1")}, [rule("Topic:a", "pub"), rule("Topic:b", "pub")]
        ),
        "broker-b",
    )
    assert access.users["u"].secret_key == "secret12"
    assert [each.resource for each in access.rules] == ["Topic:a", "Topic:b"]
    assert access.notes == ["user u differs at broker-b: the first one counts"]


NAMES = ("a", "ab", "abc", "b")
PATTERNS = ("*", "a*", "ab*", "a", "ab", "b")
ACTIONS = ("pub", "sub", "all")


def source_allows(rules: Sequence[SourceRule], name: str, action: str) -> bool:
    """RocketMQ asks the most specific rule, Custom before Default, Deny first."""

    def matches(one: SourceRule) -> bool:
        pattern = one.resource.removeprefix("Topic:")
        fits = name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        return fits and (action in one.actions or "all" in one.actions)

    found = [one for one in rules if matches(one)]
    found = [one for one in found if not one.is_default] or found
    found.sort(
        key=lambda one: (one.resource.endswith("*"), -len(one.resource), one.allows),
    )
    return bool(found) and found[0].allows


def test_no_set_of_rules_gives_more_than_the_source() -> None:
    """And no less, unless a note says so."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    exact = 0
    for _ in range(2_000):
        rules = [
            rule(
                f"Topic:{rng.choice(PATTERNS)}",
                rng.choice(ACTIONS),
                allows=rng.random() < 0.6,
                is_default=rng.random() < 0.3,
            )
            for _ in range(rng.randrange(1, 6))
        ]
        only = planned(*rules)
        exact += not only.notes
        policies = [
            Policy(
                number,
                parse_resource(each.resource),
                parse_actions(each.actions),
                PolicyDecision.ALLOW if each.allows else PolicyDecision.DENY,
                tuple(map(parse_source, each.sources)),
            )
            for number, each in enumerate(only.policies, 1)
        ]
        for name, action in itertools.product(NAMES, ("pub", "sub")):
            there = source_allows(rules, name, action)
            resource = Resource(ResourceKind.TOPIC, "", name)
            here = decide(policies, resource, Action(action), "10.0.0.1").allowed
            assert there or not here, (rules, name, action)
            assert only.notes or here == there, (rules, name, action)
    assert exact > 500
