"""ConsoleSessions and failed sign-ins: their ends and their limits."""

from __future__ import annotations

from typing import cast

from strata_cli.client import AdminClient
from strata_cli.processes.console_config import ConsoleSection
from strata_console.metrics import METRICS
from strata_console.sessions import ConsoleSessions, SignInLimit
from strata_runtime.metrics import Metrics
from strata_testing.clock import ManualClock


class Connection:
    """Stands for a connection to a cluster."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        """Remember it."""
        self.is_closed = True


def sessions(clock: ManualClock, **keys: int) -> ConsoleSessions:
    """ConsoleSessions with some limits."""
    return ConsoleSessions(ConsoleSection.model_validate(keys), clock, Metrics(METRICS))


def open_one(of: ConsoleSessions, user: str = "shop") -> tuple[str, Connection]:
    """Begin a session; return its token and connection."""
    connection = Connection()
    token, _ = of.open(user, cast(AdminClient, connection))
    return token, connection


def test_an_idle_session_ends_and_closes_its_connection() -> None:
    """Use keeps it alive; looking without use does not."""
    clock = ManualClock()
    all_of = sessions(clock, session_idle_ms=10_000, session_ms=100_000)
    token, connection = open_one(all_of)
    clock.now_s += 9
    assert all_of.find(token) is not None
    clock.now_s += 9
    assert all_of.find(token, uses=False) is not None
    clock.now_s += 2
    assert all_of.find(token) is None
    assert connection.is_closed


def test_a_session_ends_however_much_it_is_used() -> None:
    """Its whole time is limited."""
    clock = ManualClock()
    all_of = sessions(clock, session_idle_ms=10_000, session_ms=25_000)
    token, _ = open_one(all_of)
    for _ in range(3):
        clock.now_s += 8
        assert all_of.find(token) is not None
    clock.now_s += 2
    assert all_of.find(token) is None


def test_a_further_session_displaces_the_one_that_was_idle_for_longest() -> None:
    """The limit holds for all, and for one user; others keep theirs."""
    clock = ManualClock()
    all_of = sessions(clock, max_sessions=3, max_sessions_per_user=2)
    first, _ = open_one(all_of, "a")
    second, _ = open_one(all_of, "b")
    third, connection = open_one(all_of, "b")
    assert all_of.find(second) is not None
    open_one(all_of, "b")
    assert (all_of.find(third), connection.is_closed) == (None, True)
    assert all_of.find(first) is not None
    open_one(all_of, "c")
    assert len(all_of) == 3
    assert all_of.find(second) is None


def test_tokens_are_long_and_differ() -> None:
    """Neither the cookie nor the token against forged requests can be guessed."""
    all_of = sessions(ManualClock())
    tokens = {open_one(all_of)[0] for _ in range(8)}
    assert len(tokens) == 8
    assert min(map(len, tokens)) >= 43
    found = [all_of.find(token) for token in tokens]
    assert len({each.csrf for each in found if each is not None}) == 8
    one = found[0]
    assert one is not None
    assert one.has_csrf(one.csrf)
    assert not one.has_csrf("")


def test_an_address_that_fails_often_waits() -> None:
    """Other addresses are not affected, and the count ends with its window."""
    clock = ManualClock()
    config = ConsoleSection(sign_in_failures=3, sign_in_window_ms=60_000, max_sign_in_addresses=2)
    limit = SignInLimit(config, clock)
    for _ in range(3):
        assert limit.allows("a")
        limit.begin("a")
    assert not limit.allows("a")
    assert limit.allows("b")
    clock.now_s += 61
    assert limit.allows("a")


def test_all_addresses_of_a_network_are_one() -> None:
    """A caller with one address of IPv6 has as many as it likes."""
    limit = SignInLimit(ConsoleSection(sign_in_failures=3), ManualClock())
    for host in ("2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::3"):
        assert limit.allows(host)
        limit.begin(host)
    assert not limit.allows("2001:db8::4")
    limit.not_failed("2001:db8::9")
    assert limit.allows("2001:db8::4")
    assert limit.allows("2001:db8:0:1::1")


def test_right_keys_are_no_failure() -> None:
    """A user who signs in again and again is not limited."""
    limit = SignInLimit(ConsoleSection(sign_in_failures=1), ManualClock())
    for _ in range(3):
        assert limit.allows("a")
        limit.begin("a")
        assert not limit.allows("a")
        limit.not_failed("a")


def test_addresses_that_are_counted_are_limited() -> None:
    """The oldest one is forgotten."""
    limit = SignInLimit(ConsoleSection(sign_in_failures=1, max_sign_in_addresses=2), ManualClock())
    for address in ("a", "b", "c"):
        limit.begin(address)
    assert [limit.allows(address) for address in ("a", "b", "c")] == [True, False, False]
