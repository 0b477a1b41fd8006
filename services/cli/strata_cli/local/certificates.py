"""The certificates of a local cluster: an authority in its folder, and one for each process."""

from __future__ import annotations

from pathlib import Path

from strata_cli.local.plan import AUTHORITY, CERTIFICATES, Member
from strata_runtime.authority import CA_FILE, CERTIFICATE_FILE, issue, make_authority
from strata_runtime.roles import PeerRole


def give_certificate(cluster: Path, folder: Path, member: Member) -> None:
    """Give a process a certificate, unless it has one; the first makes the authority.

    Args:
        cluster: folder of the cluster.
        folder: of the process.
        member: of the plan; no forwarder.

    Raises:
        AuthorityError: a file cannot be written.
    """
    if not (cluster / AUTHORITY / CA_FILE).exists():
        make_authority(cluster / AUTHORITY)
    if not (folder / CERTIFICATES / CERTIFICATE_FILE).exists():
        hosts = dict.fromkeys([member.host, "localhost", "127.0.0.1", "::1"])
        issue(cluster / AUTHORITY, folder / CERTIFICATES, PeerRole(member.role), list(hosts))
