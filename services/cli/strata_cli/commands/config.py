"""The commands of `strata config`."""

# ruff: noqa: D417

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from strata_cli.options import COMMON, Common
from strata_cli.output import show

app = App(name="config", help="Configuration.")


@app.command(name="show")
def show_(
    *,
    config: Path | None = None,
    local: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Show the configuration in force, secrets masked: as TOML, or as JSON with -o json.

    For instance: strata config show --config strata.toml

    Args:
        config: Show the configuration that a process has with this file; no server is asked.
        local: Show the configuration that a process has without a file; no server is asked.
    """
    text, as_json = _local(config) if config is not None or local else _of_server(common)
    if common.for_programs:
        show(json.loads(as_json), common)
    else:
        print(text.rstrip())


def _local(file: Path | None) -> tuple[str, str]:
    import os

    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_runtime.config import load, to_json, to_toml

    settings = load(ClusterConfig, file, os.environ)
    return to_toml(settings), to_json(settings)


def _of_server(common: Common) -> tuple[str, str]:
    from strata.admin.v1 import admin_pb2
    from strata_cli.client import connect

    with connect(common) as client:
        response = client.call(client.admin.GetConfig, admin_pb2.GetConfigRequest())
    return response.text, response.json
