"""A file for whoever looks into a problem: state, configuration, metrics, logs, without secrets.

Each part is gathered by itself: manifest.json names a part that cannot be had, with the reason.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata.admin.v1 import admin_pb2
from strata_cli import lags
from strata_cli.client import AdminClient, connect, secret_key_of
from strata_cli.cluster_views import cluster_nodes, health_report, health_view
from strata_cli.errors import CliError
from strata_cli.options import Common
from strata_cli.redacting import Redactor, secrets_in_toml, secrets_of
from strata_cli.views import View, group_view, topic_view
from strata_runtime.errors import StrataError
from strata_runtime.version import VERSION

MAX_LOG_BYTES = 8 * 1024 * 1024
"""Most bytes of a log: its end."""

MAX_METRICS_BYTES = 64 * 1024 * 1024
MAX_GROUPS = 1_000
"""Most consumer groups whose lag is asked for."""

_METRICS_TIMEOUT_S = 5.0
_PAGES = ("metrics", "ready")
_SECRET_MODE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSources:
    """The parts beside what the broker tells.

    Attributes:
        logs: files with logs; of each the end.
        configs: configuration files.
        metrics: HOST:PORT of metrics ports.
        folders: data folders of `strata local`, whose logs and metrics ports are known.
    """

    logs: tuple[Path, ...] = ()
    configs: tuple[Path, ...] = ()
    metrics: tuple[str, ...] = ()
    folders: tuple[Path, ...] = ()


@dataclass(slots=True)
class _Bundle:
    """Files by name, all of them redacted, and what could not be had."""

    redactor: Redactor
    files: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, gather: Callable[[], str]) -> None:
        try:
            self.files[name] = self.redactor.text(gather()).encode(errors="surrogateescape")
        except (StrataError, OSError, ValueError) as error:
            self.missing[name] = self.redactor.text(str(error))

    def add_json(self, name: str, gather: Callable[[], Any]) -> None:
        self.add(name, lambda: json.dumps(gather(), indent=1, ensure_ascii=False))


def write_bundle(
    target: Path, common: Common, sources: BundleSources, *, checks: Callable[[], Any]
) -> View:
    """Write a bundle; return its contents.

    Args:
        target: the .tar.gz file; it must not exist. Only its owner can read it.
        common: the broker to ask.
        sources: what else goes in.
        checks: the result of `strata doctor`.

    Raises:
        CliError: the file cannot be written.
    """
    bundle = _Bundle(Redactor(_known_secrets(common, sources)))
    _add_machine(bundle, checks)
    _add_cluster(bundle, common)
    sources = _with_local(sources, bundle)
    for path in sources.configs:
        bundle.add(f"config-files/{_flat(path)}", path.read_text)
    for path in sources.logs:
        bundle.add(f"logs/{_flat(path)}", lambda path=path: _end_of(path))  # type: ignore[misc]
    for address in sources.metrics:
        for page in _PAGES:
            name = f"metrics/{address.replace(':', '_')}-{page}.txt"
            bundle.add(name, lambda url=f"http://{address}/{page}": _page(url))  # type: ignore[misc]
    files = [
        {"name": name, "bytes": len(content)} for name, content in sorted(bundle.files.items())
    ]
    missing = [{"name": name, "reason": why} for name, why in sorted(bundle.missing.items())]
    manifest = {"made_at_ms": round(time.time() * 1_000), "files": files, "missing": missing}
    bundle.add_json("manifest.json", lambda: manifest)
    _write(target, bundle.files)
    return {"file": str(target), "bytes": target.stat().st_size, **manifest}


def versions() -> dict[str, Any]:
    """Return the versions of everything that takes part on this machine."""
    packages = {
        each.metadata["Name"]: each.version
        for each in importlib.metadata.distributions()
        if each.metadata["Name"]
    }
    return {
        "strata": VERSION,
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": dict(sorted(packages.items())),
    }


def _add_machine(bundle: _Bundle, checks: Callable[[], Any]) -> None:
    bundle.add_json("versions.json", versions)
    bundle.add_json("doctor.json", checks)
    ours = {key: each for key, each in os.environ.items() if key.startswith("STRATA_")}
    text = "".join(f"{key}={each}\n" for key, each in sorted(ours.items()))
    bundle.add("environment.txt", lambda: text)


def _add_cluster(bundle: _Bundle, common: Common) -> None:
    with connect(common) as client:
        admin = client.admin
        bundle.add_json(
            "health.json",
            lambda: health_report(client.call(admin.GetHealth, admin_pb2.GetHealthRequest())),
        )
        if "health.json" not in bundle.files:
            return
        bundle.add_json("cluster.json", lambda: _cluster(client))
        bundle.add(
            "config.toml",
            lambda: client.call(admin.GetConfig, admin_pb2.GetConfigRequest()).text,
        )
        bundle.add_json("topics.json", lambda: [*map(topic_view, lags.topic_rows(client, None))])
        bundle.add_json("groups.json", lambda: [*map(group_view, lags.group_rows(client, None))])
        bundle.add_json("lag.json", lambda: _lag(client))
        for name, method, request in (
            ("tier.txt", admin.GetTier, admin_pb2.GetTierRequest()),
            ("slots.txt", admin.ListSlots, admin_pb2.ListSlotsRequest()),
            ("placement.txt", admin.GetPlacement, admin_pb2.GetPlacementRequest()),
            ("quotas.txt", admin.ListQuotas, admin_pb2.ListQuotasRequest(page_size=1_000)),
        ):
            bundle.add(name, lambda m=method, r=request: str(client.call(m, r)))  # type: ignore[misc]


def _cluster(client: AdminClient) -> View:
    response = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
    return {
        "version": response.version,
        "nodes": cluster_nodes(response),
        "raft_groups": [health_view(health) for health in response.raft_groups],
        "metadata_age_ms": response.metadata_age_ms,
    }


def _lag(client: AdminClient) -> list[View]:
    names = [(row.namespace, row.name) for row in lags.group_rows(client, None)]
    return lags.lags_of(client, names[:MAX_GROUPS], lags.CounterRates())


def _with_local(sources: BundleSources, bundle: _Bundle) -> BundleSources:
    """Add the logs and the metrics ports of local clusters."""
    from strata_cli.local.plan import load

    logs, metrics = [*sources.logs], [*sources.metrics]
    for folder in sources.folders:
        try:
            plan = load(folder)
        except StrataError as error:
            bundle.missing[str(folder)] = str(error)
            continue
        if plan is None:
            bundle.missing[str(folder)] = "it holds no cluster of strata local"
            continue
        for member in plan.members:
            logs.append(folder / member.name / "log")
            if member.metrics_port:
                metrics.append(f"{member.host}:{member.metrics_port}")
    return BundleSources(logs=tuple(logs), configs=sources.configs, metrics=tuple(metrics))


def _known_secrets(common: Common, sources: BundleSources) -> Iterator[str]:
    yield from secrets_of(os.environ)
    yield common.session_token
    with suppress(CliError):
        yield secret_key_of(common)
    for path in sources.configs:
        try:
            yield from secrets_in_toml(path.read_text())
        except (OSError, UnicodeDecodeError):
            continue


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - MAX_LOG_BYTES, 0))
        content = file.read()
    if size > MAX_LOG_BYTES:
        content = content.partition(b"\n")[2]
    return content.decode(errors="replace")


def _page(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_METRICS_TIMEOUT_S) as response:
            return str(response.read(MAX_METRICS_BYTES).decode(errors="replace"))
    except urllib.error.HTTPError as error:
        # A process that is not ready says why.
        return f"{error.code}\n{error.read(MAX_METRICS_BYTES).decode(errors='replace')}"


def _flat(path: Path) -> str:
    """Return a name for a file that keeps its folders apart."""
    return str(path).strip("/.").replace("/", "__")


def _write(target: Path, files: Mapping[str, bytes]) -> None:
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET_MODE)
    except FileExistsError:
        raise CliError(f"{target} exists already") from None
    root = target.name.removesuffix(".tar.gz")
    with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mtime = len(content), int(time.time())
            tar.addfile(entry, io.BytesIO(content))
