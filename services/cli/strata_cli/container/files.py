"""Reads the file of a container and those of its members, as TOML or properties.

A member has the container's sections, and on top those of its own file. Settings of the network
between processes and of nameservers are the container's alone: all members share its connections.
A member's file that has them starts the member without them, and the log says so.
"""

from __future__ import annotations

import hashlib
import socket
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from strata_cli.container import properties
from strata_cli.container.config import ContainerConfig, MemberConfig
from strata_runtime.config import from_values, load, read_toml
from strata_runtime.errors import ConfigError

_ADDRESS_TIMEOUT_S = 5.0
_MAX_ADDRESS_BYTES = 64 * 1024
_CONTAINERS_OWN: Mapping[str, frozenset[str] | None] = {
    "angelia": None,
    "observability": None,
    "storage_client": None,
    "cluster": frozenset(("nameservers", "storage_seeds", "machine", "rack")),
    "node": frozenset(("metrics_port", "log_level", "log_format", "max_restart_pause_ms")),
}
"""Section -> keys that a member's file cannot set; None: the whole section."""
_MEMBERS_OWN = frozenset(
    ("angelia", key) for key in ("certificate_folder", "certificate_file", "key_file")
)
"""But for these: a certificate names the role of one member."""
_OF_EACH_MEMBER = ("grpc_port", "admin_port", "metrics_port", "storage_port", "storage_http2_port")


class MemberFile(NamedTuple):
    """A member as its file says.

    Attributes:
        path: of the file.
        config: of the member, with what it has from the container.
        ignored: names in the file that have no effect.
    """

    path: Path
    config: MemberConfig
    ignored: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name among the members."""
        return self.config.member.full_name


def is_properties(path: Path) -> bool:
    """Whether a file has RocketMQ's form."""
    return path.suffix in (".properties", ".conf")


def read_container(path: Path, environment: Mapping[str, str]) -> tuple[ContainerConfig, list[str]]:
    """Return a container's configuration, and the names in its file that have no effect.

    Raises:
        ConfigError: it cannot be used.
    """
    unknown: list[str] = []
    if is_properties(path):
        read = properties.container_sections(_parsed(path), environment)
        config = from_values(ContainerConfig, read.sections, path)
        unknown += read.unknown
    else:
        config = load(ContainerConfig, path, environment)
    nameservers: tuple[str, ...] | str = config.cluster.nameservers
    if not nameservers and config.container.nameservers_from_address_server:
        nameservers = _fetched(config.container.address_server_url)
    if not nameservers and environment.get("NAMESRV_ADDR"):
        nameservers = properties.split_addresses(environment["NAMESRV_ADDR"])
    machine = config.cluster.machine or _machine_of(path)
    cluster = {"nameservers": nameservers, "machine": machine}
    values = config.model_dump()
    values["cluster"] |= cluster
    return from_values(ContainerConfig, values, path), unknown


def read_member(path: Path, container: ContainerConfig) -> MemberFile:
    """Return a member as its file says.

    Raises:
        ConfigError: it cannot be used.
    """
    given, unknown = _given(path)
    # A mistake is told with the file's own keys, before anything is added.
    own = from_values(MemberConfig, given, path).member
    for key, value in (("name", own.name), ("data_dir", own.data_dir != Path())):
        if not value:
            raise ConfigError(f"{path}: member.{key} is missing: each member needs its own")
    kept, ignored = _without_containers_own(given)
    values = container.model_dump(exclude={"container"})
    values["node"] = {
        key: value for key, value in values["node"].items() if key not in _OF_EACH_MEMBER
    } | {"admin_port": 0}
    for section, keys in kept.items():
        if isinstance(keys, dict) and isinstance(values.get(section), dict):
            values[section] |= keys
        else:
            values[section] = keys
    values["member"] = own.model_dump() | {"data_dir": (path.parent / own.data_dir).resolve()}
    return MemberFile(path, from_values(MemberConfig, values, path), (*unknown, *ignored))


def _given(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    if not is_properties(path):
        return read_toml(path), ()
    try:
        read = properties.member_sections(_parsed(path))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    return dict(read.sections), read.unknown


def _without_containers_own(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return what a member may set, and the names of what it may not."""
    kept: dict[str, Any] = {}
    ignored: list[str] = []
    for section, values in given.items():
        if section not in _CONTAINERS_OWN or not isinstance(values, dict):
            kept[section] = values
            continue
        owned = _CONTAINERS_OWN[section]
        kept[section] = {}
        for key, value in values.items():
            is_owned = owned is None or key in owned
            if is_owned and (section, key) not in _MEMBERS_OWN:
                ignored.append(f"{section}.{key}")
            else:
                kept[section][key] = value
    return kept, ignored


def _parsed(path: Path) -> dict[str, str]:
    try:
        return properties.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None


def _fetched(url: str) -> str:
    """Ask an address server; blocking, before there is an event loop.

    Raises:
        ConfigError: it gives no addresses.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(
            f"container.address_server_url is {url!r}: give the http address of the address server"
        )
    try:
        with urllib.request.urlopen(url, timeout=_ADDRESS_TIMEOUT_S) as answer:  # noqa: S310 - http
            text = answer.read(_MAX_ADDRESS_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the address server {url} does not answer: {error}") from None
    if not text:
        raise ConfigError(f"the address server {url} knows no nameserver")
    return properties.split_addresses(text)


def _machine_of(path: Path) -> str:
    """Return the name of the machine of a container: the same at each of its starts."""
    place = f"{socket.gethostname()}:{path.resolve()}"
    return f"container-{hashlib.sha256(place.encode()).hexdigest()[:12]}"
