"""The cluster's authority: what it signs says who holds it, where, and how long."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest

from strata_runtime import tls
from strata_runtime.authority import (
    AuthorityError,
    facts_of,
    is_issued_by,
    issue,
    make_authority,
)
from strata_runtime.errors import ConfigError
from strata_runtime.roles import PeerRole, role_of
from strata_runtime.tls_policy import CIPHERS, TlsPolicy


def test_an_issued_certificate_says_role_hosts_and_end(tmp_path: Path) -> None:
    """PeerRole, hosts and end are in the certificate; the key is for its owner only."""
    make_authority(tmp_path / "ca")
    hosts = ["storage-1.example", "10.0.0.7", "::1"]
    file = issue(tmp_path / "ca", tmp_path / "one", PeerRole.STORAGE, hosts, days=30)
    certificate = tls.read_certificate(file)
    facts = facts_of(certificate)
    assert (facts.subject, facts.role, facts.hosts) == (hosts[0], PeerRole.STORAGE, tuple(hosts))
    assert not facts.is_authority
    now = datetime.datetime.now(datetime.UTC)
    assert 29.9 < facts.days_left(now) < 30.1
    assert facts.not_before < now
    authority = tls.read_certificate(tmp_path / "ca" / "ca.crt")
    assert facts_of(authority).is_authority
    assert facts_of(authority).role is None
    assert facts.issuer == facts_of(authority).subject
    assert is_issued_by(certificate, [authority])
    assert (tmp_path / "one" / "tls.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "ca" / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "one" / "ca.crt").read_bytes() == (tmp_path / "ca" / "ca.crt").read_bytes()
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(file, tmp_path / "one" / "tls.key")


def test_two_authorities_are_told_apart(tmp_path: Path) -> None:
    """Authorities have names of their own, and neither counts for the other's certificates."""
    files = [make_authority(tmp_path / name) for name in ("one", "two")]
    one, two = map(tls.read_certificate, files)
    assert facts_of(one).subject != facts_of(two).subject
    issued = tls.read_certificate(issue(tmp_path / "one", tmp_path / "a", PeerRole.BROKER, ["a"]))
    assert is_issued_by(issued, [two, one])
    assert not is_issued_by(issued, [two])
    assert not is_issued_by(issued, [])


def test_an_authority_is_never_replaced(tmp_path: Path) -> None:
    """A second authority in the same folder would make every certificate worthless."""
    make_authority(tmp_path)
    before = (tmp_path / "ca.key").read_bytes()
    with pytest.raises(AuthorityError, match=r"ca\.crt exists"):
        make_authority(tmp_path)
    assert (tmp_path / "ca.key").read_bytes() == before


def test_a_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    """More days than the authority has are cut."""
    make_authority(tmp_path / "ca", days=10)
    file = issue(tmp_path / "ca", tmp_path / "one", PeerRole.ADMIN, [], days=365)
    facts = facts_of(tls.read_certificate(file))
    assert facts.subject == "admin"
    assert facts.days_left(datetime.datetime.now(datetime.UTC)) <= 10


def test_what_cannot_be_issued_says_why(tmp_path: Path) -> None:
    """A server needs hosts; an authority needs both of its files, and they must be a pair."""
    make_authority(tmp_path / "ca")
    make_authority(tmp_path / "other")
    with pytest.raises(AuthorityError, match="a storage certificate needs hosts"):
        issue(tmp_path / "ca", tmp_path / "out", PeerRole.STORAGE, [])
    with pytest.raises(ConfigError, match=r"ca\.crt does not exist"):
        issue(tmp_path / "nothing", tmp_path / "out", PeerRole.BROKER, ["a"])
    (tmp_path / "other" / "ca.key").replace(tmp_path / "ca" / "ca.key")
    with pytest.raises(ConfigError, match="is not the key of"):
        issue(tmp_path / "ca", tmp_path / "out", PeerRole.BROKER, ["a"])
    (tmp_path / "file").write_text("in the way")
    make_authority(tmp_path / "third")
    with pytest.raises(AuthorityError, match="exists"):
        issue(tmp_path / "third", tmp_path / "file", PeerRole.BROKER, ["a"])


@pytest.mark.parametrize(
    ("uris", "role"),
    [
        (["strata://role/storage"], PeerRole.STORAGE),
        (["https://www.w3.org/", "strata://role/admin"], PeerRole.ADMIN),
        ([], None),
        (["strata://role/"], None),
        (["strata://role/emperor"], None),
        (["strata://role/Storage"], None),
        (["strata://role/storage", "strata://role/broker"], None),
        (["xstrata://role/storage"], None),
    ],
)
def test_the_role_is_one_known_word(uris: list[str], role: PeerRole | None) -> None:
    """Two roles, an unknown one or none are no role."""
    assert role_of(uris) is role


def test_a_policy_restricts_versions_and_ciphers() -> None:
    """A context takes nothing older and no other suite than the policy says."""
    chosen = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    TlsPolicy.checked("1.2", (chosen,)).restrict(context)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    of_1_2 = {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"}
    assert of_1_2 == {CIPHERS[chosen]}
    newest = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    TlsPolicy("1.3").restrict(newest)
    assert newest.minimum_version is ssl.TLSVersion.TLSv1_3
    with pytest.raises(ConfigError, match="unknown TLS cipher 'RC4'"):
        TlsPolicy.checked("1.2", ("RC4",))
