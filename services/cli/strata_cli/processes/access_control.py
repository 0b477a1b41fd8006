"""Whether a process checks who calls it: as told, or by the address that it listens on."""

from __future__ import annotations

from typing import TypeVar

from strata_cli.processes.data_folder import FolderRole
from strata_cli.processes.standalone_config import StandaloneConfig
from strata_runtime.errors import ConfigError
from strata_runtime.listening import is_loopback

ConfigT = TypeVar("ConfigT", bound=StandaloneConfig)


def with_access_control(config: ConfigT) -> ConfigT:
    """Return a configuration whose `access_control.mode` is on or off.

    Raises:
        ConfigError: it is off, although others than the machine itself reach the process.
    """
    section, host = config.access_control, config.node.host
    here_only = is_loopback(host)
    mode = section.mode
    if mode == "auto":
        mode = "off" if here_only else "on"
    if mode == "off" and not here_only and not section.insecure:
        raise ConfigError(
            f"access control is off and the process listens on {host or 'all addresses'}: give "
            "--access-control on, or --host 127.0.0.1, or --insecure to let anybody do anything"
        )
    return config.with_flags(access_control={"mode": mode})


def check_plaintext(config: StandaloneConfig, role: FolderRole) -> None:
    """Refuse to serve other processes in plaintext where others than the machine reach it.

    Raises:
        ConfigError: a nameserver or storage node would; whoever reaches it could do anything.
    """
    host = config.node.host
    serves_peers = role in (FolderRole.NAMESERVER, FolderRole.STORAGE)
    if not serves_peers or config.angelia.tls_mode != "off" or is_loopback(host):
        return
    if not config.access_control.insecure:
        raise ConfigError(
            f"there is no cluster certificate and the {role.described} listens on "
            f"{host or 'all addresses'}: give --cluster-certificates DIR (strata cert issue), or "
            "--host 127.0.0.1, or --insecure to let anybody call it"
        )


def shown_access_control(config: StandaloneConfig) -> dict[str, str]:
    """Return the field of the ready line."""
    return {"access_control": "on" if config.access_control.is_on else "off"}
