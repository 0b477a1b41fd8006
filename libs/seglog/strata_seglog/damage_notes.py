"""Places of damage, written down beside the log: a start reads footers only (rules 2 and 8).

The file `damage` holds a line for each place, `SEGMENT POSITION CRC` with a fixed width, and only
grows until no place in it is damaged any more. A torn line counts as none: the scrub comes there
again. Any thread may add a place.
"""

from __future__ import annotations

import threading
from contextlib import suppress

import google_crc32c

from strata_seglog.ports import Disk

NAME = "damage"

# More would tell nothing new: the disk has to be replaced.
_PLACES_MAX = 10_000
_TEXT_BYTES = len("00000000000000000000.log 00000000000000000000 ")
_LINE_BYTES = _TEXT_BYTES + len("ffffffff\n")

Place = tuple[str, int]
"""A segment's file name, and the log position where its good bytes end."""


class DamageNotes:
    """The noted places of one log.

    Args:
        disk: the log's folder.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._known: dict[Place, None] = {}
        self._written_bytes = 0

    def load(self) -> list[Place]:
        """Return the places that were noted before the start.

        Raises:
            OSError: the file cannot be read.
        """
        with self._lock:
            if NAME not in self._disk.names():
                return []
            file = self._disk.open(NAME, create=False)
            try:
                data = file.read(0, _PLACES_MAX * _LINE_BYTES)
            finally:
                file.close()
            self._written_bytes = len(data) // _LINE_BYTES * _LINE_BYTES
            for at in range(0, self._written_bytes, _LINE_BYTES):
                place = _decode(data[at : at + _LINE_BYTES])
                if place is not None:
                    self._known[place] = None
            return list(self._known)

    def add(self, segment: str, position: int) -> None:
        """Note a place, once; a disk that refuses leaves it to the next scrub.

        Args:
            segment: file name.
            position: log position where good bytes end.
        """
        with self._lock:
            place = segment, position
            if place in self._known or len(self._known) >= _PLACES_MAX:
                return
            with suppress(OSError):
                self._write(_encode(place))
                self._known[place] = None

    def clear(self) -> None:
        """Forget all places: none of them is damaged any more.

        Raises:
            OSError: the file cannot be deleted.
        """
        with self._lock:
            self._known.clear()
            self._written_bytes = 0
            self._disk.delete(NAME)
            self._disk.sync_folder()

    def _write(self, line: bytes) -> None:
        is_new = NAME not in self._disk.names()
        file = self._disk.open(NAME, create=is_new)
        try:
            file.write(self._written_bytes, [line])
            file.sync()
        finally:
            file.close()
        if is_new:
            self._disk.sync_folder()
        self._written_bytes += len(line)


def _encode(place: Place) -> bytes:
    segment, position = place
    text = f"{segment} {position:020d} ".encode()
    return text + b"%08x\n" % google_crc32c.value(text)


def _decode(line: bytes) -> Place | None:
    text, check = line[:_TEXT_BYTES], line[_TEXT_BYTES:]
    if b"%08x\n" % google_crc32c.value(text) != check:
        return None
    segment, position = text.decode().split()
    return segment, int(position)
