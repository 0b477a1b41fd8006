"""Orders a stopped nameserver to replace the lost key of an admin (`strata user recover`).

The order is a file in the data folder. The nameserver carries it out at its next start, as a change
of the metadata like any other, and deletes it. So the log of the metadata stays whole, and the
other nameservers learn of the change in the usual way.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from strata_cli.errors import CliError, UsageError
from strata_cli.processes.data_folder import (
    DataFolderError,
    FolderRole,
    identity_of,
    locked,
)
from strata_metadata.errors import MetaRefused
from strata_mq.access import new_secret_key
from strata_nameserver.base.admin_keys import RECOVERY_FILE, AdminKeys, write_keys
from strata_nameserver.drafts.users import check_keys

_ROLES = ("", FolderRole.STANDALONE, FolderRole.NAMESERVER)


def leave_order(data_dir: Path, name: str) -> AdminKeys:
    """Write an order with new keys and return them.

    Args:
        data_dir: of a standalone node or nameserver that does not run.
        name: of the admin; a user that does not exist will be created.

    Raises:
        CliError: the folder is none of these, the server runs, or the name cannot be used.
    """
    keys = AdminKeys(name, new_secret_key(secrets.token_bytes))
    try:
        check_keys(keys.access_key, keys.secret_key)
    except MetaRefused as refused:
        raise UsageError(f"--name {name}: {refused.reason}") from None
    try:
        role = identity_of(data_dir).role
        if role not in _ROLES:
            raise CliError(
                f"{data_dir} is the data folder of a {role} process: give that of a nameserver or "
                "standalone node"
            )
        with locked(data_dir):
            write_keys(data_dir / RECOVERY_FILE, keys)
    except DataFolderError as error:
        raise CliError(str(error)) from None
    except OSError as error:
        raise CliError(f"{data_dir / RECOVERY_FILE}: {error.strerror}") from None
    return keys
