"""The commands of `strata debug`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from strata_cli.options import COMMON, Common
from strata_cli.output import show

app = App(name="debug", help="A file that helps to look into a problem.")

Files = Annotated[list[Path] | None, Parameter(negative="")]


@app.command
def bundle(
    *,
    out: Path | None = None,
    log: Files = None,
    config: Files = None,
    metrics: Annotated[list[str] | None, Parameter(negative="")] = None,
    data_dir: Files = None,
    common: Common = COMMON,
) -> None:
    """Write a .tar.gz with health, configuration, metrics, logs and versions, without secrets.

    It holds names of topics, consumer groups, nodes and clients, and no messages. Look into it
    before you pass it on.

    For instance: strata debug bundle --log /var/log/strata.log --metrics 127.0.0.1:5557

    Args:
        out: File to write; default: strata-debug-TIME.tar.gz here.
        log: File with a log, of which the end is taken; may be repeated.
        config: Configuration file (TOML); may be repeated.
        metrics: HOST:PORT of a metrics port; may be repeated.
        data_dir: Folder of a cluster of strata local, whose logs and metrics are taken; may be
            repeated.
    """
    from strata_cli.commands.doctor import check_view, examine
    from strata_cli.debug_bundle import BundleSources, write_bundle

    target = out or Path(f"strata-debug-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    sources = BundleSources(
        logs=tuple(log or ()),
        configs=tuple(config or ()),
        metrics=tuple(metrics or ()),
        folders=tuple(data_dir or ()),
    )
    folders = list(sources.folders) or [Path()]

    def checks() -> list[dict[str, object]]:
        found = examine(common, folders=folders, certificates=[], ports=[], asks_broker=True)
        return [check_view(each) for each in found]

    result = write_bundle(target, common, sources, checks=checks)
    show(result, common, rows="missing" if result["missing"] else "files")
