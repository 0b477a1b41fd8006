"""The commands of `strata cert`: the cluster's own certificates, as files."""

# ruff: noqa: D417

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from strata_cli.errors import UsageError
from strata_cli.options import COMMON, Common
from strata_cli.output import show

app = App(name="cert", help="Certificates of a cluster; needs no server.")

RoleName = Literal["broker", "storage", "nameserver", "client", "admin"]

_MAX_DAYS = 36_500


@app.command
def init(*, out: Path, days: int = 3_650, common: Common = COMMON) -> None:
    """Make the authority of a cluster: ca.crt for every process, ca.key to keep offline.

    For instance: strata cert init --out /safe/strata-ca

    Args:
        out: Folder for the authority; it holds none yet.
        days: Days for which it is valid.
    """
    from strata_runtime.authority import CA_KEY_FILE, make_authority

    file = make_authority(out, days=_checked(days))
    show({**_shown(file), "key_file": str(out / CA_KEY_FILE)}, common)


@app.command(name="issue")
def issue_(
    *,
    ca: Path,
    role: RoleName,
    out: Path,
    host: Annotated[list[str] | None, Parameter(negative="")] = None,
    days: int = 365,
    common: Common = COMMON,
) -> None:
    """Issue a certificate with a new key: tls.crt, tls.key and ca.crt in a folder.

    Files that are there are replaced; a process that uses them takes the new ones at once.

    For instance: strata cert issue --ca /safe/strata-ca --role storage --host s1 --out s1-tls

    Args:
        ca: Folder of the authority.
        role: Rights of the holder between the processes of the cluster.
        out: Folder for the files.
        host: Name or address under which others reach the holder; may be repeated.
        days: Days for which it is valid.
    """
    from strata_runtime.authority import KEY_FILE, issue
    from strata_runtime.roles import PeerRole

    hosts = [each for given in host or () for each in given.split(",") if each]
    file = issue(ca, out, PeerRole(role), hosts, days=_checked(days))
    show({**_shown(file), "key_file": str(out / KEY_FILE)}, common)


@app.command(name="show")
def show_(file: Path, /, *, common: Common = COMMON) -> None:
    """Show what a certificate says: its role, hosts and end.

    For instance: strata cert show /etc/strata/tls/tls.crt -o json

    Args:
        file: Certificate (PEM); the first of a chain.
    """
    show(_shown(file), common)


def _shown(file: Path) -> dict[str, Any]:
    import datetime

    from strata_runtime.authority import facts_of
    from strata_runtime.tls import read_certificate

    facts = facts_of(read_certificate(file))
    return {
        "file": str(file),
        "subject": facts.subject,
        "issuer": facts.issuer,
        "role": str(facts.role) if facts.role else "",
        "hosts": list(facts.hosts),
        "is_authority": facts.is_authority,
        "not_before": f"{facts.not_before:%Y-%m-%dT%H:%M:%SZ}",
        "not_after": f"{facts.not_after:%Y-%m-%dT%H:%M:%SZ}",
        "days_left": round(facts.days_left(datetime.datetime.now(datetime.UTC)), 1),
    }


def _checked(days: int) -> int:
    if not 1 <= days <= _MAX_DAYS:
        raise UsageError(f"--days {days}: write 1 to {_MAX_DAYS}")
    return days
