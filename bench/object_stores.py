"""The throughput of object stores: the bare client library beside the driver, in one run.

    python bench/object_stores.py --stores posix s3 hdfs gs --mib 64

Servers are the ones the tests use (`make tier-parts`), on this machine. Rates are MiB/s of one
object that is put from memory and read back, first-byte times are of ranged reads of 64 KiB; each
is the best of `--rounds`, bare and driver in turn, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import urllib3
from boto3.s3.transfer import TransferConfig
from hdfs_native import Client, WriteOptions

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from strata_runtime.memory import keep_freed_memory  # noqa: E402
from strata_tier.store import (  # noqa: E402
    ObjectStore,
    OpenWith,
    StoreOptions,
    open_store,
    parse,
)
from tests.parts.gcs_server import GcsServer  # noqa: E402
from tests.parts.hdfs_cluster import HdfsCluster  # noqa: E402
from tests.parts.s3_server import S3Server  # noqa: E402
from tests.parts.stores import Place  # noqa: E402

MIB = 1024 * 1024
KEY = "bench/object.bin"
PIECE = 64 * 1024
PIECES = 200


class Bare(Protocol):
    """A store's usual client, used as its manual says. Every call blocks."""

    def put(self, body: bytes) -> None:
        """Store the object."""

    def get(self) -> int:
        """Read the whole object; return how many bytes came."""

    def piece(self, position: int) -> int:
        """Read 64 KiB; return how many bytes came."""


@dataclass(frozen=True)
class Row:
    """Figures of one store.

    Attributes:
        store: its scheme.
        put_bare_mib_s: the client library's rate.
        put_mib_s: the driver's.
        get_bare_mib_s: the client library's rate.
        get_mib_s: the driver's, the object in one call.
        get_ranges_mib_s: the driver's, ranges of 8 MiB, four at once.
        piece_bare_p99_ms: 64 KiB by the client library.
        piece_p99_ms: 64 KiB by the driver.
    """

    store: str
    put_bare_mib_s: float
    put_mib_s: float
    get_bare_mib_s: float
    get_mib_s: float
    get_ranges_mib_s: float
    piece_bare_p99_ms: float
    piece_p99_ms: float


class BarePosix:
    """Plain files."""

    def __init__(self, place: Place) -> None:
        self._path = Path(parse(place.url).path) / "bare.bin"

    def put(self, body: bytes) -> None:
        """Write a new file, sync, take the place of the old one; to overwrite it is quicker."""
        unfinished = self._path.with_suffix(".new")
        with unfinished.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._path)

    def get(self) -> int:
        """Read."""
        return len(self._path.read_bytes())

    def piece(self, position: int) -> int:
        """Open, seek, read."""
        with self._path.open("rb") as file:
            file.seek(position)
            return len(file.read(PIECE))


class BareS3:
    """boto3 with its transfer manager: multipart, ten threads."""

    def __init__(self, place: Place, server: S3Server) -> None:
        self._bucket = parse(place.url).host
        self._client: Any = server.client()
        self._transfer = TransferConfig(multipart_chunksize=16 * MIB)

    def put(self, body: bytes) -> None:
        """upload_fileobj."""
        self._client.upload_fileobj(
            io.BytesIO(body), self._bucket, "bare.bin", Config=self._transfer
        )

    def get(self) -> int:
        """download_fileobj."""
        target = io.BytesIO()
        self._client.download_fileobj(self._bucket, "bare.bin", target, Config=self._transfer)
        return target.tell()

    def piece(self, position: int) -> int:
        """get_object with a range."""
        wanted = f"bytes={position}-{position + PIECE - 1}"
        answer = self._client.get_object(Bucket=self._bucket, Key="bare.bin", Range=wanted)
        return len(answer["Body"].read())


class BareHdfs:
    """hdfs-native."""

    def __init__(self, place: Place) -> None:
        url = parse(place.url)
        self._client = Client(f"hdfs://{url.host}")
        self._path = f"/{url.path}/bare.bin"
        self._client.mkdirs(f"/{url.path}", create_parent=True)

    def put(self, body: bytes) -> None:
        """Create, write, sync."""
        with self._client.create(self._path, WriteOptions(overwrite=True)) as writer:
            writer.write(body)
            writer.hsync()

    def get(self) -> int:
        """Read."""
        return len(self._client.read(self._path).read())

    def piece(self, position: int) -> int:
        """Open and read a range."""
        return len(self._client.read(self._path).read_range(position, PIECE))


class BareGs:
    """urllib3 on the JSON interface, one request."""

    def __init__(self, place: Place) -> None:
        url = parse(place.url)
        self._http = urllib3.PoolManager()
        endpoint = url.options["endpoint"]
        self._put = f"{endpoint}/upload/storage/v1/b/{url.host}/o?uploadType=media&name=bare.bin"
        self._get = f"{endpoint}/storage/v1/b/{url.host}/o/bare.bin?alt=media"

    def put(self, body: bytes) -> None:
        """Media upload."""
        self._http.request("POST", self._put, body=body)

    def get(self) -> int:
        """Download."""
        return len(self._http.request("GET", self._get).data)

    def piece(self, position: int) -> int:
        """Download of a range."""
        headers = {"Range": f"bytes={position}-{position + PIECE - 1}"}
        return len(self._http.request("GET", self._get, headers=headers).data)


@contextmanager
def posix(folder: Path) -> Iterator[tuple[Place, Callable[[Place], Bare]]]:
    """A folder."""
    yield Place(f"posix://{folder}/store"), BarePosix


@contextmanager
def s3(folder: Path) -> Iterator[tuple[Place, Callable[[Place], Bare]]]:
    """Versitygw."""
    server = S3Server(folder)
    server.start()
    try:
        yield server.place(), partial(BareS3, server=server)
    finally:
        server.stop()


@contextmanager
def hdfs(folder: Path) -> Iterator[tuple[Place, Callable[[Place], Bare]]]:
    """A NameNode and two DataNodes."""
    cluster = HdfsCluster(folder)
    try:
        cluster.start()
        yield cluster.place(), BareHdfs
    finally:
        cluster.stop()


@contextmanager
def gs(folder: Path) -> Iterator[tuple[Place, Callable[[Place], Bare]]]:
    """fake-gcs-server."""
    server = GcsServer(folder)
    server.start()
    try:
        yield server.place(), BareGs
    finally:
        server.stop()


STORES = {"posix": posix, "s3": s3, "hdfs": hdfs, "gs": gs}


async def measure(scheme: str, folder: Path, size_bytes: int, rounds: int) -> Row:
    """Measure one store, bare and driver in turn."""
    body = os.urandom(size_bytes)
    with STORES[scheme](folder) as (place, bare_of):
        given = OpenWith(options=StoreOptions(), credentials=place.credentials)
        store = await open_store(place.url, given)
        bare = await asyncio.to_thread(bare_of, place)
        try:
            figures = [await _round(store, bare, body) for _ in range(rounds)]
        finally:
            await store.close()
    rates = [max(each) for each in list(zip(*figures, strict=True))[:5]]
    times = [min(each) for each in list(zip(*figures, strict=True))[5:]]
    return Row(scheme, *rates, *times)


async def _round(store: ObjectStore, bare: Bare, body: bytes) -> tuple[float, ...]:
    mib = len(body) / MIB
    put_bare = mib / await _seconds(lambda: asyncio.to_thread(bare.put, body))
    put = mib / await _seconds(lambda: store.put(KEY, body))
    get_bare = mib / await _seconds(lambda: asyncio.to_thread(bare.get))
    get = mib / await _seconds(lambda: store.get(KEY))
    ranges = mib / await _seconds(lambda: _in_ranges(store, len(body)))
    positions = [number * 7919 % (len(body) - PIECE) for number in range(PIECES)]
    pieces_bare = [await _seconds(partial(asyncio.to_thread, bare.piece, at)) for at in positions]
    pieces = [await _seconds(partial(store.get, KEY, at, PIECE)) for at in positions]
    return put_bare, put, get_bare, get, ranges, _p99_ms(pieces_bare), _p99_ms(pieces)


async def _in_ranges(store: ObjectStore, size_bytes: int) -> None:
    turns = asyncio.Semaphore(4)

    async def read(position: int) -> None:
        async with turns:
            await store.get(KEY, position, min(8 * MIB, size_bytes - position))

    async with asyncio.TaskGroup() as group:
        for position in range(0, size_bytes, 8 * MIB):
            group.create_task(read(position))


async def _seconds(work: Callable[[], Awaitable[object]]) -> float:
    begun_s = time.perf_counter()
    await work()
    return time.perf_counter() - begun_s


def _p99_ms(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98] * 1000


def main() -> None:
    """Measure the chosen stores, print a line each, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--mib", type=int, default=64, help="size of the object")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="file for the JSON")
    arguments = parser.parse_args()
    # As in every server (rule 30): at the default, each hop between threads may cost 5 ms.
    sys.setswitchinterval(0.0001)
    keep_freed_memory()
    rows = []
    for scheme in arguments.stores:
        with tempfile.TemporaryDirectory(prefix="stratamq-stores-") as folder:
            row = asyncio.run(measure(scheme, Path(folder), arguments.mib * MIB, arguments.rounds))
        rows.append(asdict(row))
        print(
            f"{row.store:6} put {row.put_mib_s:6.0f} of {row.put_bare_mib_s:6.0f} MiB/s"
            f"   get {row.get_mib_s:6.0f}, in ranges {row.get_ranges_mib_s:6.0f}"
            f" of {row.get_bare_mib_s:6.0f} MiB/s"
            f"   64 KiB p99 {row.piece_p99_ms:6.1f}, bare {row.piece_bare_p99_ms:6.1f} ms",
            flush=True,
        )
    if arguments.output:
        arguments.output.write_text(json.dumps({"mib": arguments.mib, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
