"""Deletes from the tier what nobody needs: dropped objects, and those that nobody committed.

    spark-submit sweep_tier.py --tier URL --endpoint HOST:PORT [--home ID] [--dry-run]

Each raft group is a task: it lists its folders, asks the leader what may go, deletes that, and has
the leader forget it. Storage nodes do the same by themselves, some objects at a time. Killed and
run again it goes on; what was deleted and not forgotten is deleted once more.

With `--dry-run` nothing is deleted, and of dropped objects the first thousand are counted. Ends
with exit code 1 if anything was refused or is damaged, and says what.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from pyspark import TaskContext

from strata_placement.jobs.application import Job
from strata_placement.jobs.sweep_rows import GroupWork, SweepOptions, Swept, swept, work_of
from strata_placement.jobs.tier_client import LeaderEndpoints, TierClient
from strata_runtime.ending import end_process

_HOUR_MS = 3_600_000
_LEAST_HOURS = SweepOptions().orphan_ms / _HOUR_MS


def main(arguments: Sequence[str]) -> int:
    """List, ask, delete, tell."""
    job = Job("sweep_tier", __doc__ or "").with_tier()
    add = job.parser.add_argument
    add("--orphan-hours", type=float, default=_LEAST_HOURS, help="age of what was given up")
    add("--dry-run", action="store_true", help="delete nothing")
    given = job.parser.parse_args(arguments)
    if given.orphan_hours < _LEAST_HOURS:
        job.parser.error(f"--orphan-hours: at least {_LEAST_HOURS:g}")
    url, options = (
        given.tier,
        SweepOptions(int(given.orphan_hours * _HOUR_MS), is_dry=given.dry_run),
    )
    brokers = LeaderEndpoints.parse(given.endpoint, given.ca_file)

    def sweep(work: Iterator[GroupWork]) -> list[Swept]:
        context = TaskContext.get()
        with TierClient(brokers, context.partitionId() if context is not None else 0) as leaders:
            return swept(url, work, leaders, options)

    work, damaged = work_of(url, given.home)
    job.say(f"{len(work)} raft groups")
    spark = job.session()
    results: list[Swept] = []
    if work:
        results = spark.sparkContext.parallelize(work, len(work)).mapPartitions(sweep).collect()
    findings = [{"finding": each} for each in damaged]
    findings += [{"finding": each.refused} for each in results if each.refused]
    figures = {
        "raft_groups": len(results),
        "listed": sum(each.listed for each in results),
        "old": sum(each.old for each in results),
        "orphans": sum(each.orphans for each in results),
        "doomed": sum(each.doomed for each in results),
        "forgotten": sum(each.forgotten for each in results),
        "refused": sum(bool(each.refused) for each in results),
    }
    job.end(given, figures, findings)
    spark.stop()
    return 1 if findings else 0


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
