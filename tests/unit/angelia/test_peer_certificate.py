"""The certificates of a process: read again when they change, watched until they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_angelia.config import AngeliaSection
from strata_angelia.peer_certificate import PeerCertificate
from strata_angelia.tls import PeerFiles, PeerTls
from strata_runtime.authority import issue, make_authority
from strata_runtime.clock import SystemClock
from strata_runtime.errors import ConfigError
from strata_runtime.health import Severity
from strata_runtime.metrics import Metrics
from strata_runtime.roles import PeerRole

HOSTS = ["127.0.0.1"]
DAY_MS = 86_400_000


class Later(SystemClock):
    """A clock that is some days ahead."""

    days = 0.0

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.days * DAY_MS)


@pytest.fixture
def files(tmp_path: Path) -> PeerFiles:
    make_authority(tmp_path / "ca")
    issue(tmp_path / "ca", tmp_path / "own", PeerRole.STORAGE, HOSTS, days=100)
    return PeerFiles.in_folder(tmp_path / "own")


@pytest.fixture
def clock() -> Later:
    return Later()


async def test_new_files_are_taken_and_bad_ones_are_not(tmp_path: Path, files: PeerFiles) -> None:
    """A pair that does not fit is a problem and changes nothing; the next good one is taken."""
    tls = PeerTls(files, PeerRole.STORAGE)
    first = tls.load()
    certificate = PeerCertificate(tls, Metrics.disabled())
    await certificate.check()
    assert tls.credentials is first
    good = files.key_file.read_bytes()
    issue(tmp_path / "ca", tmp_path / "other", PeerRole.STORAGE, HOSTS)
    files.key_file.write_bytes((tmp_path / "other" / "tls.key").read_bytes())
    await certificate.check()
    assert tls.credentials is first
    [problem] = certificate.health().problems
    assert (problem.kind, problem.state) == ("certificate", "NOT_READ")
    assert "is not the key of" in problem.detail
    files.key_file.write_bytes(good)
    await certificate.check()
    assert (tls.credentials.number, certificate.health().problems) == (2, ())
    assert tls.credentials.server is not first.server


async def test_files_that_change_while_they_are_read_are_no_problem(
    tmp_path: Path, files: PeerFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new certificate and the old key: the key comes as the two are found not to fit."""
    tls = PeerTls(files, PeerRole.STORAGE)
    tls.load()
    certificate = PeerCertificate(tls, Metrics.disabled())
    await certificate.check()
    issue(tmp_path / "ca", tmp_path / "other", PeerRole.STORAGE, HOSTS)
    new = PeerFiles.in_folder(tmp_path / "other")
    files.certificate_file.write_bytes(new.certificate_file.read_bytes())
    load = tls.load

    def load_too_early() -> object:
        try:
            return load()
        finally:
            files.key_file.write_bytes(new.key_file.read_bytes())

    monkeypatch.setattr(tls, "load", load_too_early)
    await certificate.check()
    assert certificate.health().problems == ()
    assert tls.credentials.number == 1
    monkeypatch.undo()
    await certificate.check()
    assert certificate.health().problems == ()
    assert tls.credentials.number == 2


async def test_days_left_are_a_metric_and_a_problem(files: PeerFiles, clock: Later) -> None:
    """100 days are fine, 20 are a warning, an ended certificate is an outage."""
    tls = PeerTls(files, PeerRole.STORAGE)
    tls.load()
    metrics = Metrics()
    certificate = PeerCertificate(tls, metrics, clock)
    await certificate.start()
    try:
        assert certificate.health().problems == ()
        metrics.read_gauges()
        shown = metrics.render().decode()
        assert "strata_angelia_certificate_days_left" in shown
        clock.days = 80
        [soon] = certificate.health().problems
        assert (soon.state, soon.severity) == ("ENDS_SOON", Severity.DEGRADED)
        clock.days = 101
        [ended] = certificate.health().problems
        assert (ended.state, ended.severity) == ("ENDED", Severity.DOWN)
        assert "no other process takes new connections" in ended.detail
    finally:
        await certificate.stop(0)


async def test_certificates_of_servers_are_watched(files: PeerFiles, clock: Later) -> None:
    """A caller tells when the certificate of a server that it called ends."""
    tls = PeerTls(files, PeerRole.STORAGE)
    tls.load()
    certificate = PeerCertificate(tls, Metrics.disabled(), clock)
    tls.peer_ends_ms["10.0.0.1:1"] = clock.wall_ms() + 20 * DAY_MS
    tls.peer_ends_ms["10.0.0.2:1"] = clock.wall_ms() + 90 * DAY_MS
    tls.peer_ends_ms["10.0.0.3:1"] = clock.wall_ms() - DAY_MS
    problems = {each.name: (each.state, each.detail) for each in certificate.health().problems}
    assert problems == {
        "10.0.0.1:1": ("ENDS_SOON", "its cluster certificate expires in 20.0 days"),
        "10.0.0.3:1": ("ENDED", "its cluster certificate expired 1.0 days ago"),
    }


def test_what_cannot_be_used_is_one_line(tmp_path: Path, files: PeerFiles) -> None:
    """The wrong role, a foreign authority and a file that is none are refused at the start."""
    with pytest.raises(ConfigError, match=r"is of a storage node; this process is a broker"):
        PeerTls(files, PeerRole.BROKER).load()
    make_authority(tmp_path / "foreign")
    foreign = PeerFiles(files.certificate_file, files.key_file, tmp_path / "foreign" / "ca.crt")
    with pytest.raises(ConfigError, match=r"is not signed by an authority in .*foreign"):
        PeerTls(foreign, PeerRole.STORAGE).load()
    no_authority = PeerFiles(files.certificate_file, files.key_file, files.certificate_file)
    with pytest.raises(ConfigError, match="holds a certificate that may not sign others"):
        PeerTls(no_authority, PeerRole.STORAGE).load()
    authority = tmp_path / "ca"
    itself = PeerFiles(authority / "ca.crt", authority / "ca.key", authority / "ca.crt")
    with pytest.raises(ConfigError, match="names no role; this process is a storage node"):
        PeerTls(itself, PeerRole.STORAGE).load()


def test_the_section_names_files_or_a_folder(files: PeerFiles) -> None:
    """A folder gives all files, keys replace single ones, and nothing means plaintext."""
    folder = str(files.ca_file.parent)
    assert AngeliaSection().peer_tls(PeerRole.STORAGE) is None
    found = AngeliaSection(certificate_folder=folder).peer_tls(PeerRole.STORAGE)
    assert found is not None
    assert (found.files, found.mode) == (files, "required")
    found = AngeliaSection(certificate_folder=folder, ca_file="/x.crt", tls="optional").peer_tls(
        PeerRole.STORAGE
    )
    assert found is not None
    assert (found.files.ca_file, found.mode) == (Path("/x.crt"), "optional")
    assert AngeliaSection(certificate_folder=folder, tls="off").peer_tls(PeerRole.BROKER) is None
    with pytest.raises(ConfigError, match=r"angelia\.tls is required but angelia\.key_file"):
        AngeliaSection(tls="required", certificate_file="/a").peer_tls(PeerRole.STORAGE)
