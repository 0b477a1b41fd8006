"""From the headers of a call to its principal: signatures as the official clients make them.

A signature is hashed once: the client's next calls with the same headers find it in a dictionary,
until its date is too old or the rows of access control change. Refusals have RocketMQ's texts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

from strata.meta.v1 import meta_pb2
from strata_broker.access.principals import ANYBODY, AccessRefused, BrokerPrincipal, Principal
from strata_broker.access.wrong_signatures import WrongSignatures
from strata_broker.base.access_config import AccessControlSection
from strata_broker.base.audit import Audited, AuditTrail
from strata_broker.base.time_zones import TimeZones
from strata_broker.metadata.access_rows import AccessRows
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.requests import host_of
from strata_edge.ports import CallInfo
from strata_mq.access import (
    ClockWindow,
    SignedHeader,
    content_signature_is_right,
    key_id_of_peer,
    parse_authorization,
    peer_secret_key,
    read_session,
    signature_is_right,
)
from strata_mq.requests import Code, RequestError
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

AUTHORIZATION = "authorization"
DATE = "x-mq-date-time"
SESSION_TOKEN = "x-mq-session-token"  # noqa: S105 - the name of a header
_CLIENT_ID = "x-mq-client-id"
NO_KEY = "no key"
"""Reason of a refusal: nobody signed the call."""

_FOREVER_MS = 1 << 63
# That share a signature: of a user, within a second or so.
_MAX_CONNECTIONS = 1_024


class _Signed:
    """A signature that is right.

    Attributes:
        user: whose it is; None: another broker's.
        name: access key of the user or broker.
        until_ms: when its date is too old, or its key ends.
        principals: who used it, by connection; the connections of a user share its signatures.
    """

    __slots__ = ("name", "principals", "until_ms", "user")

    def __init__(self, name: str, user: meta_pb2.User | None, until_ms: int) -> None:
        self.name = name
        self.user = user
        self.until_ms = until_ms
        self.principals: dict[str, Principal] = {}


class _Secret(NamedTuple):
    """A secret key that a signature may be of."""

    text: str
    until_ms: int = _FOREVER_MS


class SignedContent(NamedTuple):
    """A request that its client signed as a whole, as clients of the remoting protocol do.

    Attributes:
        access_key: name of the user; empty: nobody signed.
        signature: base64 of HMAC-SHA1.
        session_token: of a session's key; empty: the key is the user's own.
        content: all that is signed.
    """

    access_key: str
    signature: str
    session_token: str
    content: bytes


class AdmittedCall:
    """Base of calls whose signature was checked when they arrived.

    Attributes:
        principal: who calls; None: nobody was admitted yet, the headers are to say it.
        claimed: name of the user as it was claimed.
    """

    principal: Principal | None = None
    claimed: str = ""


class Authenticator:
    """See the module docstring. Used on the event loop only.

    Args:
        view: knows users, policies and cluster keys.
        config: the section `[access_control]`.
        clock: wall time for dates, monotonic time for wrong signatures.
        audit: where sign-ins are told; whoever refuses the call tells of refusals.
        metrics: what is counted.
    """

    def __init__(
        self,
        view: MetadataView,
        config: AccessControlSection,
        clock: Clock,
        *,
        audit: AuditTrail,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._config = config
        self._is_on = config.is_on
        self._clock = clock
        self._audit = audit
        self._zones = TimeZones(config.time_zones)
        self._wrong = WrongSignatures(
            config.max_wrong_signatures,
            config.wrong_signature_window_ms / 1000,
            clock,
            max_entries=config.max_wrong_signers,
        )
        self._version = -1
        # (authorization, date, session token) -> whose it is
        self._signed: OrderedDict[tuple[str, str, str], _Signed] = OrderedDict()
        # (user, peer) of signed requests that were told already
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        # (user, address) -> its principal
        self._principals: OrderedDict[tuple[str, str], Principal] = OrderedDict()
        self._refused = metrics.counter("strata_broker_unauthorized_total")
        self._forbidden = metrics.counter("strata_broker_forbidden_total")
        metrics.gauge("strata_broker_signatures", lambda: len(self._signed))
        metrics.gauge("strata_broker_principals", lambda: len(self._principals))
        metrics.gauge("strata_broker_wrong_signers", lambda: len(self._wrong))

    @property
    def is_on(self) -> bool:
        """Whether calls are checked."""
        return self._is_on

    def principal_of(self, metadata: Mapping[str, str], peer: str) -> Principal:
        """Return who makes a call.

        Args:
            metadata: the call's headers.
            peer: `host:port` of the caller.

        Raises:
            AccessRefused: UNAUTHORIZED.
        """
        known = self.known_principal(metadata, peer)
        if known is not None:
            return known
        key = _signature_of(metadata)
        signed = self._signed.get(key)
        now_ms = self._clock.wall_ms()
        if signed is None or now_ms > signed.until_ms:
            signed = self._sign_in(key, host_of(peer), now_ms)
            if len(self._signed) >= self._config.max_signatures:
                self._signed.popitem(last=False)
            self._signed[key] = signed
        principal = signed.principals.get(peer)
        if principal is None:
            principal = self._first_use(signed, peer)
            self._audit.signed_in(Audited(signed.name, peer, metadata.get(_CLIENT_ID, "")))
        return principal

    def known_principal(self, metadata: Mapping[str, str], peer: str) -> Principal | None:
        """Return who makes a call with a signature that was found to be good before.

        Args:
            metadata: see `principal_of`.
            peer: likewise.

        Returns:
            None: `principal_of` is to check it.
        """
        if not self._is_on:
            return ANYBODY
        self._check_version()
        signed = self._signed.get(_signature_of(metadata))
        if signed is None or self._clock.wall_ms() > signed.until_ms:
            return None
        return signed.principals.get(peer)

    def principal_of_call(self, call: CallInfo) -> Principal:
        """Return who makes a call, by its headers unless it was admitted before.

        Raises:
            AccessRefused: UNAUTHORIZED.
        """
        if isinstance(call, AdmittedCall) and call.principal is not None:
            return self.renewed(call.principal)
        return self.principal_of(call.metadata, call.peer)

    def principal_of_signed(self, signed: SignedContent, peer: str, client_id: str) -> Principal:
        """Return who makes a request that is signed as a whole.

        Such a signature has no date: it is as good in a second request with the same content.

        Args:
            signed: the request.
            peer: `host:port` of the caller.
            client_id: as the client calls itself.

        Raises:
            AccessRefused: UNAUTHORIZED.
        """
        if not self._is_on:
            return ANYBODY
        self._check_version()
        address, name = host_of(peer), signed.access_key
        self._check_may_sign(address, name)
        user, now_ms = self._user_at(name, address), self._clock.wall_ms()
        token = signed.session_token
        secrets = self._session_secrets(user, token, now_ms) if token else _secrets_of(user, now_ms)
        if not any(
            content_signature_is_right(secret.text, signed.content, signed.signature)
            for secret in secrets
        ):
            self._wrong.add(address, name)
            _refuse("check signature failed.", "wrong signature")
        if (name, peer) not in self._told:
            if len(self._told) >= self._config.max_signatures:
                self._told.popitem(last=False)
            self._told[name, peer] = None
            self._audit.signed_in(Audited(name, peer, client_id))
        return self._principal(user, address)

    def renewed(self, principal: Principal) -> Principal:
        """Return the principal of a long call by the rows of now.

        Raises:
            AccessRefused: UNAUTHORIZED: its user is gone or disabled.
        """
        if principal is ANYBODY or principal.is_broker:
            return principal
        self._check_version()
        user = self._user(self._view.access, principal.user)
        return self._principal(user, principal.address)

    @property
    def version(self) -> int:
        """Version of the rows that decisions are made by."""
        return self._view.access.version

    def tell_refused(self, refused: AccessRefused, info: CallInfo, rpc: str) -> None:
        """Count a refusal and tell the audit trail of it."""
        if refused.code is Code.UNAUTHORIZED:
            self._refused.add(1, {"reason": refused.reason})
        else:
            self._forbidden.add()
        header = parse_authorization(info.metadata.get(AUTHORIZATION, ""))
        claimed = header.access_key if header is not None else ""
        if isinstance(info, AdmittedCall):
            claimed = info.claimed
        who = Audited(_shortened(claimed), info.peer, info.metadata.get(_CLIENT_ID, ""))
        self._audit.refused(who, rpc, refused.resource, refused.reason)

    def tell_if_refused(self, failure: RequestError, info: CallInfo, rpc: str) -> None:
        """Count a call's failure and tell the audit trail, if access control refused the call."""
        if isinstance(failure, AccessRefused):
            self.tell_refused(failure, info, rpc)

    def _check_version(self) -> None:
        version = self._view.access.version
        if version != self._version:
            self._version = version
            self._signed.clear()
            self._told.clear()
            self._principals.clear()

    def _first_use(self, signed: _Signed, peer: str) -> Principal:
        """Return the principal of a signature at a connection that uses it for the first time."""
        address = host_of(peer)
        if signed.user is None:
            principal: Principal = BrokerPrincipal(signed.name, address)
        else:
            principal = self._principal(signed.user, address)
        if len(signed.principals) >= _MAX_CONNECTIONS:
            signed.principals.clear()
        signed.principals[peer] = principal
        return principal

    def _sign_in(self, key: tuple[str, str, str], address: str, now_ms: int) -> _Signed:
        authorization, date, token = key
        self._check_ready()
        header = parse_authorization(authorization)
        if header is None:
            _refuse(
                "authentication header is incorrect." if authorization else _NOBODY,
                "not a signature" if authorization else NO_KEY,
            )
        self._check_may_sign(address, header.access_key)
        skew_ms = self._config.max_clock_skew_ms
        window = ClockWindow(skew_ms, self._zones.ranges_ms(now_ms, skew_ms))
        until_ms = window.until_ms(date, now_ms)
        if until_ms is None:
            _refuse(
                f"check signature failed. The date {date[:40]!r} ({DATE}) is more than {skew_ms} "
                "ms from this broker's clock (access_control.max_clock_skew_ms); the zone of a "
                "client that writes local time must be in access_control.time_zones.",
                "date outside the window",
            )
        if key_id_of_peer(header.access_key) is not None:
            self._check(header, date, address, self._peer_secrets(header.access_key))
            return _Signed(header.access_key, None, until_ms)
        user = self._user_at(header.access_key, address)
        secrets = self._session_secrets(user, token, now_ms) if token else _secrets_of(user, now_ms)
        found = self._check(header, date, address, secrets)
        return _Signed(user.name, user, min(until_ms, found.until_ms))

    def _check_ready(self) -> None:
        if not self._view.ready:
            _refuse("this broker has not reached a nameserver yet", "no metadata")

    def _check_may_sign(self, address: str, name: str) -> None:
        """Check that a signature of a user from an address is worth a look."""
        self._check_ready()
        if not name:
            _refuse(_NOBODY, NO_KEY)
        if len(name) > _MOST_NAME_CHARACTERS:
            # Names of wrong signatures are kept, and a caller chooses them.
            _refuse(f"User:{_shortened(name)} is not found.", "unknown user")
        if self._wrong.is_blocked(address, name):
            _refuse(
                "check signature failed. Too many wrong signatures came from this address; "
                "try again later.",
                "too many wrong signatures",
            )

    def _check(
        self, header: SignedHeader, date: str, address: str, secrets: list[_Secret]
    ) -> _Secret:
        for secret in secrets:
            if signature_is_right(secret.text, date, header.signature):
                return secret
        self._wrong.add(address, header.access_key)
        _refuse("check signature failed.", "wrong signature")

    def _user_at(self, name: str, address: str) -> meta_pb2.User:
        try:
            return self._user(self._view.access, name)
        except AccessRefused:
            # Guessing names is slowed down as guessing keys is.
            self._wrong.add(address, name)
            raise

    def _user(self, rows: AccessRows, name: str) -> meta_pb2.User:
        user = rows.user(name)
        if user is None:
            _refuse(f"User:{name} is not found.", "unknown user")
        if user.disabled:
            _refuse(f"User:{name} is disabled.", "disabled user")
        return user

    def _principal(self, user: meta_pb2.User, address: str) -> Principal:
        key = (user.name, address)
        principal = self._principals.get(key)
        if principal is None:
            if len(self._principals) >= self._config.max_principals:
                self._principals.popitem(last=False)
            principal = self._principals[key] = Principal(
                user.name,
                address,
                policies=self._view.access.policies_of(user.name),
                is_admin=user.admin,
                max_decisions=self._config.max_decisions_per_principal,
            )
        return principal

    def _peer_secrets(self, access_key: str) -> list[_Secret]:
        key_id = key_id_of_peer(access_key)
        return [
            _Secret(peer_secret_key(key.secret))
            for key in self._view.access.cluster_keys()
            if key.key_id == key_id
        ]

    def _session_secrets(self, user: meta_pb2.User, token: str, now_ms: int) -> list[_Secret]:
        keys = {key.key_id: key.secret for key in self._view.access.cluster_keys()}
        session = read_session(token, keys.get)
        if session is None or session.user != user.name:
            _refuse("check signature failed. The session token is not valid.", "wrong token")
        if now_ms > session.ends_ms:
            _refuse("check signature failed. The session token has expired.", "expired token")
        return [_Secret(session.secret_key, session.ends_ms)]


_NOBODY = "username cannot be null."
# Twice as long as a nameserver lets the name of a user be.
_MOST_NAME_CHARACTERS = 128


def _signature_of(metadata: Mapping[str, str]) -> tuple[str, str, str]:
    return (
        metadata.get(AUTHORIZATION, ""),
        metadata.get(DATE, ""),
        metadata.get(SESSION_TOKEN, ""),
    )


def _secrets_of(user: meta_pb2.User, now_ms: int) -> list[_Secret]:
    secrets = [_Secret(user.secret_key)]
    if user.previous_secret_key and now_ms <= user.previous_valid_until_ms:
        secrets.append(_Secret(user.previous_secret_key, user.previous_valid_until_ms))
    return secrets


def _shortened(name: str) -> str:
    """Return a name as a text or the audit trail shows it."""
    return name if len(name) <= _MOST_NAME_CHARACTERS else f"{name[:_MOST_NAME_CHARACTERS]}..."


def _refuse(text: str, reason: str) -> NoReturn:
    raise AccessRefused(Code.UNAUTHORIZED, text, reason=reason)
