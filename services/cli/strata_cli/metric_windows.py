"""Reads metric windows from `__strata_metrics` through any broker, the newest first.

The topic is read in slices of store time, from now backwards: what happened last matters most, and
a slice counts only when all of its pages were read. One reading has limits; when it ends before the
beginning of the time that was wanted, it says since when windows were read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import blake2b

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient
from strata_cli.errors import CliError
from strata_placement.timely import Flaw, LeftOut, TimelyWindows
from strata_runtime.windows import WINDOWS_TOPIC, WindowBatch, WindowFormatError, decode

PAGE_SIZE = 1_000

MAX_ROWS = 5_000_000
"""Rows of one reading: a plan takes some 850 bytes for each while it is made, together 4 GiB."""

MAX_PAGES = 2_000
"""Calls of one reading: some of ten milliseconds each, together less than a minute."""

# A batch costs so many rows beside its own: objects of up to 27 columns.
_ROWS_OF_A_BATCH = 10
# Slices are short, so that little is read in vain when the last one is not complete; their number
# is bounded, because each takes a call at least.
_SLICE_MS = 600_000
_MAX_SLICES = 48
# Loads of consumer groups are those of queues once more. Brokers write the kind as the tag.
_TAGS = "queue||node"
_DIGEST_BYTES = 16


class WindowReading:
    """One reading; it is iterated over once.

    Args:
        client: a broker.
        history_ms: how far back windows are wanted.

    Attributes:
        now_ms: wall time at which the reading begins.
        begin_ms: wall time since which all windows were read.
        left_out: what was read and does not count.
    """

    def __init__(self, client: AdminClient, history_ms: int) -> None:
        self.now_ms = int(time.time() * 1_000)
        self.begin_ms = self.now_ms
        self.left_out = LeftOut()
        self._client = client
        self._wanted_ms = self.now_ms - history_ms
        self._slice_ms = max(_SLICE_MS, -(-history_ms // _MAX_SLICES))
        self._timely = TimelyWindows(self._wanted_ms, self.now_ms, self.left_out)
        self._rows, self._pages = 0, 0
        # Message ids, or digests of bodies: a batch that came twice counts once.
        self._known = set[bytes]()

    def __iter__(self) -> Iterator[WindowBatch]:
        """Yield what counts, slice by slice; nothing if there is no such topic.

        Raises:
            CliError: no broker answers, or one slice alone is more than may be read.
        """
        end_ms: int | None = None
        while self.begin_ms > self._wanted_ms:
            begin_ms = max(self._wanted_ms, self.begin_ms - self._slice_ms)
            try:
                part = self._slice(begin_ms, end_ms)
            except CliError as error:
                if error.code != "not_found":
                    raise
                # Nobody ever wrote a window: the topic does not exist.
                self.begin_ms = self._wanted_ms
                return
            if part is None and end_ms is None:
                raise CliError(
                    f"the last {_minutes(self.now_ms - begin_ms)} have more metric windows than "
                    f"are read at once ({MAX_ROWS} rows, {MAX_PAGES} pages): give a shorter "
                    "--history"
                )
            if part is None:
                return
            self.begin_ms = end_ms = begin_ms
            yield from part

    def notes(self) -> tuple[str, ...]:
        """Return what a person should know of the reading once it has ended."""
        notes = []
        if self.begin_ms > self._wanted_ms:
            notes.append(
                f"metric windows were read of the last {_minutes(self.now_ms - self.begin_ms)} "
                f"only, of {_minutes(self.now_ms - self._wanted_ms)} that were asked for: there "
                "are more than are read at once"
            )
        if self.left_out.total:
            notes.append(str(self.left_out))
        return tuple(notes)

    def _slice(self, begin_ms: int, end_ms: int | None) -> list[WindowBatch] | None:
        """Return what was stored between two times and counts; None: it is too much to read.

        Raises:
            CliError: no broker answers; with the code `not_found` there is no such topic.
        """
        request = admin_pb2.FindMessagesRequest(
            topic=WINDOWS_TOPIC,
            begin_ms=begin_ms,
            end_ms=end_ms,
            tag=_TAGS,
            max_messages=PAGE_SIZE,
        )
        part: list[WindowBatch] = []
        while True:
            if self._rows >= MAX_ROWS or self._pages >= MAX_PAGES:
                return None
            response = self._client.call(self._client.admin.FindMessages, request)
            self._pages += 1
            part += self._counted(response)
            if not response.next_page_token:
                return part
            request.page_token = response.next_page_token

    def _counted(self, response: admin_pb2.FindMessagesResponse) -> Iterator[WindowBatch]:
        for found in response.messages:
            message = definition_pb2.Message.FromString(found.message)
            key = message.system_properties.message_id.encode()
            key = key or blake2b(message.body, digest_size=_DIGEST_BYTES).digest()
            if key in self._known:
                continue
            self._known.add(key)
            try:
                batch = decode(message.body)
            except WindowFormatError:
                self.left_out.add(Flaw.UNREADABLE)
                continue
            self._rows += len(batch) + _ROWS_OF_A_BATCH
            if self._timely.take(batch):
                yield batch


def _minutes(time_ms: int) -> str:
    return f"{time_ms / 60_000:.0f} min"
