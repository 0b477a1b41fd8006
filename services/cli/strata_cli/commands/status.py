"""`strata status`; `common` is described by its type."""

from __future__ import annotations

from strata_cli.options import COMMON, Common
from strata_cli.watching import INTERVAL, Interval, Watch, look


def status(*, watch: Watch = False, interval: Interval = INTERVAL, common: Common = COMMON) -> int:
    """Show the cluster on one screen: healthy, or each finding with the next command to type.

    Exit code as `strata cluster health`, 0: healthy, 1: degraded, 2: down. Notes, for instance
    dead letters or a node that is drained, leave it at 0.

    For instance: strata status
    """
    from strata_cli.status import gather, print_status

    code = 0

    def draw() -> None:
        nonlocal code
        report = gather(common)
        code = report["exit_code"]
        print_status(report, common)

    look(draw, common, watch=watch, interval=interval)
    return code
