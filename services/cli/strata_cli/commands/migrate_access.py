"""`strata migrate access`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from strata_cli.client import connect
from strata_cli.commands.migrate_options import KeysFile, addresses_of, read_file, read_source_keys
from strata_cli.errors import CliError, UsageError
from strata_cli.migrate.access_copy import CopiedUser, copy_access
from strata_cli.migrate.access_plan import PlannedPolicy, plan_access
from strata_cli.migrate.access_rows import SourceAccess, plain_access
from strata_cli.migrate.connections import ClusterKeys, RemotingConnections
from strata_cli.migrate.source import RocketMqSource
from strata_cli.options import COMMON, Common, milliseconds
from strata_cli.output import show
from strata_cli.views import View

Nameserver = Annotated[
    str,
    Parameter(
        help="HOST:PORT of RocketMQ's nameserver: the users and ACLs of its brokers (ACL 2.0)."
    ),
]
PlainAcl = Annotated[
    list[Path] | None,
    Parameter(
        name="--plain-acl", negative="", help="A file plain_acl.yml (ACL 1.0); may be repeated."
    ),
]


def access(
    nameserver: Nameserver = "",
    /,
    *,
    plain_acl: PlainAcl = None,
    source_keys: KeysFile = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Copy users, their secret keys and their rights; a repeat makes what is missing.

    Users and policies that exist are left alone. Where a source does not tell a secret key, one is
    made and printed: it is shown this once. Exit code 1: a user or a policy could not be made.

    For instance: strata migrate access 10.0.0.5:9876 --source-keys tools.yml --dry-run

    Args:
        dry_run: Only show what would be made.
    """
    if not nameserver and not plain_acl:
        raise UsageError("give HOST:PORT of a nameserver, or --plain-acl FILE")
    found = SourceAccess()
    if nameserver:
        found.add(asyncio.run(_asked(nameserver, read_source_keys(source_keys), common)), "")
    for path in plain_acl or ():
        found.add(plain_access(read_file(path)), str(path))
    with connect(common) as client:
        copied = copy_access(client, plan_access(found, common.namespace), is_dry=dry_run)
    rows = [_view(each) for each in copied]
    result = {"dry_run": dry_run, "users": rows, "notes": found.notes}
    if not common.for_programs and not found.notes:
        del result["notes"]
    columns = ("user", "exists", "admin", "disabled", "secret_key", "policies", "notes", "problem")
    shown = rows if common.for_programs else [_short(row) for row in rows]
    show(result | {"users": shown}, common, rows="users", columns=columns)
    failed = [row["user"] for row in rows if row["problem"]]
    if failed:
        raise CliError(f"not copied as a whole: {', '.join(failed)}")


async def _asked(nameserver: str, keys: ClusterKeys | None, common: Common) -> SourceAccess:
    connections = RemotingConnections(milliseconds(common.timeout) / 1_000, keys)
    try:
        return await RocketMqSource(connections, addresses_of(nameserver)).access()
    finally:
        await connections.close()


def _view(each: CopiedUser) -> View:
    user = each.plan.user
    return {
        "user": user.name,
        "exists": each.existed,
        "admin": user.is_admin,
        "disabled": user.is_disabled,
        "secret_key": each.secret_key,
        "policies": [_policy_view(policy) for policy in each.policies],
        "kept_policies": each.kept,
        "notes": [*each.plan.notes, *each.notes],
        "problem": each.problem,
    }


def _policy_view(policy: PlannedPolicy) -> View:
    return {
        "resource": policy.resource,
        "actions": sorted(policy.actions),
        "decision": "allow" if policy.allows else "deny",
        "sources": sorted(policy.sources),
    }


def _short(row: View) -> View:
    """Return a row for people: policies as texts."""
    texts = [
        f"{each['decision']} {','.join(each['actions'])} on {each['resource']}"
        for each in row["policies"]
    ]
    return row | {"policies": "; ".join(texts), "notes": "; ".join(row["notes"])}
