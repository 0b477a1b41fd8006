"""Files and objects that `strata kv export` writes and `strata kv import` reads.

A URL is the URL of an object store followed by the object's name
(`s3://BUCKET/PREFIX/NAME.table?endpoint=...`). An object is written through a temporary file, so
that it appears whole or not at all.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from strata_cli.errors import CliError

_PART_BYTES = 8 * 1024 * 1024


@contextmanager
def writing(place: str) -> Iterator[BinaryIO]:
    """Yield a file; its content is at `place` when the block ends without an error.

    Raises:
        CliError: `place` cannot be written.
    """
    try:
        if "://" in place:
            with tempfile.TemporaryFile() as file:
                yield file
                asyncio.run(_put(place, file))
            return
        unfinished = Path(f"{place}.unfinished")
        try:
            with unfinished.open("wb") as file:
                yield file
            unfinished.rename(place)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise CliError(f"{place}: {error.strerror}") from None


@contextmanager
def reading(place: str) -> Iterator[BinaryIO]:
    """Yield the content of `place` as a file.

    Raises:
        CliError: `place` cannot be read.
    """
    try:
        if "://" in place:
            with tempfile.TemporaryFile() as file:
                asyncio.run(_get(place, file))
                file.seek(0)
                yield file
            return
        with Path(place).open("rb") as file:
            yield file
    except OSError as error:
        raise CliError(f"{place}: {error.strerror}") from None


async def _put(place: str, file: BinaryIO) -> None:
    from strata_tier.store import open_store

    store_url, key = _split(place)
    size_bytes = file.tell()

    async def parts() -> AsyncIterator[bytes]:
        file.seek(0)
        while part := file.read(_PART_BYTES):
            yield part

    store = await open_store(store_url)
    try:
        await store.put(key, parts, size_bytes=size_bytes)
    finally:
        await store.close()


async def _get(place: str, file: BinaryIO) -> None:
    from strata_tier.store import open_store

    store_url, key = _split(place)
    store = await open_store(store_url)
    try:
        size_bytes = (await store.head(key)).size_bytes
        for position in range(0, size_bytes, _PART_BYTES):
            length = min(_PART_BYTES, size_bytes - position)
            file.write(await store.get(key, position, length))
    finally:
        await store.close()


def _split(place: str) -> tuple[str, str]:
    """Return (URL of the store, name of the object).

    Raises:
        CliError: the URL names no object.
    """
    from strata_tier.store import parse

    url = parse(place)
    folder, _, key = url.path.rpartition("/")
    if "." not in key:
        raise CliError(f"{place}: it must end with the name of an object, like table.kv")
    return str(replace(url, path=folder)), key
