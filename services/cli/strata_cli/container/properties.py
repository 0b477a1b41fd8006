"""Properties files with RIP-31's names, as sections and keys of ours; pure.

    brokerName=broker-a          -> [member] name
    listenPort=10911             -> [node] grpc_port, storage_port or admin_port
    storage.max_waiters=100      -> [storage] max_waiters: a name with a dot is one of ours

RocketMQ passes over names that it does not know, and so does this: they are returned, to be warned
about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_HOUR_MS = 3_600_000

Sections = dict[str, dict[str, Any]]

_CONTAINER_NAMES = {
    "brokerConfigPaths": ("container", "members"),
    "listenPort": ("node", "admin_port"),
    "namesrvAddr": ("cluster", "nameservers"),
    "fetchNamesrvAddrByAddressServer": ("container", "nameservers_from_address_server"),
    "brokerContainerIP": ("node", "advertised_host"),
}
_MEMBER_NAMES = {
    "brokerClusterName": ("member", "cluster"),
    "brokerName": ("member", "name"),
    "brokerId": ("member", "id"),
    "memberRole": ("member", "role"),
    "storePathRootDir": ("member", "data_dir"),
    "isolateLogEnable": ("member", "isolate_log"),
    "brokerIP1": ("node", "advertised_host"),
    "namesrvAddr": ("cluster", "nameservers"),
    "fileReservedTime": ("storage", "default_retention_ms"),
    "quotaPercentForDiskPartition": ("storage", "disk_quota_ratio"),
    "logicalDiskSpaceCleanForciblyThreshold": ("storage", "logical_disk_clean_ratio"),
    "diskSpaceCleanForciblyRatio": ("storage", "disk_clean_ratio"),
    "diskSpaceWarningLevelRatio": ("storage", "disk_warning_ratio"),
}
NAMES = (_CONTAINER_NAMES, _MEMBER_NAMES)


class ReadProperties(NamedTuple):
    """Content of a properties file.

    Attributes:
        sections: section -> key -> value as text.
        unknown: names that mean nothing here.
    """

    sections: Sections
    unknown: tuple[str, ...]


def parse(text: str) -> dict[str, str]:
    """Return name -> value of a properties file; of a repeated name the last counts."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith(("#", "!")):
            name, _, value = line.partition("=")
            found[name.strip()] = value.strip()
    return found


def container_sections(values: Mapping[str, str], environment: Mapping[str, str]) -> ReadProperties:
    """Return what a container's properties say; NAMESRV_ADDR counts where namesrvAddr is absent."""
    given = dict(values)
    if not given.get("namesrvAddr") and environment.get("NAMESRV_ADDR"):
        given["namesrvAddr"] = environment["NAMESRV_ADDR"]
    return _sections(given, _CONTAINER_NAMES)


def member_sections(values: Mapping[str, str]) -> ReadProperties:
    """Return what a member's properties say.

    Raises:
        ValueError: fileReservedTime or a ratio is no number.
    """
    names = dict(_MEMBER_NAMES)
    is_storage = values.get("memberRole", values.get("member.role")) == "storage"
    names["listenPort"] = ("node", "storage_port" if is_storage else "grpc_port")
    read = _sections(values, names)
    kept = read.sections.get("storage", {})
    if "fileReservedTime" in values:
        kept["default_retention_ms"] = _hours_ms(values["fileReservedTime"])
    for name in ("diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio"):
        if name in values:
            kept[names[name][1]] = _ratio(name, values[name])
    return read


def split_addresses(text: str) -> str:
    """Return addresses as ours are written: RocketMQ separates them by semicolons."""
    return text.replace(";", ",")


def _sections(values: Mapping[str, str], names: Mapping[str, tuple[str, str]]) -> ReadProperties:
    sections: Sections = {}
    unknown: list[str] = []
    for name, value in values.items():
        section, _, key = name.partition(".")
        if name in names:
            section, key = names[name]
        elif not key:
            unknown.append(name)
            continue
        is_address = (section, key) == ("cluster", "nameservers")
        sections.setdefault(section, {})[key] = split_addresses(value) if is_address else value
    return ReadProperties(sections, tuple(unknown))


def _ratio(name: str, text: str) -> float:
    """Return a ratio that RocketMQ writes as whole percents, or as the ratio itself."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a number") from None
    return value / 100 if value > 1 else value


def _hours_ms(text: str) -> int:
    try:
        return int(text) * _HOUR_MS
    except ValueError:
        raise ValueError(f"fileReservedTime: {text!r} is not a number of hours") from None
