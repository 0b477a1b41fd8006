"""The commands of `strata log`, which need no server; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from strata_cli.errors import CliError, UsageError
from strata_cli.options import COMMON, Common
from strata_cli.output import show, write_document
from strata_cli.progress import progress
from strata_cli.views import View
from strata_seglog.real_disk import RealDisk
from strata_seglog.segments import segment_names
from strata_seglog.verify import VerifyReport, dump_log, verify_log

Folder = Annotated[
    Path, Parameter(help="Folder of a CommitLog, or a data folder with several of them.")
]

_MIB = 1024 * 1024
_LOGS_OF_A_DATA_FOLDER = ("nameserver/log", "storage/log")

app = App(name="log", help="CommitLogs on disk; needs no server.")


@app.command
def verify(folder: Folder, /, *, common: Common = COMMON) -> None:
    """Check every frame of a CommitLog; exit code 1 when something is damaged.

    For instance: strata log verify /var/lib/strata
    """
    logs: list[View] = []
    with progress("verify") as shown:
        for path in _log_folders(folder):
            with _readable(path):

                def tell(done: int, total: int, path: Path = path) -> None:
                    shown.set(done // _MIB, total // _MIB, f"MiB of {path}")

                report = verify_log(RealDisk(path), tell)
            logs.append({"path": str(path)} | _report_view(report))
    ok = all(log["ok"] for log in logs)
    show({"ok": ok, "logs": logs}, common, rows="logs")
    if not ok:
        damaged = [log["path"] for log in logs if not log["ok"]]
        raise CliError(f"damaged: {', '.join(damaged)}")


@app.command
def repair(
    folder: Folder,
    /,
    *,
    raft_group: int | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    yes: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Repair the CommitLogs of a stopped node: give up entries that are damaged.

    Use it only for a raft group without another voter; otherwise replace the damaged replica.
    Every readable message stays, and no offset is used again. Without --yes the command only
    prints what would be lost.

    For instance: strata log repair /var/lib/strata --yes

    Args:
        raft_group: Repair only this raft group.
        dry_run: Print what would be lost and exit with 0.
        yes: Carry out the repair.
    """
    from strata_cli.commands.log_repair import repair_log

    changes = yes and not dry_run
    logs = [repair_log(path, raft_group, changes=changes) for path in _log_folders(folder)]
    ok = all(log["ok"] for log in logs)
    lost = [{"log": Path(log["path"]).parent.name} | each for log in logs for each in log["lost"]]
    if common.for_programs:
        show({"ok": ok, "logs": logs}, common)
    else:
        for log in logs:
            for damage in log["damaged"]:
                print("{segment}: {position} to {end}: {reason}".format_map(damage))
                if damage["may_hold_newest_of"]:
                    replicas = ", ".join(map(str, damage["may_hold_newest_of"]))
                    print(f"  may have held the newest entries of replicas {replicas}")
        show({"ok": ok, "lost": [_lost_line(each) for each in lost]}, common, rows="lost")
    if ok or dry_run:
        return
    if not changes:
        raise CliError("nothing was changed: add --yes to give up these entries")
    raise CliError("some damage remains: see `strata log verify`")


def _lost_line(lost: View) -> View:
    """Return a lost entry as a row of a table."""
    offsets = ", ".join(
        "topic {topic_id} queue {queue} offsets {first_offset} to {last_offset}".format_map(each)
        for each in lost["offsets"]
    )
    return {key: lost[key] for key in ("log", "raft_group", "index", "saved_messages")} | {
        "lost": offsets or ("none" if lost["offsets_known"] else "unknown")
    }


@app.command
def dump(folder: Folder, /, *, limit: int | None = None, common: Common = COMMON) -> None:
    """Print the frames of a CommitLog, one per line.

    For instance: strata log dump /var/lib/strata/storage/log --limit 20 -o json

    Args:
        limit: Most frames to print.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"--limit {limit}: give 0 or more")
    for path in _log_folders(folder):
        with _readable(path):
            for frame in islice(dump_log(RealDisk(path)), limit):
                if common.for_programs:
                    write_document(frame, common)
                else:
                    print("  ".join(f"{key}={value}" for key, value in frame.items()))


def _log_folders(folder: Path) -> list[Path]:
    """Return the CommitLogs in a folder; the folder may itself be a CommitLog.

    Raises:
        CliError: it has none.
    """
    if not folder.is_dir():
        raise CliError(f"{folder}: the folder does not exist")
    inside = [folder / name for name in _LOGS_OF_A_DATA_FOLDER if (folder / name).is_dir()]
    for path in inside or [folder]:
        with _readable(path):
            if not segment_names(RealDisk(path)):
                raise CliError(f"{path} holds no CommitLog")
    return inside or [folder]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None


def _report_view(report: VerifyReport) -> View:
    return {
        "ok": report.ok,
        "segments": report.segments,
        "frames": sum(report.frames.values()),
        "used_bytes": report.used_bytes,
        "end_position": report.end_position,
        "torn_tail": report.torn_tail,
        "corruptions": [
            {"segment": damage.segment, "position": damage.position, "reason": damage.reason}
            for damage in report.corruptions
        ],
        "replicas": [
            {
                "replica_id": replica.replica_id,
                "raft_group": replica.raft_group,
                "first_index": replica.first_index,
                "last_index": replica.last_index,
                "term": replica.term,
                "damaged": replica.damaged,
            }
            for replica in report.replicas.values()
        ],
    }
