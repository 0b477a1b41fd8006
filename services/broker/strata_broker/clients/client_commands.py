"""Commands to clients on their telemetry streams, and the clients' answers.

A command carries a nonce. The answer with the same nonce may come on any stream of the client, or
never: official clients of some languages know no commands.
"""

from __future__ import annotations

import asyncio
import uuid

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.broker.v1 import peer_pb2
from strata_broker.base import errors
from strata_broker.base.config import PeerSection
from strata_broker.clients.telemetry import Telemetry
from strata_mq.requests import Code, RequestError
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_runtime.timeouts import Timeout


class ClientCommands:
    """Commands that this broker sends, one waiting call for each."""

    def __init__(self, telemetry: Telemetry, config: PeerSection, metrics: Metrics) -> None:
        self._telemetry = telemetry
        self._timeout_s = config.command_timeout_ms / 1000
        self._limit = Limit("client commands", config.max_commands, "commands", metrics=metrics)
        # nonce -> who waits for the answer
        self._waiting: dict[str, asyncio.Future[service_pb2.TelemetryCommand]] = {}
        telemetry.on_reply(self._replied)

    async def command(
        self, client_id: str, command: peer_pb2.ClientCommand.ValueType, message: bytes
    ) -> peer_pb2.CommandClientResponse:
        """Send a command to a client that has a stream here; return its answer.

        Raises:
            RequestError: NOT_FOUND: it has no stream; REQUEST_TIMEOUT: it does not answer;
                BAD_REQUEST: an unknown command; TOO_MANY_REQUESTS.
        """
        stream = self._telemetry.stream_of(client_id)
        if stream is None:
            raise not_connected(client_id)
        nonce = uuid.uuid4().hex
        frame = _frame(command, nonce, message)
        if not self._limit.try_take():
            raise errors.too_many_requests(
                "too many commands to clients are under way (peer.max_commands)"
            )
        reply = self._waiting[nonce] = asyncio.get_running_loop().create_future()
        try:
            stream.push(frame.SerializeToString())
            async with Timeout(self._timeout_s):
                return _response(await reply)
        except TimeoutError:
            raise RequestError(
                Code.REQUEST_TIMEOUT,
                f"client {client_id} did not answer within {self._timeout_s:g} s; clients of some "
                "languages answer no commands",
            ) from None
        finally:
            del self._waiting[nonce]
            self._limit.give_back()

    def _replied(self, reply: service_pb2.TelemetryCommand) -> None:
        """Take a client's answer; an answer that no call waits for is ignored."""
        match reply.WhichOneof("command"):
            case "thread_stack_trace":
                nonce = reply.thread_stack_trace.nonce
            case "verify_message_result":
                nonce = reply.verify_message_result.nonce
            case _:
                return
        waiting = self._waiting.get(nonce)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)


def not_connected(client_id: str) -> RequestError:
    """Return the error for a client that has no stream."""
    return RequestError(Code.NOT_FOUND, f"client {client_id} is not connected")


def _frame(
    command: peer_pb2.ClientCommand.ValueType, nonce: str, message: bytes
) -> service_pb2.TelemetryCommand:
    frame = service_pb2.TelemetryCommand(status=errors.ok_status())
    if command == peer_pb2.CLIENT_COMMAND_PRINT_THREAD_STACK_TRACE:
        frame.print_thread_stack_trace_command.nonce = nonce
    elif command == peer_pb2.CLIENT_COMMAND_VERIFY_MESSAGE:
        frame.verify_message_command.nonce = nonce
        frame.verify_message_command.message.MergeFromString(message)
    else:
        raise RequestError(Code.BAD_REQUEST, f"unknown command {command}")
    return frame


def _response(reply: service_pb2.TelemetryCommand) -> peer_pb2.CommandClientResponse:
    status = reply.status if reply.HasField("status") else errors.ok_status()
    if status.code == definition_pb2.CODE_UNSPECIFIED:
        status.code = definition_pb2.OK
    return peer_pb2.CommandClientResponse(
        status=status, thread_stack_trace=reply.thread_stack_trace.thread_stack_trace
    )
