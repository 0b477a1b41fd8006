"""Calls with an id: a repeat gets the answer of the first try (rule 37; docs/adr/0080).

The servicer names the call that its task carries out, and how its answer is made. The one change of
the call then writes the answer with its rows, so that the next leader knows it, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import NamedTuple, Protocol, TypeVar, cast

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.servicer import META_SERVICE
from strata_nameserver.base.errors import invalid
from strata_nameserver.state.answers import MAX_CALL_ID_BYTES
from strata_nameserver.state.draft import Draft

Result = TypeVar("Result")
Response = TypeVar("Response", bound=Message)

_RESPONSE_TYPES = {
    rpc.input_type.name: (rpc.name, message_factory.GetMessageClass(rpc.output_type))
    for rpc in META_SERVICE.methods
    if "call_id" in rpc.input_type.fields_by_name
}
"""Name of a request -> its RPC, and the type of its response."""


class NamedRequest(Protocol):
    """A request that its caller may repeat."""

    DESCRIPTOR: Descriptor

    @property
    def call_id(self) -> bytes:
        """Id of the call; empty: a repeat is another call."""


class Call(NamedTuple):
    """A call with an id.

    Attributes:
        call_id: that its caller gave it.
        rpc: its name.
        answer: makes the response from the result of the change.
    """

    call_id: bytes
    rpc: str
    answer: Callable[[object], Message]

    def check_in(self, draft: Draft) -> None:
        """Go on only if no change carried the call out before.

        Raises:
            AnsweredBefore: one did.
            MetaRefused: INVALID: the id is none, or of another call.
        """
        if len(self.call_id) > MAX_CALL_ID_BYTES:
            size = len(self.call_id)
            raise invalid(f"a call_id of {size} bytes; at most {MAX_CALL_ID_BYTES} are allowed")
        known = draft.answer_to(self.call_id)
        if known is None:
            return
        revision, answered = known
        if answered.rpc != self.rpc:
            raise invalid(f"this call_id of {self.rpc} is that of a call of {answered.rpc}")
        answer = answered.answer if answered.HasField("answer") else None
        raise AnsweredBefore(revision, answer)

    def remember_in(self, draft: Draft, result: object) -> None:
        """Let the change that carries the call out write its answer, too."""
        draft.remember(self.call_id, self.rpc, self.answer(result).SerializeToString())


class AnsweredBefore(Exception):
    """The call was carried out at an earlier try.

    Attributes:
        revision: that carried it out; it may be in flight.
        answer: the response that it got, or would have got; None: it was too large to be kept.
    """

    def __init__(self, revision: int, answer: bytes | None) -> None:
        super().__init__(f"the call was carried out at revision {revision}")
        self.revision = revision
        self.answer = answer


_current: ContextVar[Call | None] = ContextVar("strata_metadata_call", default=None)


def current_call() -> Call | None:
    """Return the call that this task carries out; None: it has no id."""
    return _current.get()


async def once(
    request: NamedRequest, work: Awaitable[Result], answer: Callable[[Result], Response]
) -> Response:
    """Carry a call out, if no try before has, and return its answer.

    Args:
        request: of the call.
        work: carries it out by one change at most.
        answer: makes the response from the result of that change, which is what `work` returns.

    Raises:
        MetaRefused: as `work` says; INVALID: the id is none; UNAVAILABLE: the call was carried out
            before, and its answer was not kept.
    """
    rpc, response_type = _RESPONSE_TYPES[request.DESCRIPTOR.name]
    call = None
    if request.call_id:
        call = Call(request.call_id, rpc, cast("Callable[[object], Message]", answer))
    before = _current.set(call)
    try:
        return answer(await work)
    except AnsweredBefore as known:
        if known.answer is None:
            raise MetaRefused(
                meta_pb2.META_OUTCOME_UNAVAILABLE,
                f"the call was carried out at revision {known.revision}; its answer is too large "
                "to be kept: read what it changed",
            ) from None
        return cast("Response", response_type.FromString(known.answer))
    finally:
        _current.reset(before)
