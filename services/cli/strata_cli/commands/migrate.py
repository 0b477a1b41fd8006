"""The commands of `strata migrate`; `nameserver` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from cyclopts import App, Parameter

from strata_cli.client import connect
from strata_cli.commands.migrate_options import KeysFile, addresses_of, read_source_keys
from strata_cli.errors import CliError, UsageError
from strata_cli.migrate.connections import ClusterKeys, RemotingConnections
from strata_cli.migrate.copier import Copier, CopyOptions
from strata_cli.migrate.migration import Migration, MigrationOutlook, totals
from strata_cli.migrate.pace import CopyPace
from strata_cli.migrate.plan import Choices
from strata_cli.migrate.positions import SetCursors
from strata_cli.migrate.source import RocketMqSource
from strata_cli.migrate.state import MigrationState, QueueState, only_run
from strata_cli.migrate.target import StrataTarget
from strata_cli.migrate.verifying import verify as verify_copy
from strata_cli.options import COMMON, Common, milliseconds
from strata_cli.output import show
from strata_cli.progress import progress
from strata_cli.views import View
from strata_runtime.clock import SystemClock

Nameserver = Annotated[
    str,
    Parameter(help="HOST:PORT of RocketMQ's nameserver; several are separated by semicolons."),
]
State = Annotated[
    Path, Parameter(help="File that keeps what is done; a repeat with the same file goes on.")
]
Topics = Annotated[
    list[str] | None,
    Parameter(name="--topic", negative="", help="Copy only this topic; may be repeated."),
]
Untyped = Annotated[
    Literal["MIXED", "NORMAL"],
    Parameter(help="Type of topics that have none at the source, as all before RocketMQ 5.0."),
]
Retries = Annotated[
    bool,
    Parameter(
        negative="",
        help="Copy the retries that wait (%RETRY%GROUP), too: for consumers of rocketmq-client.",
    ),
]
STATE = Path("strata-migration.db")


class SourcePlace(NamedTuple):
    """A cluster to copy.

    Attributes:
        nameserver: addresses, separated by semicolons.
        keys: sign requests; None: there is no access control.
    """

    nameserver: str
    keys: ClusterKeys | None


_MAX_WORKERS = 64

app = App(name="migrate", help="Copies a RocketMQ cluster into StrataMQ.")
app.command("strata_cli.commands.migrate_access:access", name="access")


@app.command
def plan(
    nameserver: Nameserver,
    /,
    *,
    topics: Topics = None,
    untyped_as: Untyped = "MIXED",
    retries: Retries = False,
    source_keys: KeysFile = None,
    state: State = STATE,
    common: Common = COMMON,
) -> None:
    """Show what a migration would make and copy; changes nothing.

    For instance: strata migrate plan 10.0.0.5:9876 -o json
    """
    choices = _choices(topics, untyped_as, retries, common)
    place = SourcePlace(nameserver, read_source_keys(source_keys))
    outlook = asyncio.run(_look(place, choices, state, common))
    _show_outlook(nameserver, outlook, common)


@app.command
def run(
    nameserver: Nameserver,
    /,
    *,
    topics: Topics = None,
    untyped_as: Untyped = "MIXED",
    retries: Retries = False,
    source_keys: KeysFile = None,
    state: State = STATE,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    follow: Annotated[bool, Parameter(negative="")] = False,
    interval: str = "1s",
    max_messages_per_s: float = 0,
    max_bytes_per_s: float = 0,
    workers: int = 8,
    skip_refused: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Copy topics, consumer groups, messages and positions; a repeat goes on where it was.

    Nothing is changed or consumed at the source. A run that was killed loses nothing, and stores
    nothing twice. Ctrl-C ends it after the messages under way.

    For instance: strata migrate run 10.0.0.5:9876 --max-messages-per-s 5000

    Args:
        dry_run: Only show what would be made and copied, as strata migrate plan.
        follow: Go on with messages and positions that come, until Ctrl-C.
        interval: Time between two rounds of --follow.
        max_messages_per_s: Most messages per second; 0: no limit.
        max_bytes_per_s: Most bytes of bodies per second; 0: no limit.
        workers: Queues that are copied at the same time.
        skip_refused: Go on after a message that the target refuses, and note it.
    """
    choices = _choices(topics, untyped_as, retries, common)
    place = SourcePlace(nameserver, read_source_keys(source_keys))
    if dry_run:
        outlook = asyncio.run(_look(place, choices, state, common))
        _show_outlook(nameserver, outlook, common)
        return
    if not 1 <= workers <= _MAX_WORKERS:
        raise UsageError(f"--workers {workers}: give 1 to {_MAX_WORKERS}")
    if not all(0 <= rate < math.inf for rate in (max_messages_per_s, max_bytes_per_s)):
        raise UsageError("--max-messages-per-s and --max-bytes-per-s are 0 or more")
    pace = CopyPace(max_messages_per_s, max_bytes_per_s, clock=SystemClock(), sleep=asyncio.sleep)
    options = CopyOptions(workers, skip_refused)
    pause_s = milliseconds(interval) / 1_000 if follow else None
    with only_run(state):
        result = asyncio.run(_run(place, choices, state, pace, options, pause_s, common))
    show(result, common)


@app.command
def verify(*, state: State = STATE, common: Common = COMMON) -> None:
    """Compare counts and checksums of the copy with what was read at the source.

    It reads all copied messages of the target. Exit code 1: something differs.

    For instance: strata migrate verify -o json
    """
    rows = asyncio.run(_verify(state, common))
    wrong = [row for row in rows if row["problem"]]
    result = {"verified": len(rows) - len(wrong), "wrong": len(wrong), "queues": rows}
    columns = ("topic", "broker", "queue", "copied", "found", "problem")
    show(result, common, rows="queues", columns=columns)
    if wrong:
        raise CliError(f"{len(wrong)} queues differ from their source")


@app.command
def status(*, state: State = STATE, common: Common = COMMON) -> None:
    """Show how far a migration is; asks neither side.

    For instance: strata migrate status
    """
    known = _known(state)
    try:
        queues = known.queues()
        refusals = known.refusals()
        source = known.known_fact("source")
    finally:
        known.close()
    result = {
        "source": source,
        **totals(queues),
        "queues": [_queue_view(each) for each in queues],
        "refusals": [
            {"topic": queue.topic, "broker": queue.broker, "queue": queue.queue, "offset": offset}
            | {"reason": reason}
            for queue, offset, reason in refusals
        ],
    }
    columns = ("topic", "broker", "queue", "number", "next_offset", "copied", "repeated", "refused")
    if not common.for_programs and not refusals:
        del result["refusals"]
    show(result, common, rows="queues", columns=columns)


def _choices(topics: list[str] | None, untyped_as: str, retries: bool, common: Common) -> Choices:
    """Return the decisions of a person.

    Raises:
        UsageError: nobody could consume the retries.
    """
    if retries and common.namespace:
        raise UsageError("--retries: consumers of retries use the default namespace only")
    return Choices(frozenset(topics or ()), untyped_as, retries)


@asynccontextmanager
async def _migration(
    place: SourcePlace, choices: Choices, common: Common
) -> AsyncIterator[tuple[Migration, RocketMqSource, StrataTarget]]:
    """Yield a migration with open connections."""
    connections = RemotingConnections(milliseconds(common.timeout) / 1_000, place.keys)
    try:
        with connect(common) as client:
            target = StrataTarget(client, common.namespace)
            source = RocketMqSource(connections, addresses_of(place.nameserver))
            yield Migration(source, target, choices), source, target
    finally:
        await connections.close()


async def _look(
    place: SourcePlace, choices: Choices, path: Path, common: Common
) -> MigrationOutlook:
    known = None
    if await asyncio.to_thread(path.exists):
        known = MigrationState(path)
    try:
        async with _migration(place, choices, common) as (migration, _, _):
            return await migration.look(known)
    finally:
        if known is not None:
            known.close()


async def _run(
    place: SourcePlace,
    choices: Choices,
    path: Path,
    pace: CopyPace,
    options: CopyOptions,
    pause_s: float | None,
    common: Common,
) -> View:
    known = MigrationState(path)
    try:
        was, nameserver = known.known_fact("source"), place.nameserver
        if was not in ("", nameserver):
            raise UsageError(
                f"{path} belongs to a migration from {was}: its offsets mean nothing elsewhere"
            )
        namespace = known.fact("namespace", common.namespace)
        if namespace != common.namespace:
            raise UsageError(f"{path} belongs to a migration into the namespace {namespace!r}")
        async with _migration(place, choices, common) as (migration, source, target):
            if not was:
                # Not before it has answered: a mistyped address is no source.
                await source.describe()
                known.fact("source", nameserver)
            copier = Copier(source, target, known, pace=pace, options=options)
            _end_on_signals(copier)
            with progress("messages", lambda: (totals(known.queues())["messages"], 0, "")):
                last = await _rounds(migration, known, copier, pause_s)
        return {"state": str(path), "stopped": copier.stopping, **_view(known, last)}
    finally:
        known.close()


def _end_on_signals(copier: Copier) -> None:
    """Let Ctrl-C end a copy in order; a command inside another process gets no signals."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, copier.stop)


async def _rounds(
    migration: Migration, known: MigrationState, copier: Copier, pause_s: float | None
) -> SetCursors:
    if pause_s is None:
        return await migration.run(known, copier)
    return await migration.follow(known, copier, pause_s)


async def _verify(path: Path, common: Common) -> list[View]:
    known = _known(path)
    try:
        namespace = known.known_fact("namespace")
        with connect(common) as client:
            verified = await verify_copy(known, StrataTarget(client, namespace))
    finally:
        known.close()
    return [
        _queue_view(each.copied) | {"found": each.found, "problem": each.problem}
        for each in verified
    ]


def _known(path: Path) -> MigrationState:
    """Return the state of a migration that has begun.

    Raises:
        CliError: there is none.
    """
    if not path.exists():
        raise CliError(f"{path} does not exist: strata migrate run makes it", "not_found")
    return MigrationState(path)


def _view(known: MigrationState, cursors: SetCursors) -> View:
    return {
        **totals(known.queues()),
        "cursors_set": len(cursors.moved),
        "cursors_kept": cursors.kept,
        "cursors_left_alone": len(cursors.left_alone),
    }


def _queue_view(each: QueueState) -> View:
    return {
        "topic": each.queue.topic,
        "broker": each.queue.broker,
        "queue": each.queue.queue,
        "number": each.number,
        "first_offset": each.first_offset,
        "next_offset": each.next_offset,
        "copied": each.copied,
        "bytes": each.bytes,
        "repeated": each.repeated,
        "refused": each.refused,
        "expired": each.expired,
        "digest": f"{each.digest:032x}",
    }


def _show_outlook(nameserver: str, outlook: MigrationOutlook, common: Common) -> None:
    topics: list[View] = []
    for name, topic in outlook.plan.topics.items():
        windows = [(queue, outlook.windows[queue]) for queue in topic.queues]
        topics.append(
            {
                "topic": name,
                "type": topic.topic_type,
                "queues": topic.queue_count,
                "messages": sum(
                    max(0, window.end - max(window.begin, topic.begins.get(queue, 0)))
                    for queue, window in windows
                ),
                "exists": ("topic", name) in outlook.made,
                "problem": outlook.problems.get(name, ""),
                "notes": "; ".join(topic.notes),
            }
        )
    groups: list[View] = []
    for name, group in outlook.plan.groups.items():
        places = [topic for each, topic in outlook.plan.positions if each == name]
        groups.append(
            {
                "group": name,
                "fifo": group.is_fifo,
                "max_attempts": group.max_attempts,
                "exists": ("group", name) in outlook.made,
                "topics": ", ".join(sorted(places)),
                "retries": outlook.retries.get(name, 0),
            }
        )
    skipped = [
        {"kind": each.kind, "name": each.name, "reason": each.reason}
        for each in outlook.plan.skipped
    ]
    result = {
        "source": nameserver,
        "messages": sum(topic["messages"] for topic in topics),
        "topics": topics,
        "groups": groups,
        "skipped": skipped,
    }
    if common.for_programs or common.output == "name":
        show(result, common, rows="topics")
        return
    head = {name: result[name] for name in ("source", "messages")}
    show(head | {"topics": topics}, common, rows="topics")
    print()
    show({"groups": groups}, common, rows="groups")
    print()
    show({"skipped": skipped}, common, rows="skipped")
