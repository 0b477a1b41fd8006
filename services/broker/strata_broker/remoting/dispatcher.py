"""From a request to its handler and its answer; a failed request ends only itself (rule 33)."""

from __future__ import annotations

from collections.abc import Mapping

from strata_broker.access.authentication import Authenticator, SignedContent
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.principals import ANYBODY, Principal
from strata_broker.base import errors
from strata_broker.base.failures import contained
from strata_broker.base.shares import CallShares, all_owners_of, most_each
from strata_broker.remoting.answers import VERSION, RemotingRefusal, refused
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.request_bytes import RequestBytes
from strata_mq.requests import Code, RequestError
from strata_remoting import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    AdminCode,
    RemotingCommand,
    RemotingError,
    RequestCode,
    ResponseCode,
)
from strata_runtime.limits import Limit

_NAMES = {int(code): code.name for code in (*AdminCode, *RequestCode)}
_OTHER = "OTHER"
_EXPECTED = (RemotingRefusal, RemotingError, ConnectionError)


class RemotingDispatcher:
    """See the module docstring.

    Args:
        handlers: by request code.
        runtime: configuration, clock, counters and access control.
    """

    def __init__(self, handlers: Mapping[int, Handler], runtime: CallRuntime) -> None:
        config = runtime.config
        self._handlers = dict(handlers)
        self._access: Authenticator = runtime.access
        self._requests = runtime.requests
        self._clock = runtime.clock
        self._answered = runtime.metrics.histogram("strata_broker_remoting_request_ms")
        self._pace = runtime.recorder.pace
        self._limit = Limit(
            "remoting requests",
            config.remoting.max_requests,
            "requests",
            metrics=runtime.metrics,
        )
        most = most_each(
            config.calls.max_in_flight_per_client, config.calls.max_in_flight_per_address
        )
        self._shares = CallShares("remoting requests", most, metrics=runtime.metrics)
        self._bytes = RequestBytes(config.remoting, runtime.metrics)

    def wait_s(self, peer: str) -> float:
        """Return how long a connection is not read, because too much of it was refused."""
        return 0.0 if self._pace.is_idle else self._pace.wait_s(peer)

    async def serve(self, exchange: Exchange) -> None:
        """Carry a request out and answer it.

        Raises:
            ConnectionError: the client is gone, or reads too slowly.
        """
        request, peer = exchange.request, exchange.client.peer
        started_s = self._clock.monotonic_s()
        answer: RemotingCommand | None
        code = Code.OK
        try:
            with contained(self._requests, "remoting", *_EXPECTED):
                answer = await self._carry_out(exchange)
        except RequestError as failure:
            code = failure.code
            name = _NAMES.get(request.code, str(request.code))
            self._access.tell_if_refused(failure, exchange.caller(), name)
            answer = refused(request, failure)
        except (RemotingRefusal, RemotingError) as failure:
            code = Code.BAD_REQUEST
            answer = refused(request, failure)
        if code is not Code.OK:
            self._pace.refused(peer, (code,))
        labels = {"request": _NAMES.get(request.code, _OTHER)}
        self._answered.record((self._clock.monotonic_s() - started_s) * 1000, labels)
        if answer is not None:
            # The answer may wait for its client, and nobody counts the request any more.
            del request
            exchange.forget_content()
            await self._answer(exchange, answer)

    async def _answer(self, exchange: Exchange, answer: RemotingCommand) -> None:
        try:
            await exchange.answer(answer)
        except RequestError as failure:
            self._pace.refused(exchange.client.peer, (failure.code,))
            await exchange.answer(refused(exchange.request, failure))

    async def _carry_out(self, exchange: Exchange) -> RemotingCommand | None:
        request, client = exchange.request, exchange.client
        exchange.principal = self._admit(exchange)
        handler = self._handlers.get(request.code)
        if handler is None:
            return request.answered(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {request.code} not supported",
                version=VERSION,
            )
        owners = all_owners_of(client.client_id, client.peer)
        with self._shares.holding(owners), self._bytes.holding(owners, exchange.size_bytes):
            if not self._limit.try_take():
                raise errors.too_many_requests()
            try:
                return await handler(exchange)
            finally:
                self._limit.give_back()

    def _admit(self, exchange: Exchange) -> Principal:
        """Return who signed a request; anybody, where access is not controlled.

        Raises:
            AccessRefused: UNAUTHORIZED.
        """
        if not self._access.is_on:
            return ANYBODY
        request, client = exchange.request, exchange.client
        signed = SignedContent(
            request.text(ACCESS_KEY, ""),
            request.text(SIGNATURE, ""),
            request.text(SECURITY_TOKEN, ""),
            request.signed_content(),
        )
        return self._access.principal_of_signed(signed, client.peer, client.client_id)
