"""The `strata` command with a broker that is killed between a deletion and the drop of its data."""

from __future__ import annotations

import os
import signal

from strata.meta.v1 import meta_pb2
from strata_broker.operators.drops import Dropper
from strata_cli.main import main


async def die(_: Dropper, kind: meta_pb2.TombstoneKind.ValueType, dropped_id: int) -> bool:
    """Kill the process in place of the drop."""
    os.kill(os.getpid(), signal.SIGKILL)
    return False


Dropper.drop = die  # type: ignore[method-assign,assignment]
main()
