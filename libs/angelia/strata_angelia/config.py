"""The section `[angelia]`: limits of each class of calls between processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from strata_angelia.classes import CallClass
from strata_angelia.options import CLASS_LIMITS, AngeliaOptions, ClassLimits
from strata_angelia.refusals import MAX_REFUSALS_PER_S, AuditedRefusals
from strata_angelia.tls import PeerFiles, PeerTls, TlsMode
from strata_runtime.authority import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from strata_runtime.config import Section
from strata_runtime.errors import ConfigError
from strata_runtime.roles import PeerRole
from strata_runtime.tls_policy import TlsPolicy, TlsVersion


def _calls(call_class: CallClass, what: str) -> int:
    limit: int = Field(
        default=CLASS_LIMITS[call_class].max_calls,
        ge=1,
        description=f"Most calls per connection for {what}; further calls are refused and retried.",
    )
    return limit


def _bytes(call_class: CallClass, what: str) -> int:
    limit: int = Field(
        default=CLASS_LIMITS[call_class].max_bytes,
        ge=1,
        description=f"Most bytes of requests per connection for {what}; further calls wait.",
    )
    return limit


_CONTROL = "raft, membership, metadata and operators"
_RELEASE = "acks and other calls that release messages"
_REPORT = "heartbeats and liveness reports"
_APPEND = "sends"
_READ = "receives and other reads"


class AngeliaSection(Section):
    """Calls between brokers, storage nodes and nameservers."""

    tls: Literal["auto", "off", "optional", "required"] = Field(
        default="auto",
        description="required: mutual TLS with certificates of the cluster's authority; off: "
        "plaintext; optional: both are taken and TLS is tried first, while a cluster changes over; "
        "auto: required where certificates are configured, else off.",
    )
    certificate_folder: str = Field(
        default="",
        description="Folder with tls.crt, tls.key and ca.crt, as `strata cert issue` and a "
        "Kubernetes secret have them; read again when they change.",
    )
    certificate_file: str = Field(
        default="", description="Certificate of the process (PEM), instead of the folder's."
    )
    key_file: str = Field(
        default="", description="Key of it (PEM, without a password), instead of the folder's."
    )
    ca_file: str = Field(
        default="",
        description="Certificates of the authorities that are accepted (PEM), instead of the "
        "folder's; several while one takes the place of another.",
    )
    min_tls_version: TlsVersion = Field(
        default="1.2", description="Lowest version of TLS; the http2 transport takes 1.2 too."
    )
    tls_ciphers: tuple[str, ...] = Field(
        default=(),
        description="Cipher suites of TLS 1.2 by their IANA names, comma-separated; empty: those "
        "that OpenSSL thinks are safe. Not for the http2 transport.",
    )

    max_audited_refusals_per_s: int = Field(
        default=MAX_REFUSALS_PER_S,
        ge=1,
        description="Callers refused for their certificate or its role that become events in "
        "node.audit_file per second; further ones are only counted.",
    )

    max_control_calls: int = _calls(CallClass.CONTROL, _CONTROL)
    max_control_bytes: int = _bytes(CallClass.CONTROL, _CONTROL)
    max_release_calls: int = _calls(CallClass.RELEASE, _RELEASE)
    max_release_bytes: int = _bytes(CallClass.RELEASE, _RELEASE)
    max_report_calls: int = _calls(CallClass.REPORT, _REPORT)
    max_report_bytes: int = _bytes(CallClass.REPORT, _REPORT)
    max_append_calls: int = _calls(CallClass.APPEND, _APPEND)
    max_append_bytes: int = _bytes(CallClass.APPEND, _APPEND)
    max_read_calls: int = _calls(CallClass.READ, _READ)
    max_read_bytes: int = _bytes(CallClass.READ, _READ)

    @field_validator("tls_ciphers", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Accept a comma-separated text too, as environment variables have it."""
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @property
    def has_certificates(self) -> bool:
        """Whether certificates of the cluster are configured."""
        return any((self.certificate_folder, self.certificate_file, self.key_file, self.ca_file))

    @property
    def tls_mode(self) -> TlsMode:
        """Return how the process calls others and is called."""
        if self.tls == "auto":
            return "required" if self.has_certificates else "off"
        return self.tls

    def peer_tls(self, role: PeerRole) -> PeerTls | None:
        """Return the certificates of a process, not yet loaded; None: plaintext.

        Args:
            role: of the process.

        Raises:
            ConfigError: files are missing in the configuration.
        """
        mode = self.tls_mode
        if mode == "off":
            return None
        names = {"certificate_file": CERTIFICATE_FILE, "key_file": KEY_FILE, "ca_file": CA_FILE}
        files: dict[str, Path] = {}
        for key, name in names.items():
            if given := getattr(self, key):
                files[key] = Path(given)
            elif self.certificate_folder:
                files[key] = Path(self.certificate_folder) / name
            else:
                raise ConfigError(
                    f"angelia.tls is {mode} but angelia.{key} is not set: set it or "
                    "angelia.certificate_folder"
                )
        policy = TlsPolicy.checked(self.min_tls_version, self.tls_ciphers)
        refusals = AuditedRefusals(self.max_audited_refusals_per_s)
        return PeerTls(PeerFiles(**files), role, mode, policy=policy, refusals=refusals)

    def options(self, connect_timeout_s: float = 3.0) -> AngeliaOptions:
        """Return the options of a server or a channel.

        Args:
            connect_timeout_s: of a channel.
        """
        classes = {
            CallClass.CONTROL: ClassLimits(self.max_control_calls, self.max_control_bytes),
            CallClass.RELEASE: ClassLimits(self.max_release_calls, self.max_release_bytes),
            CallClass.REPORT: ClassLimits(self.max_report_calls, self.max_report_bytes),
            CallClass.APPEND: ClassLimits(self.max_append_calls, self.max_append_bytes),
            CallClass.READ: ClassLimits(self.max_read_calls, self.max_read_bytes),
        }
        return AngeliaOptions(classes=classes, connect_timeout_s=connect_timeout_s)
