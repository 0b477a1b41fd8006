"""Connections to servers of RocketMQ's remoting protocol: requests out, answers in.

Several requests share a connection; answers are matched by their number. A connection that fails,
or that answers late, is closed, and the next request opens a new one.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from strata_cli.errors import CliError
from strata_remoting import (
    ACCESS_KEY,
    SIGNATURE,
    FrameLimits,
    RemotingCommand,
    RemotingError,
    RemotingFrameReader,
    ResponseCode,
    Serialization,
    encode_frame,
)
from strata_runtime.addresses import host_and_port
from strata_runtime.tasks import RequestTasks, TooManyTasksError
from strata_runtime.timeouts import Timeout

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Largest answer: the list of all topics of a large cluster is one frame."""

MAX_WAITING = 64
"""Most requests of one connection that wait for an answer; further requests wait for room."""

MAX_CONNECTIONS = 256
"""Most servers of a source that are connected at once."""

_VERSION = 501  # Servers of 4.9 take it, and none of the calls made here depends on it.
_READ_BYTES = 1 << 18


class SourceUnreachableError(CliError):
    """A server of the source cannot be reached, or did not answer in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unreachable")


class SourceRefusedError(CliError):
    """A server of the source answered with an error.

    Attributes:
        answer_code: a `ResponseCode`, or another number of RocketMQ's.
    """

    def __init__(self, address: str, answer: RemotingCommand) -> None:
        super().__init__(f"{address} answered {answer.code}: {answer.remark[:300]}", "refused")
        self.answer_code = answer.code


class ClusterKeys(NamedTuple):
    """Keys of a user of the source.

    Attributes:
        access_key: its name.
        secret_key: signs requests.
    """

    access_key: str
    secret_key: str


class RemotingConnections:
    """Open connections by address.

    Args:
        timeout_s: of one request, connecting included, in seconds.
        keys: sign all requests; None: the source has no access control.
    """

    def __init__(self, timeout_s: float, keys: ClusterKeys | None = None) -> None:
        self._timeout_s = timeout_s
        self._keys = keys
        self._connections: dict[str, _Connection] = {}
        self._tasks = RequestTasks("migrate", max_tasks=MAX_CONNECTIONS)

    async def ask(
        self, address: str, code: int, fields: Mapping[str, object], body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return its answer, whatever it says.

        Args:
            address: HOST:PORT.
            code: kind of the request.
            fields: of its header.
            body: of the request.

        Raises:
            SourceUnreachableError: there is no connection, or no answer in time.
        """
        texts = {name: _text(value) for name, value in fields.items()}
        try:
            async with Timeout(self._timeout_s):
                connection = await self._connection(address)
                return await connection.ask(code, texts, body)
        except (OSError, RemotingError, TimeoutError) as error:
            await self._drop(address)
            reason = str(error) or "no answer in time"
            raise SourceUnreachableError(f"cannot reach {address}: {reason}") from None

    async def call(
        self, address: str, code: int, fields: Mapping[str, object], body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return its answer.

        Raises:
            SourceUnreachableError: see `ask`.
            SourceRefusedError: the answer is not SUCCESS.
        """
        answer = await self.ask(address, code, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            raise SourceRefusedError(address, answer)
        return answer

    async def close(self) -> None:
        """Close all connections."""
        for address in list(self._connections):
            await self._drop(address)

    async def _connection(self, address: str) -> _Connection:
        known = self._connections.get(address)
        if known is not None and not known.ended:
            return known
        try:
            host, port = host_and_port(address)
        except ValueError as error:
            raise OSError(str(error)) from None
        await self._drop(address)
        reader, writer = await asyncio.open_connection(host, port)
        # Two requests may have connected at the same time; the first connection is used.
        known = self._connections.get(address)
        if known is not None and not known.ended:
            writer.close()
            return known
        try:
            made = self._connections[address] = _Connection(
                reader, writer, self._tasks, keys=self._keys
            )
        except TooManyTasksError as error:
            writer.close()
            raise OSError(str(error)) from None
        return made

    async def _drop(self, address: str) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            await connection.close()


class _Connection:
    """One connection and the task that reads its answers.

    Raises:
        TooManyTasksError: there are `MAX_CONNECTIONS`.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tasks: RequestTasks,
        *,
        keys: ClusterKeys | None,
    ) -> None:
        self._keys = keys
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._task = tasks.spawn("read answers", self._read())

    @property
    def ended(self) -> bool:
        """Whether no answer can arrive any more."""
        return self._task.done()

    async def ask(self, code: int, fields: Mapping[str, str], body: bytes) -> RemotingCommand:
        """Send a request and return its answer.

        Raises:
            OSError: the connection failed.
        """
        async with self._room:
            if self.ended:
                raise ConnectionError("the connection was closed")
            number = next(self._numbers)
            command = _signed(
                RemotingCommand(code, number, fields, body, version=_VERSION), self._keys
            )
            answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
            self._waiting[command.opaque] = answer
            try:
                self._writer.write(encode_frame(command, Serialization.JSON))
                await self._writer.drain()
                return await answer
            finally:
                del self._waiting[command.opaque]

    async def close(self) -> None:
        """Close the connection; requests that wait fail."""
        self._writer.transport.abort()
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _read(self) -> None:
        limits = FrameLimits(max_frame_bytes=MAX_FRAME_BYTES, max_header_bytes=1 << 20)
        frames = RemotingFrameReader(limits)
        failure: Exception = ConnectionError("the connection was closed")
        try:
            while data := await self._reader.read(_READ_BYTES):
                frames.feed(data)
                for frame in frames.frames():
                    self._take(frame.command)
        except (OSError, RemotingError) as error:
            failure = error
        finally:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(failure)

    def _take(self, command: RemotingCommand) -> None:
        """Give an answer to its request; requests of the server are of no interest here."""
        answer = self._waiting.get(command.opaque) if command.is_response else None
        if answer is not None and not answer.done():
            answer.set_result(command)


def _signed(command: RemotingCommand, keys: ClusterKeys | None) -> RemotingCommand:
    """Return a request with the signature of ACL 1.0 and 2.0."""
    if keys is None:
        return command
    named = replace(command, fields={**command.fields, ACCESS_KEY: keys.access_key})
    digest = hmac.digest(keys.secret_key.encode(), named.signed_content(), "sha1")
    return replace(named, fields={**named.fields, SIGNATURE: b64encode(digest).decode()})


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
