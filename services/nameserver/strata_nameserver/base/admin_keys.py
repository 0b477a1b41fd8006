"""Files with the keys of an admin, in a data folder; only the owner can read them.

`first-admin.json` is written by the nameserver that makes the first admin, before the user's row
is. `recover-admin.json` is an order that `strata user recover` leaves while the server is stopped.
Both are JSON: `access_key` and `secret_key`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from strata_runtime.errors import ConfigError
from strata_runtime.files import replace_file, sync_folder

FIRST_ADMIN_FILE = "first-admin.json"
RECOVERY_FILE = "recover-admin.json"

_MAX_FILE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, repr=False)
class AdminKeys:
    """Keys of an admin; its text shows no secret."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return f"AdminKeys({self.access_key!r}, ...)"


@dataclass(frozen=True, slots=True)
class AdminKeyFiles:
    """Where a nameserver finds and keeps the keys of admins.

    Attributes:
        folder: the data folder of the process.
        is_wanted: access is controlled, so that there must be an admin.
        given: file with the keys of the first admin; None: they are made.
    """

    folder: Path
    is_wanted: bool
    given: Path | None = None

    @property
    def first_admin(self) -> Path:
        """File that the keys of the first admin are written to."""
        return self.folder / FIRST_ADMIN_FILE

    @property
    def recovery(self) -> Path:
        """Order to replace the key of an admin."""
        return self.folder / RECOVERY_FILE


def read_keys(path: Path) -> AdminKeys | None:
    """Return the keys in a file; None: there is no such file. Blocks.

    Raises:
        ConfigError: the file cannot be read, or holds no keys.
    """
    try:
        with path.open("rb") as file:
            values = json.loads(file.read(_MAX_FILE_BYTES))
        return AdminKeys(_text(values, "access_key"), _text(values, "secret_key"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        # The error's own text may show what is in the file.
        raise ConfigError(
            f'{path}: it must be JSON: {{"access_key": "...", "secret_key": "..."}}'
        ) from None


def write_keys(path: Path, keys: AdminKeys) -> None:
    """Write a file that only the owner can read, durably: after a crash it is whole or not there.

    Blocks.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps({"access_key": keys.access_key, "secret_key": keys.secret_key}, indent=2)
    owner = None
    if os.geteuid() == 0:
        # An operator may be root where the server is not.
        folder = path.parent.stat()
        owner = (folder.st_uid, folder.st_gid)
    replace_file(path, f"{text}\n".encode(), mode=0o600, owner=owner)


def delete_keys(path: Path) -> None:
    """Delete a file with keys, durably. Blocks.

    Raises:
        OSError: it cannot be deleted.
    """
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def _text(values: dict[str, object], key: str) -> str:
    value = values[key]
    if not isinstance(value, str) or not value:
        raise ValueError(key)
    return value
