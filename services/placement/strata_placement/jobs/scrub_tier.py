"""Reads everything in the tier and checks it, as many objects at a time as Spark has cores.

    spark-submit scrub_tier.py --tier URL [--home ID] [--mib-per-s N]

Changes nothing. Ends with exit code 1 if anything is damaged, and names it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from strata_placement.jobs.application import Job
from strata_placement.jobs.scrub_rows import ObjectWork, Scrubbed, scrubbed, work_of
from strata_runtime.ending import end_process


def main(arguments: Sequence[str]) -> int:
    """List, read, tell."""
    job = Job("scrub_tier", __doc__ or "")
    job.parser.add_argument("--tier", required=True, help="URL of the object store")
    job.parser.add_argument("--home", default="", help="id of the cluster, if there are several")
    job.parser.add_argument("--mib-per-s", type=float, help="of each task; default: no limit")
    given = job.parser.parse_args(arguments)
    url, mib_per_s = given.tier, given.mib_per_s

    def scrub(work: Iterator[ObjectWork]) -> list[Scrubbed]:
        return scrubbed(url, work, mib_per_s)

    work, damaged = work_of(url, given.home)
    job.say(f"{len(work)} objects, {sum(each.ref.length for each in work)} bytes")
    spark = job.session()
    results: list[Scrubbed] = []
    if work:
        # One object a task, so that the progress of the job is that of the scrub.
        results = spark.sparkContext.parallelize(work, len(work)).mapPartitions(scrub).collect()
    findings = [{"finding": each} for each in damaged]
    findings += [{"finding": each.finding} for each in results if each.finding]
    figures = {
        "objects": len(results),
        "messages": sum(each.messages for each in results),
        "bytes_read": sum(each.bytes_read for each in results),
        "findings": len(findings),
    }
    job.end(given, figures, findings)
    spark.stop()
    return 1 if findings else 0


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
