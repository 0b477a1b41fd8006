"""`strata doctor`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from strata_cli.errors import CliError
from strata_cli.options import COMMON, Common, milliseconds
from strata_cli.output import show
from strata_cli.views import View

if TYPE_CHECKING:
    from strata_cli.doctor import BrokerClock, MachineCheck

EXIT_CODES = {"ok": 0, "note": 0, "warning": 1, "failed": 2}

_ORDER = ("failed", "warning", "note", "ok")
_MAX_CALL_MS = 3_000


def doctor(
    *,
    data_dir: Annotated[list[Path] | None, Parameter(negative="")] = None,
    config: Path | None = None,
    port: Annotated[list[str] | None, Parameter(negative="")] = None,
    certificate: Annotated[list[Path] | None, Parameter(negative="")] = None,
    offline: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> int:
    """Check this machine: clock, disk, limits, memory, ports, certificates, and the broker.

    Exit code 0: all is well, 1: there are warnings, 2: something does not work.

    For instance: strata doctor --data-dir /var/lib/strata

    Args:
        data_dir: Check the disk of this folder; may be repeated; default: the present folder.
        config: Check the certificates of this configuration file (TOML).
        port: Check that HOST:PORT, or a port of all addresses, is free; may be repeated.
        certificate: Check this certificate (PEM); may be repeated.
        offline: Ask no broker.
    """
    checks = examine(
        common,
        folders=data_dir or [Path()],
        certificates=[*(certificate or ()), *(_certificates(config) if config else ())],
        ports=port or [],
        asks_broker=not offline,
    )
    views = [check_view(each) for each in checks]
    counts = Counter(each["verdict"] for each in views)
    worst = next((verdict for verdict in _ORDER if counts[verdict]), "ok")
    columns = ("verdict", "check", "name", "detail", "action")
    show({"status": worst, "checks": views}, common, rows="checks", columns=columns)
    return EXIT_CODES[worst]


def examine(
    common: Common,
    *,
    folders: list[Path],
    certificates: list[Path],
    ports: list[str],
    asks_broker: bool,
) -> list[MachineCheck]:
    """Return all checks, the worst first."""
    from strata_cli import doctor as checks

    found: list[MachineCheck] = []
    broker_clock = None
    if asks_broker:
        told, broker_clock = _broker(common)
        found.extend(told)
    found.extend(checks.clock(broker_clock))
    for folder in folders:
        found.extend(checks.disk(folder))
    found += [checks.files(), checks.memory()]
    found += [checks.port(each if ":" in each else f"0.0.0.0:{each}") for each in ports]
    found += [checks.certificate(each) for each in certificates]
    return sorted(found, key=lambda each: _ORDER.index(each.verdict))


def check_view(check: MachineCheck) -> View:
    """Return a check as `strata doctor -o json` prints it."""
    action = check.action if check.verdict in ("warning", "failed") else ""
    return {
        "check": check.check,
        "name": check.name,
        "verdict": check.verdict,
        "detail": check.detail,
        "action": action,
        "values": check.values,
    }


def _broker(common: Common) -> tuple[list[MachineCheck], BrokerClock | None]:
    """Ask the broker for its health; return what that says, and its clock."""
    from strata.admin.v1 import admin_pb2
    from strata_cli.client import connect
    from strata_cli.doctor import BrokerClock, MachineCheck

    timeout_ms = min(milliseconds(common.timeout), _MAX_CALL_MS)
    try:
        with connect(replace(common, timeout=f"{timeout_ms}ms")) as client:
            # The first call makes the connection, and would count in the time of the second.
            client.call(client.admin.GetHealth, admin_pb2.GetHealthRequest())
            before_s = time.time()
            health = client.call(client.admin.GetHealth, admin_pb2.GetHealthRequest())
            after_s = time.time()
    except CliError as error:
        action = "start it, or name another one with --endpoint; --offline asks none"
        return [MachineCheck("broker", common.endpoint, "failed", str(error), action)], None
    middle_ms = (before_s + after_s) * 500
    seen = BrokerClock(
        skew_ms=health.looked_at_ms - middle_ms, error_ms=(after_s - before_s) * 500 + 1
    )
    verdict = "ok" if health.status == "healthy" else "warning"
    detail = f"the cluster is {health.status}"
    values = {"call_ms": round((after_s - before_s) * 1_000, 1)}
    told = MachineCheck("broker", common.endpoint, verdict, detail, "strata status", values)  # type: ignore[arg-type]
    return [told], seen


def _certificates(config: Path) -> Iterator[Path]:
    """Yield the files of the certificates that a configuration names."""
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_runtime.config import load

    settings = load(ClusterConfig, config, os.environ)
    folder = settings.angelia.certificate_folder
    named = [
        settings.edge.certificate_file,
        settings.angelia.certificate_file or (f"{folder}/tls.crt" if folder else ""),
        settings.angelia.ca_file or (f"{folder}/ca.crt" if folder else ""),
    ]
    yield from (Path(each) for each in named if each)
