"""Replacing small files so that a crash leaves the old content or the new one, never a part."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def replace_file(
    file: Path, content: bytes, *, mode: int | None = None, owner: tuple[int, int] | None = None
) -> None:
    """Write a file as a whole, durably. Blocks.

    Args:
        file: what is written; its folder exists.
        content: all of it.
        mode: its permissions; None: those that it has, or for a new file what the umask leaves.
        owner: user and group id; None: who writes it.

    Raises:
        OSError: it cannot be written; the old content is there.
    """
    if mode is None:
        mode = _mode_of(file)
    draft = file.with_name(f"{file.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    # Nobody else may read a secret while the mode is not set yet.
    with os.fdopen(os.open(draft, flags, 0o666 if mode is None else mode & 0o600), "wb") as out:
        if mode is not None:
            os.fchmod(out.fileno(), mode)
        if owner is not None:
            os.fchown(out.fileno(), *owner)
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make durable which files are in a folder. Blocks.

    Raises:
        OSError: it cannot be synced.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mode_of(file: Path) -> int | None:
    try:
        return stat.S_IMODE(file.stat().st_mode)
    except FileNotFoundError:
        return None
