"""Merges small objects of the tier, as many at a time as Spark has cores.

    spark-submit compact_tier.py --tier URL --endpoint HOST:PORT [--home ID] [--mib-per-s N]

Storage nodes do the same by themselves; with `tier.compaction = false` it is left to this job. The
objects that the job writes serve readers once the leader of the raft group has read them back and
committed them.

Objects have names of their own in every run: the objects of a killed run are never committed, and
storage nodes and `sweep_tier` delete them with the other orphans. A second run plans from the
newest manifests and leaves finished work as it is.

The exit code is 1 if anything was refused or is damaged; the report names it.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence

from pyspark import TaskContext

from strata_placement.jobs.application import Job
from strata_placement.jobs.compact_rows import CompactedOutput, OutputWork, compacted, work_of
from strata_placement.jobs.tier_client import LeaderEndpoints, TierClient
from strata_runtime.ending import end_process

_SALT_BITS = 63


def main(arguments: Sequence[str]) -> int:
    """Plan, write, commit, tell."""
    job = Job("compact_tier", __doc__ or "").with_tier()
    add = job.parser.add_argument
    add("--mib-per-s", type=float, help="of each task, read and written; default: no limit")
    add("--rounds", type=int, default=16, help="of each raft group, up to 512 MiB each")
    given = job.parser.parse_args(arguments)
    url, mib_per_s = given.tier, given.mib_per_s
    brokers = LeaderEndpoints.parse(given.endpoint, given.ca_file)

    def compact(work: Iterator[OutputWork]) -> list[CompactedOutput]:
        context = TaskContext.get()
        with TierClient(brokers, context.partitionId() if context is not None else 0) as leaders:
            return compacted(url, work, leaders, mib_per_s)

    salt = secrets.randbits(_SALT_BITS) + 1
    work, damaged = work_of(url, given.home, given.rounds, salt)
    inputs = {held.ref.object_id for each in work for held in each.inputs}
    job.say(f"{len(inputs)} objects become {len(work)}")
    spark = job.session()
    results: list[CompactedOutput] = []
    if work:
        # One object a task, so that the progress of the job is that of the compaction.
        results = spark.sparkContext.parallelize(work, len(work)).mapPartitions(compact).collect()
    findings = [{"finding": each} for each in damaged]
    findings += [{"finding": each.refused} for each in results if each.refused]
    figures = {
        "outputs": len(results),
        "objects_read": len(inputs),
        "bytes_read": sum(each.bytes_read for each in results),
        "bytes_written": sum(each.bytes_written for each in results),
        "replaced_ranges": sum(each.replaced_ranges for each in results),
        "refused": sum(bool(each.refused) for each in results),
    }
    job.end(given, figures, findings)
    spark.stop()
    return 1 if findings else 0


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
