"""Sessions of users: the user, the end of the session, and the connection with the keys.

Secrets stay in this process: a browser has a random token in a cookie that scripts cannot read, and
a second random token that every change must repeat in a header (CSRF). Used on the event loop only.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from strata_cli.client import AdminClient
from strata_cli.processes.console_config import ConsoleSection
from strata_edge.addresses import network_of
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

_TOKEN_BYTES = 32


@dataclass(slots=True, kw_only=True)
class ConsoleSession:
    """One session.

    Attributes:
        user: access key of who signed in; empty: access control is off.
        client: calls the cluster with the user's keys.
        csrf: token that every change repeats.
        ends_s: monotonic time at which it ends whatever happens.
        used_s: monotonic time of the last request of the user.
    """

    user: str
    client: AdminClient
    ends_s: float
    used_s: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES))

    def has_csrf(self, token: str) -> bool:
        """Whether a request repeats the token of this session."""
        return hmac.compare_digest(self.csrf.encode(), token.encode())


class ConsoleSessions:
    """All sessions, the least recently used first.

    Args:
        config: limits.
        clock: measures them.
        metrics: how many there are, and how they end.
    """

    def __init__(self, config: ConsoleSection, clock: Clock, metrics: Metrics) -> None:
        self._config = config
        self._clock = clock
        self._sessions: OrderedDict[str, ConsoleSession] = OrderedDict()
        self._ended = metrics.counter("strata_console_sessions_ended_total")
        metrics.gauge("strata_console_sessions", lambda: len(self._sessions))

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, user: str, client: AdminClient) -> tuple[str, ConsoleSession]:
        """Begin a session; return the token for its cookie. It may end an older one."""
        self.expire()
        own = [token for token, each in self._sessions.items() if each.user == user]
        if len(own) >= self._config.max_sessions_per_user:
            self._end(own[0], "displaced")
        elif len(self._sessions) >= self._config.max_sessions:
            self._end(next(iter(self._sessions)), "displaced")
        now_s = self._clock.monotonic_s()
        session = ConsoleSession(
            user=user,
            client=client,
            ends_s=now_s + self._config.session_ms / 1_000,
            used_s=now_s,
        )
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions[token] = session
        return token, session

    def find(self, token: str, *, uses: bool = True) -> ConsoleSession | None:
        """Return the session of a cookie; None: there is none, or it has ended.

        Args:
            token: of the cookie.
            uses: the user did something: the session is not idle.
        """
        self.expire()
        session = self._sessions.get(token)
        if session is not None and uses:
            session.used_s = self._clock.monotonic_s()
            self._sessions.move_to_end(token)
        return session

    def close(self, token: str) -> None:
        """End the session of a cookie, if there is one."""
        if token in self._sessions:
            self._end(token, "signed_out")

    def close_all(self) -> None:
        """End every session."""
        for token in list(self._sessions):
            self._end(token, "signed_out")

    def expire(self) -> None:
        """End the sessions whose time is over."""
        now_s, idle_s = self._clock.monotonic_s(), self._config.session_idle_ms / 1_000
        over = [
            token
            for token, each in self._sessions.items()
            if now_s >= each.ends_s or now_s - each.used_s >= idle_s
        ]
        for token in over:
            self._end(token, "expired")

    def _end(self, token: str, reason: str) -> None:
        self._sessions.pop(token).client.close()
        self._ended.add(1, {"reason": reason})


class SignInLimit:
    """Counts failed sign-ins by address, so that nobody tries many secrets.

    The first 64 bits of an IPv6 address count: one caller has all others.

    Args:
        config: limits.
        clock: measures them.
    """

    def __init__(self, config: ConsoleSection, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def allows(self, address: str) -> bool:
        """Whether an address may try again now."""
        address = network_of(address)
        times = self._failures.get(address)
        if times is None:
            return True
        since_s = self._clock.monotonic_s() - self._config.sign_in_window_ms / 1_000
        while times and times[0] <= since_s:
            times.popleft()
        if not times:
            del self._failures[address]
        return len(times) < self._config.sign_in_failures

    def begin(self, address: str) -> None:
        """Count a try as a failure; many at once do not get around the limit."""
        address = network_of(address)
        times = self._failures.setdefault(address, deque(maxlen=self._config.sign_in_failures))
        times.append(self._clock.monotonic_s())
        self._failures.move_to_end(address)
        if len(self._failures) > self._config.max_sign_in_addresses:
            self._failures.popitem(last=False)

    def not_failed(self, address: str) -> None:
        """Take back what `begin` counted: the keys were right, or nobody could tell."""
        times = self._failures.get(network_of(address))
        if times:
            times.pop()


ClientFactory = Callable[[str, str, str], AdminClient]
"""Makes a connection with an access key, a secret key and a session token."""
