"""`strata standalone` and `strata demo`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from strata_cli.options import COMMON, Common


def standalone(
    *,
    data_dir: Path,
    host: str | None = None,
    grpc_port: int | None = None,
    config: Path | None = None,
    common: Common = COMMON,
) -> None:
    """Run a whole node in this process: nameserver, storage node and broker, one data folder.

    Prints one line that starts with "ready" when it serves; SIGTERM drains and ends it.

    For instance: strata standalone --data-dir /var/lib/strata --grpc-port 8081

    Args:
        data_dir: Folder that holds everything; made if it is not there.
        host: Address to listen on; default 127.0.0.1, or what the configuration says.
        grpc_port: Port for clients, 0 for any free one; default 8081, or what the configuration
            says.
        config: TOML file; STRATA_<SECTION>_<KEY> in the environment overrides a key of it.
    """
    from strata_cli.standalone import run
    from strata_cli.standalone_config import StandaloneConfig
    from strata_runtime.config import load

    settings = load(StandaloneConfig, config, os.environ)
    run(settings.listening_on(host, grpc_port), data_dir)


def demo(
    *,
    once: Annotated[bool, Parameter(negative="")] = False,
    data_dir: Path = Path("build/demo"),
    common: Common = COMMON,
) -> None:
    """Start a standalone node, send and receive real messages, stay up until Ctrl-C.

    For instance: strata demo --once

    Args:
        once: End after the messages.
        data_dir: Data folder of the node.
    """
    from strata_cli.demo import run

    run(data_dir, once=once)
