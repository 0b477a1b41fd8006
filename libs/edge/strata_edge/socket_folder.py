"""Removes the private socket folders that killed servers left behind.

A server and its front meet at a unix socket in a folder of mode 0700: only this user reaches it.
(Its abstract twin would vanish with the process, but has no owner: any local user could connect
and claim any client address, and grpcio shows no peer credentials to refuse them by.) Kill -9
leaves the folder, so every start of an edge sweeps those whose server is dead. That the kernel
tells: nobody accepts at the socket any more.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

FOLDER_PREFIX = "strata-edge-"
SOCKET_NAME = "edge.sock"
OTHER_SOCKET_NAME = "other"

_MIN_AGE_S = 5.0
"""Between the making of a folder, its socket and the first accept lies less than this."""


def sweep(parent: Path, wall_s: float, *, min_age_s: float = _MIN_AGE_S) -> list[Path]:
    """Remove the folders in `parent` whose server is dead; return them.

    A folder stays if it belongs to another user, is younger than `min_age_s` or cannot be removed.

    Args:
        parent: where edges make their folders; not shared with another machine.
        wall_s: seconds since 1970.
        min_age_s: younger ones may still be starting.
    """
    swept = []
    for folder in _folders_of_mine(parent):
        if _is_dead(folder, wall_s - min_age_s):
            shutil.rmtree(folder, ignore_errors=True)
            swept.append(folder)
    return swept


def _folders_of_mine(parent: Path) -> Iterator[Path]:
    try:
        entries = list(parent.glob(f"{FOLDER_PREFIX}*"))
    except OSError:
        return
    for folder in entries:
        try:
            status = folder.lstat()
        except OSError:  # its owner was faster
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            yield folder


def _is_dead(folder: Path, made_before_s: float) -> bool:
    try:
        if folder.stat().st_mtime > made_before_s:
            return False
    except OSError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(folder / SOCKET_NAME))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:  # a full backlog: someone is there
            return False
    return False
