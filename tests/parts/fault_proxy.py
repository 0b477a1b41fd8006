"""An HTTP proxy that spoils what passes: throttles, cuts, flips, delays, loses answers.

It holds whole requests and answers in memory and speaks only as much HTTP/1.1 as boto3 needs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Message:
    """A request or an answer.

    Attributes:
        start: the first line.
        headers: in lower case.
        head: first line and headers as they came, without the empty line.
        body: decoded from chunks if it came so.
    """

    start: str
    headers: dict[str, str]
    head: bytes
    body: bytes

    @property
    def method(self) -> str:
        """Method of a request."""
        return self.start.split(" ")[0]

    @property
    def path(self) -> str:
        """Path and query of a request."""
        return self.start.split(" ")[1]

    @property
    def is_part(self) -> bool:
        """Whether a request sends a part of a multipart upload."""
        return self.method == "PUT" and "partNumber=" in self.path


Forward = Callable[[Message], Awaitable[Message]]
Fault = Callable[[Message, Forward], Awaitable[Message | None]]
"""Given a request and the way to the server, returns the answer; None closes the connection."""


@dataclass
class Rule:
    """A fault for some requests.

    Attributes:
        matches: which requests.
        fault: what happens to them.
        times: how many of them still.
    """

    matches: Callable[[Message], bool]
    fault: Fault
    times: int = 1_000_000


@dataclass
class FaultProxy:
    """The proxy; it serves in the running event loop.

    Attributes:
        server_port: where it forwards to.
        rules: the first one that matches a request holds.
        seen: requests by method, parts as "PART".
    """

    server_port: int
    rules: list[Rule] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    port: int = 0
    _serving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FaultProxy]:
        """Serve while the context is open."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            while (request := await self._read_request(reader, writer)) is not None:
                self.seen["PART" if request.is_part else request.method] += 1
                answer = await self._fault_of(request)(request, self._forward)
                if answer is None:
                    break
                writer.write(answer.head + b"\r\n\r\n" + answer.body)
                await writer.drain()
                announced = int(answer.headers.get("content-length", len(answer.body)))
                if request.method != "HEAD" and announced != len(answer.body):
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            await closed(writer)

    def _fault_of(self, request: Message) -> Fault:
        for rule in self.rules:
            if rule.times > 0 and rule.matches(request):
                rule.times -= 1
                return rule.fault
        return forwarded

    async def _read_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Message | None:
        try:
            head = await _read_head(reader)
        except asyncio.IncompleteReadError:
            return None
        request = _message(head)
        if "expect" in request.headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return replace(request, body=await _read_body(reader, request.headers))

    async def _forward(self, request: Message) -> Message:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        try:
            writer.write(_without_expect(request) + request.body)
            await writer.drain()
            answer = _message(await _read_head(reader))
            if request.method == "HEAD" or " 204 " in answer.start + " ":
                return answer
            body = await _read_body(reader, answer.headers, to_end=True)
            return answered(answer, body)
        finally:
            await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait until it is: the event loop may end right after."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def forwarded(request: Message, forward: Forward) -> Message | None:
    """No fault."""
    return await forward(request)


def throttled(status: str = "503 Slow Down", code: str = "SlowDown") -> Fault:
    """The store refuses without looking at the request."""

    async def fault(request: Message, forward: Forward) -> Message | None:
        xml = f"<Error><Code>{code}</Code><Message>from the proxy</Message></Error>"
        body = b"" if request.method == "HEAD" else xml.encode()
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}"
        return replace(_message(head.encode()), body=body)

    return fault


def cut(kept_bytes: int) -> Fault:
    """The connection ends after some bytes of the answer's body."""

    async def fault(request: Message, forward: Forward) -> Message | None:
        answer = await forward(request)
        return replace(answer, body=answer.body[:kept_bytes])

    return fault


def flipped(position: int) -> Fault:
    """One bit of the answer's body is another one."""

    async def fault(request: Message, forward: Forward) -> Message | None:
        answer = await forward(request)
        return replace(answer, body=_flip(answer.body, position))

    return fault


def flipped_request(position: int) -> Fault:
    """One bit of the request's body is another one."""

    async def fault(request: Message, forward: Forward) -> Message | None:
        return await forward(replace(request, body=_flip(request.body, position)))

    return fault


async def answer_lost(request: Message, forward: Forward) -> Message | None:
    """The server does it, and nobody hears of it."""
    await forward(request)
    return None


async def connection_lost(request: Message, forward: Forward) -> Message | None:
    """The connection ends before the server sees the request."""
    return None


def delayed(seconds: float) -> Fault:
    """The answer comes late."""

    async def fault(request: Message, forward: Forward) -> Message | None:
        await asyncio.sleep(seconds)
        return await forward(request)

    return fault


def answered(answer: Message, body: bytes) -> Message:
    """An answer with a body of known length, whatever way it came."""
    lines = answer.head.decode("latin-1").split("\r\n")
    kept = [
        line
        for line in lines
        if not line.lower().startswith(("transfer-encoding:", "content-length:"))
    ]
    head = "\r\n".join([*kept, f"Content-Length: {len(body)}"]).encode("latin-1")
    return replace(_message(head), body=body)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    while not (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100"):
        if head.strip():
            break
    return head[:-4]


async def _read_body(
    reader: asyncio.StreamReader, headers: dict[str, str], *, to_end: bool = False
) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return await reader.read() if to_end else b""
    # Requests keep their chunks, because the signature may cover them; answers are joined.
    raw, joined = b"", b""
    while True:
        line = await reader.readuntil(b"\r\n")
        chunk = await reader.readexactly(int(line.split(b";")[0], 16) + 2)
        raw, joined = raw + line + chunk, joined + chunk[:-2]
        if len(chunk) == 2:
            return joined if to_end else raw


def _message(head: bytes) -> Message:
    start, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return Message(start, {name.lower(): value.strip() for name, value in pairs}, head, b"")


def _without_expect(request: Message) -> bytes:
    lines = request.head.decode("latin-1").split("\r\n")
    kept = [line for line in lines if not line.lower().startswith(("expect:", "connection:"))]
    return "\r\n".join([*kept, "Connection: close", "", ""]).encode("latin-1")


def _flip(body: bytes, position: int) -> bytes:
    spoilt = bytearray(body)
    spoilt[position] ^= 1
    return bytes(spoilt)
