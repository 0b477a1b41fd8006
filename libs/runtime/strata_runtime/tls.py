"""Server certificates: the operator's own, or a self-signed one made at the first start.

RocketMQ's Java, Go and C# clients use TLS by default and do not verify, so a node must have a
certificate even if the operator made none. The operator's files always win and are never written
to.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from strata_runtime.errors import ConfigError, one_line
from strata_runtime.files import replace_file

_VALID_DAYS = 3_650
_BACKDATED_DAYS = 1  # a client's clock may be behind


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of a server."""

    certificate_file: Path
    key_file: Path


def own(certificate_file: Path, key_file: Path) -> Certificate:
    """The operator's files.

    Raises:
        ConfigError: a file is missing or not what it should be, or they are no pair.
    """
    certificate = Certificate(certificate_file, key_file)
    check(certificate)
    return certificate


def check(certificate: Certificate) -> None:
    """Check that the files are a pair that a server can use.

    Raises:
        ConfigError: they are not; the message names the file and what is wrong with it.
    """
    first = read_certificate(certificate.certificate_file)
    key = read_key(certificate.key_file)
    if first.public_key() != key.public_key():
        raise ConfigError(
            f"TLS file {certificate.key_file} is not the key of {certificate.certificate_file}"
        )
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate_file, certificate.key_file, password="")
    except OSError as error:
        reason = one_line(error)
        raise ConfigError(
            f"TLS file {certificate.certificate_file} cannot be used: {reason}"
        ) from error


def ends_ms(certificate: Certificate) -> int:
    """Return the wall time in ms at which a certificate ends.

    Raises:
        ConfigError: it cannot be read.
    """
    ends = read_certificate(certificate.certificate_file).not_valid_after_utc
    return int(ends.timestamp() * 1_000)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"TLS file {file} does not exist") from None
    except OSError as error:
        raise ConfigError(f"TLS file {file} cannot be read: {error.strerror}") from None


def read_certificate(file: Path) -> x509.Certificate:
    """Return the certificate in a file, the first of a chain.

    Raises:
        ConfigError: there is none.
    """
    data = _read(file)
    try:
        return x509.load_pem_x509_certificates(data)[0]
    except ValueError:
        raise ConfigError(f"TLS file {file} holds no certificate (PEM)") from None


def read_key(file: Path) -> PrivateKeyTypes:
    """Return the key in a file.

    Raises:
        ConfigError: there is none, or it has a password.
    """
    data = _read(file)
    try:
        return serialization.load_pem_private_key(data, password=None)
    except TypeError:
        raise ConfigError(f"TLS file {file} has a password; give a key without one") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"TLS file {file} holds no key (PEM)") from None


def self_signed(folder: Path, hosts: Iterable[str] = ()) -> Certificate:
    """The self-signed certificate kept in `folder`, made if it is not there or does not fit.

    Blocking; called before the node serves.

    Args:
        folder: made if missing; the key file is readable by its owner only.
        hosts: advertised names and addresses, beside localhost, 127.0.0.1 and ::1.
    """
    certificate = Certificate(folder / "server.crt", folder / "server.key")
    names = sorted({"localhost", "127.0.0.1", "::1", *hosts})
    if _fits(certificate, names):
        return certificate
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    signed = _sign(key, names)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    # The key first: a certificate in place means that both files are.
    replace_file(certificate.key_file, key_pem, mode=0o600)
    replace_file(
        certificate.certificate_file,
        signed.public_bytes(serialization.Encoding.PEM),
        mode=0o644,
    )
    return certificate


def _sign(key: ec.EllipticCurvePrivateKey, names: list[str]) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "strata")])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=_BACKDATED_DAYS))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(map(general_name, names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _fits(certificate: Certificate, names: list[str]) -> bool:
    """Whether the kept files are complete, not expired and name all hosts."""
    if not (certificate.certificate_file.is_file() and certificate.key_file.is_file()):
        return False
    try:
        kept = x509.load_pem_x509_certificate(certificate.certificate_file.read_bytes())
        extension = kept.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound):
        return False
    if kept.not_valid_after_utc <= datetime.datetime.now(datetime.UTC):
        return False
    return {general_name(name) for name in names} <= set(extension.value)


def general_name(name: str) -> x509.GeneralName:
    """Return a host as a certificate names it: an IP address, or a name of the DNS."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
