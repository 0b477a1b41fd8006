"""The certificate of an edge: a pair that fits, read again when it changes, known when it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
from pathlib import Path

import grpc
import pytest
import structlog
from cryptography import x509

from strata_edge.certificate import watch_of
from strata_edge.front_process import FrontError
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.options import EdgeOptions
from strata_runtime.authority import CA_FILE, issue, make_authority
from strata_runtime.clock import SystemClock
from strata_runtime.errors import ConfigError
from strata_runtime.health import Severity
from strata_runtime.metrics import Metrics
from strata_runtime.roles import PeerRole
from strata_runtime.tls import Certificate, self_signed
from strata_runtime.tls_policy import CIPHERS, TlsPolicy
from strata_testing import until
from tests.contract.edge_ways import SERVICE, Adapter, Broker, edge_class, unary
from tests.contract.edge_ways import adapter as adapter


@pytest.fixture
def pairs(tmp_path: Path) -> list[Certificate]:
    """Two pairs; the first is where the edge looks."""
    return [self_signed(tmp_path / name, [f"{name}.example"]) for name in ("one", "two")]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def _put(source: Path, target: Path) -> None:
    """Replace a file at once, as tools do."""
    draft = target.with_suffix(".new")
    shutil.copy(source, draft)
    draft.replace(target)


async def _served(port: int) -> set[str]:
    """Names in the certificate that a new connection gets."""
    names = (await _certificate(port)).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return {str(name.value) for name in names.value}


async def _serial(port: int) -> int:
    """Serial number of that certificate."""
    return (await _certificate(port)).serial_number


async def _certificate(port: int) -> x509.Certificate:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(der)


async def test_a_new_pair_is_taken_without_a_restart(
    pairs: list[Certificate], metrics: Metrics, adapter: Adapter
) -> None:
    """New connections get the new certificate, old ones live on; between the two files the old."""
    used, new = pairs
    edge = adapter(EdgeOptions(port=0, certificate=used), metrics)
    port = await edge.start()
    pid = edge.front_pid
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    assert "one.example" in await _served(port)
    with structlog.testing.capture_logs() as lines:
        _put(new.certificate_file, used.certificate_file)
        await until(
            lambda: any("old one remains" in line["event"] for line in lines),
        )
        assert "one.example" in await _served(port)
        _put(new.key_file, used.key_file)
        await until(lambda: any("certificate reloaded" in line["event"] for line in lines))

    async def is_new() -> bool:
        return "two.example" in await _served(port)

    await until(is_new)
    (bad,) = [line for line in lines if "old one remains" in line["event"]]
    assert bad["log_level"] == "warning"
    assert str(used.key_file) in bad["reason"]
    assert "is not the key of" in bad["reason"]
    assert edge.front_pid == pid
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"))
    async with asyncio.timeout(30):
        assert await reader.readexactly(9), "the connection from before still speaks"
    writer.close()
    await edge.stop(0)
    assert metrics.counter("strata_edge_front_restarts_total").value() == 0


async def test_a_new_pair_under_load_fails_no_call(tmp_path: Path, adapter: Adapter) -> None:
    """Clients that check the server go on over their connections, and make new ones, all along."""
    make_authority(tmp_path / "ca")
    for name in ("one", "two"):
        issue(tmp_path / "ca", tmp_path / name, PeerRole.BROKER, ["localhost"])
    used, new = (
        Certificate(tmp_path / name / "tls.crt", tmp_path / name / "tls.key")
        for name in ("one", "two")
    )
    trusted = (tmp_path / "ca" / CA_FILE).read_bytes()
    metrics = Metrics()
    edge = adapter(EdgeOptions(port=0, certificate=used), metrics)
    edge.set_hot_handler(SERVICE, Broker())
    port = await edge.start()
    stop, answered, opened = asyncio.Event(), [0] * 4, 0

    def open_channel() -> grpc.aio.Channel:
        return grpc.aio.secure_channel(
            f"localhost:{port}",
            grpc.ssl_channel_credentials(trusted),
            options=[("grpc.use_local_subchannel_pool", 1)],
        )

    async def call_on(number: int) -> None:
        async with open_channel() as channel:
            while not stop.is_set():
                assert await unary(channel, "SendMessage")(b"on", timeout=20) == b"on"
                answered[number] += 1

    async def connect() -> None:
        nonlocal opened
        while not stop.is_set():
            async with open_channel() as channel:
                assert await unary(channel, "SendMessage")(b"new", timeout=20) == b"new"
            opened += 1

    serial = x509.load_pem_x509_certificate(new.certificate_file.read_bytes()).serial_number

    async def is_replaced() -> bool:
        return await _serial(port) == serial

    async with asyncio.TaskGroup() as load:
        for number in range(len(answered)):
            load.create_task(call_on(number))
        load.create_task(connect())
        await until(lambda: min(answered) > 0 and opened > 0)
        _put(new.certificate_file, used.certificate_file)
        _put(new.key_file, used.key_file)
        await until(is_replaced)
        before, opened_before = list(answered), opened
        await until(
            lambda: (
                opened > opened_before
                and all(now > then for now, then in zip(answered, before, strict=True))
            )
        )
        stop.set()
    await edge.stop(0)
    assert metrics.counter("strata_edge_front_restarts_total").value() == 0


@pytest.mark.parametrize("bad", ["no PEM", "gone"])
async def test_a_bad_pair_changes_nothing(
    pairs: list[Certificate], metrics: Metrics, bad: str, adapter: Adapter
) -> None:
    """Files that are no certificate, or gone, leave the old one, with one line that names them."""
    (used, _) = pairs
    edge = adapter(EdgeOptions(port=0, certificate=used), metrics)
    port = await edge.start()
    with structlog.testing.capture_logs() as lines:
        if bad == "gone":
            used.certificate_file.unlink()
        else:
            used.certificate_file.write_text("no PEM")
        await until(lambda: any("old one remains" in line["event"] for line in lines))
        assert "one.example" in await _served(port)
        await asyncio.sleep(1.5)  # it is looked at again meanwhile, and not told again
    (line,) = [line for line in lines if "old one remains" in line["event"]]
    wrong = "does not exist" if bad == "gone" else "holds no certificate"
    assert f"{used.certificate_file} {wrong}" in line["reason"]
    await edge.stop(0)


async def test_a_front_that_cannot_start_says_why_at_once(
    pairs: list[Certificate], metrics: Metrics
) -> None:
    """A pair that does not fit ends the start with a reason, and with no restarts."""
    one, two = pairs
    mixed = Certificate(one.certificate_file, two.key_file)
    edge = GrpcioEdge(EdgeOptions(port=0, certificate=mixed), metrics)
    with pytest.raises(FrontError, match="key values mismatch") as caught:
        await edge.start()
    assert str(one.certificate_file) in str(caught.value)
    assert metrics.counter("strata_edge_front_restarts_total").value() <= 1


async def test_an_edge_that_cannot_use_its_pair_says_why(
    pairs: list[Certificate], metrics: Metrics
) -> None:
    """The native edge refuses to start with a pair that does not fit, and names the files."""
    one, two = pairs
    mixed = Certificate(one.certificate_file, two.key_file)
    edge = edge_class(native=True)(EdgeOptions(port=0, certificate=mixed), metrics)
    with pytest.raises(ConfigError, match="is not the key of") as caught:
        await edge.start()
    assert str(one.certificate_file) in str(caught.value)
    await edge.stop(0)


async def test_tls_only_refuses_plaintext(
    pairs: list[Certificate], metrics: Metrics, adapter: Adapter
) -> None:
    """With tls_only a plaintext connection is closed and counted; TLS is served."""
    edge = adapter(EdgeOptions(port=0, certificate=pairs[0], tls_only=True), metrics)
    port = await edge.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    async with asyncio.timeout(30):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
    writer.close()
    assert "one.example" in await _served(port)
    refused = metrics.counter("strata_edge_plaintext_refused_total")
    await until(lambda: refused.value() == 1)
    await edge.stop(0)


async def test_a_signal_to_the_group_is_no_death_of_the_front(
    pairs: list[Certificate], metrics: Metrics
) -> None:
    """SIGTERM and SIGINT reach the front with its parent; the parent decides when it ends."""
    edge = GrpcioEdge(EdgeOptions(port=0, certificate=pairs[0]), metrics)
    port = await edge.start()
    assert edge.front_pid is not None
    with structlog.testing.capture_logs() as lines:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(edge.front_pid, number)
        assert "one.example" in await _served(port)
        await edge.stop(0)
    assert lines == []
    assert metrics.counter("strata_edge_front_restarts_total").value() == 0


class _Later(SystemClock):
    """A clock so many days ahead."""

    def __init__(self, days: float) -> None:
        super().__init__()
        self._ahead_ms = int(days * 86_400_000)

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


@pytest.mark.parametrize(
    ("days", "level", "event"),
    [
        (3_000, None, None),
        (3_625, "warning", "certificate expires soon"),
        (3_645, "error", "certificate expires within days"),
        (3_651, "error", "certificate has expired"),
    ],
)
def test_the_end_of_a_certificate_is_known(
    pairs: list[Certificate], metrics: Metrics, days: float, level: str | None, event: str | None
) -> None:
    """The days left are a metric; below 30 and 7 there is a line that names the file."""
    watch = watch_of(pairs[0], metrics, _Later(days))
    with structlog.testing.capture_logs() as lines:
        watch.read()
    assert 3_649 - days < watch.days_left() < 3_650.1 - days
    problems = watch.health().problems
    if event is None:
        assert (lines, problems) == ([], ())
        return
    (problem,) = problems
    assert (problem.kind, problem.name) == ("certificate", str(pairs[0].certificate_file))
    assert (problem.state, problem.severity) == (
        ("ENDED", Severity.DOWN) if days > 3_650 else ("ENDS_SOON", Severity.DEGRADED)
    )
    (line,) = lines
    assert (line["log_level"], line["event"]) == (level, event)
    assert line["file"] == str(pairs[0].certificate_file)
    metrics.read_gauges()
    assert b"strata_edge_certificate_days_left" in metrics.render()


async def _negotiated(
    port: int, *, only_1_2: bool = False, ciphers: str = "DEFAULT"
) -> tuple[str, str]:
    """Return the cipher and the version that a new connection gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.set_ciphers(ciphers)
    if only_1_2:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    cipher, version, _ = writer.get_extra_info("cipher")
    writer.close()
    return cipher, version


async def test_the_policy_decides_on_versions_and_ciphers(
    pairs: list[Certificate], metrics: Metrics, adapter: Adapter
) -> None:
    """A client gets a suite of the policy or no connection, and none below its lowest version."""
    chosen = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    edge = adapter(
        EdgeOptions(port=0, certificate=pairs[0], tls_policy=TlsPolicy("1.2", (chosen,))), metrics
    )
    port = await edge.start()
    assert await _negotiated(port, only_1_2=True) == (CIPHERS[chosen], "TLSv1.2")
    with pytest.raises(OSError, match=r"(?i)handshake|reset|eof"):
        await _negotiated(port, only_1_2=True, ciphers="ECDHE-ECDSA-AES256-GCM-SHA384")
    await edge.stop(0)
    edge = adapter(
        EdgeOptions(port=0, certificate=pairs[0], tls_policy=TlsPolicy("1.3")), Metrics()
    )
    port = await edge.start()
    assert (await _negotiated(port))[1] == "TLSv1.3"
    with pytest.raises(OSError, match=r"(?i)version|reset|eof"):
        await _negotiated(port, only_1_2=True)
    await edge.stop(0)
