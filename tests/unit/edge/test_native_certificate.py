"""The pair of files that the native edge gives its server."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_edge import native_certificate
from strata_edge.native_certificate import NativeCertificate
from strata_runtime import tls
from strata_runtime.errors import ConfigError
from strata_runtime.metrics import Metrics
from strata_runtime.tls_policy import TlsPolicy
from strata_testing import until


class Server:
    """Takes pairs in place of the extension's server."""

    def __init__(self) -> None:
        self.pairs: list[tuple[bytes, bytes]] = []

    def set_certificate(self, certificate: bytes, key: bytes) -> None:
        self.pairs.append((certificate, key))


async def test_files_that_change_while_they_are_read_are_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new certificate and the old key: the key comes as the two are found not to fit."""
    used, new = (tls.self_signed(tmp_path / name, [f"{name}.example"]) for name in ("a", "b"))
    server, checks = Server(), list[bool]()
    given = NativeCertificate(server, used, Metrics.disabled(), policy=TlsPolicy())  # type: ignore[arg-type]
    await given.load()
    check = tls.check

    def check_too_early(certificate: tls.Certificate) -> None:
        try:
            check(certificate)
            checks.append(True)
        except ConfigError:
            checks.append(False)
            raise
        finally:
            used.key_file.write_bytes(new.key_file.read_bytes())

    monkeypatch.setattr(native_certificate, "_LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(tls, "check", check_too_early)
    given.watch()
    used.certificate_file.write_bytes(new.certificate_file.read_bytes())
    try:
        await until(lambda: bool(checks))
        assert given.health().problems == ()
        await until(lambda: len(server.pairs) == 2)
    finally:
        await given.close()
    assert checks[0] is False
    assert given.health().problems == ()
    pair = new.certificate_file.read_bytes(), new.key_file.read_bytes()
    assert server.pairs[1] == pair
