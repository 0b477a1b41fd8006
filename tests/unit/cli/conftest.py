"""A broker that tests answer for: a gRPC server of strata.admin.v1 in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from strata.admin.v1 import admin_pb2_grpc


class ScriptedAdmin(admin_pb2_grpc.AdminServiceServicer):
    """Answers the calls that a test names; all others are UNIMPLEMENTED.

    Attributes:
        answers: by RPC: a response, or what makes one of a request.
        requests: (RPC, request) of every call that was answered.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: list[tuple[str, Any]] = []

    def asked(self, rpc: str) -> list[Any]:
        """Return the requests of an RPC."""
        return [request for name, request in self.requests if name == rpc]


def _method(rpc: str) -> Callable[..., Any]:
    def answer(self: ScriptedAdmin, request: Any, context: grpc.ServicerContext) -> Any:
        if rpc not in self.answers:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, rpc)
        self.requests.append((rpc, request))
        made = self.answers[rpc]
        made = made(request) if callable(made) else made
        if isinstance(made, grpc.StatusCode):
            context.abort(made, f"{rpc} is refused")
        return made

    return answer


for _rpc in [name for name in vars(admin_pb2_grpc.AdminServiceServicer) if name[0].isupper()]:
    setattr(ScriptedAdmin, _rpc, _method(_rpc))


@pytest.fixture
def scripted() -> ScriptedAdmin:
    """The answers of the broker at `endpoint_of_scripted`."""
    return ScriptedAdmin()  # type: ignore[abstract]


@pytest.fixture
def endpoint_of_scripted(scripted: ScriptedAdmin) -> Iterator[str]:
    """HOST:PORT of a broker that answers as `scripted` says."""
    server = grpc.server(ThreadPoolExecutor(4))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(scripted, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()
