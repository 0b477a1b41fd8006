"""The file that makes a migration resumable: an SQLite database.

Invariant: a source queue's `next_offset` moves only after the places of its messages at the target
are written, each in a transaction. So a run that is killed begins again with the messages that were
in flight, finds those that are stored, and sends only the others. There is no fsync per batch: a
machine that loses power leaves an earlier state of the file, and the target still knows the rest.
Cursors are written with fsync, because consumers move them afterwards.

A *run* is a row of messages that follow each other in a source queue and in a target queue. A run
is bounded, so that the runs with messages from some offset on are a range of an index.
"""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from strata_cli.errors import CliError
from strata_cli.migrate.messages import added
from strata_cli.migrate.source_rows import SourceQueue

FORMAT = "1"
_PAGE_RUNS = 10_000
MAX_RUN_MESSAGES = 4_096
"""Most messages of one run."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS topics (topic TEXT PRIMARY KEY, topic_type TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS queues (
    topic TEXT, broker TEXT, queue INTEGER, number INTEGER NOT NULL,
    first_offset INTEGER, next_offset INTEGER,
    copied INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
    repeated INTEGER NOT NULL DEFAULT 0, refused INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0, digest TEXT NOT NULL DEFAULT '0',
    PRIMARY KEY (topic, broker, queue)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS targets (
    topic TEXT, number INTEGER, first_offset INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (
    topic TEXT, number INTEGER, target_offset INTEGER,
    broker TEXT NOT NULL, queue INTEGER NOT NULL, source_offset INTEGER NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (topic, number, target_offset)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS runs_by_source ON runs (topic, broker, queue, source_offset);
CREATE TABLE IF NOT EXISTS refusals (
    topic TEXT, broker TEXT, queue INTEGER, source_offset INTEGER, reason TEXT NOT NULL,
    PRIMARY KEY (topic, broker, queue, source_offset)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS intentions (
    consumer_group TEXT, topic TEXT, number INTEGER, target_offset INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, topic, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS positions (
    consumer_group TEXT, topic TEXT, number INTEGER, target_offset INTEGER NOT NULL,
    PRIMARY KEY (consumer_group, topic, number)
) WITHOUT ROWID;
"""


class StoredCopy(NamedTuple):
    """A copied message at the target, and where it came from."""

    target_offset: int
    broker: str
    queue: int
    source_offset: int


@dataclass(frozen=True, slots=True)
class QueueState:
    """Progress of one source queue.

    Attributes:
        queue: which one.
        number: of its queue at the target.
        first_offset: where the copy began; None: it has not begun.
        next_offset: everything before it is done; None as well.
        copied: messages that are at the target.
        bytes: of their bodies.
        repeated: messages whose id the target had already, from another place of the source.
        refused: messages that cannot be copied.
        expired: messages that the source deleted before they were read.
        digest: sum of the checksums of the copied messages.
    """

    queue: SourceQueue
    number: int
    first_offset: int | None = None
    next_offset: int | None = None
    copied: int = 0
    bytes: int = 0
    repeated: int = 0
    refused: int = 0
    expired: int = 0
    digest: int = 0


@dataclass(slots=True)
class BatchProgress:
    """The work of one batch of a source queue; numbers as in `QueueState`."""

    next_offset: int
    copied: int = 0
    bytes: int = 0
    repeated: int = 0
    expired: int = 0
    digest: int = 0
    refusals: Sequence[tuple[int, str]] = ()


class MigrationState:
    """See the module docstring. Its methods block for the time of a write; threads may share it.

    Args:
        path: of the file; it is made if it does not exist.

    Raises:
        CliError: the file is of another form, or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            self._rows = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._rows.execute("PRAGMA journal_mode=WAL")
            self._rows.execute("PRAGMA synchronous=NORMAL")
            self._rows.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise CliError(f"{path}: {error}") from None
        if self.fact("format", FORMAT) != FORMAT:
            raise CliError(f"{path} was written by another version of strata migrate")
        # Files of earlier builds have runs of any length.
        ((longest,),) = self._all("SELECT max(count) FROM runs", ())
        self._longest_run = max(longest or 0, MAX_RUN_MESSAGES)

    def close(self) -> None:
        """Close the file, once the write under way is done; later calls fail."""
        with self._lock:
            self._rows.close()

    # Facts --------------------------------------------------------------------------------------

    def fact(self, name: str, value: str) -> str:
        """Return what the first call for a name gave as its value."""
        with self._changing() as rows:
            rows.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            (found,) = rows.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return str(found)

    def known_fact(self, name: str) -> str:
        """Return a fact; "": nobody gave it."""
        found = self._all("SELECT value FROM facts WHERE name = ?", (name,))
        return str(found[0][0]) if found else ""

    # Topics and queues --------------------------------------------------------------------------

    def types(self) -> dict[str, str]:
        """Return the type of each topic that is being copied."""
        return dict(self._all("SELECT topic, topic_type FROM topics", ()))

    def add_topic(self, topic: str, topic_type: str, queues: Mapping[SourceQueue, int]) -> None:
        """Note a topic and its queues, durably before the first message; what is known stays."""
        is_known = topic in self.types() and {each.queue for each in self.queues()} >= set(queues)
        with self._changing(durable=not is_known) as rows:
            rows.execute("INSERT OR IGNORE INTO topics VALUES (?, ?)", (topic, topic_type))
            rows.executemany(
                "INSERT OR IGNORE INTO queues (topic, broker, queue, number) VALUES (?, ?, ?, ?)",
                [(*queue, number) for queue, number in queues.items()],
            )

    def queues(self) -> list[QueueState]:
        """Return the progress of all source queues, by topic and number at the target."""
        found = self._all(
            "SELECT topic, broker, queue, number, first_offset, next_offset, copied, bytes, "
            "repeated, refused, expired, digest FROM queues ORDER BY topic, number",
            (),
        )
        return [
            QueueState(
                queue=SourceQueue(*row[:3]),
                number=row[3],
                first_offset=row[4],
                next_offset=row[5],
                copied=row[6],
                bytes=row[7],
                repeated=row[8],
                refused=row[9],
                expired=row[10],
                digest=int(row[11], 16),
            )
            for row in found
        ]

    def begin(self, queue: SourceQueue, offset: int) -> int:
        """Note where the copy of a queue begins; return where it goes on."""
        with self._changing() as rows:
            rows.execute(
                "UPDATE queues SET first_offset = ?, next_offset = ? "
                "WHERE topic = ? AND broker = ? AND queue = ? AND next_offset IS NULL",
                (offset, offset, *queue),
            )
            (found,) = rows.execute(
                "SELECT next_offset FROM queues WHERE topic = ? AND broker = ? AND queue = ?",
                queue,
            ).fetchone()
        return int(found)

    def advance(self, queue: SourceQueue, done: BatchProgress) -> None:
        """Note that a batch of a source queue is at the target."""
        with self._changing() as rows:
            (digest,) = rows.execute(
                "SELECT digest FROM queues WHERE topic = ? AND broker = ? AND queue = ?", queue
            ).fetchone()
            rows.execute(
                "UPDATE queues SET next_offset = ?, copied = copied + ?, bytes = bytes + ?, "
                "repeated = repeated + ?, refused = refused + ?, expired = expired + ?, digest = ? "
                "WHERE topic = ? AND broker = ? AND queue = ?",
                (
                    *(done.next_offset, done.copied, done.bytes, done.repeated),
                    *(len(done.refusals), done.expired),
                    f"{added(int(digest, 16), done.digest):x}",
                    *queue,
                ),
            )
            rows.executemany(
                "INSERT OR REPLACE INTO refusals VALUES (?, ?, ?, ?, ?)",
                [(*queue, offset, reason) for offset, reason in done.refusals],
            )

    def refusals(self) -> list[tuple[SourceQueue, int, str]]:
        """Return the messages that cannot be copied: queue, offset, reason."""
        found = self._all("SELECT topic, broker, queue, source_offset, reason FROM refusals", ())
        return [(SourceQueue(*row[:3]), row[3], row[4]) for row in found]

    # The target's queues ------------------------------------------------------------------------

    def targets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return queue of the target -> (where the copy began there, where it was read to)."""
        found = self._all(
            "SELECT number, first_offset, next_offset FROM targets WHERE topic = ?", (topic,)
        )
        return {number: (first, following) for number, first, following in found}

    def begin_target(self, topic: str, number: int, offset: int) -> None:
        """Note where a queue of the target ends before the first copied message."""
        with self._changing() as rows:
            rows.execute(
                "INSERT OR IGNORE INTO targets VALUES (?, ?, ?, ?)", (topic, number, offset, offset)
            )

    def absorb(self, topic: str, number: int, found: Iterable[StoredCopy], read_to: int) -> None:
        """Note copied messages that were found in a queue of the target, which was read so far."""
        with self._changing() as rows:
            last = rows.execute(
                "SELECT target_offset, broker, queue, source_offset, count FROM runs "
                "WHERE topic = ? AND number = ? ORDER BY target_offset DESC LIMIT 1",
                (topic, number),
            ).fetchone()
            for run in _joined(last, found):
                rows.execute(
                    "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (topic, number, *run),
                )
            rows.execute(
                "UPDATE targets SET next_offset = max(next_offset, ?) "
                "WHERE topic = ? AND number = ?",
                (read_to, topic, number),
            )

    def stored_from(self, queue: SourceQueue, offset: int) -> set[int]:
        """Return the offsets of a source queue, from one on, whose messages are at the target."""
        found = self._all(
            "SELECT source_offset, count FROM runs WHERE topic = ? AND broker = ? AND queue = ? "
            "AND source_offset > ? AND source_offset + count > ?",
            (*queue, offset - self._longest_run, offset),
        )
        return {each for first, count in found for each in range(max(first, offset), first + count)}

    def runs(self, topic: str, number: int) -> Iterator[tuple[int, SourceQueue, int, int]]:
        """Yield the runs of a queue of the target: offset there, source queue and offset, count."""
        at = -1
        while True:
            found = self._all(
                "SELECT target_offset, broker, queue, source_offset, count FROM runs "
                "WHERE topic = ? AND number = ? AND target_offset > ? "
                "ORDER BY target_offset LIMIT ?",
                (topic, number, at, _PAGE_RUNS),
            )
            for target, broker, queue, source, count in found:
                yield target, SourceQueue(topic, broker, queue), source, count
                at = target
            if len(found) < _PAGE_RUNS:
                return

    # Positions ----------------------------------------------------------------------------------

    def positions(self) -> dict[tuple[str, str, int], int]:
        """Return (consumer group, topic, queue of the target) -> the cursor that was set last."""
        found = self._all("SELECT * FROM positions", ())
        return {(group, topic, number): offset for group, topic, number, offset in found}

    def intentions(self) -> dict[tuple[str, str, int], int]:
        """Return the cursors that were about to be set last, whether or not they were; likewise."""
        found = self._all("SELECT * FROM intentions", ())
        return {(group, topic, number): offset for group, topic, number, offset in found}

    def intend(self, group: str, topic: str, number: int, offset: int) -> None:
        """Note that a cursor is about to be set: the answer may be lost."""
        with self._changing(durable=True) as rows:
            rows.execute(
                "INSERT OR REPLACE INTO intentions VALUES (?, ?, ?, ?)",
                (group, topic, number, offset),
            )

    def set_position(self, group: str, topic: str, number: int, offset: int) -> None:
        """Note that a cursor was set."""
        with self._changing(durable=True) as rows:
            rows.execute(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)",
                (group, topic, number, offset),
            )

    def _all(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._rows.execute(query, values).fetchall()

    @contextmanager
    def _changing(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield the database within one transaction; a durable one ends with fsync.

        Raises:
            CliError: it cannot be written.
        """
        with self._lock:
            try:
                self._rows.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._rows.execute("BEGIN IMMEDIATE")
                try:
                    yield self._rows
                except BaseException:
                    self._rows.execute("ROLLBACK")
                    raise
                self._rows.execute("COMMIT")
            except sqlite3.Error as error:
                raise CliError(f"{self.path}: {error}") from None


@contextmanager
def only_run(path: Path) -> Iterator[None]:
    """Keep other runs off a state file while the block runs.

    Raises:
        CliError: another run has it.
    """
    with Path(f"{path}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CliError(f"another strata migrate run uses {path}") from None
        yield


_Run = tuple[int, str, int, int, int]


def _joined(last: _Run | None, found: Iterable[StoredCopy]) -> list[_Run]:
    """Return the runs of messages, the first joined with the last known run if it follows it."""
    runs: list[_Run] = [] if last is None else [last]
    for one in found:
        if runs:
            target, broker, queue, source, count = runs[-1]
            follows = one == StoredCopy(target + count, broker, queue, source + count)
            if follows and count < MAX_RUN_MESSAGES:
                runs[-1] = target, broker, queue, source, count + 1
                continue
        runs.append((one.target_offset, one.broker, one.queue, one.source_offset, 1))
    return runs
