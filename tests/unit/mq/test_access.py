"""Access control without I/O: policies, signatures, temporary keys."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta, timezone

import pytest

from strata_mq.access import (
    Action,
    ClockWindow,
    Policy,
    PolicyDecision,
    Resource,
    ResourceKind,
    date_of,
    decide,
    issue_session,
    key_id_of_peer,
    parse_actions,
    parse_authorization,
    parse_resource,
    parse_source,
    peer_access_key,
    peer_secret_key,
    read_session,
    sign,
    signature_is_right,
)

ORDERS = Resource(ResourceKind.TOPIC, "", "orders")
NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
KEY = bytes(range(32))


def policy(
    number: int,
    resource: str,
    actions: str = "pub",
    decision: PolicyDecision = PolicyDecision.ALLOW,
    sources: tuple[str, ...] = (),
) -> Policy:
    return Policy(
        number,
        parse_resource(resource),
        parse_actions(actions.split(",")),
        decision,
        tuple(map(parse_source, sources)),
    )


@pytest.mark.parametrize(
    ("pattern", "resource", "covered"),
    [
        ("topic:orders", ORDERS, True),
        ("Topic:ord*", ORDERS, True),
        ("topic:*", ORDERS, True),
        ("topic:order", ORDERS, False),
        ("group:orders", ORDERS, False),
        ("topic:*", ORDERS._replace(namespace="shop"), False),
        ("topic:shop/*", ORDERS._replace(namespace="shop"), True),
        ("topic:*/*", ORDERS._replace(namespace="shop"), True),
        ("topic:sh*/ord*", ORDERS._replace(namespace="shop"), True),
        ("namespace:shop", ORDERS._replace(namespace="shop"), True),
        ("namespace:shop", ORDERS._replace(namespace="shopping"), False),
        ("namespace:shop", ORDERS, False),
        ("namespace:shop", Resource(ResourceKind.NAMESPACE, "", "shop"), True),
        ("namespace:*", Resource(ResourceKind.CLUSTER, "", "nodes"), False),
        ("cluster:*", Resource(ResourceKind.CLUSTER, "", "nodes"), True),
        ("*", Resource(ResourceKind.CLUSTER, "", "nodes"), True),
    ],
)
def test_a_pattern_covers_its_resources(pattern: str, resource: Resource, covered: bool) -> None:
    assert parse_resource(pattern).covers(resource) is covered


@pytest.mark.parametrize(
    "text", ["", "orders", "queue:a", "topic:", "topic:a*b", "namespace:a/b", "topic:a*b/c", "**"]
)
def test_a_text_that_is_no_resource_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no resource|needed|no namespace"):
        parse_resource(text)


def test_nobody_may_do_what_no_policy_allows() -> None:
    assert decide([], ORDERS, Action.PUB, "127.0.0.1") == (False, 0)
    assert decide([policy(1, "topic:orders", "sub")], ORDERS, Action.PUB, "") == (False, 0)


def test_a_denial_wins_whatever_its_place() -> None:
    allow, deny = policy(1, "*", "all"), policy(2, "topic:ord*", "pub", PolicyDecision.DENY)
    for policies in ([allow, deny], [deny, allow]):
        assert decide(policies, ORDERS, Action.PUB, "") == (False, 2)
        assert decide(policies, ORDERS, Action.SUB, "") == (True, 1)


def test_a_policy_with_sources_has_a_say_for_callers_from_there() -> None:
    policies = [policy(1, "topic:*", "pub", sources=("10.0.0.0/8", "::1"))]
    for address, allowed in {
        "10.1.2.3": True,
        "::1": True,
        "::ffff:10.1.2.3": True,
        "11.0.0.1": False,
        "": False,
        "localhost": False,
    }.items():
        assert decide(policies, ORDERS, Action.PUB, address).allowed is allowed, address


def test_wrong_actions_and_sources_are_named() -> None:
    with pytest.raises(ValueError, match="'write' is no action"):
        parse_actions(["pub", "write"])
    with pytest.raises(ValueError, match="an action is needed"):
        parse_actions([])
    with pytest.raises(ValueError, match=r"'10\.0\.0' is neither"):
        parse_source("10.0.0")


@pytest.mark.parametrize("upper", [True, False])
def test_a_signature_of_any_client_is_read(upper: bool) -> None:
    digest = hmac.new(b"secret", b"20261125T200000Z", "sha1").hexdigest()
    header = parse_authorization(
        "MQv2-HMAC-SHA1 Credential=ak/region/service, SignedHeaders=x-mq-date-time, "
        f"Signature={digest.upper() if upper else digest}"
    )
    assert header is not None
    assert header.access_key == "ak"
    assert signature_is_right("secret", "20261125T200000Z", header.signature)
    assert not signature_is_right("secret", "20261125T200001Z", header.signature)
    assert not signature_is_right("Secret", "20261125T200000Z", header.signature)


def test_the_python_client_without_keys_signs_for_nobody() -> None:
    header = parse_authorization(
        "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature="
    )
    assert header is not None
    assert header.access_key == ""


@pytest.mark.parametrize(
    "text", ["", "Basic abc", "MQv2-HMAC-SHA1 Credential=a, Signature=xyz", "MQv2-HMAC-SHA1" * 200]
)
def test_a_header_that_is_no_signature_is_none(text: str) -> None:
    header = parse_authorization(text)
    assert header is None or not header.access_key


def test_dates_are_held_to_the_clock() -> None:
    now_ms = 1_795_636_800_000  # 2026-11-25T20:00:00Z
    strict, zones = ClockWindow(900_000), ClockWindow(900_000, ((-12 * HOUR_MS, 14 * HOUR_MS),))
    for date, in_strict, in_zones in [
        ("20261125T200000Z", True, True),
        ("20261125T195000Z", True, True),
        ("20261125T190000Z", False, True),
        ("20261126T040000Z", False, True),  # local time of UTC+8
        ("20261124T200000Z", False, False),
        ("20271125T200000Z", False, False),
        ("2026-11-25T20:00:00Z", True, True),
        ("2026-11-26T04:00:00+08:00", True, True),
        ("2026-11-25T20:00:00", False, False),
        ("2026", False, False),
        ("20261325T200000Z", False, False),
        ("", False, False),
    ]:
        assert strict.holds(date, now_ms) is in_strict, date
        assert zones.holds(date, now_ms) is in_zones, date


def test_a_session_is_read_with_the_key_that_made_it() -> None:
    session = issue_session("shop", NOW_MS, 3, KEY)
    assert read_session(session.token, {3: KEY}.get) == session
    assert session.secret_key
    assert read_session(session.token, {4: KEY}.get) is None
    assert read_session(session.token, {3: bytes(32)}.get) is None


def test_a_changed_session_token_is_none() -> None:
    token = issue_session("shop", NOW_MS, 3, KEY).token
    for at in range(len(token)):
        changed = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        assert read_session(changed, {3: KEY}.get) is None, at
    assert read_session(token[:-4], {3: KEY}.get) is None
    assert read_session("", {3: KEY}.get) is None
    assert read_session("\N{SNOWMAN}" * 20, {3: KEY}.get) is None


def test_a_date_tells_until_when_it_is_recent() -> None:
    """Caches may keep what was checked until then, and not a millisecond longer."""
    date = date_of(datetime.fromtimestamp(NOW_MS / 1000, UTC))
    for window, longest_ms in (
        (ClockWindow(60_000), 60_000),
        (ClockWindow(60_000, ((-12 * HOUR_MS, 14 * HOUR_MS),)), 60_000 + 12 * HOUR_MS),
    ):
        until_ms = window.until_ms(date, NOW_MS)
        assert until_ms == NOW_MS + longest_ms
        assert window.holds(date, until_ms)
        assert not window.holds(date, until_ms + 1)


@pytest.mark.parametrize(
    "date",
    ["", "2026", "20261332T000000Z", "2026112xT000000Z", "20261125T0000_0Z", "9" * 99, "\ud800"],
)
def test_a_text_that_is_no_date_is_never_recent(date: str) -> None:
    """The window refuses the text, whatever a client writes."""
    assert ClockWindow(1 << 60).until_ms(date, NOW_MS) is None


@pytest.mark.parametrize("hours", [2, 5, 9, 26])
def test_a_header_of_hours_ago_is_good_in_no_other_zone(hours: int) -> None:
    """It is good once in each zone of the window: nine hours later only if one is nine ahead."""
    date = date_of(datetime.fromtimestamp(NOW_MS / 1000 - hours * 3600, UTC))
    zones = {name: ((shift * HOUR_MS,) * 2) for name, shift in (("UTC", 0), ("-9", -9), ("9", 9))}
    assert ClockWindow(900_000).until_ms(date, NOW_MS) is None
    assert ClockWindow(900_000, (zones["UTC"], zones["9"])).until_ms(date, NOW_MS) is None
    behind = ClockWindow(900_000, (zones["UTC"], zones["-9"]))
    assert behind.holds(date, NOW_MS) == (hours == 9)
    if hours == 9:
        assert behind.until_ms(date, NOW_MS) == NOW_MS + 900_000


def test_a_date_with_an_offset_is_of_no_other_zone() -> None:
    """Rust's client writes RFC 3339: it says itself what its time is."""
    window = ClockWindow(60_000, ((0, 0), (8 * HOUR_MS, 8 * HOUR_MS)))
    moment = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    ahead = timezone(timedelta(hours=8))
    assert window.holds(moment.astimezone(ahead).isoformat(), NOW_MS)
    assert not window.holds(moment.astimezone(ahead).replace(tzinfo=UTC).isoformat(), NOW_MS)
    assert window.holds(date_of(moment.astimezone(ahead).replace(tzinfo=UTC)), NOW_MS)


def test_what_is_signed_here_is_read_here() -> None:
    """The command and brokers sign as the official clients do."""
    header = parse_authorization(sign("ann", "s3cret", "20261125T120000Z"))
    assert header is not None
    assert header.access_key == "ann"
    assert signature_is_right("s3cret", "20261125T120000Z", header.signature)


def test_a_broker_has_a_name_that_no_user_can_have() -> None:
    """The name says which cluster key its secret is derived from."""
    assert key_id_of_peer(peer_access_key(7)) == 7
    for name in ("ann", "%broker-", "%broker-x", "%broker-\u0663", "%broker-" + "9" * 11, "7"):
        assert key_id_of_peer(name) is None
    assert peer_secret_key(KEY) != peer_secret_key(KEY[::-1])
