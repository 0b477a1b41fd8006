"""Where the nameserver of a process finds and keeps the keys of admins."""

from __future__ import annotations

from pathlib import Path

from strata_cli.processes.data_folder import DataFolder
from strata_cli.processes.standalone_config import StandaloneConfig
from strata_nameserver.base.admin_keys import AdminKeyFiles


def admin_key_files(config: StandaloneConfig, folder: DataFolder) -> AdminKeyFiles:
    """Return the files, by the configuration and in the data folder."""
    section = config.access_control
    given = section.first_admin_file
    return AdminKeyFiles(folder.path, section.is_on, Path(given) if given else None)
