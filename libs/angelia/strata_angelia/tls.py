"""Mutual TLS between the processes of a cluster: their certificates, checked and read again.

Every process has a certificate of the cluster's own authority, with its role and its hosts. Each
end of a connection checks that the other end's certificate is of that authority; a caller checks
the host, and both ends check the role for each RPC (`roles`). New files are taken for new
connections; connections that exist stay as they are. The file of the authority may hold several
authorities, while one takes the place of another.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from cryptography import x509

from strata_angelia.ports import AngeliaError
from strata_angelia.refusals import AuditedRefusals
from strata_runtime import tls
from strata_runtime.authority import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    CertificateFacts,
    facts_of,
    is_issued_by,
)
from strata_runtime.errors import ConfigError, one_line
from strata_runtime.roles import PeerRole, role_of
from strata_runtime.tls_policy import TlsPolicy

_MAX_PEERS = 1_000  # a cluster has fewer; the oldest is forgotten above this

TlsMode: TypeAlias = Literal["off", "optional", "required"]
"""off: plaintext. optional: a server takes both, a caller tries TLS first. required: TLS only."""


@dataclass(frozen=True, slots=True)
class PeerFiles:
    """PEM files of a process.

    Attributes:
        certificate_file: its certificate.
        key_file: the key of that, without a password.
        ca_file: certificates of the authorities whose certificates are accepted.
    """

    certificate_file: Path
    key_file: Path
    ca_file: Path

    @classmethod
    def in_folder(cls, folder: Path) -> PeerFiles:
        """Return the files in a folder, by the names that Kubernetes secrets use."""
        return cls(folder / CERTIFICATE_FILE, folder / KEY_FILE, folder / CA_FILE)

    @property
    def certificate(self) -> tls.Certificate:
        """Certificate and key."""
        return tls.Certificate(self.certificate_file, self.key_file)

    @property
    def all(self) -> tuple[Path, ...]:
        """All files."""
        return (self.certificate_file, self.key_file, self.ca_file)


@dataclass(frozen=True, slots=True)
class PeerCredentials:
    """The content of the files at one moment.

    Attributes:
        number: of the reading, from 1.
        facts: about the own certificate.
        server: for connections that are accepted.
        client: for connections that are made.
        certificate_pem: the own certificate.
        key_pem: its key.
        ca_pem: the authorities.
    """

    number: int
    facts: CertificateFacts
    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate_pem: bytes
    key_pem: bytes
    ca_pem: bytes


class PeerTls:
    """The certificates of a process; one object for all its channels and servers.

    Args:
        files: read by `load`.
        role: of the process: its certificate must have it.
        mode: optional or required.
        policy: lowest version and ciphers.
        refusals: is told of callers that are refused.
    """

    def __init__(
        self,
        files: PeerFiles,
        role: PeerRole,
        mode: TlsMode = "required",
        *,
        policy: TlsPolicy | None = None,
        refusals: AuditedRefusals | None = None,
    ) -> None:
        self.files = files
        self.role = role
        self.mode = mode
        self.policy = policy or TlsPolicy()
        self.refusals = refusals or AuditedRefusals()
        self._credentials: PeerCredentials | None = None
        # End of the certificate of each server that was connected to, by endpoint.
        self.peer_ends_ms: dict[str, int] = {}

    def met(self, endpoint: str, ssl_object: ssl.SSLObject | ssl.SSLSocket) -> None:
        """Note when the certificate of a server ends."""
        certificate: Mapping[str, Any] = ssl_object.getpeercert() or {}
        if ends := certificate.get("notAfter"):
            self.peer_ends_ms.pop(endpoint, None)
            while len(self.peer_ends_ms) >= _MAX_PEERS:
                self.peer_ends_ms.pop(next(iter(self.peer_ends_ms)))
            self.peer_ends_ms[endpoint] = int(ssl.cert_time_to_seconds(ends) * 1_000)

    @property
    def credentials(self) -> PeerCredentials:
        """The material of new connections; `load` comes first."""
        assert self._credentials is not None, "load comes first"
        return self._credentials

    def load(self) -> PeerCredentials:
        """Read the files; what was read before stays if they cannot be used. Blocking.

        Raises:
            ConfigError: they cannot be used; the message names the file and is one line.
        """
        files, before = self.files, self._credentials
        tls.check(files.certificate)
        authorities = _read_authorities(files.ca_file)
        certificate = tls.read_certificate(files.certificate_file)
        facts = facts_of(certificate)
        self._check(facts)
        if not is_issued_by(certificate, authorities):
            raise ConfigError(
                f"TLS file {files.certificate_file} is not signed by an authority in "
                f"{files.ca_file}"
            )
        try:
            loaded = PeerCredentials(
                before.number + 1 if before is not None else 1,
                facts,
                self._context(ssl.PROTOCOL_TLS_SERVER),
                self._context(ssl.PROTOCOL_TLS_CLIENT),
                files.certificate_file.read_bytes(),
                files.key_file.read_bytes(),
                files.ca_file.read_bytes(),
            )
        except OSError as error:
            raise ConfigError(
                f"TLS file {files.certificate_file} cannot be used: {one_line(error)}"
            ) from error
        self._credentials = loaded
        return loaded

    def _check(self, facts: CertificateFacts) -> None:
        file = self.files.certificate_file
        if facts.role is not self.role:
            found = f"is of {facts.role.described}" if facts.role else "names no role"
            raise ConfigError(f"TLS file {file} {found}; this process is {self.role.described}")
        now = datetime.datetime.now(datetime.UTC)
        if facts.not_after <= now:
            raise ConfigError(
                f"TLS file {file} has expired on {facts.not_after:%Y-%m-%d %H:%M} UTC"
            )
        if facts.not_before > now:
            raise ConfigError(
                f"TLS file {file} is not valid before {facts.not_before:%Y-%m-%d %H:%M} UTC"
            )

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.verify_mode = ssl.CERT_REQUIRED
        context.check_hostname = protocol == ssl.PROTOCOL_TLS_CLIENT
        self.policy.restrict(context)
        context.load_cert_chain(self.files.certificate_file, self.files.key_file, password="")
        context.load_verify_locations(self.files.ca_file)
        # The authority may be signed by another one, whose other certificates are of no concern.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if protocol == ssl.PROTOCOL_TLS_CLIENT:
            context.set_alpn_protocols(["h2"])  # gRPC insists; the tcp transport has no opinion
        else:
            # Connections last: nobody resumes a session, which would pass over a new authority.
            context.num_tickets = 0
        return context


def _read_authorities(file: Path) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"TLS file {file} does not exist") from None
    except OSError as error:
        raise ConfigError(f"TLS file {file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"TLS file {file} holds no certificate (PEM)") from None
    for authority in found:
        if not facts_of(authority).is_authority:
            raise ConfigError(f"TLS file {file} holds a certificate that may not sign others")
    return found


_REASONS = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate was not accepted",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the authority of this process's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that this process's certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this process's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this process's certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "it does not accept this process's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it takes no TLS version of this process",
    "UNSUPPORTED_PROTOCOL": "it speaks a TLS version that is too old",
    "NO_SHARED_CIPHER": "it has no TLS cipher of this process",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
}
"""The reason that OpenSSL gives, in words; of the other end of a connection."""

_VERIFY_REASONS = {
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet",
    "self-signed certificate": "its certificate is not of this cluster's authority",
    "self-signed certificate in certificate chain": (
        "its certificate is not of this cluster's authority"
    ),
    "unable to get local issuer certificate": "its certificate is not of this cluster's authority",
    "certificate signature failure": "its certificate is not of this cluster's authority",
}

_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_MESSAGE"})


def speaks_no_tls(error: OSError) -> bool:
    """Whether a failed handshake looks as if the server spoke plaintext only."""
    if isinstance(error, ssl.SSLError):
        return error.reason in _NOT_TLS
    # An older server closes the connection at the first bytes that it does not understand.
    return isinstance(error, (ConnectionResetError, ConnectionAbortedError))


class RefusedByServer(ConnectionError):
    """A server ended the connection right after the handshake: it takes no such certificate.

    Servers do not say more to a stranger; their own log does.
    """


def refused_by_server(tls: PeerTls) -> RefusedByServer:
    """Return the error of a caller whose connection was closed after the handshake."""
    facts = tls.credentials.facts
    if facts.not_after <= datetime.datetime.now(datetime.UTC):
        ended = f"{facts.not_after:%Y-%m-%d %H:%M} UTC"
        return RefusedByServer(f"this process's certificate has expired on {ended}")
    return RefusedByServer(
        f"it does not accept this process's certificate, which {facts.issuer!r} signed; "
        "the log there says why"
    )


def tls_reason(error: BaseException) -> str:
    """Return in one line why a handshake with a peer failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_message.startswith(("Hostname mismatch", "IP address mismatch")):
            return f"its certificate is of another host: {error.verify_message}"
        return _VERIFY_REASONS.get(error.verify_message, error.verify_message)
    if isinstance(error, ssl.SSLError) and error.reason:
        return _REASONS.get(error.reason, error.reason.replace("_", " ").lower())
    if isinstance(error, AngeliaError):
        return error.reason
    return one_line(error) or type(error).__name__


def role_of_peer(ssl_object: ssl.SSLObject | ssl.SSLSocket) -> PeerRole | None:
    """Return the role in the certificate of the other end of a connection; None: it names none."""
    certificate: Mapping[str, Any] = ssl_object.getpeercert() or {}
    names = certificate.get("subjectAltName", ())
    return role_of([value for kind, value in names if kind == "URI"])
