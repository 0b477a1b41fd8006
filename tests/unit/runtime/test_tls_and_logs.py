"""Certificates and log lines."""

from __future__ import annotations

import io
import json
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from strata_runtime import logs, tls
from strata_runtime.errors import ConfigError
from strata_runtime.log_limiter import LogLimiter

TRACE_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _names(certificate: tls.Certificate) -> set[str]:
    kept = x509.load_pem_x509_certificate(certificate.certificate_file.read_bytes())
    extension = kept.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return {str(name.value) for name in extension.value}


def test_self_signed_is_made_once_and_usable(tmp_path: Path) -> None:
    """The certificate names all hosts, loads into a TLS context, and is kept."""
    folder = tmp_path / "tls"
    certificate = tls.self_signed(folder, ["broker.example", "10.0.0.7"])
    names = {"localhost", "127.0.0.1", "::1", "broker.example", "10.0.0.7"}
    assert _names(certificate) == names
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        certificate.certificate_file, certificate.key_file
    )
    assert certificate.key_file.stat().st_mode & 0o777 == 0o600
    before = certificate.certificate_file.read_bytes()
    assert tls.self_signed(folder, ["10.0.0.7"]) == certificate
    assert certificate.certificate_file.read_bytes() == before


def test_self_signed_is_made_again_when_it_does_not_fit(tmp_path: Path) -> None:
    """A new host or a damaged file leads to a new certificate."""
    tls.self_signed(tmp_path)
    assert "new.example" in _names(tls.self_signed(tmp_path, ["new.example"]))
    (tmp_path / "server.crt").write_text("damaged")
    assert _names(tls.self_signed(tmp_path)) == {"localhost", "127.0.0.1", "::1"}


def test_own_files_must_exist(tmp_path: Path) -> None:
    """A missing file of the operator is an error that names it."""
    with pytest.raises(ConfigError, match=r"a\.crt does not exist"):
        tls.own(tmp_path / "a.crt", tmp_path / "a.key")


def test_own_files_must_be_a_pair(tmp_path: Path) -> None:
    """The error names the operator's file and says what is wrong with it."""
    one, two = tls.self_signed(tmp_path / "one"), tls.self_signed(tmp_path / "two")
    assert tls.own(one.certificate_file, one.key_file) == one
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no PEM at all")
    for certificate_file, key_file, reason in (
        (
            one.certificate_file,
            two.key_file,
            f"{two.key_file} is not the key of {one.certificate_file}",
        ),
        (garbage, one.key_file, f"{garbage} holds no certificate"),
        (one.certificate_file, garbage, f"{garbage} holds no key"),
        (one.certificate_file, one.certificate_file, f"{one.certificate_file} holds no key"),
        (one.certificate_file, _with_password(one.key_file), "has a password"),
        (tmp_path, one.key_file, f"{tmp_path} cannot be read: Is a directory"),
    ):
        with pytest.raises(ConfigError) as caught:
            tls.own(certificate_file, key_file)
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)


def _with_password(key_file: Path) -> Path:
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    secret = key_file.with_suffix(".secret")
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    return secret


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    yield io.StringIO()
    structlog.reset_defaults()


def test_json_lines_carry_the_request(stream: io.StringIO) -> None:
    """Off a terminal each line is a JSON object with common keys, request and trace id."""
    logs.configure(stream=stream, process="broker")
    with logs.request_context(request_id="r1", trace_parent=TRACE_PARENT):
        logs.get_logger("edge").info("call", method="Send")
    logs.get_logger("edge").debug("not written")
    (line,) = stream.getvalue().splitlines()
    written = json.loads(line)
    assert written.pop("timestamp").endswith("Z")
    assert written == {
        "event": "call",
        "level": "info",
        "component": "edge",
        "process": "broker",
        "method": "Send",
        "request_id": "r1",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }


def test_unknown_level(stream: io.StringIO) -> None:
    """A level that does not exist is refused."""
    with pytest.raises(ValueError, match="loud"):
        logs.configure(level="loud", stream=stream)


def test_the_level_changes_for_loggers_that_exist(stream: io.StringIO) -> None:
    """Lines below the new level are not written any more; the level before is returned."""
    logs.configure(level="info", stream=stream)
    logger = logs.get_logger("edge")
    assert logs.set_level("error") == "info"
    logger.warning("not written")
    logger.error("written")
    assert logs.set_level("debug") == "error"
    logger.debug("written too")
    assert logs.set_level("info") == "debug"
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["written", "written too"]
    with pytest.raises(ValueError, match="loud"):
        logs.set_level("loud")


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_stack_shows_no_values(stream: io.StringIO, log_format: logs.LogFormat) -> None:
    """A logged exception carries its frames and nothing of what their variables hold."""
    logs.configure(stream=stream, log_format=log_format)

    def sign(body: str) -> None:
        key = f"key of {body}"
        raise ValueError(len(key))

    try:
        sign("SECRET".lower())
    except ValueError as error:
        logs.get_logger("edge").error("request failed", exc_info=error)
    written = stream.getvalue()
    assert "ValueError" in written
    assert "sign" in written
    assert "secret" not in written


def test_a_flood_of_one_event_is_a_few_lines(stream: io.StringIO) -> None:
    """Some of 1,000 equal failures are written; another event and informative lines all are."""
    logs.configure(stream=stream)
    logger = logs.get_logger("edge")
    for number in range(1_000):
        logger.error("request failed", number=number, exc_info=ValueError("broken"))
        logger.warning("slow", number=number)
        logger.info("told", number=number)
    logger.error("another failure", exc_info=ValueError("broken"))
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events.count("request failed") == 5
    assert events.count("slow") == 100
    assert events.count("told") == 1_000
    assert events.count("another failure") == 1


def test_the_next_line_says_how_many_were_left_out() -> None:
    """After the interval an event is written again, with the number of those that were not."""
    now_s = 0.0
    limiter = LogLimiter(max_lines=2, max_stacks=1, interval_s=10.0, monotonic_s=lambda: now_s)
    first = [limiter.admit("edge", "slow", stack=False) for _ in range(5)]
    now_s = 9.9
    before = limiter.admit("edge", "slow", stack=False)
    now_s = 10.0
    after = [limiter.admit("edge", "slow", stack=False) for _ in range(2)]
    assert (first, before, after) == ([0, 0, None, None, None], None, [4, 0])


def test_lines_of_libraries_are_limited_too(stream: io.StringIO) -> None:
    """Grpc's stacks are written a few times; that a caller has gone is no failure at all."""
    logs.configure(stream=stream)
    library = logging.getLogger("grpc._cython.cygrpc")
    for _ in range(100):
        failure = ValueError("broken")
        library.error("Unexpected [%s]", "ValueError", exc_info=failure)
        library.error("ExecuteBatchError raised in core by servicer method [/a]", exc_info=failure)
    written = stream.getvalue()
    assert written.count("Unexpected [ValueError]") == 5
    assert "ExecuteBatchError" not in written
