"""The commands of `strata tier` that need no cluster: they read only the object store.

`common` is described by its type.
"""

# ruff: noqa: D417

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from strata_cli.commands import tier_restore
from strata_cli.errors import CliError
from strata_cli.options import COMMON, Common
from strata_cli.output import show
from strata_cli.progress import progress
from strata_cli.readable import size, topic_name
from strata_cli.views import View
from strata_tier import upkeep
from strata_tier.objects import BlockEntry, Stores
from strata_tier.ranges import Manifest
from strata_tier.store import ObjectStore, OpenWith, StoreOptions, open_store
from strata_tier.upkeep import (
    AuditOptions,
    AuditReport,
    HomeContents,
    Restore,
    TopicContents,
    plan_restore,
)

Result = TypeVar("Result")

From = Annotated[
    str, Parameter(name="--from", help="URL of the store, as in --tier of a storage node.")
]
Home = Annotated[
    str, Parameter(help="Id of the cluster; needed only if the store holds several clusters.")
]
Space = Annotated[
    list[str] | None,
    Parameter(
        help="NAMESPACE=URL of a namespace that has its own store; may be repeated.", negative=""
    ),
]


def inspect(*, from_: From, home: Home = "", object: str = "", common: Common = COMMON) -> None:
    """Show the content of an object store from its manifests; needs no cluster.

    For instance: strata tier inspect --from posix:///var/lib/tier

    Args:
        object: Key of an object; its blocks are shown instead.
    """
    if object:
        _run(_inspect_object(from_, object, common))
    else:
        contents = _run(_inspect(from_, home))
        view = _contents_view(contents)
        if not common.for_programs:
            view["topics"] = [
                topic | {"name": topic_name(topic["name"])} for topic in view["topics"]
            ]
        show(view, common, rows="topics")


def verify(
    *,
    from_: From,
    home: Home = "",
    space: Space = None,
    shallow: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Check everything that the newest manifests name; exit code 1 for any damage.

    For instance: strata tier verify --from s3://bucket/prefix

    Args:
        shallow: Check only lengths and indexes, not the messages.
    """
    _verify(from_, home, space, AuditOptions(is_deep=not shallow), StoreOptions(), common)


def scrub(
    *,
    from_: From,
    home: Home = "",
    space: Space = None,
    mib_per_s: float = 16.0,
    common: Common = COMMON,
) -> None:
    """Verify at a limited rate, so that a cluster that uses the store is not disturbed.

    For instance: strata tier scrub --from hdfs://name:8020/tier --mib-per-s 8

    Args:
        mib_per_s: Most MiB to read per second.
    """
    if not 0 < mib_per_s < math.inf:
        raise CliError("--mib-per-s must be more than 0")
    paced = StoreOptions(download_bytes_per_s=mib_per_s * 1024 * 1024, max_requests_in_flight=2)
    options = AuditOptions(objects_at_once=1, request_bytes=1024 * 1024)
    _verify(from_, home, space, options, paced, common)


def restore(
    *,
    from_: From,
    data_dir: Path,
    home: Home = "",
    topic: Annotated[
        list[str] | None,
        Parameter(help="Only this topic of --namespace; may be repeated.", negative=""),
    ] = None,
    split: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Write the data folder of a standalone node, or of a cluster, from an object store.

    Start the node with --tier and the same URL: messages stay in the store and are read from it.
    Messages that were not uploaded are lost; they are counted per queue.

    For instance: strata tier restore --from s3://bucket/prefix --data-dir /var/lib/strata-new

    Args:
        data_dir: Folder to write; it must be empty or missing.
        split: Restore a cluster: write DATA_DIR/nameserver and DATA_DIR/storage for its first two
            processes. New storage nodes that join get their replicas from these.
        dry_run: Show what would be restored and write nothing.
    """
    with progress("read"):
        plan, topic_ids = _run(_restore_plan(from_, home, common.namespace, topic))
    if not plan.metadata_rows:
        raise CliError(f"{from_} holds no metadata of {plan.home}: topics cannot be restored")
    cluster_id = ""
    with progress("restore") as shown:
        tell = partial(shown.set, detail="raft groups")
        if not dry_run and split:
            identity = tier_restore.write_split_folders(plan, data_dir, topic_ids, tell)
            cluster_id = identity.cluster_id
        elif not dry_run:
            folder = tier_restore.write_data_folder(plan, data_dir, topic_ids, tell)
            cluster_id = folder.identity.cluster_id
            folder.close()
    show(_restore_view(plan, cluster_id), common, rows="queues")


async def _restore_plan(
    url: str, home: str, namespace: str, topics: list[str] | None
) -> tuple[Restore, set[int] | None]:
    async with opened(url) as stores:
        store = stores.default
        home = await upkeep.one_home(store, home)
        topic_ids: set[int] | None = None
        if topics:
            _, metadata, _ = await upkeep.newest_metadata(store, home)
            rows = metadata.rows if metadata is not None else ()
            topic_ids = tier_restore.topic_ids_of(rows, namespace, topics)
        return await plan_restore(store, home, topic_ids), topic_ids


def _verify(
    url: str,
    home: str,
    spaces: list[str] | None,
    options: AuditOptions,
    store_options: StoreOptions,
    common: Common,
) -> None:
    report = _run(_verified(url, home, spaces or [], options, store_options))
    show(_report_view(report), common, rows="findings")
    if not report.manifests:
        raise CliError(
            f"nothing can be restored: {url} holds no manifest of {report.home} that can be read; "
            "strata tier flush writes one"
        )
    if not report.is_whole:
        raise CliError(f"{len(report.findings)} findings: the tier is damaged")


async def _verified(
    url: str,
    home: str,
    spaces: list[str],
    options: AuditOptions,
    store_options: StoreOptions,
) -> AuditReport:
    async with opened(url, spaces, store_options) as stores:
        home = await upkeep.one_home(stores.default, home)
        report = AuditReport(home)

        def look() -> tuple[int, int, str]:
            return report.objects, 0, f"objects, {size(report.bytes_read)}"

        with progress("verify", look):
            return await upkeep.verify(stores, home, options, report)


async def _inspect(url: str, home: str) -> HomeContents:
    async with opened(url) as stores:
        return await upkeep.inspect(stores.default, await upkeep.one_home(stores.default, home))


async def _inspect_object(url: str, key: str, common: Common) -> None:
    async with opened(url) as stores:
        root, blocks = await upkeep.inspect_object(stores.default, key)
    view: View = {
        "key": key,
        "home": root.home,
        "queues": root.queue_count,
        "messages": root.message_count,
        "bodies_bytes": root.bodies_bytes,
        "min_time_ms": root.min_time_ms,
        "max_time_ms": root.max_time_ms,
        "blocks": [_block_view(entry) for entry in blocks],
    }
    show(view, common, rows="blocks")


@asynccontextmanager
async def opened(
    url: str, spaces: list[str] | None = None, options: StoreOptions | None = None
) -> AsyncIterator[Stores]:
    """Open the default store and those of namespaces that have their own, NAMESPACE=URL each.

    Raises:
        CliError: a space is not NAMESPACE=URL.
        ConfigError: a URL is wrong, or its driver is not installed.
    """
    opened_with = OpenWith(options=options or StoreOptions())
    all_opened: list[ObjectStore] = []
    try:
        all_opened.append(await open_store(url, opened_with))
        of_spaces: dict[str, ObjectStore] = {}
        for text in spaces or []:
            name, separator, space_url = text.partition("=")
            if not name or not separator:
                raise CliError(f"--space {text!r} is not NAMESPACE=URL")
            all_opened.append(await open_store(space_url, opened_with))
            of_spaces[name] = all_opened[-1]
        yield Stores(all_opened[0], of_spaces)
    finally:
        for store in all_opened:
            await store.close()


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def _contents_view(contents: HomeContents) -> View:
    return {
        "home": contents.home,
        "raft_groups": [_manifest_view(manifest) for manifest in contents.manifests],
        "damaged": [{"key": error.key, "reason": error.reason} for error in contents.damaged],
        "topics": [_topic_view(topic) for topic in contents.topics],
    }


def _manifest_view(manifest: Manifest) -> View:
    live = [held for held in manifest.objects if not held.dropped_at_ms]
    return {
        "raft_group": manifest.name.raft_group,
        "term": manifest.name.term,
        "sequence": manifest.name.sequence,
        "raft_index": manifest.raft_index,
        "group_time_ms": manifest.group_time_ms,
        "checkpoint": manifest.checkpoint,
        "objects": len(live),
        "object_bytes": sum(held.ref.length for held in live),
    }


def _topic_view(topic: TopicContents) -> View:
    return {
        "topic_id": topic.topic_id,
        "name": topic.name,
        "messages": topic.messages,
        "bodies_bytes": topic.bodies_bytes,
        "min_time_ms": topic.min_time_ms,
        "max_time_ms": topic.max_time_ms,
        "queues": [
            {"queue": queue, "first_offset": first, "commit_offset": commit}
            for queue, first, commit in topic.queues
        ],
    }


def _block_view(entry: BlockEntry) -> View:
    return {
        "topic_id": entry.topic_id,
        "queue": entry.queue,
        "first_offset": entry.base_offset,
        "end_offset": entry.end_offset,
        "messages": entry.message_count,
        "position": entry.position,
        "bytes": entry.length,
        "min_time_ms": entry.min_time_ms,
        "max_time_ms": entry.max_time_ms,
    }


def _restore_view(plan: Restore, cluster_id: str) -> View:
    return {
        "home": plan.home,
        "cluster_id": cluster_id,
        "metadata_written_at_ms": plan.written_at_ms,
        "raft_groups": [
            {
                "raft_group": group.raft_group,
                "raft_index": group.raft_index,
                "group_time_ms": group.group_time_ms,
                "lost_waiting": group.lost_waiting,
                "damaged": [error.key for error in group.damaged],
            }
            for group in plan.raft_groups
        ],
        "queues": [
            {
                "raft_group": group.raft_group,
                "topic_id": queue.topic_id,
                "queue": queue.queue,
                "first_offset": queue.first_offset,
                "commit_offset": queue.commit_offset,
                "next_offset": queue.next_offset,
                "lost": queue.lost,
            }
            for group in plan.raft_groups
            for queue in group.queues
        ],
    }


def _report_view(report: AuditReport) -> View:
    return {
        "ok": report.is_whole and report.manifests > 0,
        "home": report.home,
        "raft_groups": report.raft_groups,
        "manifests": report.manifests,
        "archives": report.archives,
        "objects": report.objects,
        "blocks": report.blocks,
        "messages": report.messages,
        "bytes_read": report.bytes_read,
        "unnamed_objects": report.unnamed_objects,
        "unnamed_bytes": report.unnamed_bytes,
        "findings": [{"key": finding.key, "reason": finding.reason} for finding in report.findings],
    }
