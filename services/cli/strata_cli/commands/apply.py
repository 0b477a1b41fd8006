"""`strata apply` and `strata export`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from strata_cli.confirming import DryRun, Yes, confirm
from strata_cli.errors import CliError, UsageError
from strata_cli.options import COMMON, Common
from strata_cli.output import show, write_document
from strata_cli.readable import readable

if TYPE_CHECKING:
    from strata_cli.declared import DeclaredChange

_MAX_SHOWN = 10


def apply(
    *,
    file: Annotated[Path, Parameter(name=["--file", "-f"])],
    prune: Annotated[bool, Parameter(negative="")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Create and change topics and consumer groups, so that they are as a file says.

    The file is YAML or JSON with the lists topics and groups, as strata export prints it. Settings
    that it leaves out stay as they are. Topics and consumer groups that it does not name stay, too,
    unless --prune is given.

    For instance: strata apply -f topics.yaml --dry-run

    Args:
        file: File to read; - is standard input.
        prune: Delete topics and consumer groups that the file does not name, with their messages:
            of the kinds and in the namespaces of which the file has an entry. A terminal is asked
            first; without one --yes is needed.
    """
    from strata_cli import declared
    from strata_cli.client import connect

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{file}: the file is not UTF-8 text") from None
    entries = declared.read_entries(text, common.namespace)
    with connect(common) as client:
        changes = declared.compare(client, entries)
        doomed = declared.unnamed(client, entries) if prune else []
        if doomed and not dry_run:
            _confirm_deletions(doomed, yes=yes)
        changes += doomed
        done = 0
        for change in changes if not dry_run else ():
            try:
                declared.carry_out(client, change)
            except CliError as error:
                raise CliError(
                    f"{change.kind} {change.name}: {error} (after {done} changes)", error.code
                ) from None
            done += change.action != "none"
    counts = Counter(change.action for change in changes)
    result = {
        "dry_run": dry_run,
        "created": counts["create"],
        "updated": counts["update"],
        "unchanged": counts["none"],
        "deleted": counts["delete"],
        "changes": [change.view() for change in changes],
    }
    if common.for_programs:
        show(result, common)
        return
    for change in changes:
        _print_change(change)
    would = "would be " if dry_run else ""
    deleted = f", {counts['delete']} {would}deleted" if prune else ""
    print(
        f"{counts['create']} {would}created, {counts['update']} {would}updated{deleted}, "
        f"{counts['none']} unchanged"
    )


def _confirm_deletions(doomed: Sequence[DeclaredChange], *, yes: bool) -> None:
    """Ask before things are deleted; a script has to say --yes.

    Raises:
        CliError: the answer is not yes, or there is nobody to ask.
    """
    names = ", ".join(f"{change.kind} {change.name}" for change in doomed[:_MAX_SHOWN])
    more = f" and {len(doomed) - _MAX_SHOWN} more" if len(doomed) > _MAX_SHOWN else ""
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"--prune deletes {names}{more}: give --yes, or look with --dry-run")
    confirm(f"{names}{more} are deleted with all their messages", yes=yes)


def export(
    *,
    all_namespaces: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Print topics and consumer groups as a file for strata apply; YAML, or JSON with -o json.

    For instance: strata export > topics.yaml

    Args:
        all_namespaces: Print the topics and consumer groups of every namespace.
    """
    from dataclasses import replace

    from strata_cli import declared, lags
    from strata_cli.client import connect

    namespace = None if all_namespaces else common.namespace
    with connect(common) as client:
        result = {
            "topics": [declared.topic_entry(row) for row in lags.topic_rows(client, namespace)],
            "groups": [declared.group_entry(row) for row in lags.group_rows(client, namespace)],
        }
    form = common if common.output == "json" else replace(common, output="yaml")
    write_document(result, form)


def _print_change(change: DeclaredChange) -> None:
    if change.action == "none":
        return
    where = f" (namespace {change.namespace})" if change.namespace else ""
    print(f"{change.kind} {change.name}{where}: {change.action}")
    for field, (before, after) in change.fields.items():
        if change.is_new:
            print(f"  + {field}: {readable(field, after)}")
        else:
            print(f"  - {field}: {readable(field, before)}")
            print(f"  + {field}: {readable(field, after)}")
