"""The cluster's own certificate authority: made once, it signs the certificates of all processes.

    folder of the authority: ca.crt, ca.key
    folder of a process:     tls.crt, tls.key, ca.crt, the names of a Kubernetes secret

Keys are P-256, readable by their owner only and without a password. Blocking.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from strata_runtime.errors import ConfigError, StrataError
from strata_runtime.files import replace_file
from strata_runtime.roles import PeerRole, role_of
from strata_runtime.tls import (
    general_name,
    read_certificate,
    read_key,
)

CA_FILE = "ca.crt"
CA_KEY_FILE = "ca.key"
CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"

CA_DAYS = 3_650
DAYS = 365

_BACKDATED = datetime.timedelta(days=1)  # a peer's clock may be behind
_MAX_NAME_CHARACTERS = 64


class AuthorityError(StrataError):
    """A certificate that cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """The statements of a certificate.

    Attributes:
        subject: its common name.
        issuer: common name of who signed it.
        role: None: it names none; it is no certificate of a process.
        hosts: names and addresses under which its holder is reached.
        is_authority: whether it may sign others.
        not_before: the beginning of its time.
        not_after: the end of its time.
    """

    subject: str
    issuer: str
    role: PeerRole | None
    hosts: tuple[str, ...]
    is_authority: bool
    not_before: datetime.datetime
    not_after: datetime.datetime

    def days_left(self, now: datetime.datetime) -> float:
        """Return the days until it ends; less than 0 when it has."""
        return (self.not_after - now) / datetime.timedelta(days=1)


def make_authority(folder: Path, *, name: str = "", days: int = CA_DAYS) -> Path:
    """Make an authority in a folder; return the file of its certificate.

    Args:
        folder: made if missing; holds no authority yet.
        name: of the authority, as certificates show it; empty: one that no other authority has.
        days: for which it is valid.

    Raises:
        AuthorityError: the folder holds one already, or it cannot be written.
    """
    certificate_file, key_file = folder / CA_FILE, folder / CA_KEY_FILE
    for file in (certificate_file, key_file):
        if file.exists():
            raise AuthorityError(f"{file} exists: an authority is never replaced in its folder")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name or f"strata cluster {secrets.token_hex(4)}")
    certificate = (
        _builder(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder, {key_file: _pem_of_key(key)}, {certificate_file: _pem(certificate)})
    return certificate_file


def issue(
    authority: Path, folder: Path, role: PeerRole, hosts: Sequence[str], *, days: int = DAYS
) -> Path:
    """Issue a certificate with a new key; return its file.

    Files of an earlier certificate are replaced; a process that uses them takes the new ones.

    Args:
        authority: folder of the authority.
        folder: where the files are put; made if missing.
        role: of the holder.
        hosts: names and addresses under which the holder is reached; needed for servers.
        days: for which it is valid, at most as long as the authority's own.

    Raises:
        AuthorityError: a server without hosts, or files that cannot be written.
        ConfigError: the authority cannot be read.
    """
    if not hosts and role not in (PeerRole.CLIENT, PeerRole.ADMIN):
        raise AuthorityError(f"a {role} certificate needs hosts: others check who answers them")
    issuer = read_certificate(authority / CA_FILE)
    issuer_key = read_key(authority / CA_KEY_FILE)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"TLS file {authority / CA_KEY_FILE} is no elliptic curve key")
    if issuer.public_key() != issuer_key.public_key():
        raise ConfigError(f"TLS file {authority / CA_KEY_FILE} is not the key of {CA_FILE} there")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name((hosts[0] if hosts else role)[:_MAX_NAME_CHARACTERS])
    public_of_issuer = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(role.uri)]
    try:
        names += map(general_name, dict.fromkeys(hosts))
    except ValueError as error:
        raise AuthorityError(f"a host cannot stand in a certificate: {error}") from None
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), days, issuer.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(
            # A process calls others and is called by them.
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(public_of_issuer),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    _write(
        folder,
        {folder / KEY_FILE: _pem_of_key(key)},
        {folder / CERTIFICATE_FILE: _pem(certificate), folder / CA_FILE: _pem(issuer)},
    )
    return folder / CERTIFICATE_FILE


def facts_of(certificate: x509.Certificate) -> CertificateFacts:
    """Return what a certificate says."""
    hosts: tuple[str, ...] = ()
    uris: list[str] = []
    is_authority = False
    for extension in certificate.extensions:
        value = extension.value
        if isinstance(value, x509.SubjectAlternativeName):
            uris = value.get_values_for_type(x509.UniformResourceIdentifier)
            addresses = map(str, value.get_values_for_type(x509.IPAddress))
            hosts = (*value.get_values_for_type(x509.DNSName), *addresses)
        elif isinstance(value, x509.BasicConstraints):
            is_authority = value.ca
    return CertificateFacts(
        _common_name(certificate.subject),
        _common_name(certificate.issuer),
        role_of(uris),
        hosts,
        is_authority,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )


def is_issued_by(certificate: x509.Certificate, authorities: Collection[x509.Certificate]) -> bool:
    """Whether one of the authorities signed a certificate."""
    return any(_signed(certificate, authority) for authority in authorities)


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    at_most: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    ends = now + datetime.timedelta(days=days)
    if at_most is not None:
        ends = min(ends, at_most)
    # One that ends in the past serves tests and drills.
    begins = min(now, ends) - _BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string()


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(folder: Path, secret: dict[Path, bytes], public: dict[Path, bytes]) -> None:
    """Write files, those that are secret first and for their owner only."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in secret.items():
            replace_file(file, content, mode=0o600)
        for file, content in public.items():
            replace_file(file, content, mode=0o644)
    except OSError as error:
        raise AuthorityError(f"{error.filename or folder}: {error.strerror}") from None
