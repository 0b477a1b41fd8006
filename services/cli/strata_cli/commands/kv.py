"""The commands of `strata kv`; `key`, `table` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from strata_cli.client import connect
from strata_cli.commands.kv_files import reading, writing
from strata_cli.confirming import DryRun, Yes, confirm
from strata_cli.errors import EXIT_STATUS, CliError, UsageError
from strata_cli.options import COMMON, Common, milliseconds
from strata_cli.output import show, write_document
from strata_kv.client import KvClient, Table
from strata_kv.errors import (
    KvError,
    KvNotFoundError,
    KvNotLoadedError,
    KvRefusedError,
    KvUnknownOutcomeError,
)
from strata_kv.model import Consistency, Engine, Item, TableInfo, Written
from strata_kv.table_file import TableFileError, TableSummary, read_table, write_table

TableName = Annotated[str, Parameter(help="Name of the table.")]
Key = Annotated[str, Parameter(help="Key: text, or base64: followed by the key in base64.")]
Read = Annotated[
    Literal["leader", "follower", "stale"],
    Parameter(help="Consistency of the answer; stale: any replica answers, maybe with old data."),
]

_BASE64 = "base64:"
_RESTORED_BYTES = 512 * 1024
_RESTORED_ITEMS = 500

app = App(name="kv", help="Key-value tables (plugin kv).")


@app.command
def put(
    key: Key,
    value: str,
    /,
    *,
    table: TableName,
    ttl: str = "",
    if_absent: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> int:
    """Write an item; a missing table is created. Exit code 4: the item was not written.

    For instance: strata kv put source-1 4711 --table positions

    Args:
        value: Text, or base64: followed by the value in base64.
        ttl: How long the item is kept, like 30m; default: until it is deleted.
        if_absent: Write only if the key does not exist.
    """
    ttl_s = milliseconds(ttl) / 1_000 if ttl else 0.0
    with _table(table, common) as opened:
        written = opened.put(_bytes(key), _bytes(value), ttl_s=ttl_s, if_absent=if_absent)
    show(_written("written", written), common)
    return _status(written)


@app.command
def get(key: Key, /, *, table: TableName, read: Read = "leader", common: Common = COMMON) -> None:
    """Show an item.

    For instance: strata kv get source-1 --table positions -o json
    """
    with _table(table, common) as opened:
        item = opened.get(_bytes(key), _CONSISTENCIES[read])
    if item is None:
        raise CliError(f"there is no key {key} in table {table}", "not_found")
    show(_item(item), common)


@app.command
def delete(key: Key, /, *, table: TableName, common: Common = COMMON) -> None:
    """Delete an item.

    For instance: strata kv delete source-1 --table positions
    """
    with _table(table, common) as opened:
        deleted = opened.delete(_bytes(key))
    show({"deleted": deleted}, common)


@app.command
def cas(
    key: Key,
    value: str | None = None,
    /,
    *,
    table: TableName,
    version: int | None = None,
    expected: str | None = None,
    delete: Annotated[bool, Parameter(negative="")] = False,
    ttl: str = "",
    common: Common = COMMON,
) -> int:
    """Change an item if its version or value is as expected; otherwise exit with code 4.

    For instance: strata kv cas source-1 4712 --table positions --version 3

    Args:
        value: New value: text, or base64: followed by the value in base64.
        version: Version that the item must have; 0: the key must not exist.
        expected: Value that the item must have.
        delete: Delete the item instead.
        ttl: How long the item is kept, like 30m; default: until it is deleted.
    """
    if (version is None) == (expected is None):
        raise UsageError("no version or value is expected: give --version or --expected")
    if delete == (value is not None):
        raise UsageError("no new value: give a value or --delete")
    with _table(table, common) as opened:
        written = opened.compare_and_set(
            _bytes(key),
            None if value is None else _bytes(value),
            version=version,
            expected=None if expected is None else _bytes(expected),
            ttl_s=milliseconds(ttl) / 1_000 if ttl else 0.0,
        )
    show(_written("swapped", written), common)
    return _status(written)


@app.command(name="list")
def list_(
    *,
    table: TableName,
    prefix: str = "",
    begin: str = "",
    end: str = "",
    after: str = "",
    limit: int | None = None,
    read: Read = "leader",
    common: Common = COMMON,
) -> None:
    """Show items in the order of their keys.

    For instance: strata kv list --table positions --prefix source- -o json

    Args:
        prefix: List only keys that begin with this text.
        begin: First key.
        end: Key before which the list ends.
        after: Continue at this place: `continuation` of an earlier list with --limit.
        limit: Most items to show; default: all.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: list at least one item")
    items: list[Item] = []
    continuation = _bytes(after)
    with _table(table, common) as opened:
        while limit is None or len(items) < limit:
            page = opened.page(
                _bytes(prefix),
                begin=_bytes(begin),
                end=_bytes(end),
                page_size=0 if limit is None else limit - len(items),
                continuation=continuation,
                consistency=_CONSISTENCIES[read],
            )
            items.extend(page.items)
            continuation = page.continuation
            if not continuation:
                break
    result = {"items": [_item(item) for item in items], "continuation": _text(continuation)}
    show(result, common, rows="items", columns=("key", "value", "version", "expires_at_ms"))


@app.command
def watch(
    *,
    table: TableName,
    prefix: str = "",
    from_revision: int = 0,
    count: int | None = None,
    common: Common = COMMON,
) -> None:
    """Show changes as they happen, until Ctrl-C.

    For instance: strata kv watch --table positions --from-revision 1 -o json

    Args:
        prefix: Show only changes of keys that begin with this text.
        from_revision: First revision to show; 0: changes from now on.
        count: End after this many changes.
    """
    if count is not None and count < 1:
        raise UsageError(f"--count {count}: wait for at least one change")
    with _table(table, common) as opened:
        for line in islice(_changes(opened, _bytes(prefix), from_revision), count):
            if common.for_programs:
                write_document(line, common)
                sys.stdout.flush()
            else:
                print(line["revision"], line["kind"], line["key"], line["value"], flush=True)


@app.command
def export(*, table: TableName, to: str, common: Common = COMMON) -> None:
    """Write a snapshot of all items of a table to a file or an object store.

    For instance: strata kv export --table positions --to positions.kv

    Args:
        to: File, or URL of an object store followed by the name of an object.
    """
    with _table(table, common) as opened, writing(to) as file:
        summary = write_table(file, opened.export())
    show({"table": table, "to": to} | _summary(summary), common)


@app.command(name="import")
def import_(
    *, table: TableName, from_: Annotated[str, Parameter(name="--from")], common: Common = COMMON
) -> None:
    """Write the items of an exported table; items that are not in the file stay.

    A damaged file changes nothing.

    For instance: strata kv import --table positions --from positions.kv

    Args:
        from_: File, or URL of an object store followed by the name of an object.
    """
    try:
        with _table(table, common) as opened, reading(from_) as file:
            for _ in read_table(file):
                """Damage is found before the first item is written."""
            file.seek(0)
            for part in read_table(file):
                if isinstance(part, TableSummary):
                    summary = part
                else:
                    _restore(opened, part)
    except TableFileError as error:
        raise CliError(f"{from_}: {error}") from None
    show({"table": table, "from": from_} | _summary(summary), common)


@app.command
def create(
    table: TableName,
    /,
    *,
    engine: Literal["rocksdb", "memory"] = "rocksdb",
    common: Common = COMMON,
) -> None:
    """Create a table.

    For instance: strata kv create positions --engine memory

    Args:
        engine: Keep items on disk, or in memory with regular snapshots on disk.
    """
    with _client(common) as client:
        info = client.create_table(table, Engine[engine.upper()])
    show(_info(info), common)


@app.command(name="show")
def show_(table: TableName, /, *, common: Common = COMMON) -> None:
    """Show a table.

    For instance: strata kv show positions
    """
    with _table(table, common) as opened:
        info = opened.info()
    show(_info(info), common)


@app.command
def tables(*, common: Common = COMMON) -> None:
    """List the tables of a namespace.

    For instance: strata kv tables --namespace shop
    """
    with _client(common) as client:
        names = client.tables()
    if common.for_programs:
        show({"tables": names}, common)
    else:
        print("\n".join(names))


@app.command
def drop(
    table: TableName, /, *, yes: Yes = False, dry_run: DryRun = False, common: Common = COMMON
) -> None:
    """Delete a table and its items.

    For instance: strata kv drop positions --dry-run
    """
    with _table(table, common) as opened:
        if dry_run:
            info = opened.info()
            result = {"would_drop": table, "items": info.key_count, "bytes": info.byte_count}
            show(result, common)
            return
        confirm(f"Table {table} and all its items are deleted", yes=yes)
        opened.drop()
    show({"dropped": table}, common)


# Steps ------------------------------------------------------------------------------------------

_CONSISTENCIES = {
    "leader": Consistency.LEADER,
    "follower": Consistency.FOLLOWER,
    "stale": Consistency.STALE,
}


# The first kind that fits counts.
_CODES: dict[type[KvError], str] = {
    KvNotFoundError: "not_found",
    KvRefusedError: "refused",
    KvUnknownOutcomeError: "unreachable",
}


def _failure(endpoint: str, error: KvError) -> CliError:
    if isinstance(error, KvNotLoadedError):
        return CliError(
            f"{endpoint}: the plugin kv is off; start with STRATA_PLUGINS=kv", "refused"
        )
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "failed")
    return CliError(f"{endpoint}: {error}", code)


@contextmanager
def _client(common: Common) -> Iterator[KvClient]:
    """Yield a client whose failures are shown as one line."""
    with connect(common) as client:
        try:
            yield KvClient(
                namespace=common.namespace,
                timeout_s=client.timeout_s,
                channel=client.channel,
                metadata=client.metadata,
            )
        except KvError as error:
            raise _failure(client.endpoint, error) from None


@contextmanager
def _table(name: str, common: Common) -> Iterator[Table]:
    with _client(common) as client:
        yield client.table(name)


def _restore(table: Table, items: Sequence[Item]) -> None:
    """Write items in batches of a bounded size."""
    batch: list[Item] = []
    size_bytes = 0
    for item in items:
        batch.append(item)
        size_bytes += len(item.key) + len(item.value)
        if size_bytes >= _RESTORED_BYTES or len(batch) >= _RESTORED_ITEMS:
            table.restore(batch)
            batch, size_bytes = [], 0
    if batch:
        table.restore(batch)


def _changes(table: Table, prefix: bytes, from_revision: int) -> Iterator[dict[str, Any]]:
    for told in table.watch(prefix, from_revision=from_revision):
        for change in told.changes:
            yield {
                "revision": told.revision,
                "kind": change.kind.name.lower(),
                **_item(change.item),
            }


def _bytes(text: str) -> bytes:
    """Return the bytes that a text on the command line stands for.

    Raises:
        CliError: the text after `base64:` is not base64.
    """
    if not text.startswith(_BASE64):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except binascii.Error as error:
        raise CliError(f"{text}: {error}") from None


def _text(data: bytes) -> str:
    """Return bytes as text; `_bytes` of that text returns the same bytes."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    is_readable = all(character.isprintable() or character in "\n\r\t" for character in text)
    if (text or not data) and is_readable and not text.startswith(_BASE64):
        return text
    return _BASE64 + base64.b64encode(data).decode()


def _item(item: Item) -> dict[str, Any]:
    return {
        "key": _text(item.key),
        "value": _text(item.value),
        "version": item.version,
        "create_revision": item.create_revision,
        "modify_revision": item.modify_revision,
        "expires_at_ms": item.expires_at_ms,
    }


def _written(done: str, written: Written) -> dict[str, Any]:
    current = None if written.current is None else _item(written.current)
    return {
        done: written.done,
        "revision": written.revision,
        "version": written.version,
        "current": current,
    }


def _status(written: Written) -> int:
    """Return the exit code of a write that has a condition."""
    return 0 if written.done else EXIT_STATUS["refused"]


def _info(info: TableInfo) -> dict[str, Any]:
    engine = "rocksdb" if info.engine is None else info.engine.name.lower()
    return info._asdict() | {"engine": engine}


def _summary(summary: TableSummary) -> dict[str, Any]:
    return {
        "items": summary.items,
        "bytes": summary.size_bytes,
        "crc32c": f"{summary.crc32c:08x}",
    }
