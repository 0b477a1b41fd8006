"""Runs seeds of the cluster's simulation: `python -m strata_sim --seeds 1-100`.

One line of JSON per seed on standard output; `--show` prints the events of a run as they happen.
Names hash the same in every run: the process restarts itself with a fixed hash seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from strata_runtime import logs
from strata_sim.scenario import Scenario, ScenarioOptions, at_rest, with_lite_topics

_HASH_SEED = "0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return 1 if a seed is bad."""
    parser = argparse.ArgumentParser(prog="strata_sim", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", required=True, help="1-100, or 7, or 3,5,8")
    parser.add_argument("--show", action="store_true", help="print every event")
    parser.add_argument("--at-rest", action="store_true", help="without a tier and tables")
    parser.add_argument("--lite", action="store_true", help="with lite topics, without tables")
    parser.add_argument("--log-level", default="critical", help="of the services' own logs")
    options = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        environment = {**os.environ, "PYTHONHASHSEED": _HASH_SEED}
        command = [sys.executable, "-m", "strata_sim", *sys.argv[1:]]
        os.execve(sys.executable, command, environment)
    logs.configure(level=options.log_level, log_format="console", stream=sys.stderr)
    bad = 0
    for seed in _seeds(options.seeds):
        started_s = time.process_time()
        scenario = ScenarioOptions()
        if options.at_rest:
            scenario = at_rest()
        elif options.lite:
            scenario = with_lite_topics()
        show = partial(print, flush=True) if options.show else None
        verdict = Scenario(seed, scenario, show=show).run()
        line = {**asdict(verdict), "cpu_s": round(time.process_time() - started_s, 2)}
        if not verdict.violations:
            del line["newest"]
        else:
            bad += 1
        print(json.dumps(line), flush=True)
    return 1 if bad else 0


def _seeds(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())
