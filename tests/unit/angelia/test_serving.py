"""A service is served by its descriptor: every RPC by one method, one way to refuse for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata.kv.v1 import kv_storage_pb2
from strata.storage.v1 import storage_pb2, tier_pb2
from strata_angelia.methods import rpcs_of
from strata_angelia.serving import serve

TIER = tier_pb2.DESCRIPTOR.services_by_name["TierService"]
TABLES = kv_storage_pb2.DESCRIPTOR.services_by_name["KvStorageService"]


class Refusing(Exception):
    """How the handlers here refuse."""


class Answers:
    """Says a refusal in the response's field, and counts what was carried out."""

    refusal = Refusing

    def __init__(self) -> None:
        self.completed = 0

    def refuse(self, response: Any, refusal: Refusing) -> None:
        response.refusal.reason = str(refusal)

    def complete(self, response: Any) -> None:
        self.completed += 1


class Handler:
    """Has any method; each does as `what` says."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._stream if name in ("dump", "follow") else self._unary

    async def _unary(self, request: Any, context: Any) -> Any:
        self._maybe_raise()
        return tier_pb2.FlushTierResponse(raft_index=7)

    async def _stream(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield kv_storage_pb2.DumpResponse(revision=1)
        self._maybe_raise()

    def _maybe_raise(self) -> None:
        if self._what == "refuse":
            raise Refusing("not here")
        if self._what == "mistake":
            raise ValueError("a mistake")


class Server:
    """Keeps what is registered."""

    def __init__(self) -> None:
        self.handler: Any = None

    def register(self, service: Any, handler: object) -> None:
        self.handler = handler

    async def start(self) -> str:
        return ""

    async def stop(self, grace_s: float) -> None:
        self.handler = None


def served(service: Any, what: str) -> tuple[Any, Answers]:
    server, answers = Server(), Answers()
    serve(server, service, Handler(what), answers)
    return server.handler, answers


async def test_a_call_that_is_carried_out() -> None:
    """The method's response, completed."""
    handler, answers = served(TIER, "answer")
    assert (await handler.flush_tier(tier_pb2.FlushTierRequest(), None)).raft_index == 7
    assert answers.completed == 1


async def test_a_refusal_is_said_in_an_empty_response() -> None:
    """The response is of the RPC's own type; it is no success."""
    handler, answers = served(TIER, "refuse")
    response = await handler.flush_tier(tier_pb2.FlushTierRequest(), None)
    assert response == tier_pb2.FlushTierResponse(refusal=storage_pb2.Refusal(reason="not here"))
    assert answers.completed == 0


async def test_a_mistake_goes_on_to_the_transport() -> None:
    """It knows how to contain it."""
    handler, answers = served(TIER, "mistake")
    with pytest.raises(ValueError, match="a mistake"):
        await handler.flush_tier(tier_pb2.FlushTierRequest(), None)
    assert answers.completed == 0


async def test_a_stream_that_is_refused_ends_with_the_refusal() -> None:
    """Behind what it told before."""
    handler, _ = served(TABLES, "refuse")
    responses = [each async for each in handler.dump(kv_storage_pb2.DumpRequest(), None)]
    assert [each.revision for each in responses] == [1, 0]
    assert [each.refusal.reason for each in responses] == ["", "not here"]


def test_an_rpc_without_a_method_or_with_two_stops_the_start() -> None:
    """A handler that lacks an RPC is refused before anything is served."""

    class Some:
        def get_tier_status(self) -> None: ...

    with pytest.raises(TypeError, match="Some lacks set_tier_paused for /strata"):
        rpcs_of(TIER, Some())
    with pytest.raises(TypeError, match="Some, Some has twice get_tier_status"):
        rpcs_of(TIER, Some(), Some())
    with pytest.raises(TypeError, match="TierService has no Nothing"):
        rpcs_of(TIER, Some(), beside=["Nothing"])


def test_every_rpc_is_found_in_the_order_of_the_proto_file() -> None:
    """Over several handlers, with its types; those that are served in another way are left out."""

    class First:
        def get_tier_status(self) -> None: ...

    class Second:
        def flush_tier(self) -> None: ...

    beside = [rpc.name for rpc in TIER.methods if rpc.name not in ("GetTierStatus", "FlushTier")]
    first, second = rpcs_of(TIER, Second(), First(), beside=beside)
    assert (first.name, first.request_type) == ("GetTierStatus", tier_pb2.GetTierStatusRequest)
    assert (second.path, second.response_type) == (
        "/strata.storage.v1.TierService/FlushTier",
        tier_pb2.FlushTierResponse,
    )
