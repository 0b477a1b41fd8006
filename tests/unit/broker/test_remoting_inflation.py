"""Compressed bodies: every algorithm, cut off everywhere, damaged, and larger than allowed."""

from __future__ import annotations

import asyncio
import random
import threading
import tracemalloc
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard

from strata_broker.remoting import inflating
from strata_broker.remoting.inflating import BodyInflater
from strata_broker.remoting.inflation import InflationError, TooLargeError, inflated
from strata_runtime.metrics import Metrics
from strata_testing import until

MIB = 1 << 20
BODY = b"".join(b"line %d of the body\n" % number for number in range(2_000))

Compress = Callable[[bytes], bytes]


def _zstd_stream(body: bytes) -> bytes:
    """As Java's producers write it: the frame does not say how large the body is."""
    writer = zstandard.ZstdCompressor(level=5).compressobj()
    return writer.compress(body) + writer.flush()


WAYS = [
    pytest.param(0, zlib.compress, id="zlib-of-old-clients"),
    pytest.param(1, lz4.frame.compress, id="lz4"),
    pytest.param(2, zstandard.compress, id="zstd"),
    pytest.param(2, _zstd_stream, id="zstd-stream"),
    pytest.param(3, zlib.compress, id="zlib"),
]


def _flags(number: int) -> int:
    return 1 | number << 8


@pytest.mark.parametrize(("number", "compress"), WAYS)
@pytest.mark.parametrize("body", [b"", b"x", BODY], ids=["empty", "small", "large"])
def test_a_body_comes_back(number: int, compress: Compress, body: bytes) -> None:
    """Also if it has exactly as many bytes as are allowed."""
    assert inflated(compress(body), _flags(number), len(body)) == body
    assert inflated(compress(body), _flags(number), MIB) == body


@pytest.mark.parametrize(("number", "compress"), WAYS)
def test_a_body_that_is_cut_off_is_refused(number: int, compress: Compress) -> None:
    """Wherever it ends."""
    whole = compress(BODY)
    for end in (0, 1, 5, *range(10, len(whole), 97), len(whole) - 1):
        with pytest.raises(InflationError):
            inflated(whole[:end], _flags(number), MIB)


@pytest.mark.parametrize(("number", "compress"), WAYS)
def test_a_body_of_several_frames_is_refused(number: int, compress: Compress) -> None:
    """All that follows the first one, whole or not, would be lost while the send succeeds."""
    second = compress(random.Random(1).randbytes(200_000))
    for rest in (compress(b""), second, second[:-5]):
        with pytest.raises(InflationError, match=f"{len(rest)} bytes follow the first frame"):
            inflated(compress(BODY) + rest, _flags(number), MIB)
    for first, rest in ((b"", compress(BODY)), (b"", second[:-5]), (BODY, b"x")):
        with pytest.raises(InflationError):
            inflated(compress(first) + rest, _flags(number), MIB)


@pytest.mark.parametrize(("number", "compress"), WAYS)
def test_a_damaged_body_is_an_error_or_a_body(number: int, compress: Compress) -> None:
    """Nothing else comes of it: no other exception, and no more bytes than allowed."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, whole = random.Random(seed), compress(BODY)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        try:
            assert len(inflated(bytes(damaged), _flags(number), len(BODY))) <= len(BODY)
        except (InflationError, TooLargeError):
            continue


@pytest.mark.parametrize(("number", "compress"), WAYS)
def test_a_bomb_is_refused_at_the_limit(number: int, compress: Compress) -> None:
    """It takes no more memory than a body at the limit, whatever it would become."""
    bomb = compress(bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            inflated(bomb, _flags(number), MIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 * MIB


def test_a_window_beyond_the_limit_is_refused() -> None:
    """A frame of zstd says how much memory it needs: 128 MiB here."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = writer.compress(BODY) + writer.flush()
    with pytest.raises(InflationError, match="cannot be inflated with zstd"):
        inflated(frame, _flags(2), MIB)


@pytest.mark.parametrize("number", range(4, 8))
def test_other_algorithms_are_refused(number: int) -> None:
    """The text says which ones are known."""
    with pytest.raises(InflationError, match=f"algorithm {number}; zlib, lz4 and zstd"):
        inflated(b"x", _flags(number), MIB)


async def test_bodies_that_come_together_are_all_inflated() -> None:
    """An asynchronous producer sends hundreds at once; two of them have room here."""
    inflater = BodyInflater(MIB, 2 * MIB, Metrics.disabled())
    sent = [b"body %d" % number for number in range(100)]
    found = await asyncio.gather(
        *(inflater.inflate(zlib.compress(body), _flags(0), "producer") for body in sent)
    )
    assert found == sent


async def test_clients_take_turns_with_their_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with many of them does not hold up another one."""
    begun: list[bytes] = []
    let_go = threading.Event()

    def slow(body: bytes, system_flag: int, max_bytes: int) -> bytes:
        begun.append(body)
        assert let_go.wait(10)
        return body

    monkeypatch.setattr(inflating, "inflated", slow)
    inflater = BodyInflater(MIB, MIB, Metrics.disabled())
    busy = [
        asyncio.ensure_future(inflater.inflate(b"%d" % number, 1, "busy")) for number in range(10)
    ]
    await until(lambda: begun == [b"0"])
    other = asyncio.ensure_future(inflater.inflate(b"other", 1, "quiet"))
    await asyncio.sleep(0.02)
    let_go.set()
    await asyncio.gather(*busy, other)
    assert begun[:3] == [b"0", b"1", b"other"]
