"""Plugins by their names in the configuration; the modules of others are not even imported."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from strata_runtime.errors import ConfigError

if TYPE_CHECKING:
    from strata_broker.servicers.plugins import BrokerPlugin
    from strata_storage.base.config import StorageConfig
    from strata_storage.group.node_plugins import StoragePlugin

KV = "kv"
_NAMES = (KV,)


def broker_plugins(names: Collection[str]) -> list[BrokerPlugin]:
    """Return the plugins of a broker.

    Raises:
        ConfigError: there is no such plugin.
    """
    _check(names)
    if KV not in names:
        return []
    from strata_broker.kv.plugin import KvBrokerPlugin

    return [KvBrokerPlugin()]


def storage_plugins(names: Collection[str], config: StorageConfig) -> list[StoragePlugin]:
    """Return the plugins of a storage node.

    Raises:
        ConfigError: there is no such plugin.
    """
    _check(names)
    if KV not in names:
        return []
    from strata_storage.kv.options import KvOptions
    from strata_storage.kv.plugin import KvStoragePlugin

    return [KvStoragePlugin(KvOptions.of(config))]


def _check(names: Collection[str]) -> None:
    for name in names:
        if name not in _NAMES:
            raise ConfigError(
                f"plugins: there is no plugin {name!r}; there are: {', '.join(_NAMES)}"
            )
